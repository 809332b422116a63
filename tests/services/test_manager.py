"""IcebergManager on every kind of lake: what works on one disk works on Postgres, REST and S3."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import LakeSettings
from tests.services.conftest import LAKES

pytestmark = pytest.mark.parametrize("lake", LAKES, indirect=True)
SCHEMA = {"id": "long", "name": "string", "age": "int", "at": "timestamptz"}


def _rows(*ids: int) -> pa.Table:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return pa.Table.from_pylist([{"id": i, "name": f"n{i}", "age": i % 90, "at": at} for i in ids])


@pytest.fixture
def manager(lake: LakeSettings, request: pytest.FixtureRequest) -> IcebergManager:
    """Tables are in a namespace of their own: the REST catalog is one for all tests."""
    return IcebergManager(lake)


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"people_{abs(hash(str(tmp_path)))}.users"


def test_rows_are_written_changed_read_and_compared(manager: IcebergManager, name: str) -> None:
    manager.create_table(name, SCHEMA, partition_by=["day(at)"], sort_by=["id"], key=["id"])
    manager.insert_data(name, _rows(*range(100)))
    first = manager.get_current_snapshot(name).id
    manager.update_expressions(name, ["age=age+1"], "id < 10")
    manager.delete_data(name, "id >= 90")
    manager.upsert_data(name, _rows(5, 200), ["id"])

    now = {row["id"]: row for row in manager.query_table(name).rows()}
    assert sorted(now) == [*range(90), 200]
    assert now[4]["age"] == 5
    assert now[5]["age"] == 5
    assert manager.query_snapshot(name, first).arrow().num_rows == 100
    found = manager.diff_snapshots(name, first, key=["id"])
    assert (found.rows_added, found.rows_removed) == (1, 10)
    assert manager.sql(f"select count(*) n from {name}").rows() == [{"n": 91}]


def test_metadata_is_changed_named_rolled_back_and_expired(manager: IcebergManager, name: str) -> None:
    manager.create_table(name, SCHEMA)
    for start in range(4):
        manager.insert_data(name, _rows(start))
    ids = [snapshot.id for snapshot in manager.list_snapshots(name)]
    manager.add_column(name, "email", "string")
    manager.rename_column(name, "name", "full_name")
    manager.tag(name, "first", ids[0])
    manager.rollback(name, ids[2])
    assert manager.query_table(name).arrow().num_rows == 3
    assert manager.query_table(name, tag="first").arrow().num_rows == 1
    done = manager.expire_snapshots(name, older_than_days=0, keep_last=1)
    assert done.files_deleted > 0
    assert {s.id for s in manager.list_snapshots(name)} == {ids[0], ids[2]}
    assert manager.query_table(name).arrow().num_rows == 3
    assert name in manager.list_tables()
    assert manager.describe(name).rows == 3


def test_the_catalogs_views_say_what_is_there_and_no_password(manager: IcebergManager, name: str) -> None:
    manager.create_table(name, SCHEMA)
    manager.insert_data(name, _rows(1, 2))
    views = manager.sql("select * from iceberg_tables").rows()
    assert [row["rows"] for row in views if f"{row['namespace']}.{row['table_name']}" == name] == [2]
    assert "canary" not in str(manager.sql("select * from iceberg_catalogs").rows())


def test_a_dropped_table_leaves_no_files_when_purged(manager: IcebergManager, name: str) -> None:
    manager.create_table(name, SCHEMA)
    manager.insert_data(name, _rows(1, 2))
    location, io = manager.table(name).metadata_location, manager.table(name).io
    manager.drop_table(name, purge=True)
    assert name not in manager.list_tables()
    assert not io.new_input(location).exists()
