"""Damaged logs: never a wrong row, never a silent loss.

Each change ends in the same rows, a halt that names the place, or a torn tail.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from iceberg_ingest.cli import app
from iceberg_ingest.simulated_filesystem import SimulatedFilesystem
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import SEGMENT_HEADER_BYTES, Entry, Gap, segment_name
from iceberg_ingest.wal_options import WalOptions
from iceberg_ingest.wal_tool import dump, repair, verify
from iceberg_manager.errors import DamageError, UnavailableError

FOLDER = Path("/wal")
OPTIONS = WalOptions(segment_bytes=1 << 16, max_record_bytes=1 << 14, min_free_bytes=0)
FIRST = FOLDER / segment_name(1)
EVERY = int(os.environ.get("WAL_FAULTS_EVERY", "0"))


def a_log(records: int = 60, options: WalOptions = OPTIONS, clean: bool = False) -> SimulatedFilesystem:
    """A log of so many records; as a kill leaves it, or as a clean end does."""
    files = SimulatedFilesystem()
    wal = Wal(FOLDER, options, files=files)
    for n in range(records):
        wal.append(Entry("acme", "orders", f"{n}:".encode() * 60), 10)
    killed = files.after_kill()
    wal.close()
    return files.after_kill() if clean else killed


def rows(files: SimulatedFilesystem) -> dict[int, bytes]:
    return {r.seq: bytes(r.content.payload) for r in dump(FOLDER, files=files) if isinstance(r.content, Entry)}


def outcome(files: SimulatedFilesystem, whole: dict[int, bytes]) -> str:
    """Open, append, open again; judged against the rows as they were."""
    try:
        for text in (b"one", b"two"):
            with Wal(FOLDER, OPTIONS, files=files) as wal:
                wal.append(Entry("acme", "orders", text), 10)
    except DamageError as error:
        _names_the_place(error)
        assert all(whole[seq] == row for seq, row in rows(files).items()), "a halted log shows a wrong row"
        return "halt"
    found = rows(files)
    kept = len(found) - 2
    assert [found[kept + 1], found[kept + 2]] == [b"one", b"two"]
    assert all(found[seq] == whole[seq] for seq in range(1, kept + 1)), "a wrong row"
    return "same" if kept == len(whole) else "torn"


def _names_the_place(error: DamageError) -> None:
    assert "at byte" in str(error), error
    assert error.places


def damaged(files: SimulatedFilesystem, path: Path, change: Callable[[bytearray], None]) -> SimulatedFilesystem:
    copy = files.after_kill()
    change(copy.contents()[path])
    return copy


def flip(offset: int, mask: int = 0xFF) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[offset] ^= mask

    return change


def used(files: SimulatedFilesystem) -> int:
    return verify(FOLDER, files=files).segments[0].end


def sampled(population: range, count: int, seed: int) -> list[int]:
    return list(population) if EVERY else random.Random(seed).sample(population, min(count, len(population)))


def test_a_flipped_byte_anywhere_in_acknowledged_data_halts_and_names_the_place() -> None:
    files = a_log()
    whole, end = rows(files), used(files)
    for offset in sampled(range(end), 700, 1):
        damage = damaged(files, FIRST, flip(offset))
        found = outcome(damage, whole)
        assert found == "halt" or (found == "same" and is_padding(files, offset)), (offset, found)


def is_padding(files: SimulatedFilesystem, offset: int) -> bool:
    return any(
        record.offset + 40 + record.header.body_bytes <= offset < record.offset + record.header.frame_bytes
        for record in dump(FOLDER, files=files)
    )


def test_every_bit_of_a_segment_header_and_of_a_record_header_counts() -> None:
    files = a_log(5)
    whole = rows(files)
    places = [*range(SEGMENT_HEADER_BYTES), *(SEGMENT_HEADER_BYTES + n for n in range(40))]
    for offset in places:
        for bit in range(8):
            assert outcome(damaged(files, FIRST, flip(offset, 1 << bit)), whole) == "halt", (offset, bit)


def test_without_the_mark_only_the_last_group_can_pass_for_a_torn_tail() -> None:
    files = a_log()
    del files.contents()[FOLDER / "durable"][:]
    whole, end = rows(files), used(files)
    last = [record.offset for record in dump(FOLDER, files=files)][-1]
    for offset in sampled(range(SEGMENT_HEADER_BYTES, end), 300, 2):
        found = outcome(damaged(files, FIRST, flip(offset)), whole)
        assert found in ({"torn", "same"} if offset >= last else {"halt", "same"}), (offset, found)


def test_a_log_cut_at_any_length_keeps_its_beginning_or_halts() -> None:
    files = a_log(40)
    whole, end = rows(files), used(files)
    for mark in (True, False):
        for length in sampled(range(end), 250, 3):
            cut = damaged(files, FIRST, lambda content, length=length: content.__delitem__(slice(length, None)))
            if not mark:
                del cut.contents()[FOLDER / "durable"][:]
            found = outcome(cut, whole)
            assert found == ("halt" if mark or length < SEGMENT_HEADER_BYTES else "torn"), length


def test_pages_and_records_moved_about_never_show_a_wrong_row() -> None:
    files = a_log(200, WalOptions(segment_bytes=1 << 18, max_record_bytes=1 << 14, min_free_bytes=0))
    whole, choice = rows(files), random.Random(4)
    offsets = [record.offset for record in dump(FOLDER, files=files)]
    pages = list(range(0, used(files) - 8192, 4096))
    for _ in range(2000 if EVERY else 120):
        cuts, size = (offsets[:-1], 272) if choice.random() < 0.5 else (pages, 4096)
        one, two = choice.choice(cuts), choice.choice(cuts)
        kind = choice.choice(["insert", "delete", "swap", "zero", "repeat"])
        copy = damaged(files, FIRST, lambda c, a=(kind, one, two, size): shuffle(c, *a))
        same = bytes(copy.contents()[FIRST]) == bytes(files.contents()[FIRST])
        assert (outcome(copy, whole) == "same") == same, (kind, one, two, size)


def shuffle(content: bytearray, kind: str, one: int, two: int, size: int) -> None:
    piece, other = bytes(content[one : one + size]), bytes(content[two : two + size])
    if kind == "insert":
        content[two:two] = piece
    elif kind == "delete":
        del content[one : one + size]
    elif kind == "zero":
        content[one : one + size] = bytes(size)
    else:
        content[two : two + size] = piece
        if kind == "swap":
            content[one : one + size] = other


def test_a_missing_segment_halts_wherever_it_was() -> None:
    files = a_log(60, WalOptions(segment_bytes=4096, max_record_bytes=2048, min_free_bytes=0), clean=True)
    names = sorted(path for path in files.contents() if path.name.startswith("wal-"))
    assert len(names) > 4
    for name in (names[2], names[-2]):
        copy = files.after_kill()
        copy.remove(name)
        with pytest.raises(DamageError, match=r"missing between|ends before|does not continue"):
            Wal(FOLDER, OPTIONS, files=copy)
    for name in names:
        files.remove(name)
    with pytest.raises(DamageError):
        Wal(FOLDER, OPTIONS, files=files)


def test_a_segment_of_another_log_is_not_read() -> None:
    files, other = a_log(3, clean=True), a_log(3, clean=True)
    files.contents()[FIRST][:] = other.contents()[FIRST]
    with pytest.raises(DamageError, match="belongs to the log"):
        Wal(FOLDER, OPTIONS, files=files)


def test_a_torn_tail_is_saved_cut_off_and_never_appended_behind() -> None:
    files = a_log(10)
    end = used(files)
    files.contents()[FIRST][end : end + 100] = b"\x07" * 100
    with Wal(FOLDER, OPTIONS, files=files) as wal:
        assert wal.torn is not None
        assert wal.torn.offset == end
        assert wal.append(Entry("acme", "orders", b"next"), 10).seq == 11
    assert files.contents()[FOLDER / f"{FIRST.name}.{end}.torn"] == b"\x07" * 100
    assert sorted(rows(files)) == list(range(1, 12))


def test_a_hole_in_a_group_that_nobody_was_told_of_is_a_torn_tail() -> None:
    """A power loss may keep the last record of an unsynced group and lose the first; the mark is from before it."""
    files = SimulatedFilesystem()
    with Wal(FOLDER, OPTIONS, files=files) as wal:
        wal.append(Entry("acme", "orders", b"before"), 10)
        mark = bytes(files.contents()[FOLDER / "durable"])
        wal.submit_all([Entry("acme", "orders", text * 90) for text in (b"one", b"two", b"three")])[-1].wait(10)
        files = files.after_kill()
    files.contents()[FOLDER / "durable"][:] = mark
    flip(list(dump(FOLDER, files=files))[1].offset + 60)(files.contents()[FIRST])
    with Wal(FOLDER, OPTIONS, files=files) as wal:
        assert wal.torn is not None
        assert wal.written.seq == 1


@pytest.mark.parametrize("clean", [True, False])
def test_salvage_keeps_every_readable_record_and_names_what_is_lost(clean: bool) -> None:
    small = WalOptions(segment_bytes=4096, max_record_bytes=2048, min_free_bytes=0)
    files = a_log(60, small, clean)
    whole, choice = rows(files), random.Random(5)
    names = [path for path in files.contents() if path.name.startswith("wal-")]
    for _ in range(200 if EVERY else 60):
        copy = files.after_kill()
        for _ in range(choice.randrange(1, 4)):
            content = copy.contents()[choice.choice(names)]
            flip(choice.randrange(min(3800, len(content))))(content)
        done = repair(FOLDER, salvage=True, files=copy)
        lost = {seq for first, last, _ in done.gaps for seq in range(first, last + 1)}
        found = rows(copy)
        assert all(whole[seq] == row for seq, row in found.items())
        assert set(whole) - set(found) == lost, "each lost record is in a gap, and nothing else"
        assert len(lost) <= 3 + 12, "a flipped byte costs a record, or at worst what a header led to"
        with Wal(FOLDER, small, files=copy) as wal:
            assert wal.append(Entry("a", "b", b"c"), 10).seq == 61


def test_salvage_records_the_gap_and_the_chain_goes_on() -> None:
    files = a_log(10)
    third = list(dump(FOLDER, files=files))[2]
    last = list(dump(FOLDER, files=files))[-1].position
    flip(third.offset + 60)(files.contents()[FIRST])
    done = repair(FOLDER, salvage=True, files=files)
    assert [(first, to) for first, to, _ in done.gaps] == [(3, 3)]
    gap = next(record for record in dump(FOLDER, files=files) if record.seq == 3).content
    assert isinstance(gap, Gap)
    assert "checksum" in gap.reason
    assert "acme/orders" in gap.reason
    Wal(FOLDER, OPTIONS, files=files, expect=last).close()


def test_a_repair_without_salvage_refuses_damage_and_a_log_in_use() -> None:
    files = a_log(10)
    flip(100)(files.contents()[FIRST])
    before = {path: bytes(content) for path, content in files.contents().items()}
    with pytest.raises(DamageError, match="at byte 64"):
        repair(FOLDER, files=files)
    assert {path: bytes(content) for path, content in files.contents().items() if path in before} == before
    files = a_log(1, clean=True)
    with Wal(FOLDER, OPTIONS, files=files), pytest.raises(UnavailableError, match="in use"):
        repair(FOLDER, salvage=True, files=files)


def test_the_commands_verify_dump_and_repair_a_log_on_disk(tmp_path: Path) -> None:
    with Wal(tmp_path) as wal:
        for n in range(3):
            wal.append(Entry("acme", "orders", b"rows", f"b{n}"))
    run = CliRunner().invoke
    assert "whole: 3 records" in run(app, ["wal", "verify", str(tmp_path)]).output
    assert '"batch_id": "b2"' in run(app, ["wal", "dump", str(tmp_path), "--after", "2"]).output
    path = tmp_path / segment_name(1)
    content = bytearray(path.read_bytes())
    content[110] ^= 1
    path.write_bytes(content)
    assert isinstance(run(app, ["wal", "verify", str(tmp_path)]).exception, DamageError)
    assert isinstance(run(app, ["wal", "repair", str(tmp_path)]).exception, DamageError)
    assert "records 1 to 1 are lost" in run(app, ["wal", "repair", str(tmp_path), "--salvage"]).output
    assert "whole: 3 records" in run(app, ["wal", "verify", str(tmp_path)]).output
    assert '"gap_to": 1' in run(app, ["wal", "dump", str(tmp_path)]).output


def test_a_log_cut_between_two_records_halts_because_of_the_mark() -> None:
    files = a_log(10)
    del files.contents()[FIRST][list(dump(FOLDER, files=files))[6].offset :]
    with pytest.raises(DamageError, match="ends before what had been acknowledged"):
        Wal(FOLDER, OPTIONS, files=files)


def test_a_record_from_another_life_of_the_same_log_breaks_the_chain() -> None:
    files = a_log(3)
    other = files.after_kill()
    for disk, text in ((files, b"x"), (other, b"y")):
        with Wal(FOLDER, OPTIONS, files=disk) as wal:
            for _ in range(3):
                wal.append(Entry("acme", "orders", text), 10)
    path = FOLDER / segment_name(4)
    place = list(dump(FOLDER, after=3, files=files))[1]
    files.contents()[path][place.offset :] = other.contents()[path][place.offset :]
    with pytest.raises(DamageError, match="does not follow"):
        Wal(FOLDER, OPTIONS, files=files)
