"""A diff says exactly what differs, and reads only what differs."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from iceberg_manager.catalog import open_catalog
from iceberg_manager.diff import PropertyChange, RowChange, SchemaChange, diff
from iceberg_manager.errors import InputError, LakeError, NotFoundError
from iceberg_manager.query import connect
from iceberg_manager.settings import LakeSettings

SCHEMA = Schema(
    NestedField(1, "id", LongType(), False),
    NestedField(2, "v", StringType(), False),
    NestedField(3, "x", DoubleType(), False),
    NestedField(4, "n", IntegerType(), False),
)


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(LakeSettings(root=tmp_path_factory.mktemp("duck"))) as connection:
        yield connection


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    catalog = open_catalog(settings)
    catalog.create_namespace("default")
    return catalog


@pytest.fixture
def table(catalog: Catalog, settings: LakeSettings) -> Table:
    return catalog.create_table("default.t", SCHEMA, location=f"{settings.warehouse_location}/default/t")


def head(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def add(table: Table, rows: list[tuple[int, str]]) -> int:
    listed = [{"id": key, "v": value, "x": float("nan"), "n": key} for key, value in rows]
    table.append(pa.Table.from_pylist(listed, schema=table.schema().as_arrow()))
    time.sleep(0.002)
    return head(table)


def rewrite_as(table: Table, rows: "pa.Table", operation: Operation) -> int:
    """Replace every file by one with these rows, as compaction does."""
    from pyiceberg.io.pyarrow import _dataframe_to_data_files

    with table.transaction() as transaction:
        files = [task.file for task in table.scan().plan_files()]
        with transaction.update_snapshot().overwrite() as update:
            for file in files:
                update.delete_data_file(file)
            for file in _dataframe_to_data_files(table.metadata, rows, table.io):
                update.append_data_file(file)
    if operation == Operation.REPLACE:  # which PyIceberg reads and cannot write
        place = Path(table.metadata_location)
        content = json.loads(place.read_text())
        content["snapshots"][-1]["summary"]["operation"] = "replace"
        place.write_text(json.dumps(content))
        table.refresh()
    return head(table)


def test_added_removed_and_changed_rows_by_key(duck: duckdb.DuckDBPyConnection, table: Table):
    old = add(table, [(1, "a"), (2, "b"), (3, "c")])
    table.delete("id in (2, 3)")
    new = add(table, [(3, "C"), (4, "d")])
    found = diff(duck, table, old, new, key=["id"])
    assert (found.rows_added, found.rows_removed, found.rows_changed) == (1, 1, 1)
    assert found.added["id"].to_pylist() == [4]
    assert found.removed["id"].to_pylist() == [2]
    assert found.changed == (RowChange({"id": 3}, {"v": "c"}, {"v": "C"}),)
    assert not found.same_rows


def test_without_a_key_changed_rows_are_removed_and_added(duck: duckdb.DuckDBPyConnection, table: Table):
    old = add(table, [(1, "a"), (1, "a"), (2, "b")])
    table.delete("id = 2")
    new = add(table, [(2, "B")])
    found = diff(duck, table, old, new)
    assert (found.rows_added, found.rows_removed, found.rows_changed) == (1, 1, None)
    back = diff(duck, table, new, old)
    assert (back.added["v"].to_pylist(), back.removed["v"].to_pylist()) == (["b"], ["B"])


def test_a_limit_bounds_the_rows_and_not_the_counts(duck: duckdb.DuckDBPyConnection, table: Table):
    old, new = add(table, [(0, "x")]), add(table, [(number, "y") for number in range(1, 51)])
    found = diff(duck, table, old, new, key=["id"], limit=5)
    assert (found.rows_added, found.added.num_rows) == (50, 5)


def test_a_snapshot_does_not_differ_from_itself(duck: duckdb.DuckDBPyConnection, table: Table):
    only = add(table, [(1, "a")])
    found = diff(duck, table, only, only, key=["id"])
    assert (found.same_rows, found.schema, found.properties, found.bytes_read) == (True, (), (), 0)


@pytest.mark.parametrize("operation", [Operation.REPLACE, Operation.OVERWRITE])
def test_a_rewrite_of_the_same_rows_is_no_difference(
    duck: duckdb.DuckDBPyConnection, table: Table, operation: Operation
):
    add(table, [(1, "a"), (2, "b")])
    old = add(table, [(3, "c")])
    new = rewrite_as(table, table.scan().to_arrow(), operation)
    found = diff(duck, table, old, new, key=["id"])
    assert found.same_rows
    assert (found.bytes_read == 0) == (operation == Operation.REPLACE)


def test_only_files_that_differ_are_read(duck: duckdb.DuckDBPyConnection, table: Table):
    for number in range(5):
        add(table, [(number, "a")])
    old = head(table)
    shared = list(Path(table.location()).glob("data/*.parquet"))
    shared_manifests = [Path(manifest.manifest_path) for manifest in table.current_snapshot().manifests(table.io)]
    new = add(table, [(9, "z")])
    for path in (*shared, *shared_manifests):
        path.unlink()
    found = diff(duck, table, old, new, key=["id"])
    assert (found.rows_added, found.files_added, found.files_removed) == (1, 1, 0)


def test_schema_changes_are_told_by_field(duck: duckdb.DuckDBPyConnection, table: Table):
    old = add(table, [(1, "a"), (2, "b")])
    with table.update_schema() as update:
        update.rename_column("v", "value")
        update.add_column("email", StringType())
        update.update_column("n", LongType())
        update.delete_column("x")
    rows = [{"id": 1, "value": "a", "n": 1, "email": "e"}, {"id": 2, "value": "b", "n": 2, "email": None}]
    new = rewrite_as(table, pa.Table.from_pylist(rows, schema=table.schema().as_arrow()), Operation.OVERWRITE)
    found = diff(duck, table, old, new, key=["id"])
    assert found.schema == (
        SchemaChange("renamed", 2, "value", "v", "value"),
        SchemaChange("dropped", 3, "x", "double", None),
        SchemaChange("retyped", 4, "n", "int", "long"),
        SchemaChange("added", 5, "email", None, "string"),
    )
    assert found.changed == (RowChange({"id": 1}, {"email": None}, {"email": "e"}),)
    assert (found.rows_added, found.rows_removed) == (0, 0)


def test_properties_are_compared_while_old_metadata_lasts(duck: duckdb.DuckDBPyConnection, table: Table):
    first = add(table, [(1, "a")])
    with table.transaction() as transaction:
        transaction.set_properties({"owner": "us"})
    second = add(table, [(2, "b")])
    assert diff(duck, table, first, second).properties == (PropertyChange("owner", None, "us"),)
    for entry in table.metadata.metadata_log:
        Path(entry.metadata_file).unlink()
    assert diff(duck, table, first, second).properties is None


def test_bad_input_is_explained(duck: duckdb.DuckDBPyConnection, table: Table):
    old, new = add(table, [(1, "a")]), add(table, [(2, "b"), (2, "c")])
    with pytest.raises(InputError, match="key id is not unique in the later snapshot"):
        diff(duck, table, old, new, key=["id"])
    with pytest.raises(NotFoundError, match="There is no column 'idd'"):
        diff(duck, table, old, new, key=["idd"])
    with pytest.raises(NotFoundError, match="The newest are"):
        diff(duck, table, 5, new)
    with pytest.raises(InputError, match="number of rows"):
        diff(duck, table, old, new, limit=-1)


def test_a_missing_file_is_one_sentence(duck: duckdb.DuckDBPyConnection, table: Table):
    old, new = add(table, [(1, "a")]), add(table, [(2, "b")])
    for file in Path(table.location()).glob("data/*.parquet"):
        file.unlink()
    with pytest.raises(LakeError, match="cannot be read"):
        diff(duck, table, old, new)


history = st.lists(
    st.one_of(
        st.tuples(
            st.just("add"), st.lists(st.tuples(st.integers(0, 6), st.sampled_from("abc")), min_size=1, max_size=3)
        ),
        st.tuples(st.just("drop"), st.integers(0, 6)),
        st.tuples(st.just("rewrite"), st.none()),
    ),
    min_size=2,
    max_size=6,
)


@given(history)
@hypothesis_settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_two_snapshots_differ_by_exactly_the_rows_that_differ(
    duck: duckdb.DuckDBPyConnection, catalog: Catalog, settings: LakeSettings, history: list[tuple[str, Any]]
):
    name = f"default.t{len(catalog.list_tables('default'))}"
    table = catalog.create_table(name, SCHEMA, location=f"{settings.warehouse_location}/{name}")
    rows: list[tuple[int, str]] = []
    states: dict[int, Counter[tuple[int, str]]] = {}
    for action, given_value in history:
        if action == "add":
            rows += given_value
            add(table, given_value)
        elif action == "drop" and any(key == given_value for key, _ in rows):
            rows = [row for row in rows if row[0] != given_value]
            table.delete(f"id = {given_value}")
        elif action == "rewrite" and rows:
            rewrite_as(table, table.scan().to_arrow(), Operation.REPLACE)
        if table.current_snapshot():
            states[head(table)] = Counter(rows)
    for (old, before), (new, after) in product(states.items(), states.items()):
        found = diff(duck, table, old, new)
        added = Counter(zip(found.added["id"].to_pylist(), found.added["v"].to_pylist(), strict=True))
        assert added == after - before
        assert found.rows_removed == (before - after).total()
