"""Deletes and updates, row by row: what becomes of a batch whose rows match a condition.

A condition is evaluated by DuckDB, from the same SQL as a query's. Values that do not fit their column stop the change
before anything is committed.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.visitors import bind, extract_field_ids
from pyiceberg.schema import Schema

from iceberg_manager import arrow_files
from iceberg_manager.conditions import render
from iceberg_manager.errors import DataError, InputError, first_line
from iceberg_manager.fitting import fit_values, require_columns
from iceberg_manager.rewrites import Rewriting, placed
from iceberg_manager.row_expressions import Condition, Expr, Expressions


class Matching(Rewriting):
    """The rows that a condition is true for."""

    def __init__(self, schema: Schema, where: BooleanExpression) -> None:
        self.condition = where
        self._sql = render(where, schema)
        ids = extract_field_ids(bind(schema, where, case_sensitive=True))
        self.names = [item.name for item in schema.fields if ids & _ids(item)] or [schema.fields[0].name]

    @cached_property
    def _where(self) -> Condition:
        return Condition(self._sql)

    def mask(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        return self._where.mask(batch.select(self.names))

    def count(self, batch: pa.RecordBatch) -> int:
        return int(self.mask(batch).true_count)


def _ids(item: Any) -> set[int]:
    return Schema(item).field_ids


class Deletion(Matching):
    """Rows that match go."""

    deletes = True

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        mask = self.mask(batch)
        return batch.filter(pc.invert(mask)), int(mask.true_count)


class Update(Matching):
    """Rows that match get new values in some columns."""

    def __init__(self, schema: Schema, where: BooleanExpression, updates: Mapping[str, Any]) -> None:
        super().__init__(schema, where)
        self._arrow = arrow_files.arrow_schema(schema)
        if not updates:
            raise InputError("An update needs at least one column to set.")
        require_columns(list(updates), self._arrow.names, "The table")
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
        return placed(batch, rows, pa.RecordBatch.from_arrays(columns, schema=self._arrow)), len(rows)

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
