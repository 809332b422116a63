"""Append, overwrite, delete, update and upsert without a JVM: each is one snapshot, through the commit door, or nothing.

Changes are copy-on-write: metadata rules files out, files that match as a whole are dropped unread, and of the others
only those that really hold a row to change are written again, small ones together. A null never matches a comparison.
Each attempt plans on one snapshot; if main moved in a way the plan did not see, the attempt's files are removed and it
starts over. A crash before the commit leaves files that no snapshot names; a crash after it is found by the stamp.
"""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluator,
    bind,
    expression_evaluator,
    extract_field_ids,
    inclusive_projection,
    manifest_evaluator,
    rewrite_not,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.snapshots import IsolationLevel, Operation
from pyiceberg.types import PrimitiveType

from iceberg_manager import arrow_files
from iceberg_manager.commits import PREFIX, CommitResult, Stamp, commit
from iceberg_manager.errors import DataError, InputError, LakeError, NotFoundError, first_line
from iceberg_manager.history import summary
from iceberg_manager.incoming import Incoming, OnError, Skipped, fit_values, incoming
from iceberg_manager.metadata_commit import (
    ANYWHERE,
    Changes,
    commit_changes,
    live_entries,
    load,
    manifests_of,
    remove_files,
)
from iceberg_manager.names import TableName, did_you_mean

SMALL_FILE = 32 * 1024 * 1024
_LISTED_KEYS = 200
_HARMLESS = {"CONSTANT", "COLUMN_REF", "FUNCTION", "COMPARISON", "CONJUNCTION", "CAST", "CASE", "OPERATOR", "BETWEEN"}


@dataclass(frozen=True)
class Written:
    """What a write did: the commit, and the rows that it deleted, updated and inserted (not merely rewrote)."""

    commit: CommitResult
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: Skipped = field(default_factory=Skipped)


@dataclass(frozen=True)
class Expr:
    """A SQL expression over a row's columns, as the new value of an update; anything else is a plain value."""

    sql: str


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

    def attempt(table: Table) -> _Attempt:
        added = held.files(table)
        changes = Changes(added, (), properties or {}, removed_properties)
        return _Attempt(changes, Operation.APPEND, inserted=held.rows)

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
    condition = parse_where(where, load(catalog, name).schema())
    held = _Held(given.reader)

    def attempt(table: Table) -> _Attempt:
        incoming_files = held.files(table)
        removal = _rewrite(table, condition, _Delete(table.schema(), condition))
        changes = Changes([*incoming_files, *removal.changes.added], removal.changes.removed)
        operation = Operation.OVERWRITE if changes.removed else Operation.APPEND
        return _Attempt(
            changes, operation, removal.planned_on, removal.conflicts, held.rows, deleted=removal.deleted,
            own=removal.changes.added,
        )  # fmt: skip

    return _commit(catalog, name, stamp, attempt, sync, held, given.skipped)


def delete(
    catalog: Catalog, name: TableName | str, where: str | BooleanExpression, stamp: Stamp, sync: bool = False
) -> Written:
    """Delete the rows that match."""
    condition = parse_where(where, load(catalog, name).schema())
    return _commit(
        catalog, name, stamp, lambda table: _rewrite(table, condition, _Delete(table.schema(), condition)), sync
    )


def update(
    catalog: Catalog,
    name: TableName | str,
    updates: Mapping[str, Any],
    stamp: Stamp,
    where: str | BooleanExpression | None = None,
    sync: bool = False,
) -> Written:
    """Set columns of the rows that match (default: all) to values, or to what an :func:`expr` makes of each row."""
    schema = load(catalog, name).schema()
    condition = parse_where(where, schema)
    _Update(schema, condition, updates)
    return _commit(
        catalog,
        name,
        stamp,
        lambda table: _rewrite(table, condition, _Update(table.schema(), condition, updates)),
        sync,
    )


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
    _require(keys, given.columns, "The data")
    rows = given.reader.read_all().combine_chunks()
    _check_keys(rows, keys)

    def attempt(table: Table) -> _Attempt:
        work = _Upsert(rows, keys, given.columns, table.schema())
        return _rewrite(table, work.condition(), work)

    return _commit(catalog, name, stamp, attempt, sync, skipped=given.skipped)


