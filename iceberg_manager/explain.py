"""What a condition means, and what reading the rows it selects would cost. Reads metadata only, never a data file.

A condition is parsed by PyIceberg, fitted to the columns' types (times are UTC unless they carry a zone; numbers compare
exactly) and then either planned here or rendered as SQL for DuckDB with every name and value quoted: its text never becomes
part of a statement. Manifests that the partition summaries rule out are not opened, so the cost of a plan grows with what
is selected.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any
from uuid import UUID

from pyiceberg import expressions as ex
from pyiceberg.expressions import BooleanExpression, LiteralPredicate
from pyiceberg.expressions import literals as values
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from pyiceberg.utils.datetime import micros_to_time, micros_to_timestamp

from iceberg_manager.errors import InputError, LakeError, NotFoundError, first_line
from iceberg_manager.names import did_you_mean
from iceberg_manager.time_travel import parse_moment, schema_at

LONGEST_CONDITION = 1_000_000
MOST_PARENTHESES = 1_000
_BELOW = (ex.LessThan, ex.LessThanOrEqual)
_ABOVE = (ex.GreaterThan, ex.GreaterThanOrEqual)


@dataclass(frozen=True)
class Explanation:
    """What a query would look at. Files of manifests that were not opened count as skipped by partition."""

    table: str
    snapshot_id: int | None
    condition: str
    engine: str = "duckdb"
    manifests: int = 0
    manifests_skipped: int = 0
    manifests_read: int = 0
    files: int = 0
    files_skipped_by_partition: int = 0
    files_skipped_by_statistics: int = 0
    files_read: int = 0
    delete_files: int = 0
    bytes_total: int | None = None
    bytes_read: int = 0
    rows_total: int | None = None
    rows_in_files_read: int = 0


def explain(
    table: Table, where: str | BooleanExpression | None = None, snapshot: Snapshot | None = None
) -> Explanation:
    """How a query with this condition would be planned, by default on the newest snapshot."""
    schema = schema_at(table, snapshot) if snapshot else table.schema()
    selected = condition(where, schema)
    shown = render(selected, schema) if where is not None else ""
    found = snapshot or table.current_snapshot()
    name = ".".join(table.name())
    if found is None:
        return Explanation(name, None, shown, bytes_total=0, rows_total=0)
    counted = found.summary.additional_properties if found.summary else {}
    plan = _Plan(table, schema, selected)
    try:
        for manifest in found.manifests(table.io):
            plan.consider(manifest)
    except OSError as error:
        raise LakeError(f"The manifests of {name} cannot be read: {first_line(error)}") from error
    return Explanation(
        name,
        found.snapshot_id,
        shown,
        bytes_total=int(counted["total-files-size"]) if "total-files-size" in counted else None,
        rows_total=int(counted["total-records"]) if "total-records" in counted else None,
        **plan.counts,  # type: ignore[arg-type]
    )


class _Plan:
    """Applies one condition to manifests and their files, counting what each step leaves out."""

    def __init__(self, table: Table, schema: Schema, selected: BooleanExpression) -> None:
        self._table, self._schema, self._selected = table, schema, selected
        self._statistics = _InclusiveMetricsEvaluator(schema, selected, True, False)
        self._filters: dict[int, tuple[Callable[[ManifestFile], bool], Callable[[Record], bool]]] = {}
        keys = [
            field for field in Explanation.__dataclass_fields__ if field.startswith(("manifests", "files", "delete"))
        ]
        self.counts: dict[str, int] = dict.fromkeys([*keys, "bytes_read", "rows_in_files_read"], 0)

    def consider(self, manifest: ManifestFile) -> None:
        may_hold, in_partition = self._filter(manifest.partition_spec_id)
        counts, data = self.counts, manifest.content == ManifestContent.DATA
        counts["manifests"] += 1
        if not may_hold(manifest):
            counts["manifests_skipped"] += 1
            held = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            counts["files"] += held if data else 0
            counts["files_skipped_by_partition"] += held if data else 0
            return
        counts["manifests_read"] += 1
        for entry in manifest.fetch_manifest_entry(self._table.io):
            self._consider_file(entry.data_file, in_partition(entry.data_file.partition))

    def _consider_file(self, file: DataFile, in_partition: bool) -> None:
        counts = self.counts
        if file.content != DataFileContent.DATA:
            counts["delete_files"] += in_partition
            return
        counts["files"] += 1
        if not in_partition:
            counts["files_skipped_by_partition"] += 1
        elif not self._statistics.eval(file):
            counts["files_skipped_by_statistics"] += 1
        else:
            counts["files_read"] += 1
            counts["bytes_read"] += file.file_size_in_bytes
            counts["rows_in_files_read"] += file.record_count

    def _filter(self, spec_id: int) -> tuple[Callable[[ManifestFile], bool], Callable[[Record], bool]]:
        """What the condition says about partitions of one layout; bound once, for there may be many manifests."""
        if spec_id not in self._filters:
            spec, schema = self._table.specs()[spec_id], self._schema
            projected = inclusive_projection(schema, spec, True)(self._selected)
            partition = Schema(*spec.partition_type(schema).fields)
            by_summary = manifest_evaluator(spec, schema, projected, True)
            self._filters[spec_id] = (by_summary, expression_evaluator(partition, projected, True))
        return self._filters[spec_id]


def condition(where: str | BooleanExpression | None, schema: Schema) -> BooleanExpression:
    """A condition that fits the columns, from text such as ``age > 30 and name like 'A%'``; not yet bound."""
    if where is None:
        return ex.AlwaysTrue()
    try:
        parsed = _parse(where) if isinstance(where, str) else where
        return _fit(parsed, schema)
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
    if isinstance(given, ex.Not):
        return ex.Not(_fit(given.child, schema))
    if isinstance(given, ex.AlwaysTrue | ex.AlwaysFalse):
        return given
    if not isinstance(given, ex.UnboundPredicate) or not isinstance(given.term, ex.Reference):
        raise InputError("The condition is bound to a table already: give its text, or an unbound expression.")
    field = find_column(schema, given.term.name)
    name = str(schema.find_column_name(field.field_id))
    if isinstance(given, ex.SetPredicate):
        return _fit_set(type(given), name, field.field_type, given.literals)
    if isinstance(given, LiteralPredicate):
        return _fit_comparison(type(given), name, field.field_type, given.literal)
    return type(given)(name)


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
    return kind(name, fitted)


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


def _out_of_range(kind: type[LiteralPredicate], name: str, above: bool) -> BooleanExpression:
    """A comparison with a value that no row can reach holds for every row that has a value, or for none."""
    always = kind is ex.NotEqualTo or kind in (_BELOW if above else _ABOVE)
    return _has_value(name) if always else ex.AlwaysFalse()


def render(fitted: BooleanExpression, schema: Schema) -> str:
    """A fitted condition as DuckDB's SQL, every name and value quoted."""
    return _sql(bind(schema, fitted, case_sensitive=True), schema)


