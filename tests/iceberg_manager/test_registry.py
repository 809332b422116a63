"""The nine views show the whole catalog, damaged tables included."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType, TimestamptzType

from iceberg_manager import registry
from iceberg_manager.catalog import open_catalog
from iceberg_manager.errors import NotFoundError
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings
from iceberg_manager.sql import SqlEngine
from iceberg_manager.time_travel import RUN_ID

SCHEMA = Schema(
    NestedField(1, "id", LongType(), True, doc="the number"),
    NestedField(2, "name", StringType(), False),
    NestedField(3, "at", TimestamptzType(), False),
    NestedField(4, "day", DateType(), False),
    identifier_field_ids=[1],
)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3]),
        "name": ["Ada", None, "Zoe"],
        "at": pa.array([0, 86_400_000_000, 86_400_000_001], pa.timestamp("us", "UTC")),
        "day": pa.array([0, 1, 1], pa.date32()),
    },
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("at", pa.timestamp("us", "UTC")),
            pa.field("day", pa.date32()),
        ]
    ),
)


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    catalog = open_catalog(settings)
    for namespace in (("shop",), ("shop", "eu")):
        catalog.create_namespace(namespace)
    table = catalog.create_table(
        "shop.eu.users",
        SCHEMA,
        location=f"{settings.warehouse_location}/shop/eu/users",
        partition_spec=PartitionSpec(PartitionField(3, 1000, DayTransform(), "at_day")),
        sort_order=SortOrder(SortField(1, IdentityTransform())),
        properties={"owner": "us"},
    )
    table.append(ROWS, snapshot_properties={RUN_ID: "run-1234"})
    catalog.create_table("shop.empty", SCHEMA, location=f"{settings.warehouse_location}/shop/empty")
    return catalog


def rows(catalog: Catalog, name: str, table: str = "users") -> list[dict]:
    return [row for row in registry.view(catalog, name).to_pylist() if row.get("table_name", table) == table]


def test_there_are_nine_views_with_fixed_columns(catalog: Catalog):
    assert len(registry.VIEWS) == 9
    for name, (columns, _) in registry.VIEWS.items():
        assert registry.view(catalog, name).column_names == ["catalog", *columns]


def test_catalogs_and_namespaces_count_their_tables_and_hide_passwords(catalog: Catalog):
    catalog.properties["uri"] = "postgresql://me:secret@host/db?password=secret"
    (shown,) = rows(catalog, "iceberg_catalogs")
    assert (shown["namespaces"], shown["tables"], shown["uri"]) == (2, 2, "postgresql://host/db")
    assert {row["namespace"]: row["tables"] for row in rows(catalog, "iceberg_namespaces")} == {"shop": 1, "shop.eu": 1}


def test_tables_show_their_size_and_layout(catalog: Catalog):
    (users,) = rows(catalog, "iceberg_tables")
    assert (users["namespace"], users["rows"], users["files"], users["snapshots"]) == ("shop.eu", 3, 2, 1)
    assert (users["partition_by"], users["sort_by"], users["error"]) == ("day(at)", "id ASC", None)
    (empty,) = rows(catalog, "iceberg_tables", "empty")
    assert (empty["rows"], empty["current_snapshot_id"]) == (0, None)


def test_schemas_snapshots_specs_and_orders_have_one_row_each(catalog: Catalog):
    table = catalog.load_table("shop.eu.users")
    with table.update_schema() as update:
        update.add_column("email", StringType())
    columns = rows(catalog, "table_schemas")
    assert [row["column_name"] for row in columns if row["is_current"]] == ["id", "name", "at", "day", "email"]
    assert [row["column_name"] for row in columns if row["schema_id"] == 0 and row["is_key"]] == ["id"]
    (snapshot,) = rows(catalog, "table_snapshots")
    assert (snapshot["run_id"], snapshot["added_rows"], snapshot["refs"], snapshot["on_main"]) == (
        "run-1234",
        3,
        "main",
        True,
    )
    assert [(row["source_column"], row["transform"]) for row in rows(catalog, "partition_specs")] == [("at", "day")]
    assert [(row["source_column"], row["direction"]) for row in rows(catalog, "sort_orders")] == [("id", "asc")]


def test_files_show_readable_statistics(catalog: Catalog):
    (manifest,) = rows(catalog, "manifest_lists")
    assert (manifest["content"], manifest["added_files"], manifest["added_rows"]) == ("data", 2, 3)
    later = next(row for row in rows(catalog, "data_files") if row["rows"] == 2)
    assert later["partition"] == "at_day=1970-01-02"
    assert dict(later["lower_bounds"])["id"] == "2"
    assert dict(later["upper_bounds"])["day"] == "1970-01-02"
    assert dict(later["upper_bounds"])["at"].startswith("1970-01-02T00:00:00.000001")
    assert (dict(later["null_counts"])["name"], dict(later["value_counts"])["name"]) == (1, 2)


def test_a_bound_from_before_a_column_was_widened_is_shown(settings: LakeSettings, catalog: Catalog):
    from pyiceberg.types import IntegerType

    small = Schema(NestedField(1, "n", IntegerType(), False))
    table = catalog.create_table("shop.small", small, location=f"{settings.warehouse_location}/shop/small")
    table.append(pa.table({"n": pa.array([5], pa.int32())}))
    with table.update_schema() as update:
        update.update_column("n", LongType())
    (file,) = rows(catalog, "data_files", "small")
    assert file["error"] is None
    assert dict(file["lower_bounds"])["n"] == "5"


def test_a_damaged_table_is_a_row_with_its_error_and_hides_no_other(settings: LakeSettings, catalog: Catalog):
    for name, damage in (("cut", "{"), ("gone", None)):
        table = catalog.create_table(f"shop.{name}", SCHEMA, location=f"{settings.warehouse_location}/shop/{name}")
        metadata = Path(table.metadata_location)
        metadata.unlink() if damage is None else metadata.write_text(damage)
    shown = {row["table_name"]: row["error"] for row in registry.view(catalog, "iceberg_tables").to_pylist()}
    assert shown["users"] is None
    assert shown["cut"]
    assert shown["gone"]
    for name in registry.VIEWS:
        registry.view(catalog, name)


def test_a_missing_manifest_is_told_where_files_are_listed(catalog: Catalog):
    table = catalog.load_table("shop.eu.users")
    snapshot = table.current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifests(table.io)[0].manifest_path).unlink()
    (row,) = rows(catalog, "data_files")
    assert "No such file" in row["error"] or "not found" in row["error"].lower() or "exist" in row["error"]


def test_a_view_can_be_restricted_to_some_tables(catalog: Catalog):
    shown = registry.view(catalog, "iceberg_tables", [TableName.parse("shop.empty")]).to_pylist()
    assert [row["table_name"] for row in shown] == ["empty"]


def test_views_are_queryable_and_joinable_through_sql(settings: LakeSettings, catalog: Catalog):
    query = (
        "SELECT t.table_name, sum(f.rows) AS n, max(f.lower_bounds['name']) AS low FROM iceberg_tables t "
        "JOIN data_files f USING (namespace, table_name) GROUP BY ALL"
    )
    assert SqlEngine(settings).run(catalog, query).rows() == [{"table_name": "users", "n": 3, "low": "Zoe"}]


def test_an_unknown_view_is_answered_with_the_nearest(catalog: Catalog):
    with pytest.raises(NotFoundError, match="Did you mean 'data_files'"):
        registry.view(catalog, "datafiles")