def parse_where(where: str | BooleanExpression | None, schema: Schema) -> BooleanExpression:
    """A condition as PyIceberg's expression, checked against the columns; a comparison never matches a null."""
    from pyiceberg.expressions import parser
    from pyparsing import ParseException

    if where is None:
        return AlwaysTrue()
    try:
        condition = parser.parse(where) if isinstance(where, str) else where
    except ParseException as error:
        raise InputError(f"The condition {where!r} is not understood after {str(where)[: error.loc]!r}.") from error
    except (ValueError, TypeError) as error:
        raise InputError(f"The condition {where!r} is not understood: {first_line(error)}.") from error
    condition = _without_nulls(rewrite_not(condition))
    try:
        bind(schema, condition, case_sensitive=True)
    except (ValueError, TypeError) as error:
        _explain(error, where, schema)
    return condition


def _explain(error: Exception, where: object, schema: Schema) -> None:
    said = first_line(error)
    if said.startswith("Could not find field with name "):
        column = said.removeprefix("Could not find field with name ").partition(",")[0]
        hint = did_you_mean(column, schema.column_names)
        raise NotFoundError(f"The condition {str(where)!r} names {column!r}, which is not a column.{hint}") from error
    raise InputError(f"The condition {str(where)!r} does not fit the columns: {said}.") from error


def _without_nulls(condition: BooleanExpression) -> BooleanExpression:
    if isinstance(condition, And | Or):
        return type(condition)(_without_nulls(condition.left), _without_nulls(condition.right))
    if isinstance(condition, NotEqualTo | NotIn | NotStartsWith) and isinstance(condition, UnboundPredicate):
        return And(_predicate(NotNull, condition.term), condition)
    return condition


def _predicate(kind: Any, *operands: Any) -> BooleanExpression:
    """PyIceberg's predicates take their operands by position, which its annotations do not say."""
    made: BooleanExpression = kind(*operands)
    return made


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


@dataclass(frozen=True)
class _Attempt:
    """Files written for one try at a commit, and what they rest on. ``own`` are useless if the try fails."""

    changes: Changes
    operation: Operation
    planned_on: int | None = ANYWHERE
    conflicts: BooleanExpression | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    own: Sequence[DataFile] = ()

    def counts(self) -> dict[str, str]:
        said = {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}
        return {f"{PREFIX}rows-{what}": str(rows) for what, rows in said.items() if rows}


def _commit(
    catalog: Catalog,
    name: TableName | str,
    stamp: Stamp,
    attempt: Callable[[Table], _Attempt],
    sync: bool,
    held: _Held | None = None,
    skipped: Skipped | None = None,
) -> Written:
    unknown = False

    def write(properties: Mapping[str, str]) -> None:
        nonlocal unknown
        unknown = False
        table = load(catalog, name)
        made = attempt(table)
        said = {**properties, **made.counts()}
        unknown = True
        try:
            commit_changes(
                catalog, table, made.changes, said, made.operation, made.planned_on, made.conflicts, sync
            )  # fmt: skip
        except (CommitFailedException, InputError):
            unknown = False
            remove_files(table.io, [file.file_path for file in made.own])
            raise

    try:
        result = commit(lambda: load(catalog, name), stamp, write)
    except BaseException:
        if held and not unknown:
            held.remove(load(catalog, name))
        raise
    landed = (
        load(catalog, name).metadata.snapshot_by_id(result.snapshot_id or 0) if result.operation != "none" else None
    )
    said = summary(landed) if landed else {}
    counts = {what: int(said.get(f"{PREFIX}rows-{what}", "0")) for what in ("inserted", "updated", "deleted")}
    return Written(result, **counts, skipped=skipped or Skipped())


