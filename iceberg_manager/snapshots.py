"""A table's snapshots, branches and files as plain facts for people: who made what, when, and what it holds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.catalog import load_table
from iceberg_manager.errors import LakeError
from iceberg_manager.history import main_line, summary
from iceberg_manager.names import TableName
from iceberg_manager.references import Reference, references, row_changes
from iceberg_manager.schemas import type_text

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SnapshotInfo:
    """One snapshot. ``on_main`` is False for those of other branches and those that a rollback undid."""

    id: int
    parent_id: int | None
    time: datetime
    operation: str
    rows_added: int
    rows_removed: int
    total_rows: int
    total_files: int
    total_bytes: int
    schema_id: int | None
    on_main: bool
    references: tuple[str, ...]
    run_id: str | None
    summary: Mapping[str, str]


@dataclass(frozen=True)
class TableInfo:
    """A table as it is now."""

    name: str
    location: str
    format_version: int
    columns: list[dict[str, Any]]
    partition_by: list[str]
    sort_by: list[str]
    key: list[str]
    rows: int
    files: int
    bytes: int
    snapshots: int
    current_snapshot: int | None
    changed: datetime | None
    references: list[Reference]
    properties: dict[str, str]


def snapshot_info(table: Table, snapshot: Snapshot) -> SnapshotInfo:
    line = {one.snapshot_id for one in main_line(table)}
    return _info(snapshot, line, _names(table))


def list_snapshots(table: Table) -> list[SnapshotInfo]:
    """Every snapshot that is retained, oldest first."""
    line, names = {one.snapshot_id for one in main_line(table)}, _names(table)
    ordered = sorted(table.metadata.snapshots, key=lambda one: (one.sequence_number or 0, one.timestamp_ms))
    return [_info(snapshot, line, names) for snapshot in ordered]


def table_overview(catalog: Catalog, names: Sequence[TableName]) -> list[dict[str, Any]]:
    """One line a table, for people; one that cannot be read says why."""
    lines: list[dict[str, Any]] = []
    for name in names:
        try:
            found = describe(load_table(catalog, name))
        except LakeError as error:
            empty = dict.fromkeys(("rows", "files", "bytes", "snapshots", "changed"))
            lines.append({"table": str(name), **empty, "problem": str(error)})
            continue
        counts = {"rows": found.rows, "files": found.files, "bytes": found.bytes, "snapshots": found.snapshots}
        lines.append({"table": str(name), **counts, "changed": found.changed, "problem": None})
    return lines


def snapshot_overview(table: Table) -> list[dict[str, Any]]:
    """One line a snapshot, for people."""
    found = {one.snapshot_id: one for one in table.metadata.snapshots}
    return [
        {"snapshot": str(one.id), "time (UTC)": _shown(one.time), "operation": one.operation,
         "change": row_changes(found[one.id]), "rows": one.total_rows, "refs": ", ".join(one.references) or _line(one)}
        for one in list_snapshots(table)
    ]  # fmt: skip


def _line(one: SnapshotInfo) -> str:
    return "" if one.on_main else "(not on main)"


def _shown(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S}" if moment else "never"


def describe(table: Table) -> TableInfo:
    snapshot, schema = table.current_snapshot(), table.schema()
    said = summary(snapshot) if snapshot else {}
    return TableInfo(
        name=".".join(table.name()),
        location=table.location(),
        format_version=table.metadata.format_version,
        columns=[
            {"id": field.field_id, "name": field.name, "type": type_text(field.field_type), "required": field.required,
             "doc": field.doc or ""}
            for field in schema.fields
        ],
        partition_by=[_transform(part.transform, schema, part.source_id) for part in table.spec().fields],
        sort_by=[
            f"{_transform(part.transform, schema, part.source_id)} {str(part.direction).split('.')[-1].lower()}"
            for part in table.sort_order().fields
        ],
        key=[str(schema.find_column_name(field)) for field in schema.identifier_field_ids],
        rows=int(said.get("total-records", 0)),
        files=int(said.get("total-data-files", 0)),
        bytes=int(said.get("total-files-size", 0)),
        snapshots=len(table.metadata.snapshots),
        current_snapshot=snapshot.snapshot_id if snapshot else None,
        changed=_time(snapshot) if snapshot else None,
        references=references(table),
        properties=dict(table.properties),
    )  # fmt: skip


def files(table: Table, snapshot: Snapshot | None, partition: str | None = None) -> "pa.Table":
    """The data and delete files of a snapshot; ``partition`` keeps those whose partition text holds it."""
    import pyarrow as pa

    rows = [
        {"path": file.file_path, "partition": where, "content": _CONTENT[file.content], "rows": file.record_count,
         "bytes": file.file_size_in_bytes}
        for file, where in _entries(table, snapshot)
        if partition is None or partition in where.split("/") or partition == where
    ]  # fmt: skip
    numbers, texts = (
        dict.fromkeys(("rows", "bytes"), pa.int64()),
        dict.fromkeys(("path", "partition", "content"), pa.string()),
    )
    return pa.Table.from_pylist(rows, schema=pa.schema(texts | numbers))


def partitions(table: Table, snapshot: Snapshot | None) -> "pa.Table":
    """Files, rows and bytes of each partition, largest first."""
    import pyarrow.compute as pc

    found = files(table, snapshot)
    data = found.filter(pc.equal(found["content"], "data"))
    grouped = data.group_by("partition").aggregate([("path", "count"), ("rows", "sum"), ("bytes", "sum")])
    named = grouped.rename_columns(["partition", "files", "rows", "bytes"])
    return named.sort_by([("bytes", "descending"), ("partition", "ascending")])


_CONTENT = {
    DataFileContent.DATA: "data",
    DataFileContent.POSITION_DELETES: "position deletes",
    DataFileContent.EQUALITY_DELETES: "equality deletes",
}


def _entries(table: Table, snapshot: Snapshot | None) -> Iterator[tuple[DataFile, str]]:
    specs, schema = table.specs(), table.schema()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        spec = specs[manifest.partition_spec_id]
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file, _path(spec, entry.data_file, schema)


def _path(spec: PartitionSpec, file: DataFile, schema: Schema) -> str:
    return spec.partition_to_path(file.partition, schema) if spec.fields else ""


def _info(snapshot: Snapshot, line: set[int], names: dict[int, list[str]]) -> SnapshotInfo:
    said = summary(snapshot)
    return SnapshotInfo(
        id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        time=_time(snapshot),
        operation=snapshot.summary.operation.value if snapshot.summary else "",
        rows_added=int(said.get("added-records", 0)),
        rows_removed=int(said.get("deleted-records", 0)),
        total_rows=int(said.get("total-records", 0)),
        total_files=int(said.get("total-data-files", 0)),
        total_bytes=int(said.get("total-files-size", 0)),
        schema_id=snapshot.schema_id,
        on_main=snapshot.snapshot_id in line,
        references=tuple(names.get(snapshot.snapshot_id, ())),
        run_id=said.get("iceberg-assets.run-id"),
        summary=said,
    )


def _names(table: Table) -> dict[int, list[str]]:
    names: dict[int, list[str]] = {}
    for ref in references(table):
        names.setdefault(ref.snapshot_id, []).append(ref.name)
    return names


def _time(snapshot: Snapshot) -> datetime:
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def _transform(transform: Any, schema: Schema, source: int) -> str:
    """As a spec would say it: ``day(ts)``, ``bucket(16, id)`` or the bare column."""
    column, text = schema.find_column_name(source), str(transform)
    name, _, number = text.rstrip("]").partition("[")
    if name == "identity":
        return str(column)
    return f"{name}({number}, {column})" if number else f"{name}({column})"
