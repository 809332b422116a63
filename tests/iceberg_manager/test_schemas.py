"""Columns from whatever a person has."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType

from iceberg_manager.errors import LakeError
from iceberg_manager.schemas import columns, spec_like, type_text
from iceberg_manager.spec import Column

SHORT = {"columns": {"id": "long", "ts": "timestamptz"}, "required": ["id"], "docs": {"ts": "when"}}
OWN = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "type": "long", "required": True},
        {"id": 2, "name": "ts", "type": "timestamptz", "required": False, "doc": "when"},
    ],
}
ARROW = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("ts", pa.timestamp("us", "UTC"), metadata={"doc": "when"})]
)
MEANT = {"id": Column("long", "", True), "ts": Column("timestamptz", "when", False)}


@pytest.mark.parametrize(
    "given", [SHORT, OWN, ARROW, Schema.model_validate(OWN)], ids=["short", "own", "arrow", "schema"]
)
def test_every_form_means_the_same_columns(given: Any):
    assert columns(given) == MEANT


def test_a_file_holds_either_form(tmp_path: Path):
    for form in (SHORT, OWN):
        (tmp_path / "schema.json").write_text(json.dumps(form))
        assert columns(tmp_path / "schema.json") == MEANT


def test_a_plain_mapping_is_columns_alone():
    assert columns({"id": "long", "required": "string"}) == {"id": Column("long"), "required": Column("string")}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"columns": {"id": "long"}, "required": ["idd"]}, "'idd'"),
        ({"columns": ["id"]}, "maps names to types"),
        ({"columns": {"id": "long"}, "requierd": []}, "'requierd' is none of them"),
        ({"columns": {"id": 1}}, "is a text"),
        ({"fields": [{"name": "id"}]}, "not an Iceberg schema"),
        (17, "not int"),
        (pa.table({"a": [1]}), "cannot be a table"),
        (pa.schema([("a", pa.month_day_nano_interval())]), "cannot be a table"),
    ],
)
def test_what_is_no_schema_is_said_in_one_sentence(given: Any, said: str):
    with pytest.raises(LakeError, match=said) as error:
        columns(given)
    assert "\n" not in str(error.value)


def test_a_schema_file_that_is_missing_or_no_json_is_named(tmp_path: Path):
    (tmp_path / "bad.json").write_text("{")
    for name, said in (("bad.json", "not valid JSON"), ("none.json", "cannot be read")):
        with pytest.raises(LakeError, match=said):
            columns(tmp_path / name)


def test_nested_types_are_spelled_as_a_spec_takes_them():
    nested = StructType(NestedField(1, "a", LongType()), NestedField(2, "b", ListType(3, StringType())))
    assert type_text(MapType(4, StringType(), 5, nested)) == "map<string, struct<a: long, b: list<string>>>"


def test_a_layout_over_columns_that_a_spec_refuses_leaves_them_out():
    schema = Schema.model_validate(
        OWN | {"fields": [*OWN["fields"], {"id": 3, "name": "u", "type": "uuid", "required": False}]}
    )  # type: ignore[misc]
    assert list(spec_like("t", schema, partition_by=["day(ts)"]).schema) == ["id", "ts"]