class _Rewriting:
    """What becomes of the rows of a file. ``names`` are the columns that tell whether a file is concerned at all."""

    names: Sequence[str]
    deletes = False
    inserted = 0

    def count(self, batch: pa.RecordBatch) -> int:
        """How many of these rows change."""
        raise NotImplementedError

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The rows that take their place, and how many changed."""
        raise NotImplementedError

    def concerns(self, file: DataFile) -> bool:
        """Whether the file may hold a row that changes, as far as its statistics tell."""
        return bool(file.record_count)

    def extra(self) -> Iterator[pa.RecordBatch]:
        """Rows to add once every file was seen."""
        return iter(())


@dataclass(frozen=True)
class _Candidate:
    file: DataFile
    deletes: frozenset[DataFile]
    whole: bool


def _rewrite(table: Table, condition: BooleanExpression, work: _Rewriting) -> _Attempt:
    """Plan on the table's head, write what changes, and say what a commit has to do."""
    planned_on = table.metadata.current_snapshot_id
    removed: list[DataFile] = []
    candidates = _plan(table, condition, work)
    dropped = [one for one in candidates if one.whole and work.deletes]
    others = [one for one in candidates if one not in dropped]
    changed = sum(one.file.record_count for one in dropped)
    counted = [changed]

    def batches() -> Iterator[pa.RecordBatch]:
        for candidate, rows, count in _changed(table, others, work):
            removed.append(candidate.file)
            counted[0] += count
            yield from rows
        yield from work.extra()

    added = arrow_files.write(table, (batch for batch in batches() if batch.num_rows))
    removed += [one.file for one in dropped]
    strict = table.metadata.isolation_level(Operation.DELETE if work.deletes else Operation.OVERWRITE)
    return _Attempt(
        Changes(added, removed),
        Operation.DELETE if removed and not added else Operation.OVERWRITE if removed else Operation.APPEND,
        planned_on,
        condition if strict == IsolationLevel.SERIALIZABLE else None,
        inserted=work.inserted,
        updated=0 if work.deletes else counted[0],
        deleted=counted[0] if work.deletes else 0,
        own=added,
    )


def _plan(table: Table, condition: BooleanExpression, work: _Rewriting) -> list[_Candidate]:
    """The data files that may hold matching rows, with the delete files that apply to them."""
    metadata, schema = table.metadata, table.schema()
    deletes, data = DeleteFileIndex(), []
    inclusive = _InclusiveMetricsEvaluator(schema, condition).eval
    strict = _StrictMetricsEvaluator(schema, condition).eval
    tests: dict[int, tuple[Callable[[Any], bool], Callable[[Any], bool]]] = {}
    for manifest in manifests_of(table.io, table.current_snapshot()):
        spec = metadata.specs()[manifest.partition_spec_id]
        if spec.spec_id not in tests:
            projected = inclusive_projection(schema, spec)(condition)
            partition = Schema(*spec.partition_type(schema).fields)
            tests[spec.spec_id] = (
                manifest_evaluator(spec, schema, projected),
                expression_evaluator(partition, projected, True),
            )
        may_hold, may_match = tests[spec.spec_id]
        if manifest.content == ManifestContent.DELETES:
            _index_deletes(table, live_entries(table.io, manifest), deletes)
        elif may_hold(manifest):
            data += [
                entry
                for entry in live_entries(table.io, manifest)
                if may_match(entry.data_file.partition)
                and inclusive(entry.data_file)
                and work.concerns(entry.data_file)
            ]
    floats = _float_columns(schema, condition)
    return [
        _Candidate(
            entry.data_file,
            frozenset(deletes.for_data_file(entry.sequence_number or 0, entry.data_file, entry.data_file.partition)),
            strict(entry.data_file) and not any((entry.data_file.nan_value_counts or {}).get(one, 1) for one in floats),
        )
        for entry in data
    ]


