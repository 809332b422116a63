"""What a condition means: parsed by PyIceberg, fitted to a table's columns, and rendered as SQL for DuckDB.

Times are UTC unless they carry a zone, and numbers compare exactly. Neither a null nor a NaN matches a comparison, nor its
negation (``!=``, ``NOT IN``, ``NOT``); ``IS NULL`` and ``IS NAN`` find them. That holds for rows and for the statistics of
files, so that what a query shows is what a delete with the same condition removes. A condition's text never becomes part
of a statement: names and values are quoted.
"""

import struct
from collections.abc import Iterable
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any

from pyiceberg import expressions as ex
from pyiceberg.expressions import BooleanExpression, LiteralPredicate
from pyiceberg.expressions import literals as values
from pyiceberg.expressions.visitors import bind, rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
)

from iceberg_manager.duckdb_text import column_path, literal
from iceberg_manager.errors import InputError, NotFoundError, first_line
from iceberg_manager.names import did_you_mean
from iceberg_manager.time_travel import parse_moment

LONGEST_CONDITION = 1_000_000
MOST_PARENTHESES = 1_000
_BELOW = (ex.LessThan, ex.LessThanOrEqual)
_ABOVE = (ex.GreaterThan, ex.GreaterThanOrEqual)


def condition(where: str | BooleanExpression | None, schema: Schema) -> BooleanExpression:
    """A condition that fits the columns, from text such as ``age > 30 and name like 'A%'``; not yet bound."""
    if where is None:
        return ex.AlwaysTrue()
    try:
        parsed = _parse(where) if isinstance(where, str) else where
        return _fit(rewrite_not(parsed), schema)
    except RecursionError:
        raise InputError("The condition is nested too deeply: write it with fewer parentheses and NOTs.") from None


def _parse(text: str) -> BooleanExpression:
    from pyiceberg.expressions.parser import parse
    from pyparsing import ParseException

    if not text.strip() or len(text) > LONGEST_CONDITION:
        raise InputError(f"A condition has between 1 and {LONGEST_CONDITION:,} characters, such as: age > 30.")
    if text.count("(") > MOST_PARENTHESES:
        raise InputError(f"The condition is nested too deeply: use at most {MOST_PARENTHESES:,} parentheses.")
    try:
        return parse(text)
    except ParseException as error:
        raise InputError(
            f"The condition cannot be read at character {error.loc + 1} ({text[error.loc : error.loc + 20]!r}): write "
            "it like age > 30 and name = 'Ada', city in ('Rome', 'Oslo'), name like 'A%' or email is not null."
        ) from error
    except (ValueError, ArithmeticError) as error:
        raise InputError(f"The condition cannot be read: {first_line(error)}.") from error


def find_column(schema: Schema, name: str) -> NestedField:
    """A column by its name, nested ones by their dotted path, in any case if that is unambiguous."""
    known = schema.column_names
    matches = [name] if name in known else [other for other in known if other.lower() == name.lower()]
    if len(matches) == 1:
        return schema.find_field(matches[0])
    if matches:
        raise InputError(f"Column {name!r} could be {' or '.join(matches)}: spell it exactly.")
    hint = did_you_mean(name.lower(), [other.lower() for other in known]) or f" Known: {', '.join(known[:20])}."
    raise NotFoundError(f"There is no column {name!r}.{hint}")


def _fit(given: BooleanExpression, schema: Schema) -> BooleanExpression:
    """Gives every value its column's type, and says so when it has none that fits."""
    if isinstance(given, ex.And | ex.Or):
        return type(given)(_fit(given.left, schema), _fit(given.right, schema))
    if isinstance(given, ex.AlwaysTrue | ex.AlwaysFalse):
        return given
    if not isinstance(given, ex.UnboundPredicate) or not isinstance(given.term, ex.Reference):
        raise InputError("The condition is bound to a table already: give its text, or an unbound expression.")
    field = find_column(schema, given.term.name)
    name = str(schema.find_column_name(field.field_id))
    if isinstance(given, ex.SetPredicate):
        return _guarded(_fit_set(type(given), name, field.field_type, given.literals), name, field.field_type)
    if isinstance(given, LiteralPredicate):
        return _guarded(_fit_comparison(type(given), name, field.field_type, given.literal), name, field.field_type)
    if isinstance(given, ex.IsNaN | ex.NotNaN) and not isinstance(field.field_type, FloatType | DoubleType):
        raise InputError(f"Column {name} is {field.field_type}: only floats and doubles can be NaN.")
    return ex.And(_has_value(name), _is_number(name)) if isinstance(given, ex.NotNaN) else type(given)(name)


