"""What people are told about a table's snapshots and files."""

from pathlib import Path

import pytest

from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import LakeSettings


@pytest.fixture
def manager(settings: LakeSettings) -> IcebergManager:
    manager = IcebergManager(settings)
    manager.create_table("t", {"id": "long", "at": "timestamptz"}, partition_by=["day(at)"], sort_by=["id desc"])
    manager.insert_data("t", [{"id": number, "at": "2024-01-01"} for number in range(5)])
    return manager


def test_a_snapshot_has_its_numbers(manager: IcebergManager):
    first = manager.get_current_snapshot("t")
    assert (first.operation, first.rows_added, first.total_rows, first.total_files) == ("append", 5, 5, 1)
    assert (first.parent_id, first.on_main, first.references, first.run_id) == (None, True, ("main",), None)
    manager.delete_data("t", "id = 1")
    last = manager.get_current_snapshot("t")
    assert (last.parent_id, last.total_rows) == (first.id, 4)


def test_people_see_rows_that_changed_not_rows_that_were_rewritten(manager: IcebergManager):
    manager.delete_data("t", "id = 1")
    manager.update_data("t", {"at": None}, where="id = 2")
    manager.upsert_data("t", [{"id": 3, "at": None}, {"id": 9, "at": None}], "id")
    assert [one["change"] for one in manager.snapshot_overview("t")] == ["+5", "-1", "~1", "+1 ~1"]


def test_a_description_is_as_a_spec_would_say_it(manager: IcebergManager):
    found = manager.describe("t")
    assert (found.name, found.rows, found.files, found.snapshots) == ("default.t", 5, 1, 1)
    assert (found.partition_by, found.sort_by, found.key) == (["day(at)"], ["id desc"], [])
    assert found.columns[1] == {"id": 2, "name": "at", "type": "timestamptz", "required": False, "doc": ""}


def test_partitions_and_files_agree(manager: IcebergManager):
    manager.insert_data("t", [{"id": 7, "at": "2024-01-02"}])
    listed = {row["partition"]: (row["files"], row["rows"]) for row in manager.partitions("t")}
    assert listed == {"at_day=2024-01-01": (1, 5), "at_day=2024-01-02": (1, 1)}
    assert all(Path(row["path"]).stat().st_size == row["bytes"] for row in manager.files_for_snapshot("t"))


def test_a_table_that_cannot_be_read_says_why_in_the_overview(manager: IcebergManager):
    manager.create_table("broken", {"id": "long"})
    Path(manager.table("broken").metadata_location).unlink()
    broken, sound = manager.table_overview()
    assert broken["table"] == "default.broken"
    assert broken["rows"] is None
    assert "metadata file is gone" in broken["problem"]
    assert (sound["rows"], sound["problem"]) == (5, None)


def test_a_key_makes_its_columns_required(manager: IcebergManager):
    made = manager.create_table("keyed", {"id": "long", "name": "string"}, key=["id"])
    assert made.key == ["id"]
    assert [column["required"] for column in made.columns] == [True, False]
