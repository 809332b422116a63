"""A slice: the rows of a table that one Dagster partition stands for, as a filter that every engine understands.

Times are half-open windows in UTC; anything else is a set of values of one column.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, MonthTransform, YearTransform
from pyiceberg.types import DateType, StringType, TimestampType, TimestamptzType

from iceberg_manager.errors import SpecError
from iceberg_manager.spec import TableSpec

_TIMES = (DateType, TimestampType, TimestamptzType)


@dataclass(frozen=True)
class Window:
    """Rows whose ``column`` lies in [start, end)."""

    column: str
    start: datetime
    end: datetime

    def sql(self, schema: Schema) -> str:
        kind = schema.find_type(self.column)
        low, high = (_time_literal(kind, moment.astimezone(UTC)) for moment in (self.start, self.end))
        return f"`{self.column}` >= {low} AND `{self.column}` < {high}"

    def aligned(self, schema: Schema, partitions: PartitionSpec) -> bool:
        """Whether each data file lies wholly inside or outside, so that files can be replaced whole."""
        whole_days = all(moment.time() == datetime.min.time() for moment in (self.start, self.end))
        whole_months = whole_days and self.start.day == self.end.day == 1
        fits = {
            HourTransform: self.start.minute == self.end.minute == 0,
            DayTransform: whole_days,
            MonthTransform: whole_months,
            YearTransform: whole_months and self.start.month == self.end.month == 1,
            IdentityTransform: True,
        }
        field = schema.find_field(self.column).field_id
        return any(fits.get(type(part.transform), False) for part in partitions.fields if part.source_id == field)


@dataclass(frozen=True)
class Values:
    """Rows whose ``column`` is one of ``keys``."""

    column: str
    keys: tuple[str, ...]

    def sql(self, schema: Schema) -> str:
        text = isinstance(schema.find_type(self.column), StringType)
        listed = ", ".join(_text_literal(key) if text else _number(self.column, key) for key in self.keys)
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


def _number(column: str, key: str) -> str:
    if not key.lstrip("-").isdigit():
        raise SpecError(f"Partition {key!r} is no whole number, but column {column!r} holds numbers.")
    return key
