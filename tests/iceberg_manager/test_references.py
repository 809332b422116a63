"""Main moves back and forth without losing anything; tags and branches are kept as long as they say."""

from datetime import timedelta

import pytest

from iceberg_manager.errors import ConflictError, InputError, NotFoundError
from iceberg_manager.manager import IcebergManager
from iceberg_manager.references import plan_rollback, rollback
from iceberg_manager.settings import LakeSettings
from iceberg_manager.time_travel import by_id


@pytest.fixture
def manager(settings: LakeSettings) -> IcebergManager:
    manager = IcebergManager(settings)
    manager.create_table("t", {"id": "long"})
    for number in (1, 2, 3):
        manager.insert_data("t", [{"id": number}])
    return manager


def ids(manager: IcebergManager) -> list[int]:
    return sorted(row["id"] for row in manager.query_table("t"))


def test_a_rollback_says_what_it_undid_and_can_be_undone(manager: IcebergManager):
    first, _, last = (one.id for one in manager.list_snapshots("t"))
    done = manager.rollback("t", first)
    assert (done.from_snapshot, done.to_snapshot, len(done.undone), done.restored) == (last, first, 2, ())
    assert done.undone[0].startswith(f"{last} append of ")
    assert done.undone[0].endswith("(+1 rows)")
    assert ids(manager) == [1]
    assert [one.on_main for one in manager.list_snapshots("t")] == [True, False, False]
    again = manager.rollback("t", last)
    assert (len(again.undone), len(again.restored)) == (0, 2)
    assert ids(manager) == [1, 2, 3]


def test_writes_after_a_rollback_go_on_from_there(manager: IcebergManager):
    manager.rollback("t", manager.list_snapshots("t")[0].id)
    manager.insert_data("t", [{"id": 9}])
    assert ids(manager) == [1, 9]


def test_a_rollback_that_someone_overtook_is_not_done(manager: IcebergManager):
    table = manager.table("t")
    planned = plan_rollback(table, by_id(table, manager.list_snapshots("t")[0].id))
    manager.insert_data("t", [{"id": 4}])
    with pytest.raises(ConflictError, match="meanwhile"):
        rollback(lambda: manager.table("t"), planned)
    assert ids(manager) == [1, 2, 3, 4]


def test_an_unknown_snapshot_is_answered_with_the_newest(manager: IcebergManager):
    newest = manager.get_current_snapshot("t").id
    with pytest.raises(NotFoundError, match=str(newest)):
        manager.rollback("t", 12345)


def test_refs_have_a_retention_unless_they_are_for_ever(manager: IcebergManager):
    first = manager.list_snapshots("t")[0].id
    manager.tag("t", "v1", first)
    manager.branch("t", "audit", keep_days=7)
    manager.tag("t", "gold", first, keep_days=None)
    kept = {ref.name: (ref.kind, ref.retention) for ref in manager.describe("t").references}
    assert kept == {
        "main": ("branch", None),
        "audit": ("branch", timedelta(days=7)),
        "gold": ("tag", None),
        "v1": ("tag", timedelta(days=90)),
    }
    assert manager.get_snapshot("t", first).references == ("gold", "v1")


def test_a_tag_keeps_its_snapshot_from_expiring(manager: IcebergManager):
    first = manager.list_snapshots("t")[0].id
    manager.tag("t", "v1", first)
    manager.expire_snapshots("t", 0, keep_last=1)
    assert manager.list_snapshots("t")[0].id == first
    assert len(manager.query_table("t", tag="v1")) == 1
    manager.drop_reference("t", "v1")
    manager.expire_snapshots("t", 0, keep_last=1)
    assert len(manager.list_snapshots("t")) == 1
    assert ids(manager) == [1, 2, 3]


def test_names_are_taken_once_and_main_stays(manager: IcebergManager):
    manager.tag("t", "release")
    for make in (manager.tag, manager.branch):
        with pytest.raises(InputError, match="already"):
            make("t", "release")
    with pytest.raises(NotFoundError, match="Did you mean 'release'"):
        manager.drop_reference("t", "relaese")
    with pytest.raises(NotFoundError, match="main cannot be dropped"):
        manager.drop_reference("t", "main")
