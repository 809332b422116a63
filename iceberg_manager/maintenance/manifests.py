"""Reads manifest lists and manifests with DuckDB, several times faster than Python can, and adds up inside DuckDB.

Manifests of one partition spec are read together. What DuckDB cannot read so (manifests of format v1, or paths with
characters that it takes for patterns) is read by PyIceberg instead, slower, with the same answers.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DateType

from iceberg_manager.duckdb_text import quoted
from iceberg_manager.errors import LakeError, first_line
from iceberg_manager.maintenance.uris import canonical

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa

_ROWS = 10_000
_PATTERN = frozenset("*?[")
_COLUMNS = (
    "coalesce(data_file.content, 0) AS content, data_file.partition AS part, data_file.file_size_in_bytes AS size, "
    "data_file.record_count AS rows, data_file.sort_order_id AS sort_order, "
    "data_file.lower_bounds AS lows, data_file.upper_bounds AS highs, data_file.file_path AS path"
)


@dataclass(frozen=True)
class ManifestRow:
    """One manifest as its snapshot's list has it; ``low`` and ``high`` bound its first partition field."""

    path: str
    size: int
    spec_id: int
    low: bytes | None
    high: bytes | None


def read_list(connection: "duckdb.DuckDBPyConnection", table: Table, snapshot: Snapshot) -> list[ManifestRow]:
    """A snapshot's manifests."""
    import duckdb

    path = canonical(snapshot.manifest_list)
    if not _PATTERN.intersection(path):
        try:
            rows = connection.execute(
                "SELECT manifest_path, manifest_length, partition_spec_id, partitions[1].lower_bound, "
                f"partitions[1].upper_bound FROM read_avro({quoted(path)})"
            ).fetchall()
            return [ManifestRow(*row) for row in rows]
        except duckdb.Error:
            pass  # PyIceberg reads it, or says what is wrong with it
    with _damage(table, f"the manifest list {path}"):
        return [_row(one) for one in snapshot.manifests(table.io)]


def entries(connection: "duckdb.DuckDBPyConnection", table: Table, listed: list[ManifestRow]) -> "list[Entries]":
    """The live files of these manifests, a group for each partition spec."""
    grouped: dict[int, list[ManifestRow]] = {}
    for one in listed:
        grouped.setdefault(one.spec_id, []).append(one)
    return [Entries(connection, table, table.specs()[spec_id], group) for spec_id, group in grouped.items()]


class Partitions:
    """Some partitions, each whole."""

    def __init__(self, spec: PartitionSpec, batch: "pa.RecordBatch") -> None:
        self._spec, self._batch = spec, batch

    def counts(self) -> Iterator[tuple[Any, ...]]:
        """Spec id, values, files, bytes, rows, small files, their bytes, delete files, unsorted files."""
        names = [field.name for field in self._spec.fields]
        columns = [column for column in self._batch.schema.names if column != "listed"]
        for part, *counts in zip(*(self._batch[column].to_pylist() for column in columns), strict=True):
            # By place: Avro spells some names differently.
            values = dict(zip(names, part.values(), strict=True)) if names else {}
            yield (self._spec.spec_id, values, *counts)

    def bounds(self, column: int) -> "tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[bytes], list[bytes]]":
        """For each data file with bounds of the column: its partition as a number, its size, its lower and upper bound."""
        import pyarrow.compute as pc

        listed = self._batch["listed"]
        files, parts = listed.flatten(), pc.list_parent_indices(listed)
        size, low, high = (files.field(name) for name in ("size", f"low_{column}", f"high_{column}"))
        known = pc.and_(low.is_valid(), high.is_valid())
        return (
            parts.filter(known).to_numpy(),
            size.filter(known).to_numpy(),
            low.filter(known).to_pylist(),
            high.filter(known).to_pylist(),
        )


