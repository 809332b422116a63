"""A slice: the rows of a table that one Dagster partition stands for, as a filter that every engine understands.

Times are half-open windows, compared in UTC (a date column: by the days of the window's own zone); anything else is a
set of values of one column.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from iceberg_manager.errors import SpecError
from iceberg_manager.spec import TableSpec

_TIMES = (DateType, TimestampType, TimestamptzType)
_PLAIN = {(IntegerType, LongType): "-?[0-9]+", (DecimalType,): r"-?[0-9]+(\.[0-9]+)?", (BooleanType,): "true|false"}


@dataclass(frozen=True)
class Window:
    """Rows whose ``column`` lies in [start, end)."""

    column: str
    start: datetime
    end: datetime

    def sql(self, schema: Schema) -> str:
        low, high = (_time_literal(schema.find_type(self.column), moment) for moment in self._bounds(schema))
        return f"`{self.column}` >= {low} AND `{self.column}` < {high}"

    def aligned(self, schema: Schema, partitions: PartitionSpec) -> bool:
        """Whether each data file lies wholly inside or outside, so that files can be replaced whole."""
        start, end = self._bounds(schema)
        whole_hours = all(moment.replace(minute=0, second=0, microsecond=0) == moment for moment in (start, end))
        whole_days = whole_hours and start.hour == end.hour == 0
        whole_months = whole_days and start.day == end.day == 1
        fits = {
            HourTransform: whole_hours,
            DayTransform: whole_days,
            MonthTransform: whole_months,
            YearTransform: whole_months and start.month == end.month == 1,
            IdentityTransform: True,
        }
        field = schema.find_field(self.column).field_id
        return any(fits.get(type(part.transform), False) for part in partitions.fields if part.source_id == field)

    def _bounds(self, schema: Schema) -> tuple[datetime, datetime]:
        if not isinstance(schema.find_type(self.column), DateType):
            return self.start.astimezone(UTC), self.end.astimezone(UTC)
        if any((moment.hour, moment.minute, moment.second) != (0, 0, 0) for moment in (self.start, self.end)):
            raise SpecError(f"Column {self.column!r} is a date: a partition of it has to be whole days.")
        return self.start, self.end


@dataclass(frozen=True)
class Values:
    """Rows whose ``column`` is one of ``keys``."""

    column: str
    keys: tuple[str, ...]

    def sql(self, schema: Schema) -> str:
        kind = schema.find_type(self.column)
        text = isinstance(kind, StringType)
        listed = ", ".join(_text_literal(key) if text else _plain(self.column, kind, key) for key in self.keys)
        return f"`{self.column}` IN ({listed})"

    def aligned(self, schema: Schema, partitions: PartitionSpec) -> bool:
        field = schema.find_field(self.column).field_id
        return any(
            isinstance(part.transform, IdentityTransform) for part in partitions.fields if part.source_id == field
        )


Slice = Window | Values


def slice_column(spec: TableSpec, by_time: bool) -> str:
    """Which column a Dagster partition maps to: the first time-partitioned one, or the first plain one."""
    wanted = (DayTransform, HourTransform, MonthTransform, YearTransform) if by_time else ()
    for part in spec.partition_spec.fields:
        name = spec.iceberg_schema.find_column_name(part.source_id)
        kind = spec.iceberg_schema.find_type(part.source_id)
        plain = isinstance(part.transform, IdentityTransform) and isinstance(kind, _TIMES) == by_time
        if name and (plain or isinstance(part.transform, wanted)):
            return name
    form = "day(<time column>)" if by_time else "a plain column"
    raise SpecError(
        f"{spec.name}: a partitioned asset needs {form} in partition_by, so that a partition can be replaced."
    )


def _time_literal(kind: object, moment: datetime) -> str:
    if isinstance(kind, DateType):
        return f"DATE '{moment:%Y-%m-%d}'"
    if isinstance(kind, TimestamptzType):
        return f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:%S}+00:00'"
    return f"TIMESTAMP_NTZ '{moment:%Y-%m-%d %H:%M:%S}'"


def _text_literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _plain(column: str, kind: IcebergType, key: str) -> str:
    """A key of a column that holds no text, such as a number: only what is certainly one reaches the statement."""
    form = next((form for types, form in _PLAIN.items() if isinstance(kind, types)), "(?!)")
    if not re.fullmatch(form, key):
        raise SpecError(f"Partition {key!r} is no value of column {column!r}, which holds {kind}.")
    return key