def _index_deletes(table: Table, entries: Iterable[ManifestEntry], deletes: DeleteFileIndex) -> None:
    for entry in entries:
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
            raise LakeError(
                f"{'.'.join(table.name())} has equality deletes, which only Spark can apply; nothing was written. Change it "
                "through Spark, or compact it there first."
            )
        deletes.add_delete_file(entry, entry.data_file.partition)


def _float_columns(schema: Schema, condition: BooleanExpression) -> list[int]:
    """A file's bounds leave NaN out, so for these columns they prove nothing unless the NaNs were counted."""
    used = extract_field_ids(bind(schema, condition, True))
    return [one for one in used if str(schema.find_type(one)) in ("float", "double")]


def _changed(
    table: Table, candidates: Sequence[_Candidate], work: _Rewriting
) -> Iterator[tuple[_Candidate, Iterable[pa.RecordBatch], int]]:
    """The candidates that hold rows to change, with their new rows; read a few at a time, in order."""

    def examine(candidate: _Candidate) -> tuple[Iterable[pa.RecordBatch], int]:
        if candidate.file.file_size_in_bytes <= SMALL_FILE:
            done = [work.apply(batch) for batch in read_file(table, candidate.file, candidate.deletes)]
            return [batch for batch, _ in done], sum(count for _, count in done)
        names = list(work.names)
        count = sum(work.count(batch) for batch in read_file(table, candidate.file, candidate.deletes, names))
        return (work.apply(batch)[0] for batch in read_file(table, candidate.file, candidate.deletes)), count

    workers = min(8, os.cpu_count() or 2)
    with ThreadPoolExecutor(workers, thread_name_prefix="rewrite") as pool:
        for window in _windows(candidates, workers):
            for candidate, (rows, count) in zip(window, pool.map(examine, window), strict=True):
                if count:
                    yield candidate, rows, count


def _windows(candidates: Sequence[_Candidate], size: int) -> Iterator[Sequence[_Candidate]]:
    for start in range(0, len(candidates), size):
        yield candidates[start : start + size]