def identifier(name: str) -> str:
    """A name as SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted(text: str) -> str:
    """Text as an SQL literal. DuckDB's literals know no escape but the doubled quote, and a zero would end the statement."""
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"


def column_path(schema: Schema, field: NestedField) -> str:
    """A column as SQL, by its whole path."""
    names, at = [field.name], field.field_id
    while (parent := schema._lazy_id_to_parent.get(at)) is not None:
        names.append(schema.find_field(parent).name)
        at = parent
    top, *inner = names[::-1]
    return identifier(top) + "".join(f"[{quoted(name)}]" for name in inner)


def _sql(bound: BooleanExpression, schema: Schema) -> str:
    if isinstance(bound, ex.And | ex.Or):
        word = "AND" if isinstance(bound, ex.And) else "OR"
        return f"({_sql(bound.left, schema)} {word} {_sql(bound.right, schema)})"
    if isinstance(bound, ex.Not):
        return f"NOT ({_sql(bound.child, schema)})"
    if not isinstance(bound, ex.BoundPredicate):
        return "TRUE" if isinstance(bound, ex.AlwaysTrue) else "FALSE"
    field = bound.term.ref().field
    column = column_path(schema, field)
    if isinstance(bound, ex.BoundSetPredicate):
        listed = ", ".join(sorted(_sql_value(field.field_type, value) for value in bound.value_set))
        return f"{column} {'IN' if isinstance(bound, ex.BoundIn) else 'NOT IN'} ({listed})"
    if isinstance(bound, ex.BoundLiteralPredicate):
        return _COMPARISONS[type(bound)].format(column, _sql_value(field.field_type, bound.literal.value))
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


def _sql_value(column: IcebergType, value: Any) -> str:
    """A value of a column's type as an SQL literal of that type."""
    if isinstance(column, StringType):
        return quoted(value)
    if isinstance(column, BooleanType | IntegerType | LongType):
        return str(value).upper()
    return f"CAST({quoted(_spelled(column, value))} AS {sql_type(column)})"


def _spelled(column: IcebergType, value: Any) -> str:
    if isinstance(column, BinaryType | FixedType):
        return "".join(f"\\x{byte:02X}" for byte in value)
    if isinstance(column, UUIDType):
        return str(value if not isinstance(value, bytes) else UUID(bytes=value))
    if isinstance(column, DateType):
        return (date(1970, 1, 1) + timedelta(days=value)).isoformat()
    if isinstance(column, TimeType):
        return micros_to_time(value).isoformat()
    if isinstance(column, TimestampType | TimestamptzType):
        return micros_to_timestamp(value).isoformat(" ") + ("+00" if isinstance(column, TimestamptzType) else "")
    return str(value)


def sql_type(column: IcebergType) -> str:
    """The DuckDB type that reads a column."""
    if isinstance(column, StructType):
        return (
            f"STRUCT({', '.join(f'{identifier(field.name)} {sql_type(field.field_type)}' for field in column.fields)})"
        )
    if isinstance(column, ListType):
        return f"{sql_type(column.element_type)}[]"
    if isinstance(column, MapType):
        return f"MAP({sql_type(column.key_type)}, {sql_type(column.value_type)})"
    if isinstance(column, DecimalType):
        return f"DECIMAL({column.precision}, {column.scale})"
    return _SQL_TYPES.get(str(column).partition("[")[0], "VARCHAR")


_SQL_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ns": "TIMESTAMP_NS",
    "uuid": "UUID",
    "binary": "BLOB",
    "fixed": "BLOB",
}
