"""What differs between two snapshots: rows, columns and properties. Its cost grows with what differs, not with the table.

Manifests that both snapshots share are not opened; files that both hold are not read. Rows that were only moved to another
file, as compaction does, cancel out. Both sides are read with the columns of the later one (``to_snapshot``): what a column
that was dropped held is not compared, and rows from before a column was added have NULL in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import duckdb
import pyarrow as pa
from pyiceberg.exceptions import ValidationError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from iceberg_manager.conditions import find_column
from iceberg_manager.duckdb_text import identifier
from iceberg_manager.errors import InputError
from iceberg_manager.history import main_line
from iceberg_manager.query import read_errors, scan
from iceberg_manager.time_travel import by_id, schema_at

_METADATA_TRIES = 3  # commits within one millisecond share their time
Tasks = dict[tuple[str, frozenset[str]], FileScanTask]


@dataclass(frozen=True)
class RowChange:
    """One row, by its key, with the old and the new values of the columns that differ."""

    key: dict[str, Any]
    old: dict[str, Any]
    new: dict[str, Any]


@dataclass(frozen=True)
class SchemaChange:
    """A column that is not what it was; ``old`` and ``new`` are its name or its type."""

    kind: Literal["added", "dropped", "renamed", "retyped", "required"]
    field_id: int
    column: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class PropertyChange:
    """A table property that is not what it was; None is absent."""

    key: str
    old: str | None
    new: str | None


@dataclass(frozen=True)
class Diff:
    """What differs. Counts are exact; the rows themselves are at most ``limit`` of each sort.

    Without a key a changed row counts as one removed and one added, and ``rows_changed`` is None. ``properties`` is None
    where they are unknown: Iceberg keeps no history of them, so they are compared by old metadata files while these last.
    """

    table: str
    from_snapshot: int
    to_snapshot: int
    rows_added: int
    rows_removed: int
    rows_changed: int | None
    added: "pa.Table"
    removed: "pa.Table"
    changed: tuple[RowChange, ...]
    schema: tuple[SchemaChange, ...]
    properties: tuple[PropertyChange, ...] | None
    files_added: int
    files_removed: int
    bytes_read: int

    @property
    def same_rows(self) -> bool:
        return not (self.rows_added or self.rows_removed or self.rows_changed)


def diff(
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    from_snapshot: Snapshot | int,
    to_snapshot: Snapshot | int,
    key: Sequence[str] | None = None,
    limit: int | None = None,
) -> Diff:
    """What it takes to get from one snapshot to the other, in either direction of time."""
    old, new = (by_id(table, s) if isinstance(s, int) else s for s in (from_snapshot, to_snapshot))
    schema = schema_at(table, new)
    keys = [find_column(schema, name).name for name in key or ()]
    if limit is not None and limit < 0:
        raise InputError(f"limit is a number of rows, not {limit}.")
    with connection.cursor() as cursor, read_errors(".".join(table.name())):
        removed, added = _differing(table, old, new) or (None, None)
        sides = _Sides(cursor, schema, keys, limit)
        if removed is None or added is None:
            sides.fill_whole(table, old, new)
        else:
            sides.fill("old", _rows(table, schema, removed.values()))
            sides.fill("new", _rows(table, schema, added.values()))
        rows = sides.compare()
    return Diff(
        table=".".join(table.name()),
        from_snapshot=old.snapshot_id,
        to_snapshot=new.snapshot_id,
        **rows,
        schema=tuple(schema_changes(schema_at(table, old), schema)),
        properties=_property_changes(table, old, new),
        files_added=len(added or ()),
        files_removed=len(removed or ()),
        bytes_read=sum(task.file.file_size_in_bytes for side in (removed, added) for task in (side or {}).values()),
    )


def schema_changes(old: Schema, new: Schema) -> list[SchemaChange]:
    """How columns differ, by field id, so that a rename is no drop and add."""
    before, after = _columns(old), _columns(new)
    changes = [
        SchemaChange("dropped", key, before[key][0], before[key][1], None) for key in before.keys() - after.keys()
    ]
    changes += [SchemaChange("added", key, after[key][0], None, after[key][1]) for key in after.keys() - before.keys()]
    for key in before.keys() & after.keys():
        kinds: tuple[Literal["renamed", "retyped", "required"], ...] = ("renamed", "retyped", "required")
        for kind, was, now in zip(kinds, before[key], after[key], strict=True):
            if was != now:
                changes.append(SchemaChange(kind, key, after[key][0], was, now))
    return sorted(changes, key=lambda change: (change.field_id, change.kind))


def _columns(schema: Schema) -> dict[int, tuple[str, str, str]]:
    fields = [(name, schema.find_field(name)) for name in schema.column_names]
    return {
        field.field_id: (
            name,
            str(field.field_type) if field.field_type.is_primitive else type(field.field_type).__name__,
            "required" if field.required else "optional",
        )
        for name, field in fields
    }


def _same_rows_by_history(table: Table, old: Snapshot, new: Snapshot) -> bool:
    """Whether only rewrites of the same rows lie between the two."""
    later, earlier = (new, old) if (new.sequence_number or 0) >= (old.sequence_number or 0) else (old, new)
    for step in main_line(table, later.snapshot_id):
        if step.snapshot_id == earlier.snapshot_id:
            return True
        if step.summary is None or step.summary.operation != Operation.REPLACE:
            return False
    return False


def _differing(table: Table, old: Snapshot, new: Snapshot) -> tuple[Tasks, Tasks] | None:
    """The files that only one of the two holds, or holds with other deletes; None when PyIceberg cannot apply those."""
    if _same_rows_by_history(table, old, new):
        return {}, {}
    before, after = set(old.manifests(table.io)), set(new.manifests(table.io))
    if any(manifest.content == ManifestContent.DELETES for manifest in before | after):
        try:
            left, right = _planned(table, old), _planned(table, new)
        except ValueError:
            return None
    else:
        left, right = _live(table, before - after), _live(table, after - before)
    return _without(left, right), _without(right, left)


def _live(table: Table, manifests: Iterable[ManifestFile]) -> Tasks:
    files: list[DataFile] = [
        entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)
    ]
    return {(file.file_path, frozenset()): FileScanTask(file) for file in files}


def _planned(table: Table, snapshot: Snapshot) -> Tasks:
    tasks = table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
    return {
        (task.file.file_path, frozenset(deletes.file_path for deletes in task.delete_files)): task for task in tasks
    }


def _without(tasks: Tasks, other: Tasks) -> Tasks:
    return {key: task for key, task in tasks.items() if key not in other}


def _rows(table: Table, schema: Schema, tasks: Iterable[FileScanTask]) -> "pa.RecordBatchReader":
    from pyiceberg.io.pyarrow import ArrowScan, schema_to_pyarrow

    target = schema_to_pyarrow(schema, include_field_ids=False)
    batches = ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_record_batches(tasks)
    return pa.RecordBatchReader.from_batches(target, (batch.cast(target) for batch in batches))


class _Sides:
    """The rows that may differ, as two temporary tables of one cursor, and their comparison."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, schema: Schema, keys: list[str], limit: int | None) -> None:
        self._cursor, self._keys = cursor, keys
        self._columns = [field.name for field in schema.fields]
        self._values = [name for name in self._columns if name not in keys]
        self._limit = "" if limit is None else f" LIMIT {int(limit)}"

    def fill(self, side: str, rows: "pa.RecordBatchReader") -> None:
        self._cursor.register("incoming", rows)
        self._cursor.execute(f"CREATE TEMP TABLE {side} AS SELECT * FROM incoming")
        self._cursor.unregister("incoming")

    def fill_whole(self, table: Table, old: Snapshot, new: Snapshot) -> None:
        """Both snapshots in full, each with the later one's columns where it has them."""
        then, now = schema_at(table, old), schema_at(table, new)
        named = {field.field_id: field.name for field in then.fields}
        listed = [
            f"{identifier(named[field.field_id]) if field.field_id in named else 'NULL'} AS {identifier(field.name)}"
            for field in now.fields
        ]
        self._cursor.execute(f"CREATE TEMP TABLE new AS SELECT * FROM {scan(table, new.snapshot_id)}")
        source = scan(table, old.snapshot_id)
        self._cursor.execute(f"CREATE TEMP TABLE old AS SELECT {', '.join(listed)} FROM {source}")

    def compare(self) -> dict[str, Any]:
        self._refuse_repeated_keys()
        self._cursor.execute("CREATE TEMP TABLE gone AS (FROM old EXCEPT ALL FROM new)")
        self._cursor.execute("CREATE TEMP TABLE come AS (FROM new EXCEPT ALL FROM old)")
        if not self._keys:
            parts = {"rows_changed": None, "changed": ()}
            return parts | self._side("added", "come", "") | self._side("removed", "gone", "")
        return (
            self._changed()
            | self._side("added", "come", f" ANTI JOIN gone ON {self._matches('come', 'gone')}")
            | self._side("removed", "gone", f" ANTI JOIN come ON {self._matches('gone', 'come')}")
        )

    def _side(self, name: str, source: str, restriction: str) -> dict[str, Any]:
        rows = f"FROM {source}{restriction}"
        columns = ", ".join(f"{source}.{identifier(column)}" for column in self._columns)
        return {
            f"rows_{name}": self._count(rows),
            name: self._cursor.execute(f"SELECT {columns} {rows}{self._limit}").to_arrow_table(),
        }

    def _changed(self) -> dict[str, Any]:
        rows = f"FROM gone JOIN come ON {self._matches('gone', 'come')}"
        sides = [(side, column) for side in ("gone", "come") for column in self._columns]
        listed = ", ".join(f"{side}.{identifier(column)}" for side, column in sides)
        found = self._cursor.execute(f"SELECT {listed} {rows}{self._limit}").fetchall() if self._values else []
        return {"rows_changed": self._count(rows), "changed": tuple(self._change(row) for row in found)}

    def _change(self, row: tuple[Any, ...]) -> RowChange:
        old = dict(zip(self._columns, row, strict=False))
        new = dict(zip(self._columns, row[len(self._columns) :], strict=True))
        differing = [name for name in self._values if _differ(old[name], new[name])]
        return RowChange(
            {name: old[name] for name in self._keys},
            {name: old[name] for name in differing},
            {name: new[name] for name in differing},
        )

    def _matches(self, left: str, right: str) -> str:
        named = [identifier(name) for name in self._keys]
        return " AND ".join(f"{left}.{name} IS NOT DISTINCT FROM {right}.{name}" for name in named)

    def _refuse_repeated_keys(self) -> None:
        listed = ", ".join(identifier(name) for name in self._keys)
        for side, which in (("old", "earlier"), ("new", "later")) if self._keys else ():
            found = f"SELECT {listed} FROM {side} GROUP BY ALL HAVING count(*) > 1 LIMIT 1"
            if repeated := self._cursor.execute(found).fetchone():
                value = ", ".join(str(part) for part in repeated)
                raise InputError(
                    f"The key {', '.join(self._keys)} is not unique in the {which} snapshot ({value} occurs repeatedly): "
                    "name columns that make a row unique, or none for added and removed rows alone."
                )

    def _count(self, rows: str) -> int:
        row = self._cursor.execute(f"SELECT count(*) {rows}").fetchone()
        assert row is not None
        return int(row[0])


def _differ(old: Any, new: Any) -> bool:
    """As SQL's IS DISTINCT FROM, for which NaN equals itself."""
    return bool(old != new and not (old != old and new != new))


def _property_changes(table: Table, old: Snapshot, new: Snapshot) -> tuple[PropertyChange, ...] | None:
    before, after = _properties(table, old), _properties(table, new)
    if before is None or after is None:
        return None
    keys = sorted(before.keys() | after.keys())
    return tuple(
        PropertyChange(key, before.get(key), after.get(key)) for key in keys if before.get(key) != after.get(key)
    )


def _properties(table: Table, snapshot: Snapshot) -> dict[str, str] | None:
    """The table's properties when the snapshot was made, if a metadata file from then is still there."""
    if snapshot.snapshot_id == table.metadata.current_snapshot_id:
        return dict(table.properties)
    later = [entry for entry in table.metadata.metadata_log if entry.timestamp_ms >= snapshot.timestamp_ms]
    try:
        for entry in later[:_METADATA_TRIES]:
            metadata = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
            if metadata.current_snapshot_id == snapshot.snapshot_id:
                return dict(metadata.properties)
    except (OSError, ValueError, ValidationError):
        return None
    return None
