"""The write-ahead log on real files: what an acknowledgement means, rotation, retention, the lock and the space
guard.
"""

import os
import stat
import threading
import time
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iceberg_ingest.filesystem import RealFilesystem, write_all
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry, FrameHeader, Gap, SegmentHeader, first_seq_of, segment_name
from iceberg_ingest.wal_options import Kept, WalOptions, removable
from iceberg_ingest.wal_reader import WalReader
from iceberg_ingest.wal_segments import START, Position, SegmentReader, read_mark
from iceberg_ingest.wal_tool import verify
from iceberg_manager.errors import DamageError, DataError, SettingsError, UnavailableError

SMALL = WalOptions(segment_bytes=8192)


def entry(text: str, size: int = 0) -> Entry:
    return Entry("acme", "orders", text.encode() + b"." * size)


def payloads(folder: Path, after: Position | None = None) -> list[str]:
    reader, found = WalReader(folder, after), []
    while records := reader.read():
        found += [bytes(record.content.payload).decode().rstrip(".") for record in records]
    return found


def test_a_log_gives_back_what_was_appended_in_order_after_a_restart(tmp_path: Path) -> None:
    for life in range(3):
        with Wal(tmp_path, SMALL) as wal:
            acks = [wal.append(entry(f"{life}-{n}", 300)) for n in range(40)]
            assert [ack.seq for ack in acks] == list(range(life * 40 + 1, life * 40 + 41))
            assert all(ack.durable_seq >= ack.seq for ack in acks)
    assert payloads(tmp_path) == [f"{life}-{n}" for life in range(3) for n in range(40)]
    assert verify(tmp_path).damage is None


def test_every_name_and_id_of_an_entry_comes_back(tmp_path: Path) -> None:
    given = Entry("acme", "orders", b"rows", "batch-7", "till-3", 41, 1_700_000_000_000)
    with Wal(tmp_path) as wal:
        wal.append(given)
        (record,) = WalReader(tmp_path).read()
    assert record.content == given
    assert (record.body.nbytes - len(b"rows")) % 8 == 0, "the payload is aligned for Arrow"


def test_threads_share_syncs_and_each_gets_a_place_of_its_own(tmp_path: Path) -> None:
    seqs: list[int] = []

    def work(name: int) -> None:
        seqs.extend(wal.append(entry(f"{name}-{n}")).seq for n in range(100))

    with Wal(tmp_path) as wal:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wal.syncs < 800, "no group was formed"
    assert sorted(seqs) == list(range(1, 801))
    found = payloads(tmp_path)
    for name in range(8):
        assert [text for text in found if text.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(100)]


def test_periodic_syncs_by_the_clock_and_not_by_the_next_write(tmp_path: Path) -> None:
    with Wal(tmp_path, WalOptions("periodic", sync_interval_ms=20)) as wal:
        ack = wal.append(entry("lonely"))
        assert ack.durable_seq == 0
        until = time.monotonic() + 5
        while wal.durable_seq < 1 and time.monotonic() < until:
            time.sleep(0.005)
        assert wal.durable_seq == 1


def test_none_has_to_be_spelled_out(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="allow_data_loss"):
        WalOptions("none")
    with Wal(tmp_path, WalOptions("none", allow_data_loss=True)) as wal:
        assert wal.append(entry("a")).durable_seq == 0
        assert payloads(tmp_path) == ["a"]
        assert wal.sync() == 1


@pytest.mark.parametrize("wrong", [{"sync": "often"}, {"segment_bytes": 0}, {"sync_interval_ms": -1}])
def test_options_that_cannot_work_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        WalOptions(**wrong)  # type: ignore[arg-type]


def test_segments_rotate_by_size_and_by_age(tmp_path: Path) -> None:
    with Wal(tmp_path / "size", SMALL) as wal:
        for n in range(20):
            wal.append(entry(str(n), 1000))
    assert len(list((tmp_path / "size").glob("wal-*.log"))) >= 3
    with Wal(tmp_path / "age", WalOptions(segment_seconds=0.05)) as wal:
        wal.append(entry("a"))
        time.sleep(0.2)
        wal.append(entry("b"))
        assert (tmp_path / "age" / segment_name(2)).exists()
    assert payloads(tmp_path / "age") == ["a", "b"]


def test_an_open_and_close_without_records_leaves_no_further_files(tmp_path: Path) -> None:
    for _ in range(5):
        Wal(tmp_path).close()
    assert len(list(tmp_path.glob("wal-*.log"))) == 1


def test_a_second_process_is_kept_out_and_the_first_is_not_disturbed(tmp_path: Path) -> None:
    with Wal(tmp_path) as wal:
        with pytest.raises(UnavailableError, match="in use by another process"):
            Wal(tmp_path)
        assert wal.append(entry("a")).seq == 1
    with Wal(tmp_path) as wal:
        assert wal.written.seq == 1


def test_files_are_private(tmp_path: Path) -> None:
    with Wal(tmp_path / "deep" / "wal") as wal:
        wal.append(entry("secret"))
    assert stat.S_IMODE((tmp_path / "deep" / "wal").stat().st_mode) == 0o700
    for path in (tmp_path / "deep" / "wal").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_a_record_over_the_limit_is_refused_before_it_is_logged(tmp_path: Path) -> None:
    with Wal(tmp_path, WalOptions(max_record_bytes=1000)) as wal:
        with pytest.raises(DataError, match="over the limit"):
            wal.append(entry("a", 1000))
        with pytest.raises(DataError, match="tenant"):
            wal.append(Entry("x" * 70_000, "t", b""))
        assert wal.append(entry("b")).seq == 1


