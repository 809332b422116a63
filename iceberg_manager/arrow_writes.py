"""Append, overwrite, delete, update and upsert without a JVM: each is one snapshot, through the commit door, or nothing.

Each attempt plans on one snapshot; if main moved in a way the plan did not see, the attempt's files are removed and it
starts over. A crash before the commit leaves files that no snapshot names; a crash after it is found by the stamp.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from iceberg_manager import arrow_files
from iceberg_manager.changes import Changes
from iceberg_manager.commits import PREFIX, CommitResult, Stamp, commit
from iceberg_manager.conditions import condition
from iceberg_manager.errors import InputError
from iceberg_manager.fitting import require_columns
from iceberg_manager.history import summary
from iceberg_manager.incoming import Incoming, OnError, Skipped, incoming
from iceberg_manager.metadata_commit import commit_changes
from iceberg_manager.names import TableName
from iceberg_manager.rewrites import Attempt, rewrite
from iceberg_manager.row_changes import Deletion, Update
from iceberg_manager.row_expressions import Expr
from iceberg_manager.storage import remove_files
from iceberg_manager.table_versions import load
from iceberg_manager.upserts import Upsert, check_keys


@dataclass(frozen=True)
class Written:
    """What a write did: the commit, and the rows that it deleted, updated and inserted (not merely rewrote)."""

    commit: CommitResult
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: Skipped = field(default_factory=Skipped)


def expr(sql: str) -> Expr:
    """Mark ``sql`` as an expression: ``update(…, {"age": expr("age + 1")})``."""
    return Expr(sql)


def parse_assignments(assignments: Sequence[str]) -> dict[str, Expr]:
    """``["age=age+1"]`` as updates: what stands right of the first ``=`` is an expression."""
    parsed: dict[str, Expr] = {}
    for text in assignments:
        column, mark, value = text.partition("=")
        if not mark or not column.strip() or not value.strip():
            raise InputError(f"{text!r} is no assignment: write column=expression, such as age=age+1.")
        parsed[column.strip()] = Expr(value.strip())
    return parsed


def append(
    catalog: Catalog,
    name: TableName | str,
    data: Any,
    stamp: Stamp,
    on_error: OnError = "fail",
    form: str | None = None,
    properties: Mapping[str, str] | None = None,
    removed_properties: frozenset[str] = frozenset(),
    sync: bool = False,
) -> Written:
    """Add rows; ``properties`` change with them, in the same commit."""
    given = _given(catalog, name, data, on_error, form)
    held = _Held(given.reader)

    def attempt(table: Table) -> Attempt:
        added = held.files(table)
        changes = Changes(added, (), properties or {}, removed_properties)
        return Attempt(changes, Operation.APPEND, inserted=held.rows)

    return _commit(catalog, name, stamp, attempt, sync, held, given.skipped)


def overwrite(
    catalog: Catalog,
    name: TableName | str,
    data: Any,
    stamp: Stamp,
    where: str | BooleanExpression | None = None,
    on_error: OnError = "fail",
    form: str | None = None,
    sync: bool = False,
) -> Written:
    """Replace the rows that match ``where`` (default: all) by ``data``, in one snapshot."""
    given = _given(catalog, name, data, on_error, form)
    condition(where, load(catalog, name).schema())
    held = _Held(given.reader)

    def attempt(table: Table) -> Attempt:
        incoming_files = held.files(table)
        removal = _removal(table, where)
        changes = Changes([*incoming_files, *removal.changes.added], removal.changes.removed)
        operation = Operation.OVERWRITE if changes.removed else Operation.APPEND
        return replace(removal, changes=changes, operation=operation, inserted=held.rows)

    return _commit(catalog, name, stamp, attempt, sync, held, given.skipped)


def delete(
    catalog: Catalog, name: TableName | str, where: str | BooleanExpression, stamp: Stamp, sync: bool = False
) -> Written:
    """Delete the rows that match."""
    return _commit(catalog, name, stamp, lambda table: _removal(table, where), sync)


def update(
    catalog: Catalog,
    name: TableName | str,
    updates: Mapping[str, Any],
    stamp: Stamp,
    where: str | BooleanExpression | None = None,
    sync: bool = False,
) -> Written:
    """Set columns of the rows that match (default: all) to values, or to what an :func:`expr` makes of each row."""

    def work(table: Table) -> Update:
        return Update(table.schema(), condition(where, table.schema()), updates)

    work(load(catalog, name))
    return _commit(catalog, name, stamp, lambda table: rewrite(table, work(table)), sync)


def upsert(
    catalog: Catalog,
    name: TableName | str,
    data: Any,
    key: Sequence[str] | str,
    stamp: Stamp,
    on_error: OnError = "fail",
    form: str | None = None,
    sync: bool = False,
) -> Written:
    """Insert rows whose key is new and update those whose key is there; columns that are not given keep their value.

    Rows that would not change are not written again. The incoming rows are held in memory.
    """
    given = _given(catalog, name, data, on_error, form)
    keys = [key] if isinstance(key, str) else list(key)
    rows = given.reader.read_all().combine_chunks()
    require_columns(keys, given.columns, "The data")
    check_keys(rows, keys)

    def attempt(table: Table) -> Attempt:
        return rewrite(table, Upsert(rows, keys, given.columns, table.schema()))

    return _commit(catalog, name, stamp, attempt, sync, skipped=given.skipped)


def _removal(table: Table, where: str | BooleanExpression | None) -> Attempt:
    return rewrite(table, Deletion(table.schema(), condition(where, table.schema())))


def _given(catalog: Catalog, name: TableName | str, data: Any, on_error: OnError, form: str | None) -> Incoming:
    return data if isinstance(data, Incoming) else incoming(data, load(catalog, name).schema(), on_error, form)


class _Held:
    """Incoming rows as files, written once however often the commit is tried."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader
        self._files: list[DataFile] | None = None

    def files(self, table: Table) -> list[DataFile]:
        if self._files is None:
            self._files = arrow_files.write(table, self._reader)
        return self._files

    @property
    def rows(self) -> int:
        return sum(file.record_count for file in self._files or [])

    def remove(self, table: Table) -> None:
        remove_files(table.io, [file.file_path for file in self._files or []])


