"""The same SQL text on Spark, and what Spark's merge-on-read leaves behind read by us."""

import json

import pytest
from typer.testing import CliRunner

from iceberg_manager import spark_sql
from iceberg_manager.cli import app
from iceberg_manager.diff import RowChange
from iceberg_manager.errors import InputError
from iceberg_manager.manager import IcebergManager
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings

pytestmark = pytest.mark.spark
ORDERS = [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "v": "c"}]


@pytest.fixture
def manager(settings: LakeSettings) -> IcebergManager:
    manager = IcebergManager(settings)
    for name in ("users", "shop.orders"):
        manager.create_table(name, {"id": "long", "v": "string"})
        manager.insert_data(name, ORDERS)
    return manager


def test_the_same_text_gives_the_same_rows_on_both_engines(manager: IcebergManager):
    text = "SELECT u.id, o.v FROM users u JOIN shop.orders o ON u.id = o.id WHERE u.id > 1 ORDER BY u.id"
    expected = [{"id": 2, "v": "b"}, {"id": 3, "v": "c"}]
    assert manager.sql(text, engine="spark").arrow().to_pylist() == expected
    assert manager.sql(text).arrow().to_pylist() == expected


@pytest.mark.parametrize(
    "text",
    [
        "DROP TABLE users",
        "INSERT INTO users VALUES (4, 'd')",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
    ],
)
def test_what_does_not_only_read_tables_never_reaches_spark(settings: LakeSettings, text: str):
    with pytest.raises(InputError):
        spark_sql.run(settings, text)


def test_an_unknown_table_is_one_sentence(manager: IcebergManager):
    with pytest.raises(InputError, match="Spark refused the query"):
        manager.sql("SELECT * FROM nowhere", engine="spark")


def test_the_command_line_runs_sql_on_spark(manager: IcebergManager, settings: LakeSettings):
    spark = {"server_dir": str(settings.spark.server_dir), "memory": settings.spark.memory}
    (settings.root / "lake.yaml").write_text(json.dumps({"root": str(settings.root), "spark": spark}))
    arguments = ["sql", "SELECT count(*) AS n FROM users", "--engine", "spark", "--output", "json"]
    done = CliRunner().invoke(app, [*arguments, "--lake", str(settings.root / "lake.yaml")])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == [{"n": 3}]


def test_diff_sees_the_rows_that_position_deletes_hide(session: LakeSession, settings: LakeSettings):
    catalog, spark = settings.catalog.name, session.spark
    manager = IcebergManager(settings)
    modes = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
    manager.create_table("users", {"id": "long", "v": "string"}, properties=modes)
    manager.insert_data("users", ORDERS)
    old = manager.get_current_snapshot("users").id
    spark.sql(f"DELETE FROM `{catalog}`.default.users WHERE id = 1").collect()
    deleted = manager.get_current_snapshot("users").id
    spark.sql(f"UPDATE `{catalog}`.default.users SET v = 'B' WHERE id = 2").collect()
    new = manager.get_current_snapshot("users").id
    assert any(int(content) == 1 for content in _delete_files(manager)), "Spark wrote no position deletes"
    found = manager.diff_snapshots("users", old, new, key="id")
    assert found.removed["id"].to_pylist() == [1]
    assert found.changed == (RowChange({"id": 2}, {"v": "b"}, {"v": "B"}),)
    assert (found.rows_added, found.rows_removed, found.rows_changed) == (0, 1, 1)
    back = manager.diff_snapshots("users", deleted, old, key="id")
    assert back.added["id"].to_pylist() == [1]
    assert (back.rows_added, back.rows_removed, back.rows_changed) == (1, 0, 0)


def _delete_files(manager: IcebergManager) -> list[int]:
    return [int(file["content"]) for file in manager.table("users").inspect.delete_files().to_pylist()]
