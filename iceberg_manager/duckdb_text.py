"""Names, values and types as DuckDB spells them. Whatever is in a name or a value, it stays one."""

from datetime import date, timedelta
from typing import Any
from uuid import UUID

from pyiceberg.schema import Schema
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


def literal(column: IcebergType, value: Any) -> str:
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
