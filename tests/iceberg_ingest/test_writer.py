"""From the log into tables: exactly once, whatever fails in between."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from iceberg_ingest import checkpoints, dead_letters, ingest_commits
from iceberg_ingest import marker as markers
from iceberg_ingest.ingest_expiry import expire_some
from iceberg_ingest.topic_tables import topic_name
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.writer import Writer, accept
from iceberg_manager import cursors, metadata_commit
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.errors import DamageError, UnavailableError
from iceberg_manager.ingest_settings import IngestSettings, WriterSettings
from iceberg_manager.settings import LakeSettings

NAME = topic_name("acme", "events")


class CrashError(BaseException):
    """As if the process had died."""


def payload(rows: list[dict[str, object]]) -> bytes:
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def send(wal: Wal, first: int, count: int = 10, topic: str = "events", **more: object) -> int:
    rows = [{"n": n, "text": f"row {n}", **more} for n in range(first, first + count)]
    return wal.append(Entry("acme", topic, payload(rows))).seq


def numbers(lake: LakeSettings, topic: str = "events") -> list[int]:
    table = load_table(open_catalog(lake), topic_name("acme", topic))
    return sorted(table.scan().to_arrow()["n"].to_pylist())


def drain(lake: LakeSettings, **options: object) -> None:
    with Writer(lake, **options) as writer:  # type: ignore[arg-type]
        writer.drain()


@pytest.fixture
def lake(tmp_path: Path) -> LakeSettings:
    metadata_commit.forget()
    return LakeSettings(root=tmp_path / "lake")


@pytest.fixture
def wal(lake: LakeSettings) -> Iterator[Wal]:
    with Wal(lake.wal_folder) as wal:
        yield wal


def test_acknowledged_rows_arrive_once_and_again_is_nothing(lake: LakeSettings, wal: Wal) -> None:
    for first in range(0, 50, 10):
        send(wal, first)
    drain(lake)
    drain(lake)
    assert numbers(lake) == list(range(50))
    send(wal, 50)
    drain(lake)
    assert numbers(lake) == list(range(60))


def test_topics_have_tables_of_their_own_and_new_columns_come_by_themselves(lake: LakeSettings, wal: Wal) -> None:
    send(wal, 0)
    send(wal, 0, 5, topic="clicks")
    send(wal, 10, more=1.5)
    drain(lake)
    assert numbers(lake) == list(range(20))
    assert numbers(lake, "clicks") == list(range(5))
    assert "more" in load_table(open_catalog(lake), NAME).schema().column_names


def test_a_record_that_does_not_fit_becomes_a_dead_letter_and_its_neighbours_arrive(
    lake: LakeSettings, wal: Wal
) -> None:
    send(wal, 0)
    bad = wal.append(Entry("acme", "events", payload([{"n": "no number"}]))).seq
    worse = wal.append(Entry("acme", "events", b"no arrow at all")).seq
    send(wal, 10)
    drain(lake)
    assert numbers(lake) == list(range(20))
    assert [letter.seq for letter in dead_letters.letters(lake.wal_folder, NAME)] == [bad, worse]
    drain(lake)
    assert numbers(lake) == list(range(20))


POINTS = [
    "dead-letters-kept", "before-parquet", "after-parquet", "before-commit", "commit-returned", "after-commit",
    "checkpoint-saved",
]  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("nth", [1, 2])
def test_a_crash_at_any_point_loses_and_repeats_nothing(lake: LakeSettings, wal: Wal, point: str, nth: int) -> None:
    seen = [0]

    def crash(where: str) -> None:
        seen[0] += where == point
        if where == point and seen[0] == nth:
            raise CrashError

    send(wal, 0)
    if nth == 2:
        drain(lake, at=crash)
        send(wal, 10)
    with pytest.raises(CrashError):
        drain(lake, at=crash)
    metadata_commit.forget()
    send(wal, 20)
    drain(lake)
    expected = set(range(10)) | set(range(20, 30)) | (set(range(10, 20)) if nth == 2 else set())
    assert numbers(lake) == sorted(expected)


def test_a_lost_answer_is_recognised_by_the_marker(
    lake: LakeSettings, wal: Wal, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata_commit.commit_on

    def lands_then_fails(*given: object, **named: object) -> int:
        real(*given, **named)  # type: ignore[arg-type]
        raise OSError("the connection was lost")

    monkeypatch.setattr(ingest_commits, "commit_on", lands_then_fails)
    send(wal, 0)
    drain(lake)
    assert numbers(lake) == list(range(10))


@pytest.mark.parametrize("ahead", [True, False])
def test_a_stale_writer_is_fenced_and_adds_nothing(lake: LakeSettings, wal: Wal, ahead: bool) -> None:
    """The permanent guard: two writers commit the same records from the same base; PyIceberg would rebase the second."""
    send(wal, 0)
    drain(lake)
    catalog = open_catalog(lake)
    table = load_table(catalog, NAME)
    before = markers.position_of(markers.read(table, wal.wal_id))
    send(wal, 10)

    def second_writer(point: str) -> None:
        if point == "after-parquet":
            if ahead:
                send(wal, 20)
            drain(lake)

    span = ingest_commits.Range(wal.wal_id, 0, before, wal.written, str(table.metadata.table_uuid))
    rows = [pa.RecordBatch.from_pylist([{"n": 10, "text": "x"}])]
    if ahead:
        with pytest.raises(markers.FencedError, match="another writer"):
            ingest_commits.ingest(catalog, NAME, span, rows, at=second_writer)
    else:  # the very same records: they are in, so there is nothing left to do
        ingest_commits.ingest(catalog, NAME, span, rows, at=second_writer)
    assert numbers(lake) == list(range(30 if ahead else 20))


def test_a_foreign_commit_in_between_is_no_reason_to_fail(lake: LakeSettings, wal: Wal) -> None:
    send(wal, 0)
    drain(lake)
    done = []

    def foreign(point: str) -> None:
        if point == "before-commit" and not done:
            done.append(1)
            load_table(open_catalog(lake), NAME).append(pa.table({"n": [1000], "text": ["foreign"]}))

    send(wal, 10)
    drain(lake, at=foreign)
    assert numbers(lake) == [*range(20), 1000]


def test_a_second_writer_of_the_same_log_is_refused(lake: LakeSettings, wal: Wal) -> None:
    send(wal, 0)
    with Writer(lake), pytest.raises(UnavailableError, match="Another writer"):
        Writer(lake)


def test_a_rollback_stops_the_writer_until_a_person_accepts_it(lake: LakeSettings, wal: Wal) -> None:
    send(wal, 0)
    drain(lake)
    first = load_table(open_catalog(lake), NAME).current_snapshot()
    send(wal, 10)
    drain(lake)
    table = load_table(open_catalog(lake), NAME)
    with table.manage_snapshots() as manage:
        manage.rollback_to_snapshot(first.snapshot_id)  # type: ignore[union-attr]
    send(wal, 20)
    with pytest.raises(markers.RolledBackError, match="--accept"):
        drain(lake)
    assert numbers(lake) == list(range(10))
    accept(lake, NAME)
    drain(lake)
    assert numbers(lake) == [*range(10), *range(20, 30)]


def test_a_replaced_table_stops_the_writer_until_a_person_accepts_it(lake: LakeSettings, wal: Wal) -> None:
    send(wal, 0)
    drain(lake)
    catalog = open_catalog(lake)
    schema = load_table(catalog, NAME).schema()
    catalog.drop_table(NAME.identifier)
    catalog.create_table(NAME.identifier, schema, location=f"{lake.warehouse_location}/acme/again")
    send(wal, 10)
    with pytest.raises(markers.TableReplacedError, match="made again"):
        drain(lake)
    accept(lake, NAME)
    drain(lake)
    assert numbers(lake) == list(range(10, 20))


def test_a_clock_that_went_back_holds_commits_and_loses_nothing(lake: LakeSettings, wal: Wal) -> None:
    import time

    send(wal, 0)
    drain(lake)
    send(wal, 10)
    with Writer(lake, clock=lambda: time.time() - 3600) as writer:
        writer.stop()
        with pytest.raises(markers.ClockWentBackError):
            writer.drain()
    assert numbers(lake) == list(range(10))
    drain(lake)
    assert numbers(lake) == list(range(20))


def test_a_catalog_restored_from_a_copy_gets_its_rows_again(lake: LakeSettings, wal: Wal, tmp_path: Path) -> None:
    import shutil
    import sqlite3

    send(wal, 0)
    drain(lake)
    with sqlite3.connect(lake.catalog_file) as connection:
        connection.execute("pragma wal_checkpoint(truncate)")
    shutil.copy(lake.catalog_file, tmp_path / "copy.db")
    send(wal, 10)
    drain(lake)
    for left in lake.root.glob("catalog.db*"):
        left.unlink()
    shutil.copy(tmp_path / "copy.db", lake.catalog_file)
    metadata_commit.forget()
    assert numbers(lake) == list(range(10))
    drain(lake)
    assert numbers(lake) == list(range(20))


def test_another_log_than_the_tables_is_refused(lake: LakeSettings, wal: Wal) -> None:
    send(wal, 0)
    drain(lake)
    table = load_table(open_catalog(lake), NAME)
    found = markers.read(table, wal.wal_id)
    assert found is not None
    with table.transaction() as change:
        text = markers.encode(found.position._replace(chain=1), 0, None, found.sequence)
        change.set_properties({markers.key_of(wal.wal_id): text})
    checkpoints.folder_of(lake.wal_folder).joinpath(checkpoints.SCANNED).unlink()
    with pytest.raises(DamageError, match="not the one"):
        drain(lake)


def test_the_writer_runs_until_it_is_stopped_and_then_drains(lake: LakeSettings, wal: Wal) -> None:
    with Writer(lake) as writer:
        thread = threading.Thread(target=writer.run)
        thread.start()
        for first in range(0, 100, 10):
            send(wal, first)
        writer.stop()
        thread.join(30)
    assert numbers(lake) == list(range(100))


def test_both_mode_holds_the_same_rows_on_both_sides(lake: LakeSettings, wal: Wal) -> None:
    both = lake.model_copy(update={"ingest": IngestSettings(writer=WriterSettings(mode="both"))})
    send(wal, 0)
    crash_at(both, "after-parquet")
    send(wal, 10)
    drain(both)
    with Writer(both) as writer:
        rows = load_table(open_catalog(both), NAME).scan().to_arrow()
        compared = writer._parquet(NAME).compare(rows)
        assert (compared.same, compared.parquet_rows) == (True, 20)
        assert not writer._parquet(NAME).compare(rows.slice(1)).same


def crash_at(lake: LakeSettings, point: str) -> None:
    def crash(where: str) -> None:
        if where == point:
            raise CrashError

    with pytest.raises(CrashError):
        drain(lake, at=crash)


def test_parquet_mode_needs_no_table(lake: LakeSettings, wal: Wal) -> None:
    plain = lake.model_copy(update={"ingest": IngestSettings(writer=WriterSettings(mode="parquet"))})
    send(wal, 0)
    drain(plain)
    drain(plain)
    send(wal, 10)
    drain(plain)
    assert len(list((lake.root / "parquet/acme/events").glob("*.parquet"))) == 2


def test_old_snapshots_go_but_not_those_that_a_reader_needs(lake: LakeSettings, wal: Wal) -> None:
    catalog = open_catalog(lake)
    for first in range(0, 120, 10):
        send(wal, first)
        drain(lake)
    assert expire_some(catalog, NAME, kept=4) == 8
    table = load_table(catalog, NAME)
    oldest = min(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    cursors.move(lambda: load_table(catalog, NAME), "slow", oldest.snapshot_id)
    for first in range(120, 200, 10):
        send(wal, first)
        drain(lake)
    assert expire_some(catalog, NAME, kept=4) == 0
    assert numbers(lake) == list(range(200))
