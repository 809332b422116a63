"""A table follows its spec where that is safe, and stays as it is where it is not."""

import multiprocessing
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortDirection

from iceberg_manager.catalog import list_tables, load_table, open_catalog
from iceberg_manager.errors import SpecError
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import Column, MaintenancePolicy, TableSpec
from iceberg_manager.tables import declared_differences, ensure_table

SPEC = TableSpec(
    "shop.orders",
    {"id": Column("int", "The number.", required=True), "at": "timestamptz", "size": "float", "odd-name": "string"},
    partition_by=["day(at)"],
    sort_by=["id"],
    key=["id"],
)
Ensure = Callable[[TableSpec], Table]


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


@pytest.fixture
def ensure(catalog: Catalog, settings: LakeSettings) -> Ensure:
    return lambda spec: ensure_table(catalog, settings, spec)


def _shape(table: Table) -> dict[str, str]:
    return {field.name: f"{field.field_type}{'!' * field.required}" for field in table.schema().fields}


def _metadata(table: Table) -> str:
    return table.metadata_location


def test_a_table_is_created_as_declared(ensure: Ensure, settings: LakeSettings):
    table = ensure(replace(SPEC, maintenance=MaintenancePolicy(expire_after=timedelta(days=3))))
    assert table.location() == f"{settings.warehouse_location}/shop/orders"
    assert table.metadata.format_version == 2
    assert _shape(table) == {"id": "int!", "at": "timestamptz", "size": "float", "odd-name": "string"}
    assert [part.name for part in table.spec().fields] == ["at_day"]
    assert len(table.sort_order().fields) == 1
    assert table.schema().identifier_field_names() == {"id"}
    assert table.properties["history.expire.max-snapshot-age-ms"] == str(3 * 86_400_000)
    assert table.schema().find_field("id").doc == "The number."


def test_asking_again_changes_nothing(ensure: Ensure):
    assert _metadata(ensure(SPEC)) == _metadata(ensure(SPEC))


def test_nested_namespaces_and_a_table_of_the_same_name_lie_apart(ensure: Ensure):
    outer, inner = ensure(replace(SPEC, name="a.b")), ensure(replace(SPEC, name="a.b.c"))
    assert not inner.location().startswith(outer.location() + "/")


def _grown(**schema: str | Column) -> TableSpec:
    return replace(SPEC, schema=dict(SPEC.schema) | schema)


@pytest.mark.parametrize(
    ("schema", "column", "shape"),
    [
        ({"new": "string"}, "new", "string"),
        ({"new one": "struct<a: int, b: list<string>>"}, "new one", None),
        ({"size": "double"}, "size", "double"),
        ({"id": Column("long", "The number.", required=True)}, "id", "long!"),
        ({"id": Column("int", "The number.")}, "id", "int"),
    ],
)
def test_a_table_grows_with_its_spec(ensure: Ensure, schema: dict[str, Any], column: str, shape: str | None):
    ensure(SPEC).append(_rows())
    spec = _grown(**schema)
    table = ensure(spec)
    assert _shape(table)[column] == shape or (shape is None and column in _shape(table))
    assert declared_differences(table, spec) == []
    assert table.scan().to_arrow().num_rows == 1
    assert _metadata(ensure(spec)) == _metadata(table), "once is enough"


def _rows() -> pa.Table:
    schema = pa.schema(
        [
            pa.field("id", pa.int32(), nullable=False),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("size", pa.float32()),
            pa.field("odd-name", pa.string()),
        ]
    )
    return pa.Table.from_pylist([{"id": 1, "at": 0, "size": 1.5, "odd-name": "x"}], schema)


def test_what_a_column_means_can_be_written_changed_and_taken_back(ensure: Ensure):
    for said in ("The number.", "Its number.", ""):
        spec = _grown(id=Column("int", said, required=True))
        table = ensure(spec)
        assert (table.schema().find_field("id").doc or "") == said
        assert _metadata(ensure(spec)) == _metadata(table), "once is enough"