def read_file(
    table: Table, file: DataFile, deletes: Iterable[DataFile] = (), names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A data file's live rows as the table's columns are now (or only ``names`` of them), matched by field id."""
    schema = table.schema() if names is None else table.schema().select(*names)
    wanted = arrow_files.arrow_schema(schema)
    if not deletes and file.file_format == FileFormat.PARQUET:
        import pyarrow.parquet as pq

        with table.io.new_input(file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream)
            columns = _same_columns(parquet.schema_arrow, wanted)
            if columns is not None:
                for batch in parquet.iter_batches(batch_size=131_072, columns=columns):
                    arrays = [batch.column(name).cast(item.type) for name, item in zip(columns, wanted, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
                return
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    for batch in scan.to_record_batches([FileScanTask(file, set(deletes))]):
        arrays = [batch.column(item.name).cast(item.type) for item in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _same_columns(physical: pa.Schema, wanted: pa.Schema) -> list[str] | None:
    """The file's names for the wanted columns, if their types are the same; else the file takes the longer way."""
    by_id = {(item.metadata or {}).get(b"PARQUET:field_id"): item for item in physical}
    names = []
    for item in wanted:
        found = by_id.get(item.metadata[b"PARQUET:field_id"])
        if found is None or "." in found.name or not arrow_files.small(found.type).equals(item.type):
            return None
        names.append(found.name)
    return names


class _Matching(_Rewriting):
    """The rows that a condition is true for."""

    def __init__(self, schema: Schema, condition: BooleanExpression) -> None:
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        bound = bind(schema, condition, case_sensitive=True)
        self._expression = expression_to_pyarrow(bound, schema)
        ids = extract_field_ids(bound)
        self.names = [item.name for item in schema.fields if ids & _ids(item)] or [schema.fields[0].name]

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        import pyarrow.dataset as ds

        found = ds.InMemoryDataset(pa.Table.from_batches([batch])).to_table(columns={"match": self._expression})
        return pc.coalesce(found.column("match").combine_chunks(), False)

    def count(self, batch: pa.RecordBatch) -> int:
        return int(self.mask(batch).true_count)


def _ids(item: Any) -> set[int]:
    return Schema(item).field_ids


class _Delete(_Matching):
    deletes = True

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        mask = self.mask(batch)
        return batch.filter(pc.invert(mask)), int(mask.true_count)


class _Update(_Matching):
    def __init__(self, schema: Schema, condition: BooleanExpression, updates: Mapping[str, Any]) -> None:
        super().__init__(schema, condition)
        self._arrow = arrow_files.arrow_schema(schema)
        if not updates:
            raise InputError("An update needs at least one column to set.")
        _require(list(updates), self._arrow.names, "The table")
        self._values = {name: value for name, value in updates.items() if not isinstance(value, Expr)}
        expressions = {name: value.sql for name, value in updates.items() if isinstance(value, Expr)}
        self._expressions = Expressions(expressions, self._arrow.names) if expressions else None
        self._fit({name: pa.array([value]) for name, value in self._values.items()})

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        mask = self.mask(batch)
        rows = np.flatnonzero(mask.to_numpy(zero_copy_only=False))
        if not len(rows):
            return batch, 0
        concerned = batch.take(pa.array(rows))
        new = {name: pa.array([value] * len(rows)) for name, value in self._values.items()}
        if self._expressions:
            new |= self._expressions.evaluate(concerned)
        fitted = self._fit(new)
        columns = [fitted.get(item.name, concerned.column(item.name)) for item in self._arrow]
        return _placed(batch, rows, pa.RecordBatch.from_arrays(columns, schema=self._arrow)), len(rows)

    def _fit(self, new: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        fitted = {}
        for name, values in new.items():
            item = self._arrow.field(name)
            try:
                fitted[name] = fit_values(values, item)
            except Exception as error:
                raise DataError(f"The update does not fit: {first_line(error)}; nothing was written.") from error
            if fitted[name].null_count and not item.nullable:
                raise DataError(f"The update sets {name!r} to null, but it is required; nothing was written.")
        return fitted


def _placed(batch: pa.RecordBatch, rows: Any, new: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with its ``rows`` replaced, the order kept."""
    order = np.arange(batch.num_rows)
    order[rows] = batch.num_rows + np.arange(len(rows))
    both = pa.concat_batches([batch, new])
    return both.take(pa.array(order))


class _Upsert(_Rewriting):
    """Incoming rows against a table's, by key."""

    def __init__(self, rows: pa.Table, keys: Sequence[str], given: Sequence[str], schema: Schema) -> None:
        arrow = arrow_files.arrow_schema(schema)
        merged = rows.select(arrow.names).cast(arrow).combine_chunks().to_batches()
        self._rows = merged[0] if merged else arrow.empty_table().to_batches()[0]
        self._keys, self._schema = list(keys), schema
        self._given = [name for name in given if name not in keys]
        self.names = [name for name in arrow.names if name in given]
        self._seen = np.zeros(self._rows.num_rows, dtype=bool)
        self._sorted = {name: _comparable(self._rows.column(name)) for name in keys}

    def condition(self) -> BooleanExpression:
        """What every row that could be concerned matches: the listed keys, or their range."""
        if not self._rows.num_rows:
            return AlwaysTrue()
        parts: list[BooleanExpression] = []
        for name in self._keys:
            values = pc.unique(self._rows.column(name))
            if len(values) <= _LISTED_KEYS:
                parts.append(_predicate(In, name, set(values.to_pylist())))
            else:
                ends = pc.min_max(values).as_py()
                above = _predicate(GreaterThanOrEqual, name, ends["min"])
                parts.append(And(above, _predicate(LessThanOrEqual, name, ends["max"])))
        return parts[0] if len(parts) == 1 else And(*parts)

    def concerns(self, file: DataFile) -> bool:
        """Whether some incoming key lies between the file's bounds, for each key column."""
        for name, keys in self._sorted.items():
            item = self._schema.find_field(name)
            low, high = (bounds.get(item.field_id) for bounds in (file.lower_bounds or {}, file.upper_bounds or {}))
            kind = item.field_type
            if keys is None or low is None or high is None or not isinstance(kind, PrimitiveType):
                continue
            at = bisect_left(keys, from_bytes(kind, low))
            if at == len(keys) or keys[at] > from_bytes(kind, high):
                return False
        return bool(self._rows.num_rows)

    def count(self, batch: pa.RecordBatch) -> int:
        return len(self._changes(batch)[0])

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        rows, sources = self._changes(batch)
        if not len(rows):
            return batch, 0
        old, new = batch.take(pa.array(rows)), self._rows.take(pa.array(sources))
        columns = [(new if name in self.names else old).column(name) for name in batch.schema.names]
        return _placed(batch, rows, pa.RecordBatch.from_arrays(columns, schema=batch.schema)), len(rows)

    def extra(self) -> Iterator[pa.RecordBatch]:
        rows = np.flatnonzero(~self._seen)
        self.inserted = len(rows)
        if len(rows):
            yield self._rows.take(pa.array(rows))

    def _changes(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        """Rows of the batch that an incoming row with the same key differs from, and which one."""
        rows, sources = self._pairs(batch)
        self._seen[sources] = True
        differs = np.zeros(len(rows), dtype=bool)
        taken, given = pa.array(rows), pa.array(sources)
        for name in self._given if len(rows) else ():
            differs |= _differ(batch.column(name).take(taken), self._rows.column(name).take(given))
        return rows[differs], sources[differs]

    def _pairs(self, batch: pa.RecordBatch) -> tuple[Any, Any]:
        if len(self._keys) == 1:
            found = pc.index_in(batch.column(self._keys[0]), value_set=self._rows.column(self._keys[0]))
            rows = np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False))
            return rows, found.take(pa.array(rows)).to_numpy().astype(np.int64)
        left = pa.table({name: batch.column(name) for name in self._keys}).append_column("\0row", _numbers(batch))
        right = pa.table({name: self._rows.column(name) for name in self._keys})
        right = right.append_column("\0source", _numbers(self._rows))
        pairs = left.join(right, self._keys, join_type="inner", use_threads=False)
        return pairs.column("\0row").to_numpy(), pairs.column("\0source").to_numpy()


def _numbers(batch: pa.RecordBatch) -> pa.Array:
    return pa.array(np.arange(batch.num_rows))


def _comparable(values: pa.Array) -> list[Any] | None:
    """Sorted, in the form that file bounds have; None for types whose bounds need more care than they are worth."""
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
        return None
    return sorted(values.to_pylist())


def _differ(old: pa.Array, new: pa.Array) -> Any:
    if pa.types.is_nested(old.type):
        return np.array([a != b for a, b in zip(old.to_pylist(), new.to_pylist(), strict=True)], dtype=bool)
    same = pc.coalesce(pc.equal(old, new), pc.and_(old.is_null(), new.is_null()))
    if pa.types.is_floating(old.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(old), pc.is_nan(new)), False))
    return ~same.to_numpy(zero_copy_only=False)