def _commit(
    catalog: Catalog,
    name: TableName | str,
    stamp: Stamp,
    attempt: Callable[[Table], Attempt],
    sync: bool,
    held: _Held | None = None,
    skipped: Skipped | None = None,
) -> Written:
    work = _Committing(catalog, name, attempt, sync)
    try:
        result = commit(work.load, stamp, work.write)
    except BaseException:
        if held and work.table and not work.may_be_named:
            held.remove(work.table)
        raise
    found = work.table.metadata.snapshot_by_id(result.snapshot_id or 0) if work.table else None
    said = summary(found) if found and result.operation != "none" else {}
    counts = {what: int(said.get(f"{PREFIX}rows-{what}", "0")) for what in ("inserted", "updated", "deleted")}
    return Written(result, **counts, skipped=skipped or Skipped())


class _Committing:
    """A change at the commit door: the table as it was last seen, and whether a snapshot may name the change's files."""

    def __init__(
        self, catalog: Catalog, name: TableName | str, attempt: Callable[[Table], Attempt], sync: bool
    ) -> None:
        self._catalog, self._name, self._attempt, self._sync = catalog, name, attempt, sync
        self.table: Table | None = None
        self.may_be_named = False

    def load(self) -> Table:
        self.table = load(self._catalog, self._name)
        return self.table

    def write(self, properties: Mapping[str, str]) -> None:
        """One try. What it wrote for itself alone goes if it failed for sure."""
        self.may_be_named = False
        table = self.load()
        made = self._attempt(table)
        said = {**properties, **made.counts()}
        self.may_be_named = True
        try:
            commit_changes(
                self._catalog, table, made.changes, said, made.operation, made.planned_on, made.conflicts, self._sync
            )
        except (CommitFailedException, InputError):
            self.may_be_named = False
            remove_files(table.io, [file.file_path for file in made.own])
            raise
