"""An upsert: incoming rows against a table's, by key. Rows that would not change are not written again.

The incoming rows are held in memory; the table's pass by, batch by batch. Columns that are not given keep their value.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from iceberg_manager import arrow_files
from iceberg_manager.errors import DataError
from iceberg_manager.rewrites import Rewriting, placed

_LISTED_KEYS = 200


class Upsert(Rewriting):
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

    @cached_property
    def condition(self) -> BooleanExpression:  # type: ignore[override]
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
        return placed(batch, rows, pa.RecordBatch.from_arrays(columns, schema=batch.schema)), len(rows)

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


def _predicate(kind: Any, *operands: Any) -> BooleanExpression:
    """PyIceberg's predicates take their operands by position, which its annotations do not say."""
    made: BooleanExpression = kind(*operands)
    return made


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


def check_keys(rows: pa.Table, keys: Sequence[str]) -> None:
    """Each row has a key of its own, or nothing is written."""
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