def _check_keys(rows: pa.Table, keys: Sequence[str]) -> None:
    for name in keys:
        if rows.column(name).null_count:
            row = pc.index(rows.column(name).is_null(), True).as_py() + 1
            raise DataError(f"Row {row} has no value in key column {name!r}; nothing was written.")
    counts = rows.select(keys).group_by(list(keys)).aggregate([([], "count_all")])
    twice = counts.filter(pc.greater(counts.column("count_all"), 1))
    if twice.num_rows:
        shown = ", ".join(f"{name} {twice.column(name)[0].as_py()!r}" for name in keys)
        raise DataError(
            f"The data has {twice.num_rows} keys more than once, such as {shown}; nothing was written. Give one row a key."
        )


def _require(names: Sequence[str], known: Sequence[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise NotFoundError(f"{what} has no column {name!r}.{did_you_mean(name, list(known))}")


class Expressions:
    """SQL expressions over a row, run in a DuckDB that can reach nothing but the row. Each is parsed and checked first."""

    def __init__(self, expressions: Mapping[str, str], columns: Sequence[str]) -> None:
        import duckdb

        config: dict[str, Any] = {"enable_external_access": False, "threads": 1}
        config |= {"autoload_known_extensions": False, "autoinstall_known_extensions": False}
        self._connection = duckdb.connect(":memory:", config=config)
        self._connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
        self._connection.execute("SET lock_configuration = true")
        for sql in expressions.values():
            self._check(sql, columns)
        self._columns = list(expressions)
        listed = ", ".join(f'({sql}\n) AS "{number}"' for number, sql in enumerate(expressions.values()))
        self._query = f"SELECT {listed} FROM incoming_rows"

    def evaluate(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        import duckdb

        cursor = self._connection.cursor()
        try:
            cursor.register("incoming_rows", pa.Table.from_batches([rows]))
            result = cursor.execute(self._query).to_arrow_table()
        except duckdb.Error as error:
            raise InputError(f"The expression cannot be computed; nothing was written. {first_line(error)}") from error
        finally:
            cursor.close()
        return {name: _one(result.column(number)) for number, name in enumerate(self._columns)}

    def _check(self, sql: str, columns: Sequence[str]) -> None:
        import json

        asked = self._connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({sql}\n)"]).fetchone()
        tree = json.loads(asked[0]) if asked else {}
        if tree.get("error"):
            raise InputError(f"{sql!r} is not an expression: {tree.get('error_message', 'it does not parse')}.")
        nodes = [statement["node"] for statement in tree["statements"]]
        plain = len(nodes) == 1 and nodes[0]["type"] == "SELECT_NODE" and len(nodes[0]["select_list"]) == 1
        bare = plain and nodes[0]["from_table"]["type"] == "EMPTY" and not nodes[0].get("modifiers")
        if not bare or nodes[0].get("where_clause") or nodes[0].get("cte_map", {}).get("map"):
            raise InputError(f"{sql!r} must be a single expression over the row's columns, such as age + 1.")
        self._walk(nodes[0]["select_list"][0], sql, columns)

    def _walk(self, node: Any, sql: str, columns: Sequence[str]) -> None:
        if isinstance(node, list):
            for inner in node:
                self._walk(inner, sql, columns)
        elif isinstance(node, dict):
            kind = node.get("class")
            if kind is not None and kind not in _HARMLESS:
                raise InputError(f"{sql!r} uses {kind.lower().replace('_', ' ')}, which an update may not.")
            if kind == "COLUMN_REF":
                _require(node["column_names"][:1], columns, "The table")
            if kind == "FUNCTION":
                self._check_function(node, sql)
            for inner in node.values():
                self._walk(inner, sql, columns)

    def _check_function(self, node: Mapping[str, Any], sql: str) -> None:
        name = node["function_name"].lower()
        kinds = self._connection.execute(
            "SELECT DISTINCT function_type, coalesce(stability, '') FROM duckdb_functions() WHERE function_name = ?",
            [name],
        ).fetchall()
        pure = bool(kinds) and all(kind == "scalar" and stable != "VOLATILE" for kind, stable in kinds)
        if not pure or name in ("current_setting", "getenv", "getvariable"):
            raise InputError(f"{sql!r} calls {name}, which is not a plain function of a row's values.")


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
