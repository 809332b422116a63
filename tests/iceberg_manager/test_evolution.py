"""Columns and layout change without rewriting a file, and every engine reads old and new rows alike."""

import pytest

from iceberg_manager.errors import LakeError, NotFoundError, SpecError
from iceberg_manager.manager import IcebergManager
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings


@pytest.fixture
def manager(settings: LakeSettings) -> IcebergManager:
    manager = IcebergManager(settings)
    manager.create_table("t", {"columns": {"id": "int", "name": "string", "price": "decimal(5,2)"}, "required": ["id"]})
    manager.insert_data("t", [{"id": 1, "name": "a", "price": "1.50"}])
    return manager


def evolve(manager: IcebergManager) -> None:
    """All kinds of change, then a row that needs them."""
    manager.evolve_schema(
        "t",
        {
            "add": {"tags": "list<string>", "at": "timestamptz"},
            "rename": {"name": "title"},
            "alter": {"id": "long", "price": "decimal(9,2)"},
        },
    )
    manager.insert_data("t", [{"id": 2**40, "title": "b", "price": "1234567.89", "tags": ["x"], "at": "2024-01-01"}])


EXPECTED = [(1, "a", "1.50", None), (2**40, "b", "1234567.89", ["x"])]


def test_pyiceberg_and_duckdb_read_rows_from_before_and_after(manager: IcebergManager):
    evolve(manager)
    for rows in (manager.table("t").scan().to_arrow().to_pylist(), manager.query_table("t").rows()):
        found = [(row["id"], row["title"], str(row["price"]), row["tags"]) for row in rows]
        assert sorted(found, key=lambda row: row[0]) == EXPECTED


@pytest.mark.spark
def test_spark_reads_rows_from_before_and_after(manager: IcebergManager, session: LakeSession, settings: LakeSettings):
    evolve(manager)
    rows = session.spark.table(f"{settings.catalog.name}.default.t").orderBy("id").collect()
    assert [(row.id, row.title, str(row.price), row.tags) for row in rows] == EXPECTED


def test_several_changes_are_one_and_the_past_keeps_its_columns(manager: IcebergManager):
    first = manager.get_current_snapshot("t").id
    evolve(manager)
    assert manager.query_snapshot("t", first).columns == ["id", "name", "price"]
    old, new = manager.schema_history("t")
    assert (old.current, new.current, old.first_snapshot) == (False, True, first)
    assert new.changes == (
        "added tags list<string>",
        "added at timestamptz",
        "id became long, was int",
        "renamed name to title",
        "price became decimal(9, 2), was decimal(5, 2)",
    )


def test_a_column_dropped_and_added_again_is_another(manager: IcebergManager):
    manager.drop_column("t", "name")
    manager.add_column("t", "name", "string")
    assert [row["name"] for row in manager.query_table("t")] == [None]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alter": {"id": "string"}}, "cannot become string"),
        ({"alter": {"price": "decimal(4,2)"}}, "may only widen"),
        ({"alter": {"name": "int"}}, "cannot become int"),
        ({"add": {"name": "int"}}, "has a column 'name' already"),
        ({"add": {"uid": "uuid"}}, "string"),
        ({"add": {"x": "strnig"}}, "strnig"),
        ({"rename": {"name": "id"}}, "has a column 'id' already"),
        ({"ad": {"x": "int"}}, "Did you mean 'add'"),
    ],
)
def test_what_would_lose_values_is_refused_and_changes_nothing(manager: IcebergManager, changes: dict, said: str):
    before = manager.table("t").metadata_location
    with pytest.raises(SpecError, match=said):
        manager.evolve_schema("t", changes)
    assert manager.table("t").metadata_location == before


def test_an_unknown_column_is_answered_with_the_nearest(manager: IcebergManager):
    for attempt in (lambda: manager.rename_column("t", "nam", "x"), lambda: manager.drop_column("t", "nmae")):
        with pytest.raises(NotFoundError, match="Did you mean 'name'"):
            attempt()


def test_a_column_that_the_layout_needs_cannot_go(settings: LakeSettings):
    manager = IcebergManager(settings)
    manager.create_table("t", {"id": "long", "city": "string", "n": "int", "x": "int"}, partition_by=["city"],
                         sort_by=["n"], key=["id"])  # fmt: skip
    for column, why in (("id", "key"), ("city", "partitioned by"), ("n", "sorted by")):
        with pytest.raises(SpecError, match=why):
            manager.drop_column("t", column)
    manager.drop_column("t", "x")


def test_new_partitioning_holds_for_new_files_and_old_rows_stay_readable(manager: IcebergManager):
    assert manager.update_partitioning("t", ["bucket(4, id)", "name"]).partition_by == ["bucket(4, id)", "name"]
    manager.insert_data("t", [{"id": 2, "name": "b"}])
    assert sorted(row["id"] for row in manager.query_table("t")) == [1, 2]
    assert sorted(row["id"] for row in manager.table("t").scan().to_arrow().to_pylist()) == [1, 2]
    assert manager.update_partitioning("t", ["name"]).partition_by == ["name"]
    assert manager.update_partitioning("t", []).partition_by == []


def test_a_sort_order_is_set_and_taken_away(manager: IcebergManager):
    assert manager.set_sort_order("t", ["name desc", "id"]).sort_by == ["name desc", "id asc"]
    assert manager.set_sort_order("t", []).sort_by == []
    with pytest.raises(LakeError, match="nme"):
        manager.set_sort_order("t", ["nme"])
