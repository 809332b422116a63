"""A reader sees each new row once, opens only new files, and says by name why it cannot go on."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from iceberg_ingest import reader as readers
from iceberg_ingest.drain import drain
from iceberg_ingest.reader import ReadPosition, TableReader
from iceberg_ingest.storage import IcebergStorage
from iceberg_ingest.topics import list_topics, tail
from iceberg_manager import cursors, metadata_commit
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.settings import LakeSettings


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    metadata_commit.forget()
    return LakeSettings(root=tmp_path / "lake")


@pytest.fixture
def catalog(lake: LakeSettings) -> Catalog:
    catalog = open_catalog(lake)
    catalog.create_namespace("acme")
    catalog.create_table(
        "acme.events", pa.schema([("n", pa.int64())]), location=f"{lake.warehouse_location}/acme/events"
    )
    return catalog


def add(catalog: Catalog, *numbers: int) -> Table:
    table = load_table(catalog, "acme.events")
    table.append(pa.table({"n": list(numbers)}))
    return table


def values(reader: TableReader) -> list[int]:
    return [number for new in reader.read() for number in new.rows["n"].to_pylist()]


def test_only_new_rows_come_and_only_new_files_are_opened(catalog: Catalog) -> None:
    for number in range(5):
        add(catalog, number)
    reader = TableReader(catalog, "acme.events")
    assert values(reader) == [0, 1, 2, 3, 4]
    assert values(reader) == []
    add(catalog, 5)
    again = TableReader(catalog, "acme.events", reader.position.encode())
    assert (values(again), again.files_opened) == ([5], 1)


def test_a_reader_that_stopped_within_a_snapshot_goes_on_with_the_next_row(catalog: Catalog) -> None:
    add(catalog, *range(10))
    uuid = str(load_table(catalog, "acme.events").metadata.table_uuid)
    assert values(TableReader(catalog, "acme.events", ReadPosition(uuid, rows=4))) == list(range(4, 10))


def test_a_rollback_has_a_name(catalog: Catalog) -> None:
    first = add(catalog, 1).current_snapshot()
    add(catalog, 2)
    reader = TableReader(catalog, "acme.events")
    assert values(reader) == [1, 2]
    with load_table(catalog, "acme.events").manage_snapshots() as manage:
        manage.rollback_to_snapshot(first.snapshot_id)  # type: ignore[union-attr]
    with pytest.raises(readers.PositionRolledBackError):
        values(reader)


def test_an_expired_position_has_a_name_and_a_registered_one_is_spared(catalog: Catalog) -> None:
    add(catalog, 1)
    reader = TableReader(catalog, "acme.events", reader="billing")
    values(reader)
    add(catalog, 2)
    add(catalog, 3)
    table = load_table(catalog, "acme.events")
    assert {one.snapshot_id for one in table.metadata.snapshots} == set(cursors.needed(table))
    old = [one.snapshot_id for one in table.metadata.snapshots][:2]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    with pytest.raises(readers.PositionExpiredError):
        values(reader)


def test_a_replaced_table_and_deleted_rows_have_names(catalog: Catalog, lake: LakeSettings) -> None:
    add(catalog, 1, 2)
    reader = TableReader(catalog, "acme.events")
    values(reader)
    load_table(catalog, "acme.events").delete("n = 1")
    with pytest.raises(readers.RowsChangedError):
        values(reader)
    catalog.drop_table("acme.events")
    catalog.create_table("acme.events", pa.schema([("n", pa.int64())]), location=f"{lake.warehouse_location}/acme/new")
    with pytest.raises(readers.PositionReplacedError):
        values(reader)


def test_the_facade_stores_dicts_batches_and_bytes_and_reads_them_back(lake: LakeSettings) -> None:
    with IcebergStorage(lake, "acme") as storage:
        storage.initialize_topic("raw")
        storage.store("raw", [b"one", (b"two", {"key": "value"})])
        last = storage.store("events", [{"n": 1}, {"n": 2}, pa.RecordBatch.from_pydict({"n": [3]})])
    catalog = open_catalog(lake)
    assert list_topics(catalog, "acme") == ["events", "raw"]
    assert values(TableReader(catalog, "acme.events")) == [1, 2, 3]
    with IcebergStorage(lake, "acme") as storage:
        found = storage.get_topic_stats("raw")
        assert (found.message_count, found.backlog, found.durable_seq) == (2, 0, last)
        assert [len(new.rows) for new in storage.read("raw")] == [2]
    assert drain(lake) == []
    assert tail(lake, catalog, "acme", "events") == []
