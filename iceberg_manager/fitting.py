"""How given columns and values become a table's: names are checked, missing optional columns become null, values are cast.

No value is changed on the way: what cannot be cast without loss is a misfit, and the first one is named. Text becomes
numbers and times; a time without a zone is UTC; digits of a second beyond the sixth are dropped.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from iceberg_manager.arrow_files import arrow_schema
from iceberg_manager.errors import DataError, NotFoundError, first_line
from iceberg_manager.names import did_you_mean

_ZONED = r":\d{2}(\.\d+)?\s*([Zz]|[+-]\d{2}(:?\d{2})?)$"


class MisfitError(Exception):
    """Values that do not fit; ``row`` counts from 0 within what was looked at."""

    def __init__(self, reason: str, row: int = 0) -> None:
        super().__init__(reason)
        self.row = row


class Fitting:
    """How given columns become a table's columns."""

    unexpected = "error"  # what a JSON reader does with a field that is no column: "error" or "ignore"

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.arrow = arrow_schema(schema)
        self.required = [item.name for item in schema.fields if item.required]

    def check_names(self, names: Sequence[str]) -> None:
        known = self.arrow.names
        if twice := sorted({name for name in names if list(names).count(name) > 1}):
            raise DataError(f"The data has column {twice[0]!r} twice; nothing was written. Rename one of them.")
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f" Its columns are {', '.join(known)}."
                raise DataError(f"The table has no column {name!r}; nothing was written.{hint}")
        for name in self.required:
            if name not in names:
                hint = did_you_mean(name, list(names))
                raise DataError(f"Column {name!r} is required, but the data has none; nothing was written.{hint}")

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the table's columns, types and order; raises a MisfitError for the first value that cannot be."""
        columns = []
        for item in self.arrow:
            if item.name not in batch.schema.names:
                columns.append(pa.nulls(batch.num_rows, item.type))
                continue
            values = fit_values(batch.column(item.name), item)
            if values.null_count and not item.nullable:
                row = pc.index(values.is_null(), True).as_py()
                raise MisfitError(f"column {item.name!r} is required and has no value", row)
            columns.append(values)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def fit_values(values: pa.Array, item: pa.Field) -> pa.Array:
    """One column's values as its type, or a MisfitError that names the first that does not fit."""
    try:
        return _cast(values, item.type)
    except (pa.ArrowException, OverflowError) as error:
        row = _first_misfit(values, item.type)
        shown = repr(values[row].as_py()) if len(values) else first_line(error)
        raise MisfitError(f"column {item.name!r} takes {_said(item.type)}, not {shown[:80]}", row) from error


def _first_misfit(values: pa.Array, wanted: pa.DataType) -> int:
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(values.slice(low, middle - low), wanted)
            low = middle
        except (pa.ArrowException, OverflowError):
            high = middle
    return low


def _said(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return f"whole numbers of {kind.bit_width} bits"
    return f"{kind} values"


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    given = values.type
    if given.equals(wanted):
        return values
    if pa.types.is_dictionary(given):
        return _cast(values.cast(given.value_type), wanted)
    if _is_text(given):
        values = values.cast(pa.string())
        return values if pa.types.is_string(wanted) else _from_text(values, wanted)
    if pa.types.is_temporal(wanted) and pa.types.is_temporal(given):
        return _cast_time(values, wanted)
    if (
        pa.types.is_temporal(wanted) != pa.types.is_temporal(given)
        and not _is_text(wanted)
        and not pa.types.is_null(given)
    ):
        raise pa.ArrowInvalid("times and numbers do not mix")
    if pa.types.is_boolean(wanted) != pa.types.is_boolean(given) and not pa.types.is_null(given):
        raise pa.ArrowInvalid("truth values stand alone")
    if pa.types.is_decimal(wanted) and pa.types.is_integer(given):
        values = values.cast(pa.decimal128(38, wanted.scale))
    return values.cast(wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _cast_time(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Nanoseconds lose their last digits; a time without a zone is UTC."""
    nanoseconds = pa.types.is_timestamp(values.type) and values.type.unit == "ns"
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=not nanoseconds)
    return values.cast(wanted)


def _from_text(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    values = pc.utf8_trim_whitespace(values)
    if not pa.types.is_timestamp(wanted):
        return values.cast(wanted)
    zoned = pc.match_substring_regex(values, _ZONED)
    utc = pa.timestamp("us", "UTC")
    with_zone = _parsed_times(pc.if_else(zoned, values, None), "UTC")
    without = _parsed_times(pc.if_else(zoned, None, values), None)
    return pc.coalesce(with_zone.cast(utc), without.cast(utc)).cast(wanted)


def _parsed_times(values: pa.Array, zone: str | None) -> pa.Array:
    try:
        return values.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:
        return values.cast(pa.timestamp("ns", zone)).cast(pa.timestamp("us", zone), safe=False)


def require_columns(names: Sequence[str], known: Sequence[str], what: str) -> None:
    """Every name is one of those known to ``what``, such as "The table"."""
    for name in names:
        if name not in known:
            raise NotFoundError(f"{what} has no column {name!r}.{did_you_mean(name, list(known))}")