@pytest.mark.parametrize("sort_by", [["odd-name desc", "id"], ["id DESC"], []])
def test_the_sort_order_follows(ensure: Ensure, sort_by: list[str]):
    ensure(SPEC)
    spec = replace(SPEC, sort_by=sort_by)
    table = ensure(spec)
    said = [f"{field.direction} {field.null_order}" for field in table.sort_order().fields]
    assert said == [f"{field.direction} {field.null_order}" for field in spec.sort_order.fields]
    assert _metadata(ensure(spec)) == _metadata(table), "once is enough"
    assert [field.direction for field in ensure(SPEC).sort_order().fields] == [SortDirection.ASC], "and back again"


def test_properties_follow_and_others_stay(ensure: Ensure):
    with ensure(SPEC).transaction() as transaction:
        transaction.set_properties({"someone": "else"})
    table = ensure(replace(SPEC, properties={"a": "b"}, maintenance=MaintenancePolicy(keep_snapshots=7)))
    assert (table.properties["someone"], table.properties["a"]) == ("else", "b")
    assert table.properties["history.expire.min-snapshots-to-keep"] == "7"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": {"id": Column("int", required=True), "at": "timestamptz"}}, "no longer names odd-name, size"),
        ({"schema": dict(SPEC.schema) | {"id": Column("string", required=True)}}, "id is int and cannot become string"),
        ({"schema": dict(SPEC.schema) | {"size": "int"}}, "size is float and cannot become int"),
        ({"schema": dict(SPEC.schema) | {"size": Column("float", required=True)}}, "size cannot become required"),
        ({"schema": dict(SPEC.schema) | {"new": Column("int", required=True)}}, "new column new cannot be required"),
        ({"partition_by": ["hour(at)"]}, "partitioned by day(at), the spec says hour(at)"),
        ({"partition_by": []}, "partitioned by day(at), the spec says nothing"),
    ],
)
def test_what_would_lose_data_is_refused_and_nothing_changes(ensure: Ensure, change: dict[str, Any], said: str):
    before = ensure(SPEC)
    with pytest.raises(SpecError, match=r"^shop\.orders: ") as error:
        ensure(replace(SPEC, **change))
    assert said in str(error.value)
    assert _metadata(ensure(SPEC)) == _metadata(before)


def test_narrowing_is_refused(ensure: Ensure):
    ensure(replace(SPEC, schema={"a": "long", "b": "decimal(10,2)", "at": "timestamptz"}, sort_by=(), key=()))
    for a, b in (
        ("int", "decimal(10,2)"),
        ("long", "decimal(8,2)"),
        ("long", "decimal(12,3)"),
        ("double", "decimal(10,2)"),
    ):
        with pytest.raises(SpecError, match="without losing data"):
            ensure(replace(SPEC, schema={"a": a, "b": b, "at": "timestamptz"}, sort_by=(), key=()))


def test_columns_that_differ_from_the_spec_are_named(ensure: Ensure):
    table = ensure(SPEC)
    assert declared_differences(table, SPEC) == []
    other = replace(SPEC, schema={"id": "long", "at": "timestamptz", "size": "float", "x": "int"})
    assert declared_differences(table, other) == [
        "id: int, declared long", "odd-name: string, declared nowhere", "x: missing, declared int",
    ]  # fmt: skip


def _ensure_elsewhere(root: Path, spec: TableSpec) -> str:
    lake = LakeSettings(root=root)
    return str(ensure_table(open_catalog(lake), lake, spec).metadata.table_uuid)


def test_processes_that_create_and_change_a_table_at_once_all_succeed(tmp_path: Path):
    small = TableSpec("deep.down.t", {"id": "long"})
    grown = replace(small, schema={"id": "long", "x": "int"}, properties={"a": "b"}, sort_by=["x"])
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        made = [
            pool.starmap(_ensure_elsewhere, [(tmp_path / "lake", spec)] * 6, chunksize=1) for spec in (small, grown)
        ]
    catalog = open_catalog(LakeSettings(root=tmp_path / "lake"))
    assert len(set(made[0] + made[1])) == 1
    assert [str(name) for name in list_tables(catalog)] == ["deep.down.t"]
    table = load_table(catalog, "deep.down.t")
    assert (_shape(table), table.properties["a"]) == ({"id": "long", "x": "int"}, "b")
    assert len(table.sort_order().fields) == 1
