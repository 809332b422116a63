"""A table's columns from whatever a person has: Iceberg's own JSON, a short form, an Arrow or PyIceberg schema, a file.

All become the columns of a TableSpec, so that one place decides what a table may look like.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from iceberg_manager.errors import InputError, SpecError, first_line
from iceberg_manager.spec import Column, TableSpec

if TYPE_CHECKING:
    import pyarrow as pa

SHORT_FORM = '{"columns": {"id": "long", "ts": "timestamptz"}, "required": ["id"]}'


def columns(given: Any) -> dict[str, Column]:
    """The columns that are meant, in order."""
    if isinstance(given, str | Path):
        return columns(_read(Path(given)))
    if isinstance(given, Schema):
        return {
            field.name: Column(type_text(field.field_type), field.doc or "", field.required) for field in given.fields
        }
    if isinstance(given, Mapping) and "fields" in given:
        return columns(_from_iceberg_json(given))
    if isinstance(given, Mapping):
        return _from_short_form(given)
    if type(given).__module__.startswith("pyarrow"):
        return columns(_from_arrow(given))
    raise SpecError(f"A schema is a mapping such as {SHORT_FORM}, not {type(given).__name__}.")


def with_key(found: Mapping[str, Column], key: Sequence[str]) -> dict[str, Column]:
    """Columns of a key always have a value: Iceberg records a key over required columns only."""
    return {name: replace(column, required=True) if name in key else column for name, column in found.items()}


def spec_like(name: str, schema: Schema, **layout: Any) -> TableSpec:
    """A spec with the layout given, over those columns of an existing table that a spec may declare."""
    declared = {}
    for column, how in columns(schema).items():
        try:
            TableSpec(name, schema={column: how})
        except SpecError:
            continue
        declared[column] = how
    return TableSpec(name, schema=declared, **layout)


def type_text(kind: IcebergType) -> str:
    """A type as a spec spells it."""
    if isinstance(kind, ListType):
        return f"list<{type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.value_type)}>"
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{field.name}: {type_text(field.field_type)}' for field in kind.fields)}>"
    return str(kind)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"The schema file {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(
            f"{path} is not valid JSON: {first_line(error)}. A schema is, for instance, {SHORT_FORM}"
        ) from error


def _from_short_form(given: Mapping[str, Any]) -> dict[str, Column]:
    listed = given.get("columns", given)
    if not isinstance(listed, Mapping):
        raise SpecError(f"`columns` maps names to types, such as {SHORT_FORM}.")
    required, docs = given.get("required", []), given.get("docs", {})
    if "columns" in given and (unknown := [key for key in given if key not in ("columns", "required", "docs")]):
        raise SpecError(f"A schema has columns, required and docs; {unknown[0]!r} is none of them.")
    if "columns" not in given:
        required, docs = [], {}
    if missing := [name for name in required if name not in listed]:
        raise SpecError(f"`required` names {missing[0]!r}, which is not among the columns.")
    found = {}
    for name, kind in listed.items():
        if not isinstance(kind, str | Column):
            raise SpecError(f'The type of {name!r} is a text such as "long", not {kind!r}.')
        found[name] = kind if isinstance(kind, Column) else Column(kind, docs.get(name, ""), name in required)
    return found


def _from_iceberg_json(given: Mapping[str, Any]) -> Schema:
    try:
        return Schema.model_validate(dict(given))
    except ValueError as error:
        raise SpecError(f"This is not an Iceberg schema: {first_line(error)}.") from error


def _from_arrow(given: "pa.Schema") -> Schema:
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException, _pyarrow_to_schema_without_ids

    try:
        return _pyarrow_to_schema_without_ids(given, downcast_ns_timestamp_to_us=True)
    except (UnsupportedPyArrowTypeException, TypeError, NotImplementedError) as error:
        raise SpecError(f"These columns cannot be a table: {first_line(error)}.") from error
