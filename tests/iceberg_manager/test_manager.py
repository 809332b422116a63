"""The facade: its names and signatures stay, every kind of data goes in, and the past reads as it was."""

import inspect
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iceberg_manager.arrow_writes import expr
from iceberg_manager.errors import LakeError, NotFoundError
from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import LakeSettings

SIGNATURES = {
    "create_table": "name, schema, **options",
    "insert_data": "table, data, on_error, form",
    "update_data": "table, updates, where",
    "delete_data": "table, condition",
    "upsert_data": "table, data, key, on_error, form",
    "query_table": "table, where, columns, limit, **at",
    "query_snapshot": "table, snapshot_id, **options",
    "query_as_of": "table, timestamp, **options",
    "sql": "statement, engine",
    "list_snapshots": "table",
    "get_current_snapshot": "table",
    "get_snapshot": "table, snapshot_id, **at",
    "get_snapshot_at_time": "table, timestamp",
    "diff_snapshots": "table, a, b, key, limit",
    "rollback": "table, snapshot_id",
    "expire_snapshots": "table, older_than_days, keep_last, progress",
    "evolve_schema": "table, changes",
    "add_column": "table, name, type",
    "rename_column": "table, name, new_name",
    "drop_column": "table, name",
    "alter_column": "table, name, type",
    "update_partitioning": "table, partition_by",
    "set_sort_order": "table, sort_by",
    "list_tables": "namespace",
    "list_namespaces": "",
    "describe": "table",
    "drop_table": "table, purge",
    "tag": "table, name, snapshot_id, keep_days",
    "branch": "table, name, snapshot_id, keep_days",
    "files_for_snapshot": "table, snapshot_id, partition",
    "files_for_partition": "table, partition, snapshot_id",
    "explain": "table, where, **at",
}


@pytest.fixture
def manager(settings: LakeSettings) -> IcebergManager:
    return IcebergManager(settings)


@pytest.fixture
def users(manager: IcebergManager) -> IcebergManager:
    manager.create_table("users", {"columns": {"id": "long", "name": "string"}, "required": ["id"]}, key=["id"])
    return manager


def ids(result: Any) -> list[int]:
    return sorted(row["id"] for row in result)


@pytest.mark.parametrize(("name", "parameters"), SIGNATURES.items())
def test_the_names_and_parameters_stay(name: str, parameters: str):
    found = list(inspect.signature(getattr(IcebergManager, name)).parameters.values())[1:]
    shown = [f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name for one in found]
    assert ", ".join(shown) == parameters


def test_expiry_keeps_thirty_days_unless_told():
    assert inspect.signature(IcebergManager.expire_snapshots).parameters["older_than_days"].default == 30


def test_a_lake_may_be_a_folder_or_settings(settings: LakeSettings, tmp_path: Path):
    for lake in (settings, tmp_path / "a", str(tmp_path / "b")):
        manager = IcebergManager(lake)
        manager.create_table("t", {"id": "long"})
        assert manager.list_tables() == ["default.t"]
        assert manager.list_namespaces() == ["default"]


def test_the_workflow_of_every_tutorial(manager: IcebergManager):
    manager.create_table("users", {"id": "long", "name": "string"})
    df1 = pd.DataFrame({"id": [1, 2], "name": ["Ada", "Emil"]})
    df2 = pd.DataFrame({"id": [3], "name": ["Noor"]})
    df3 = pd.DataFrame({"id": [4], "name": ["Zoe"], "email": ["zoe@example.com"]})
    manager.insert_data("users", df1)
    snapshot = manager.get_current_snapshot("users")
    manager.insert_data("users", df2)
    assert ids(manager.query_table("users")) == [1, 2, 3]
    assert ids(manager.query_snapshot("users", snapshot.id)) == [1, 2]
    manager.add_column("users", "email", "string")
    manager.insert_data("users", df3)
    now = manager.query_table("users").df().set_index("id")["email"]
    assert now[4] == "zoe@example.com"
    assert now.drop(4).isna().all()
    then = manager.query_snapshot("users", snapshot.id)
    assert then.columns == ["id", "name"]
    assert then.df().sort_values("id").reset_index(drop=True).astype(object).equals(df1.astype(object))


def _file(folder: Path) -> Path:
    pq.write_table(pa.table({"id": [1, 2], "name": ["a", "b"]}), folder / "rows.parquet")
    return folder / "rows.parquet"