def test_a_record_larger_than_a_segment_or_a_read_still_comes_back(tmp_path: Path) -> None:
    with Wal(tmp_path, SMALL) as wal:
        wal.append(entry("big", 200_000))
        wal.append(entry("small"))
        reader = WalReader(tmp_path)
        assert [record.seq for record in reader.read(100)] == [1]
        assert [record.seq for record in reader.read(100)] == [2]


def test_too_little_free_space_refuses_new_rows(tmp_path: Path) -> None:
    with (
        Wal(tmp_path, WalOptions(min_free_bytes=1 << 60)) as wal,
        pytest.raises(UnavailableError, match="kept for draining"),
    ):
        wal.append(entry("a"))


def test_a_closed_log_says_so(tmp_path: Path) -> None:
    wal = Wal(tmp_path)
    wal.close()
    wal.close()
    with pytest.raises(UnavailableError, match="closed"):
        wal.append(entry("a"))


def test_retention_takes_only_committed_old_segments_oldest_first() -> None:
    segments = [Kept(Path(str(n)), n * 10 + 1, n * 10 + 10, n * 1000, 100) for n in range(4)]
    hour = WalOptions(retention_seconds=1, retention_bytes=10**9)
    assert removable(segments, 20, 10**6, hour) == segments[:2]
    assert removable(segments, 19, 10**6, hour) == segments[:1]
    assert removable(segments, 99, 2500, hour) == segments[:2]
    assert removable(segments, 99, 0, WalOptions(retention_bytes=250)) == segments[:2]
    assert removable(segments, 0, 10**6, WalOptions(retention_bytes=0)) == []


def test_what_retention_removed_is_gone_and_the_rest_goes_on(tmp_path: Path) -> None:
    keep_little = WalOptions(segment_bytes=8192, retention_bytes=0)
    with Wal(tmp_path, keep_little) as wal:
        acks = [wal.append(entry(str(n), 1000)) for n in range(20)]
        assert wal.collect(acks[9].seq)
        assert wal.collect(acks[9].seq) == []
        with pytest.raises(DamageError, match="no longer in the log"):
            WalReader(tmp_path, START).read()
        assert payloads(tmp_path, acks[9].position) == [str(n) for n in range(10, 20)]
    with Wal(tmp_path, keep_little, expect=acks[9].position) as wal:
        assert wal.append(entry("next")).seq == 21


def test_a_log_that_lost_its_end_or_is_another_one_is_refused(tmp_path: Path) -> None:
    with Wal(tmp_path) as wal:
        ack = wal.append(entry("a"))
        wal.append(entry("b"))
    with pytest.raises(DamageError, match="already holds everything up to 9"):
        Wal(tmp_path, expect=Position(9, 1))
    with pytest.raises(DamageError, match="not the one that the table was filled from"):
        Wal(tmp_path, expect=Position(1, ack.position.chain ^ 1))
    with pytest.raises(DamageError, match="another record 1"):
        WalReader(tmp_path, Position(1, 5)).read()


def test_a_reader_follows_a_log_that_grows_rotates_and_restarts(tmp_path: Path) -> None:
    found: list[int] = []
    reader = None
    for _ in range(3):
        with Wal(tmp_path, SMALL) as wal:
            reader = reader or WalReader(tmp_path)
            for n in range(30):
                wal.append(entry(str(n), n * 20))
                found += [record.seq for record in reader.read()]
    assert found == list(range(1, 91))
    assert reader is not None
    assert reader.read() == []


def test_a_short_write_is_completed(tmp_path: Path) -> None:
    class Slow(RealFilesystem):
        def write(self, handle, buffers, offset):
            return os.pwrite(handle, bytes(buffers[0])[:3], offset)

    handle = RealFilesystem().open(tmp_path / "x", create=True)
    assert write_all(Slow(), handle, [b"hello", b"", b"w", b"orld!"] * 700, 2) == 2 + 11 * 700
    os.close(handle)
    assert (tmp_path / "x").read_bytes() == b"\0\0" + b"helloworld!" * 700


@given(st.binary(max_size=300))
def test_decoding_never_raises_for_any_bytes(data: bytes) -> None:
    header = SegmentHeader(UUID(int=1), 1, 1, 0, 0)
    SegmentHeader.decode(data)
    FrameHeader.decode(data, 0, 0)
    Entry.decode(memoryview(data))
    Gap.decode(memoryview(data))
    assert list(SegmentReader(data, header.wal_id, START, 64)) == []


@given(st.text(max_size=20), st.text(max_size=20), st.binary(max_size=99), st.text(max_size=9), st.integers(0, 2**63))
def test_an_entry_survives_encoding(tenant: str, table: str, payload: bytes, batch: str, number: int) -> None:
    given = Entry(tenant, table, payload, batch, tenant, number, number)
    assert Entry.decode(memoryview(given.head() + payload)) == given


@given(st.integers(0, 10**20 - 1))
def test_segment_names_sort_as_their_numbers_do(number: int) -> None:
    assert first_seq_of(segment_name(number)) == number
    assert first_seq_of(segment_name(number) + ".tmp") is None


def test_the_mark_of_a_damaged_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "durable").write_bytes(b"\xff" * 16)
    assert read_mark(RealFilesystem(), tmp_path).seq == 0
