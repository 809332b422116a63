"""The data version moves with the rows of main and with nothing else, for the table and for each partition."""

from itertools import count, permutations

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.errors import NotFoundError
from iceberg_manager.history import PARTITION, changes_rows, data_version, main_line, require_snapshot
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

ONE_ROW = {"added-records": "1", "added-data-files": "1"}


@pytest.fixture
def table(settings: LakeSettings) -> Table:
    return ensure_table(open_catalog(settings), settings, TableSpec("shop.orders", {"id": "long"}))


class History:
    """Snapshots as any engine may have written them, on main or beside it."""

    def __init__(self, table: Table) -> None:
        self._table, self._numbers = table, count(1)

    def add(self, operation: Operation = Operation.APPEND, branch: str = "main", **changes: str) -> int:
        metadata, number = self._table.metadata, next(self._numbers)
        parent = metadata.refs[branch].snapshot_id if branch in metadata.refs else metadata.current_snapshot_id
        snapshot = Snapshot(
            snapshot_id=number,
            parent_snapshot_id=parent,
            sequence_number=number,
            timestamp_ms=number,
            manifest_list="none",
            summary=Summary(operation, **{key.replace("_", "-"): value for key, value in changes.items()}),
        )
        ref = SnapshotRef(snapshot_id=number, snapshot_ref_type=SnapshotRefType.BRANCH)
        self._table.metadata = metadata.model_copy(
            update={
                "snapshots": [*metadata.snapshots, snapshot],
                "refs": metadata.refs | {branch: ref},
                "current_snapshot_id": number if branch == "main" else metadata.current_snapshot_id,
            }
        )
        return number

    def stamped(self, partition: str) -> int:
        return self.add(**ONE_ROW, **{PARTITION: partition})

    def expire(self, *numbers: int) -> None:
        kept = [snapshot for snapshot in self._table.metadata.snapshots if snapshot.snapshot_id not in numbers]
        self._table.metadata = self._table.metadata.model_copy(update={"snapshots": kept})


@pytest.fixture
def history(table: Table) -> History:
    return History(table)


def test_a_table_never_written_to_has_no_version(table: Table):
    assert data_version(table) is None
    assert list(main_line(table)) == []


@pytest.mark.parametrize(
    ("operation", "changes", "moves"),
    [
        (Operation.APPEND, ONE_ROW, True),
        (Operation.OVERWRITE, {"deleted-records": "1", "deleted-data-files": "1"}, True),
        (Operation.DELETE, {"deleted-records": "1", "deleted-data-files": "1"}, True),
        (Operation.OVERWRITE, {"added-delete-files": "1", "added-position-deletes": "1"}, True),
        (Operation.REPLACE, {"added-data-files": "1", "deleted-data-files": "9", "added-records": "9"}, False),
        (Operation.APPEND, {"added-records": "0", "total-records": "1"}, False),
        (Operation.OVERWRITE, {}, False),
        (Operation.DELETE, {"deleted-records": "0"}, False),
    ],
)
def test_only_changed_rows_move_the_version(
    table: Table, history: History, operation: Operation, changes: dict[str, str], moves: bool
):
    before = history.add(**ONE_ROW)
    after = history.add(operation, **changes)
    assert data_version(table) == (after if moves else before)
    assert data_version(table, start=before) == before


def test_a_snapshot_that_does_not_say_what_it_did_counts_as_a_change(table: Table, history: History):
    history.add()
    unsaid = table.metadata.snapshots[0].model_copy(update={"summary": None})
    assert changes_rows(unsaid)


def test_other_branches_do_not_move_it_until_they_are_published(table: Table, history: History):
    main = history.add(**ONE_ROW)
    staged = history.add(branch="audit", **ONE_ROW)
    assert data_version(table) == main
    assert data_version(table, start=staged) == staged
    assert [snapshot.snapshot_id for snapshot in main_line(table, staged)] == [staged, main]


@pytest.mark.parametrize(
    ("stamp", "partition", "counts"),
    [
        ("eu", "eu", True), ("eu", "us", False), ("eu,us", "us", True), ("eu,us", "asia", False), ("us", "eu,us", True),
        ("2026-01-01...2026-01-07", "2026-01-03", True), ("2026-01-01...2026-01-07", "2026-01-07", True),
        ("2026-01-01...2026-01-07", "2026-01-08", False), ("2026-01-03", "2026-01-01...2026-01-07", True),
        ("2026-01-01...2026-01-03", "2026-01-03...2026-01-09", True),
        ("2026-01-01...2026-01-03", "2026-01-04...2026-01-09", False), ("eu", "", True),
    ],
)  # fmt: skip
def test_a_partition_moves_with_the_commits_that_may_have_touched_it(
    table: Table, history: History, stamp: str, partition: str, counts: bool
):
    before = history.add(**ONE_ROW)
    after = history.stamped(stamp)
    assert data_version(table, partition=partition) == (after if counts else before)


def test_a_strangers_commit_may_have_touched_every_partition(table: Table, history: History):
    history.stamped("eu")
    stranger = history.add(**ONE_ROW)
    history.stamped("us")
    assert data_version(table, partition="eu") == stranger


def test_the_oldest_snapshot_stands_in_where_history_was_cut(table: Table, history: History):
    written, compacted = history.add(**ONE_ROW), history.add(Operation.REPLACE)
    history.expire(written)
    assert data_version(table) == compacted


def test_real_commits_carry_their_stamps(settings: LakeSettings):
    catalog = open_catalog(settings)
    table = ensure_table(catalog, settings, TableSpec("t", {"id": "long"}))
    made = []
    for region in ("eu", "us", ""):
        rows = pa.table({"id": [1] if region else pa.array([], pa.int64())})
        table.append(rows, snapshot_properties={PARTITION: region} if region else {})
        made.append(load_table(catalog, "t").metadata.current_snapshot_id)
    table = load_table(catalog, "t")
    assert [data_version(table, partition=region) for region in ("eu", "us", "")] == [made[0], made[1], made[1]]


def test_a_snapshot_that_is_gone_is_answered_with_those_that_are_left(table: Table, history: History):
    with pytest.raises(NotFoundError, match=r"Snapshot 7 is not in shop.orders: .*no snapshot yet"):
        require_snapshot(table, 7)
    for _ in range(5):
        history.add(**ONE_ROW)
    assert require_snapshot(table, 4).snapshot_id == 4
    history.expire(1)
    with pytest.raises(NotFoundError, match=r"never made, or expired. The newest are 5, 4, 3"):
        require_snapshot(table, 1)


def test_the_main_line_is_found_in_whatever_order_snapshots_are_listed(table: Table, history: History):
    history.add(**ONE_ROW)
    history.add(branch="audit", **ONE_ROW)
    for _ in range(3):
        history.add(**ONE_ROW)
    for listed in permutations(table.metadata.snapshots):
        table.metadata = table.metadata.model_copy(update={"snapshots": list(listed)})
        assert [snapshot.snapshot_id for snapshot in main_line(table)] == [5, 4, 3, 1]