DATA = {
    "pandas": lambda folder: pd.DataFrame({"id": [1, 2], "name": ["a", "b"]}),
    "polars": lambda folder: pl.DataFrame({"id": [1, 2], "name": ["a", "b"]}),
    "polars_lazy": lambda folder: pl.LazyFrame({"id": [1, 2], "name": ["a", "b"]}),
    "arrow_table": lambda folder: pa.table({"id": [1, 2], "name": ["a", "b"]}),
    "arrow_batch": lambda folder: pa.record_batch({"id": [1, 2], "name": ["a", "b"]}),
    "arrow_reader": lambda folder: pa.table({"id": [1, 2], "name": ["a", "b"]}).to_reader(),
    "dicts": lambda folder: [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    "relation": lambda folder: duckdb.sql("SELECT * FROM (VALUES (1, 'a'), (2, 'b')) AS rows(id, name)"),
    "path": _file,
    "path_text": lambda folder: str(_file(folder)),
}


@pytest.mark.parametrize("kind", DATA)
def test_every_kind_of_data_goes_in(users: IcebergManager, tmp_path: Path, kind: str):
    done = users.insert_data("users", DATA[kind](tmp_path))
    assert done.inserted == 2
    assert sorted(users.query_table("users").rows(), key=lambda row: row["id"]) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
    ]


def test_results_become_what_the_caller_likes(users: IcebergManager):
    users.insert_data("users", [{"id": 1, "name": "a"}])
    assert users.query_table("users").arrow().to_pylist() == [{"id": 1, "name": "a"}]
    assert users.query_table("users").df().to_dict("records") == [{"id": 1, "name": "a"}]
    assert users.query_table("users").pl().rows() == [(1, "a")]


def test_change_delete_and_upsert(users: IcebergManager):
    users.insert_data("users", [{"id": number, "name": "x"} for number in range(4)])
    assert users.update_data("users", {"name": "y"}, where="id = 1").updated == 1
    assert users.update_data("users", {"name": expr("upper(name) || id")}).updated == 4
    assert users.delete_data("users", "id > 2").deleted == 1
    done = users.upsert_data("users", [{"id": 2, "name": "new"}, {"id": 9, "name": "z"}], "id")
    assert (done.inserted, done.updated) == (1, 1)
    assert {row["id"]: row["name"] for row in users.query_table("users")} == {0: "X0", 1: "Y1", 2: "new", 9: "z"}


def test_a_time_finds_the_snapshot_of_then(users: IcebergManager):
    users.insert_data("users", [{"id": 1}])
    first = users.get_current_snapshot("users")
    users.insert_data("users", [{"id": 2}])
    assert users.get_snapshot_at_time("users", first.time).id == first.id
    assert users.get_snapshot("users", first.id).rows_added == 1
    assert ids(users.query_as_of("users", first.time)) == [1]
    assert ids(users.query_as_of("users", datetime.now(UTC) + timedelta(hours=1))) == [1, 2]
    with pytest.raises(NotFoundError, match=f"The oldest is {first.id}"):
        users.query_as_of("users", "2001-01-01")


def test_a_table_never_written_to_has_no_rows_and_no_snapshot(users: IcebergManager):
    assert len(users.query_table("users")) == 0
    assert users.list_snapshots("users") == []
    assert users.describe("users").current_snapshot is None
    with pytest.raises(LakeError, match="no snapshot yet"):
        users.get_current_snapshot("users")


def test_files_are_listed_by_snapshot_and_partition(manager: IcebergManager):
    manager.create_table("t", {"id": "long", "city": "string"}, partition_by=["city"])
    manager.insert_data("t", [{"id": 1, "city": "Oslo"}, {"id": 2, "city": "Rome"}, {"id": 3, "city": "Rome"}])
    first = manager.get_current_snapshot("t")
    manager.insert_data("t", [{"id": 4, "city": "Oslo"}])
    assert len(manager.files_for_snapshot("t", first.id)) == 2
    assert len(manager.files_for_snapshot("t")) == 3
    assert [row["rows"] for row in manager.files_for_partition("t", "city=Rome")] == [2]
    assert {row["partition"]: row["files"] for row in manager.partitions("t")} == {"city=Oslo": 2, "city=Rome": 1}


def test_dropping_with_purge_takes_the_files_too(users: IcebergManager, settings: LakeSettings):
    users.insert_data("users", [{"id": 1}])
    users.drop_table("users", purge=True)
    assert users.list_tables() == []
    assert not list(settings.root.rglob("*.parquet"))


def test_registry_views_are_results(users: IcebergManager):
    assert [row["table_name"] for row in users.registry("iceberg_tables")] == ["users"]


def test_metadata_work_loads_neither_arrow_nor_duckdbs_reader(settings: LakeSettings):
    import subprocess
    import sys

    IcebergManager(settings).create_table("users", {"id": "long"})
    program = (
        "import sys; from iceberg_manager.manager import IcebergManager; m = IcebergManager(sys.argv[1]); "
        "m.add_column('users', 'email', 'string'); m.describe('users'); "
        "print([name for name in ('pyarrow', 'pandas', 'polars', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, settings.root], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
