"""What to do when files have other columns than the table, by the table's policy. Decides only; ``passes`` carries it out.

``strict`` refuses such a file. ``additive`` adds new columns and widens types (int to long, float to double, more digits).
``ignore`` leaves out what the table does not have, and says so. A column of the table that a file lacks is null, unless
it is required: then the file is refused. In no policy does a column vanish or a type narrow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import DecimalType, DoubleType, FloatType, IcebergType, IntegerType, LongType

from iceberg_manager.errors import SpecError
from iceberg_manager.fitting import Fitting
from iceberg_manager.landing.policy import Drift
from iceberg_manager.landing.readers import BadFileError
from iceberg_manager.names import did_you_mean
from iceberg_manager.schemas import columns, type_text
from iceberg_manager.spec import Column


@dataclass
class Drifted:
    """How a batch's files differ from the table: columns to add and to widen, columns left out, files to refuse."""

    added: dict[str, str] = field(default_factory=dict)
    widened: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    refused: dict[str, BadFileError] = field(default_factory=dict)


class LenientFitting(Fitting):
    """Leaves out columns that the table does not have."""

    unexpected = "ignore"

    def check_names(self, names: Sequence[str]) -> None:
        super().check_names([name for name in names if name in self.arrow.names])


def compare(table: Schema, files: Mapping[str, tuple[pa.Schema, bool]], drift: Drift) -> Drifted:
    """``files`` maps a name to its columns and whether they are typed (in text, values are fitted one by one)."""
    result = Drifted()
    known = {item.name: item.field_type for item in table.fields}
    for name, (given, typed) in files.items():
        try:
            _compare_file(result, known, table, name, given, typed, drift)
        except BadFileError as error:
            result.refused[name] = error
    return result


def _compare_file(
    result: Drifted,
    known: Mapping[str, IcebergType],
    table: Schema,
    name: str,
    given: pa.Schema,
    typed: bool,
    drift: Drift,
) -> None:
    found = _columns(name, given, {*known} if drift == "ignore" else None)
    _refuse_missing(table, name, given)
    added: dict[str, str] = {}
    widened: dict[str, str] = {}
    for column, kind in found.items():
        if column not in known:
            if drift == "strict":
                hint = did_you_mean(column, list(known))
                raise BadFileError(name, f"the table has no column {column!r}.{hint}", column=column)
            if clash := [one for one in known if one.lower() == column.lower()]:
                raise BadFileError(
                    name, f"column {column!r} differs from the table's {clash[0]!r} in case only", column=column
                )
            added[column] = _agreed(result.added.get(column), kind.type, name, column)
        elif typed and drift == "additive" and (wider := _wider(known[column], kind.type, result.widened.get(column))):
            widened[column] = wider
    result.added |= added
    result.widened |= widened
    if drift == "ignore":
        result.dropped += [one for one in given.names if one not in known and one not in result.dropped]


def _columns(name: str, given: pa.Schema, only: set[str] | None) -> dict[str, Column]:
    """The file's columns as a table could have them. A column with nothing but null tells no type: it is text."""
    if twice := sorted({one for one in given.names if given.names.count(one) > 1}):
        raise BadFileError(name, f"it has column {twice[0]!r} twice", column=twice[0])
    wanted = [item for item in given if only is None or item.name in only]
    try:
        return columns(pa.schema([item.with_type(_storable(item.type)) for item in wanted])) if wanted else {}
    except SpecError as error:
        raise BadFileError(name, str(error)) from error


def _storable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_unsigned_integer(kind):
        return pa.int64() if kind.bit_width < 64 else pa.decimal128(20, 0)
    return kind


def _refuse_missing(table: Schema, name: str, given: pa.Schema) -> None:
    for item in table.fields:
        if item.required and item.name not in given.names:
            raise BadFileError(
                name, f"column {item.name!r} is required, but the file has none.{did_you_mean(item.name, given.names)}",
                column=item.name,
            )  # fmt: skip


def _agreed(before: str | None, kind: str, name: str, column: str) -> str:
    """The type of a column that several files bring: the wider one, if one holds the other."""
    if before in (None, kind):
        return kind
    order = [["int", "long"], ["float", "double"], ["int", "double"], ["long", "double"]]
    for pair in order:
        if {before, kind} == set(pair):
            return pair[1]
    raise BadFileError(
        name, f"column {column!r} is {kind} here and {before} in another file of the batch", column=column
    )


def _wider(have: IcebergType, kind: str, planned: str | None) -> str | None:
    match have:
        case IntegerType() if kind == "long":
            return "long"
        case FloatType() if kind == "double":
            return "double"
        case DecimalType() if kind.startswith("decimal"):
            precision, scale = (int(part) for part in kind[8:-1].split(","))
            if scale == have.scale and precision > have.precision:
                widest = max(precision, int(planned[8:-1].split(",")[0]) if planned else 0)
                return f"decimal({widest}, {scale})"
    return None


def misfit(table: Schema, given: pa.Schema) -> str:
    """Why rows of these typed columns can never fit, or nothing. What may fit is found out value by value."""
    for item in table.fields:
        if item.name in given.names and _never(item.field_type, given.field(item.name).type):
            here = given.field(item.name).type
            return f"column {item.name!r} is {type_text(item.field_type)} in the table and {here} here"
    return ""


def _never(have: IcebergType, kind: pa.DataType) -> bool:
    """A list is no number, and a time is no amount."""
    if pa.types.is_nested(kind) == have.is_primitive:
        return True
    number = isinstance(have, IntegerType | LongType | FloatType | DoubleType | DecimalType)
    return number and (pa.types.is_temporal(kind) or pa.types.is_boolean(kind))
