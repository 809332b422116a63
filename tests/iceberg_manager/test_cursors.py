"""Readers' cursors: they live with the table, and expiry spares what a reader has still to read."""

from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from iceberg_manager import cursors, expiry
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.errors import DamageError, InputError
from iceberg_manager.history import main_line
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    catalog = open_catalog(settings)
    policy = MaintenancePolicy(keep_snapshots=1)
    table = ensure_table(catalog, settings, TableSpec("demo.t", schema={"id": "long"}, maintenance=policy))
    for number in range(5):
        table.append(pa.table({"id": pa.array([number], pa.int64())}))
    return catalog


def test_expiry_spares_what_a_reader_has_still_to_read(catalog: Catalog):
    load = partial(load_table, catalog, "demo.t")
    line = [snapshot.snapshot_id for snapshot in main_line(load())]
    cursors.move(load, "billing", line[2])
    later = datetime.now(UTC) + timedelta(minutes=1)
    planned = expiry.plan(load(), timedelta(0), 1, cursors.needed(load(), later), later)
    assert {one.snapshot_id for one in planned.snapshots} == set(line[3:])
    assert "reader billing" in planned.kept[line[1]]


def test_a_reader_that_stopped_long_ago_holds_nothing_back(catalog: Catalog):
    load = partial(load_table, catalog, "demo.t")
    oldest = list(main_line(load()))[-1].snapshot_id
    cursors.move(load, "gone", oldest)
    assert oldest in cursors.needed(load())
    assert cursors.needed(load(), datetime.now(UTC) + timedelta(days=8)) == {}


def test_a_cursor_moves_and_is_forgotten(catalog: Catalog):
    load = partial(load_table, catalog, "demo.t")
    line = [snapshot.snapshot_id for snapshot in main_line(load())]
    cursors.move(load, "a", line[4])
    cursors.move(load, "a", line[0])
    assert [(one.reader, one.snapshot_id) for one in cursors.cursors(load())] == [("a", line[0])]
    cursors.forget(load, "a")
    cursors.forget(load, "a")
    assert cursors.cursors(load()) == []


def test_a_cursor_at_an_expired_snapshot_still_keeps_its_successors(catalog: Catalog):
    load = partial(load_table, catalog, "demo.t")
    line = [snapshot.snapshot_id for snapshot in main_line(load())]
    cursors.move(load, "a", line[3])
    load().maintenance.expire_snapshots().by_ids([line[3], line[4]]).commit()
    assert set(cursors.needed(load())) >= set(line[:3])


def test_a_damaged_cursor_stops_expiry_instead_of_losing_snapshots(catalog: Catalog):
    load = partial(load_table, catalog, "demo.t")
    with load().transaction() as transaction:
        transaction.set_properties({cursors.READER + "x": "{"})
    with pytest.raises(DamageError, match="reader 'x'"):
        cursors.needed(load())


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 101])
def test_a_reader_needs_a_usable_name(catalog: Catalog, name: str):
    with pytest.raises(InputError):
        cursors.move(partial(load_table, catalog, "demo.t"), name, 1)
