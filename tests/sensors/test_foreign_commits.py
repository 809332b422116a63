"""Commits by others become materializations, once, and make exactly what lies downstream stale."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from iceberg_manager.adoption import read_cache
from iceberg_manager.catalog import open_catalog
from iceberg_manager.settings import LakeSettings
from resources import LakeResource
from sensors.foreign_commits import foreign_commits

KEY = dg.AssetKey(["shop", "orders"])
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


class World:
    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        (folder / "lake.yaml").write_text("root: lake")
        self.instance, self.cursor = instance, None
        self.lake = LakeResource(path=str(folder / "lake.yaml"))
        self.catalog = open_catalog(LakeSettings(root=folder / "lake"))
        self.catalog.create_namespace("shop")
        self.sensor = foreign_commits([KEY])

    def create(self) -> Table:
        return self.catalog.create_table("shop.orders", ROWS.schema)

    def tick(self) -> None:
        context = dg.build_sensor_context(
            self.instance, cursor=self.cursor, resources={"lake": self.lake}, sensor_name="foreign_commits"
        )
        self.cursor = self.sensor.evaluate_tick(context).cursor

    def events(self) -> list[tuple[str, str, str]]:
        """Kind, snapshot and data version, oldest first."""
        found = self.instance.fetch_materializations(KEY, limit=100, ascending=True).records
        said = [record.asset_materialization for record in found]
        return [
            (_text(one, "iceberg/event"), _text(one, "iceberg/snapshot_id"), (one.tags or {})["dagster/data_version"])
            for one in said
            if one
        ]


def _text(event: Any, key: str) -> str:
    return str(event.metadata[key].value) if key in event.metadata else ""


@pytest.fixture
def world(tmp_path: Path):
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield World(tmp_path, instance)


def ids(table: Table) -> list[str]:
    return [str(one.snapshot_id) for one in table.refresh().metadata.snapshots]


def test_commits_by_pyiceberg_are_recorded_in_order_and_once(world: World) -> None:
    table = world.create()
    table.append(ROWS)
    world.tick()
    table.append(ROWS)
    table.append(ROWS)
    world.tick()
    world.tick()
    world.cursor = None  # a restart that lost its cursor
    world.tick()
    assert world.events() == [("commit", one, one) for one in ids(table)]


def test_a_rollback_takes_the_data_version_back(world: World) -> None:
    table = world.create()
    table.append(ROWS)
    table.append(ROWS)
    world.tick()
    first, second = ids(table)
    table.manage_snapshots().set_current_snapshot(int(first)).commit()
    world.tick()
    world.tick()
    assert world.events()[2:] == [("rollback", first, first)]
    table.append(ROWS)
    world.tick()
    assert world.events()[-1][:2] == ("commit", ids(table)[-1])
    assert second not in [one[1] for one in world.events()[2:]]


def test_a_replaced_table_is_told_apart_from_a_commit(world: World) -> None:
    world.create().append(ROWS)
    world.tick()
    world.catalog.drop_table("shop.orders")
    table = world.create()
    table.append(ROWS)
    world.tick()
    world.tick()
    assert world.events()[1:] == [("replaced", ids(table)[0], ids(table)[0])]


def test_a_dropped_table_is_observed_once(world: World) -> None:
    world.tick()
    world.create().append(ROWS)
    world.tick()
    world.catalog.drop_table("shop.orders")
    for _ in range(2):
        world.tick()
        world.cursor = None
    told = world.instance.fetch_observations(KEY, limit=10).records
    assert [_text(one.asset_observation, "iceberg/event") for one in told] == ["dropped"]
    assert len(world.events()) == 1


def test_a_tick_without_changes_loads_no_table(world: World) -> None:
    table = world.create()
    table.append(ROWS)
    world.tick()
    Path(table.refresh().metadata_location).write_text("{")  # whoever loads it fails
    before = world.cursor
    world.tick()
    assert world.cursor == before
    assert not any(one.problem for one in read_cache(world.lake.settings).tables)


def test_a_new_table_is_found_and_kept_in_the_cache(world: World) -> None:
    world.create()
    world.catalog.create_table("shop.other", ROWS.schema).append(ROWS)
    world.tick()
    assert [str(one.name) for one in read_cache(world.lake.settings).tables] == ["shop.orders", "shop.other"]
    world.sensor = foreign_commits([KEY, dg.AssetKey(["shop", "other"])])  # the code location was reloaded
    world.tick()
    assert world.instance.fetch_materializations(dg.AssetKey(["shop", "other"]), limit=5).records


def test_a_damaged_table_does_not_keep_others_from_being_followed(world: World) -> None:
    broken = world.catalog.create_table("shop.broken", ROWS.schema)
    Path(broken.metadata_location).write_text("{")
    table = world.create()
    table.append(ROWS)
    world.tick()
    assert len(world.events()) == 1
