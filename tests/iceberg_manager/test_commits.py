"""The one door for commits, on a real SQLite catalog without a JVM: once, found by its stamp, never in doubt."""

import sqlite3
import threading
from collections.abc import Mapping

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.table import Table

from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.commits import COMMIT_ID, Stamp, commit, find
from iceberg_manager.errors import ConflictError, DataError, LakeError, UnavailableError
from iceberg_manager.history import summary
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})
STAMP = Stamp("c1", run_id="run", asset="demo/t", inputs={"demo.up": 7})


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    catalog = open_catalog(settings)
    ensure_table(catalog, settings, TableSpec("demo.t", schema={"id": "long"}))
    return catalog


class Writer:
    """Appends, with an accident before or after the commit on chosen attempts."""

    def __init__(self, catalog: Catalog, before: list[Exception] | None = None, after: Exception | None = None) -> None:
        self.catalog, self.before, self.after, self.calls = catalog, list(before or []), after, 0

    def load(self) -> Table:
        return load_table(self.catalog, "demo.t")

    def write(self, properties: Mapping[str, str]) -> None:
        self.calls += 1
        if self.before:
            raise self.before.pop(0)
        self.load().append(ROWS, snapshot_properties=dict(properties))
        if self.after:
            raise self.after


def count(catalog: Catalog) -> int:
    return len(load_table(catalog, "demo.t").scan().to_arrow())


def no_pause(_: float) -> None: ...


def test_the_stamp_stands_in_the_summary_of_the_snapshot(catalog: Catalog) -> None:
    writer = Writer(catalog)
    result = commit(writer.load, STAMP, writer.write)
    said = summary(writer.load().metadata.snapshots[-1])
    assert said[COMMIT_ID] == "c1"
    assert said["iceberg-assets.run-id"] == "run"
    assert said["iceberg-assets.inputs"] == "demo.up@7"
    assert (result.rows_added, result.total_rows, result.attempts, result.changed) == (2, 2, 1, True)


def test_work_done_again_under_the_same_id_writes_nothing(catalog: Catalog) -> None:
    writer = Writer(catalog)
    first = commit(writer.load, STAMP, writer.write)
    again = commit(writer.load, STAMP, writer.write)
    assert writer.calls == 1
    assert again.replayed
    assert again.snapshot_id == first.snapshot_id
    assert count(catalog) == 2


def test_our_snapshot_is_found_although_another_writer_committed_after_it(catalog: Catalog) -> None:
    writer = Writer(catalog)

    def overtaken(properties: Mapping[str, str]) -> None:
        writer.write(properties)
        writer.load().append(ROWS)

    result = commit(writer.load, STAMP, overtaken)
    table = writer.load()
    assert result.snapshot_id == find(table, "c1")[0].snapshot_id != table.metadata.current_snapshot_id
    assert (result.rows_added, result.total_rows) == (2, 2)


@pytest.mark.parametrize("error", [CommitStateUnknownException("lost"), ConnectionError("reset"), RuntimeError("?")])
def test_an_unknown_outcome_that_landed_counts_as_done(catalog: Catalog, error: Exception) -> None:
    writer = Writer(catalog, after=error)
    result = commit(writer.load, STAMP, writer.write, pause=no_pause)
    assert writer.calls == 1
    assert result.rows_added == 2
    assert count(catalog) == 2


def test_an_unknown_outcome_that_did_not_land_is_tried_again(catalog: Catalog) -> None:
    writer = Writer(catalog, before=[CommitStateUnknownException("lost")])
    result = commit(writer.load, STAMP, writer.write, pause=no_pause)
    assert (writer.calls, result.attempts) == (2, 2)
    assert count(catalog) == 2


@pytest.mark.parametrize(
    "error", [CommitFailedException("moved"), RuntimeError("[SQLITE_BUSY] The database file is locked")]
)
def test_conflicts_and_a_busy_catalog_are_tried_again(catalog: Catalog, error: Exception) -> None:
    writer = Writer(catalog, before=[error, error])
    assert commit(writer.load, STAMP, writer.write, pause=no_pause).attempts == 3
    assert count(catalog) == 2


def test_conflicts_without_end_are_given_up_with_nothing_committed(catalog: Catalog) -> None:
    writer = Writer(catalog, before=[CommitFailedException("moved")] * 9)
    with pytest.raises(ConflictError, match="won 3 times; nothing was committed"):
        commit(writer.load, STAMP, writer.write, attempts=3, pause=no_pause)
    assert count(catalog) == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RuntimeError("[CAST_INVALID_INPUT] The value 'x' cannot be cast"), DataError),
        (RuntimeError("StatusCode.UNAVAILABLE"), UnavailableError),
        (ValueError("anything else"), LakeError),
    ],
)
def test_other_errors_are_translated_and_not_tried_again(
    catalog: Catalog, error: Exception, kind: type[LakeError]
) -> None:
    writer = Writer(catalog, before=[error])
    with pytest.raises(kind, match="nothing was committed") as caught:
        commit(writer.load, STAMP, writer.write, pause=no_pause)
    assert writer.calls == 1
    assert caught.value.__cause__ is error


def test_a_catalog_that_is_silent_after_the_write_leaves_no_false_claim(catalog: Catalog) -> None:
    writer = Writer(catalog, after=ConnectionError("reset"))
    loads = iter([writer.load()])

    def load() -> Table:
        return next(loads)

    with pytest.raises(UnavailableError, match="unknown whether the commit landed"):
        commit(load, STAMP, writer.write, pause=no_pause)
    later = commit(writer.load, STAMP, writer.write)
    assert later.replayed
    assert count(catalog) == 2


def test_a_catalog_locked_for_a_moment_only_delays_the_commit(catalog: Catalog, settings: LakeSettings) -> None:
    lock = sqlite3.connect(settings.catalog_file, check_same_thread=False)
    lock.execute("BEGIN IMMEDIATE")
    threading.Timer(0.5, lock.rollback).start()
    writer = Writer(catalog)
    assert commit(writer.load, STAMP, writer.write).rows_added == 2
    lock.close()


def test_many_writers_at_once_lose_and_double_nothing(settings: LakeSettings, catalog: Catalog) -> None:
    def work(number: int) -> None:
        writer = Writer(open_catalog(settings))
        for turn in range(4):
            commit(writer.load, Stamp(f"w{number}-{turn}"), writer.write, attempts=30)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    table = load_table(catalog, "demo.t")
    ids = [summary(snapshot)[COMMIT_ID] for snapshot in table.metadata.snapshots]
    assert sorted(ids) == sorted(f"w{number}-{turn}" for number in range(4) for turn in range(4))
    assert count(catalog) == 32


def test_a_search_ends_at_a_head_that_was_searched_before(catalog: Catalog) -> None:
    writer = Writer(catalog)
    commit(writer.load, STAMP, writer.write)
    head = writer.load().metadata.current_snapshot_id
    commit(writer.load, Stamp("c2"), writer.write)
    assert find(writer.load(), "c1", searched=head) == []
    assert len(find(writer.load(), "c2", searched=head)) == 1


def test_a_search_goes_on_when_main_was_rolled_back_past_that_head(catalog: Catalog) -> None:
    writer = Writer(catalog)
    commit(writer.load, STAMP, writer.write)
    first = writer.load().metadata.current_snapshot_id
    commit(writer.load, Stamp("c2"), writer.write)
    head = writer.load().metadata.current_snapshot_id
    writer.load().manage_snapshots().set_current_snapshot(first).commit()
    commit(writer.load, Stamp("c3"), writer.write)
    assert [one.snapshot_id for one in find(writer.load(), "c1", searched=head)] == [first]
