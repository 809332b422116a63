"""A lake moves to another catalog whole, again and again if need be, and never over somebody's writes."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from iceberg_manager import catalog_migration
from iceberg_manager.catalog_migration import Action
from iceberg_manager.cli import app
from iceberg_manager.errors import ConflictError
from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import LakeSettings


def _lake(folder: Path, warehouse: Path) -> IcebergManager:
    return IcebergManager(LakeSettings(root=folder, warehouse=str(warehouse)))


@pytest.fixture
def old(tmp_path: Path) -> IcebergManager:
    manager = _lake(tmp_path / "old", tmp_path / "warehouse")
    for name in ("users", "shop.eu.orders"):
        manager.create_table(name, {"id": "long"})
        manager.insert_data(name, [{"id": 1}])
    return manager


@pytest.fixture
def new(tmp_path: Path) -> IcebergManager:
    return _lake(tmp_path / "new", tmp_path / "warehouse")


def _actions(old: IcebergManager, new: IcebergManager) -> list[Action]:
    return [move.action for move in catalog_migration.plan(old.catalog, new.catalog)]


def test_every_table_is_registered_once_and_a_plan_changes_nothing(old: IcebergManager, new: IcebergManager) -> None:
    assert _actions(old, new) == [Action.register] * 2
    assert new.list_tables() == []
    assert all(move.done for move in catalog_migration.migrate(old.catalog, new.catalog))
    assert new.list_tables() == old.list_tables()
    assert new.query_table("shop.eu.orders").rows() == [{"id": 1}]
    assert _actions(old, new) == [Action.keep] * 2
    catalog_migration.migrate(old.catalog, new.catalog)


def test_what_was_written_to_the_old_catalog_since_is_taken_over(old: IcebergManager, new: IcebergManager) -> None:
    catalog_migration.migrate(old.catalog, new.catalog)
    old.insert_data("users", [{"id": 2}])
    assert Action.renew in _actions(old, new)
    catalog_migration.migrate(old.catalog, new.catalog)
    assert len(new.query_table("users").rows()) == 2


def test_a_table_that_moved_on_in_the_new_catalog_stays(old: IcebergManager, new: IcebergManager) -> None:
    catalog_migration.migrate(old.catalog, new.catalog)
    new.insert_data("users", [{"id": 2}])
    catalog_migration.migrate(old.catalog, new.catalog)
    assert len(new.query_table("users").rows()) == 2


def test_a_table_that_both_sides_wrote_to_is_refused_before_anything_is_done(
    old: IcebergManager, new: IcebergManager
) -> None:
    catalog_migration.migrate(old.catalog, new.catalog, ["users"])
    old.insert_data("users", [{"id": 2}])
    new.insert_data("users", [{"id": 3}])
    with pytest.raises(ConflictError, match=r"another state of default\.users|another state of users"):
        catalog_migration.migrate(old.catalog, new.catalog)
    assert len(new.list_tables()) == 1


def test_the_command_shows_a_plan_first_and_then_does_it(
    old: IcebergManager, new: IcebergManager, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        (tmp_path / f"{name}.yaml").write_text(f"root: {name}\nwarehouse: warehouse\n")
    command = ["migrate-catalog", "--from", str(tmp_path / "old.yaml"), "--to", str(tmp_path / "new.yaml")]
    shown = CliRunner().invoke(app, [*command, "--dry-run", "--output", "json"])
    assert [move["done"] for move in json.loads(shown.stdout)] == [False, False]
    assert new.list_tables() == []
    done = CliRunner().invoke(app, [*command, "--yes", "--output", "json"])
    assert [move["done"] for move in json.loads(done.stdout)] == [True, True]
    assert new.list_tables() == old.list_tables()