def _guarded(fitted: BooleanExpression, name: str, column: IcebergType) -> BooleanExpression:
    """Says what PyIceberg would take otherwise: a null differs from nothing, and a NaN compares to nothing."""
    if isinstance(fitted, ex.NotEqualTo | ex.NotIn | ex.NotStartsWith):
        fitted = ex.And(_has_value(name), fitted)
    if isinstance(column, FloatType | DoubleType):
        fitted = ex.And(_is_number(name), fitted)
    return fitted


def _fit_set(
    kind: type[ex.SetPredicate], name: str, column: IcebergType, given: Iterable[values.Literal[Any]]
) -> BooleanExpression:
    """Values that no row can hold do not matter to a set."""
    fitted = [_fit_comparison(ex.EqualTo, name, column, value) for value in given]
    possible = [item.literal for item in fitted if isinstance(item, ex.EqualTo)]
    if not possible:
        return ex.AlwaysFalse() if kind is ex.In else _has_value(name)
    return kind(name, possible)


def _fit_comparison(
    kind: type[LiteralPredicate], name: str, column: IcebergType, value: values.Literal[Any]
) -> BooleanExpression:
    if not column.is_primitive:
        raise InputError(f"Column {name} is a {type(column).__name__}: compare one of the values inside it.")
    if kind in (ex.StartsWith, ex.NotStartsWith) and not isinstance(column, StringType):
        raise InputError(f"Column {name} is {column}: only text can be compared with LIKE.")
    try:
        if isinstance(column, IntegerType | LongType | DecimalType):
            return _fit_number(kind, name, column, _number(value))
        fitted = _moment(value, column) if isinstance(value, values.StringLiteral) else value.to(column)
    except (TypeError, ValueError, ArithmeticError, OverflowError) as error:
        raise InputError(f"Column {name} is {column}: {value.value!r} does not fit it.") from error
    if isinstance(fitted, values.AboveMax | values.BelowMin):
        return _out_of_range(kind, name, above=isinstance(fitted, values.AboveMax))
    if isinstance(fitted, values.FloatLiteral):
        fitted = values.FloatLiteral(_single(fitted.value))
    return kind(name, fitted)


def _single(value: float) -> float:
    """The value of single precision that is meant: bounds of files hold such, and 0.1 is none."""
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded


