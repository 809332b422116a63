"""Partitions as a condition in Spark's SQL, so that a compaction touches those alone. Pure text.

A partition's value is turned back into the range of its column that it stands for. A bucket, or a cut text, has none: a
partition of nothing else gives no condition, and the whole table is taken, where Spark leaves alone what does not pay.
"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, TimeTransform, TruncateTransform
from pyiceberg.types import DateType, IntegerType, LongType

from iceberg_manager.maintenance.statistics import PartitionStatistics

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def condition(table: Table, partitions: Sequence[PartitionStatistics]) -> str | None:
    """True for the rows of these partitions, and for no others as far as their transforms allow; None for all rows."""
    found = []
    for one in partitions:
        spec = table.specs()[one.spec_id]
        parts = [_field(table.schema(), field, one.values.get(field.name)) for field in spec.fields]
        known = [part for part in parts if part]
        if not known:
            return None
        found.append(f"({' AND '.join(known)})")
    return " OR ".join(dict.fromkeys(found)) or None


def _field(schema: Schema, field: PartitionField, value: Any) -> str | None:
    name = schema.find_column_name(field.source_id)
    if name is None or "." in name:
        return None
    column = f"`{name}`"
    if value is None:
        return f"{column} IS NULL"
    kind = schema.find_field(field.source_id).field_type
    match field.transform:
        case IdentityTransform():
            return f"{column} = {text}" if (text := _literal(value)) else None
        case TimeTransform():
            first, last = _window(str(field.transform), value)
            return f"{column} >= {_moment(first, kind)} AND {column} < {_moment(last, kind)}"
        case TruncateTransform(width=width) if isinstance(kind, IntegerType | LongType):
            return f"{column} >= {int(value)} AND {column} < {int(value) + width}"
    return None


def _literal(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, date) and not isinstance(value, datetime):
        return f"DATE '{value.isoformat()}'"
    return None


def _window(transform: str, value: Any) -> tuple[datetime, datetime]:
    """The time that a partition covers: hours and days by their length, months and years by the calendar."""
    if isinstance(value, date):
        value = (value - _EPOCH.date()).days
    if transform in ("hour", "day"):
        unit = timedelta(hours=1) if transform == "hour" else timedelta(days=1)
        return _EPOCH + value * unit, _EPOCH + (value + 1) * unit
    months = value * (12 if transform == "year" else 1)
    after = months + (12 if transform == "year" else 1)
    first, last = (datetime(1970 + count // 12, count % 12 + 1, 1, tzinfo=UTC) for count in (months, after))
    return first, last


def _moment(moment: datetime, kind: Any) -> str:
    if isinstance(kind, DateType):
        return f"DATE '{moment:%Y-%m-%d}'"
    zone = "TIMESTAMP_NTZ" if str(kind) == "timestamp" else "TIMESTAMP"
    return f"{zone} '{moment:%Y-%m-%d %H:%M:%S}'"