class Entries:
    """The live files of some manifests of one partition spec, not held but read for each question."""

    def __init__(
        self, connection: "duckdb.DuckDBPyConnection", table: Table, spec: PartitionSpec, listed: list[ManifestRow]
    ) -> None:
        self._connection, self._table, self._spec, self._listed = connection, table, spec, listed
        paths = [canonical(one.path) for one in listed]
        listing = ", ".join(quoted(path) for path in paths)
        self._source = f"(SELECT {_COLUMNS} FROM read_avro([{listing}]) WHERE status < 2)"
        self._by_duckdb = not any(_PATTERN.intersection(path) for path in paths)
        self._read: pa.Table | None = None

    def partitions(self, small: int, sort_order: int, columns: Collection[int] = ()) -> Iterator[Partitions]:
        """Live files added up by partition, with each data file's bounds of these columns. All of it is read once."""
        bounds = "".join(
            f", low_{int(one)} := lows[{int(one)}], high_{int(one)} := highs[{int(one)}]" for one in columns
        )
        listed = f", list(struct_pack(size := size{bounds})) FILTER (content = 0) AS listed" if columns else ""
        found = self._ask(
            "SELECT part, count(*) FILTER (content = 0) AS files, "
            "coalesce(sum(size) FILTER (content = 0), 0)::BIGINT AS bytes, "
            "coalesce(sum(rows) FILTER (content = 0), 0)::BIGINT AS rows, "
            f"count(*) FILTER (content = 0 AND size < {int(small)}) AS small, "
            f"coalesce(sum(size) FILTER (content = 0 AND size < {int(small)}), 0)::BIGINT AS small_bytes, "
            "count(*) FILTER (content > 0) AS deletes, "
            f"count(*) FILTER (content = 0 AND sort_order IS DISTINCT FROM {int(sort_order)}) AS unsorted"
            f"{listed} FROM {{source}} GROUP BY part"
        )
        for batch in found.to_batches(max_chunksize=_ROWS):
            yield Partitions(self._spec, batch)

    def paths(self) -> Iterator[str]:
        """Every live file's address, as it was written."""
        found = self._ask("SELECT path FROM {source}")
        for batch in found.to_batches(max_chunksize=_ROWS):
            yield from batch["path"].to_pylist()

    def _ask(self, question: str) -> "pa.Table":
        import duckdb

        if self._by_duckdb:
            try:
                return self._connection.execute(question.format(source=self._source)).to_arrow_table()
            except duckdb.Error:
                self._by_duckdb = False
        if self._read is None:
            self._read = self._by_pyiceberg()
        self._connection.register("manifest_entries", self._read)
        return self._connection.execute(question.format(source="manifest_entries")).to_arrow_table()

    def _by_pyiceberg(self) -> "pa.Table":
        import pyarrow as pa

        wanted = {one.path for one in self._listed}
        rows = []
        for path in wanted:
            with _damage(self._table, f"the manifest {path}"):
                rows += [self._file(file) for file in _files(self._table, path)]
        bounds = pa.map_(pa.int32(), pa.binary())
        schema = {"content": pa.int32(), "size": pa.int64(), "rows": pa.int64(), "sort_order": pa.int32(),
                  "lows": bounds, "highs": bounds, "path": pa.string()}  # fmt: skip
        columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in schema.items()}
        return pa.table({**columns, "part": pa.array([row["part"] for row in rows])})

    def _file(self, file: DataFile) -> dict[str, Any]:
        kinds = [field.field_type for field in self._spec.partition_type(self._table.schema()).fields]
        values = [_value(file.partition[place], kind) for place, kind in enumerate(kinds)]
        return {
            "content": int(file.content),
            "part": {field.name: value for field, value in zip(self._spec.fields, values, strict=True)} or None,
            "size": file.file_size_in_bytes,
            "rows": file.record_count,
            "sort_order": file.sort_order_id,
            "lows": list((file.lower_bounds or {}).items()),
            "highs": list((file.upper_bounds or {}).items()),
            "path": file.file_path,
        }


def _row(one: ManifestFile) -> ManifestRow:
    first = one.partitions[0] if one.partitions else None
    low, high = (first.lower_bound, first.upper_bound) if first else (None, None)
    return ManifestRow(one.manifest_path, one.manifest_length, one.partition_spec_id, low, high)


def _files(table: Table, path: str) -> list[DataFile]:
    """PyIceberg hands down some of a list's fields to the entries; those asked for here are the entries' own."""
    manifest = ManifestFile.from_args(
        manifest_path=path, manifest_length=0, partition_spec_id=0, content=0, sequence_number=0, min_sequence_number=0,
        added_snapshot_id=0,
    )  # fmt: skip
    return [entry.data_file for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)]


def _value(value: Any, kind: Any) -> Any:
    return date(1970, 1, 1) + timedelta(days=value) if isinstance(kind, DateType) and isinstance(value, int) else value


@contextmanager
def _damage(table: Table, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise LakeError(
            f"{'.'.join(table.name())}: {what} cannot be read ({first_line(error)}). Nothing was changed; restore that "
            "file, or roll the table back to a snapshot without it."
        ) from error