def _moment(value: values.StringLiteral, column: IcebergType) -> values.Literal[Any]:
    if isinstance(column, TimestampType | TimestamptzType):
        since = parse_moment(value.value) - parse_moment("1970-01-01")
        return values.TimestampLiteral(since // timedelta(microseconds=1))
    if isinstance(column, DateType):
        return values.DateLiteral((date.fromisoformat(value.value.strip()) - date(1970, 1, 1)).days)
    return value.to(column)


def _number(value: values.Literal[Any]) -> Decimal:
    """Exactly what was written. Fractions come from the parser as binary ones, which hold 15 digits."""
    if isinstance(value, values.LongLiteral):
        return Decimal(value.value)
    if isinstance(value, values.StringLiteral):
        number = Decimal(value.value.strip())
    elif isinstance(value, values.DecimalLiteral) and isinstance(value.value, Decimal):
        number = Decimal(repr(float(value.value)))
        if len(number.as_tuple().digits) > 15:
            raise InputError(f"{number} has more digits than can be read exactly: write such numbers in quotes.")
    else:
        raise TypeError(type(value).__name__)
    if not number.is_finite():
        raise InvalidOperation(str(number))
    return number


def _fit_number(
    kind: type[LiteralPredicate], name: str, column: IntegerType | LongType | DecimalType, number: Decimal
) -> BooleanExpression:
    """Compares exactly: a value between two that the column can hold moves to the one that selects the same rows."""
    with localcontext(prec=200):
        scale = column.scale if isinstance(column, DecimalType) else 0
        step = Decimal(1).scaleb(-scale)
        if isinstance(column, DecimalType):
            highest = (Decimal(10) ** column.precision - 1) * step
            lowest = -highest
        else:
            lowest, highest = Decimal(type(column).min), Decimal(type(column).max)
        if not lowest <= number <= highest:
            return _out_of_range(kind, name, above=number > highest)
        below = number.quantize(step, "ROUND_FLOOR")
        if below != number and kind in (ex.EqualTo, ex.NotEqualTo):
            return ex.AlwaysFalse() if kind is ex.EqualTo else _has_value(name)
        upward = below != number and kind in (ex.LessThan, ex.GreaterThanOrEqual)
        fitted = below + step if upward else below
    if isinstance(column, DecimalType):
        return kind(name, values.DecimalLiteral(fitted))
    return kind(name, values.LongLiteral(int(fitted)))


def _has_value(name: str) -> BooleanExpression:
    return ex.NotNull(name)  # type: ignore[call-arg]


def _is_number(name: str) -> BooleanExpression:
    return ex.NotNaN(name)  # type: ignore[call-arg]


def _out_of_range(kind: type[LiteralPredicate], name: str, above: bool) -> BooleanExpression:
    """A comparison with a value that no row can reach holds for every row that has a value, or for none."""
    always = kind is ex.NotEqualTo or kind in (_BELOW if above else _ABOVE)
    return _has_value(name) if always else ex.AlwaysFalse()


def render(fitted: BooleanExpression, schema: Schema) -> str:
    """A fitted condition as DuckDB's SQL, every name and value quoted."""
    return _sql(bind(schema, fitted, case_sensitive=True), schema)


def _sql(bound: BooleanExpression, schema: Schema) -> str:
    if isinstance(bound, ex.And | ex.Or):
        word = "AND" if isinstance(bound, ex.And) else "OR"
        return f"({_sql(bound.left, schema)} {word} {_sql(bound.right, schema)})"
    if not isinstance(bound, ex.BoundPredicate):
        return "TRUE" if isinstance(bound, ex.AlwaysTrue) else "FALSE"
    field = bound.term.ref().field
    column = column_path(schema, field)
    if isinstance(bound, ex.BoundSetPredicate):
        listed = ", ".join(sorted(literal(field.field_type, value) for value in bound.value_set))
        return f"{column} {'IN' if isinstance(bound, ex.BoundIn) else 'NOT IN'} ({listed})"
    if isinstance(bound, ex.BoundLiteralPredicate):
        return _COMPARISONS[type(bound)].format(column, literal(field.field_type, bound.literal.value))
    return _TESTS[type(bound)].format(column)


_COMPARISONS: dict[type[ex.BoundPredicate], str] = {
    ex.BoundEqualTo: "{} = {}",
    ex.BoundNotEqualTo: "{} <> {}",
    ex.BoundLessThan: "{} < {}",
    ex.BoundLessThanOrEqual: "{} <= {}",
    ex.BoundGreaterThan: "{} > {}",
    ex.BoundGreaterThanOrEqual: "{} >= {}",
    ex.BoundStartsWith: "starts_with({}, {})",
    ex.BoundNotStartsWith: "NOT starts_with({}, {})",
}
_TESTS: dict[type[ex.BoundPredicate], str] = {
    ex.BoundIsNull: "{} IS NULL",
    ex.BoundNotNull: "{} IS NOT NULL",
    ex.BoundIsNaN: "isnan({})",
    ex.BoundNotNaN: "NOT isnan({})",
}
