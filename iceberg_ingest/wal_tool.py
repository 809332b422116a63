"""Looking into a write-ahead log and mending it by hand: verify and dump change nothing, repair never throws bytes
away.

A salvage copies every file that it changes into ``quarantine`` first, then puts the mended file in place in one step,
and looks again from the start; a crash in between leaves a log with less damage and a copy too many. What cannot be
read becomes an explicit gap.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from iceberg_ingest.filesystem import Filesystem, RealFilesystem, read_file, write_file
from iceberg_ingest.wal import LOCK_NAME
from iceberg_ingest.wal_format import (
    MAX_BODY_BYTES,
    SEGMENT_HEADER_BYTES,
    FrameHeader,
    Gap,
    Kind,
    SegmentHeader,
    checksum_of,
    first_seq_of,
    padding,
    salt_of,
    segment_name,
)
from iceberg_ingest.wal_recovery import recover, refuse_damage
from iceberg_ingest.wal_segments import IDENTITY_NAME, Damage, Position, Record, SegmentReader, Survey, survey
from iceberg_manager.errors import DamageError, NotFoundError, UnavailableError

QUARANTINE = "quarantine"


@dataclass
class Repair:
    """What a repair did: the gaps it had to record (first and last lost record, and why) and the files it kept a copy
    of.
    """

    gaps: list[tuple[int, int, str]] = field(default_factory=list)
    quarantined: list[Path] = field(default_factory=list)
    torn: Damage | None = None


def verify(folder: Path, files: Filesystem | None = None, limit: int = MAX_BODY_BYTES) -> Survey:
    """Read and check the whole log; ``damage`` of the result says what is wrong. Safe while the log is in use."""
    files = files or RealFilesystem()
    return survey(files, _existing(folder, files), limit)


def dump(
    folder: Path, after: int = 0, files: Filesystem | None = None, limit: int = MAX_BODY_BYTES
) -> Iterator[Record]:
    """Every readable record behind ``after``, in order, up to the first damage."""
    files = files or RealFilesystem()
    for segment in survey(files, _existing(folder, files), limit).segments:
        if segment.last.seq > after:
            data = read_file(files, segment.path)[: segment.end]
            before = Position(segment.header.first_seq - 1, segment.header.prev_chain)
            reader = SegmentReader(
                data[SEGMENT_HEADER_BYTES:], segment.header.wal_id, before, SEGMENT_HEADER_BYTES, limit
            )
            yield from (record for record in reader if record.position.seq > after)


def summary(record: Record) -> dict[str, str | int]:
    """A record without its rows, for people and programs to look at."""
    content = record.content
    place: dict[str, str | int] = {"seq": record.seq, "offset": record.offset, "chain": f"{record.position.chain:016x}"}
    if isinstance(content, Gap):
        return {**place, "gap_to": content.to_seq, "reason": content.reason}
    names = ("tenant", "table", "batch_id", "producer", "producer_seq", "received_ms")
    return {**place, **{name: getattr(content, name) for name in names}, "payload_bytes": len(content.payload)}


def repair(folder: Path, salvage: bool = False, files: Filesystem | None = None, limit: int = MAX_BODY_BYTES) -> Repair:
    """Cut off a torn tail; with ``salvage`` also turn damage into gaps. Without it, damage is a DamageError."""
    files = files or RealFilesystem()
    lock = files.open(_existing(folder, files) / LOCK_NAME, create=True)
    try:
        if not files.lock(lock):
            raise UnavailableError(f"The log in {folder} is in use; end the process that has it open, then repair.")
        done = _Salvage(files, folder, limit).run() if salvage else Repair()
        found = survey(files, folder, limit)
        refuse_damage(found)
        if found.segments:
            done.torn = recover(files, folder, limit, None, found.segments[-1].header.created_ms).torn
        return done
    finally:
        files.close(lock)


class _Salvage:
    """One repair: look, mend the first damage, look again, until there is none."""

    def __init__(self, files: Filesystem, folder: Path, limit: int) -> None:
        self._files = files
        self._folder = folder
        self._limit = limit
        self.done = Repair()

    def run(self) -> Repair:
        seen: set[tuple[Path, int, int]] = set()
        while (found := self._look()).damage and not found.damage.torn:
            damage = found.damage
            place = (damage.path, damage.offset, damage.seq)
            if place in seen:
                raise DamageError(f"{damage} could not be salvaged; the originals are in {self._folder / QUARANTINE}.")
            seen.add(place)
            self._mend(found, damage)
        return self.done

    def _look(self) -> Survey:
        try:
            return survey(self._files, self._folder, self._limit)
        except DamageError:
            self._put_away(self._folder / IDENTITY_NAME)
            self._files.remove(self._folder / IDENTITY_NAME)
            return survey(self._files, self._folder, self._limit)

    def _mend(self, found: Survey, damage: Damage) -> None:
        known = found.wal_id or self._identity()
        if damage.path.name == IDENTITY_NAME and found.segments:
            self._write(damage.path, json.dumps({"wal_id": str(known)}).encode())
        elif not found.segments and first_seq_of(damage.path.name) is None:
            self._write(self._folder / segment_name(1), self._only_a_gap(known, found.mark.seq))
        elif damage.offset >= SEGMENT_HEADER_BYTES:
            self._mend_inside(found, damage, known)
        else:
            self._mend_header(found, damage, known)

    def _identity(self) -> UUID:
        for name in self._files.list_names(self._folder):
            if first_seq_of(name) is not None:
                header = SegmentHeader.decode(read_file(self._files, self._folder / name))
                if isinstance(header, SegmentHeader):
                    return header.wal_id
        raise DamageError(
            f"Nothing in {self._folder} says whose log it is; restore {IDENTITY_NAME}. Nothing was changed."
        )

    def _mend_inside(self, found: Survey, damage: Damage, known: UUID) -> None:
        """Keep what is before and behind the bad bytes, with a gap in place of what is missing between."""
        data = read_file(self._files, damage.path)
        last = found.segments[-1].last
        reader = SegmentReader(data[damage.offset :], known, last, damage.offset, self._limit)
        for offset, header in reader.later():
            if header.seq > damage.seq or header.prev_chain == last.chain:
                gap = self._gap(known, damage, last, header.seq - 1, header.prev_chain)
                self._write(damage.path, data[: damage.offset] + gap + data[offset:])
                return
        to_seq, chain = self._following(damage.path, known) or (max(found.mark.seq, damage.known_lost), 0)
        self._write(damage.path, data[: damage.offset] + self._gap(known, damage, last, to_seq, chain))

    def _mend_header(self, found: Survey, damage: Damage, known: UUID) -> None:
        """A header that cannot be read is made anew; a file that does not follow gets a gap before it, or is put
        away.
        """
        data, named = read_file(self._files, damage.path), first_seq_of(damage.path.name) or 0
        previous = found.segments[-1] if found.segments else None
        header = SegmentHeader.decode(data)
        if isinstance(header, str):
            first = FrameHeader.decode(data, SEGMENT_HEADER_BYTES, salt_of(known))
            chain = first.prev_chain if first and first.seq == named else previous.last.chain if previous else 0
            anew = SegmentHeader(known, previous.header.epoch if previous else 1, named, chain, 0)
            self._write(damage.path, anew.encode() + data[SEGMENT_HEADER_BYTES:])
        elif previous and header.wal_id == known and header.first_seq == named > previous.last.seq + 1:
            whole = read_file(self._files, previous.path)[: previous.end]
            gap = self._gap(known, damage, previous.last, named - 1, header.prev_chain)
            self._write(previous.path, whole + gap)
        else:
            self._put_away(damage.path)
            self._files.remove(damage.path)
            self._files.sync_folder(self._folder)

    def _following(self, path: Path, known: UUID) -> Position | None:
        """Where the segment after this one goes on from, by its header or else by its name and its first record."""
        names = [name for name in self._files.list_names(self._folder) if first_seq_of(name) is not None]
        later = [name for name in names if name > path.name]
        if not later:
            return None
        data, named = read_file(self._files, self._folder / min(later)), first_seq_of(min(later)) or 0
        header = SegmentHeader.decode(data)
        if isinstance(header, SegmentHeader):
            return Position(named - 1, header.prev_chain)
        first = FrameHeader.decode(data, SEGMENT_HEADER_BYTES, salt_of(known))
        return Position(named - 1, first.prev_chain if first and first.seq == named else 0)

    def _gap(self, known: UUID, damage: Damage, last: Position, to_seq: int, resume_chain: int) -> bytes:
        if to_seq <= last.seq:
            return b""
        self.done.gaps.append((last.seq + 1, to_seq, damage.problem))
        return _frame(known, last, Gap(to_seq, resume_chain, damage.problem))

    def _only_a_gap(self, known: UUID, to_seq: int) -> bytes:
        header = SegmentHeader(known, 1, 1, 0, 0).encode()
        if not to_seq:
            return header
        self.done.gaps.append((1, to_seq, "all segments are missing"))
        return header + _frame(known, Position(0, 0), Gap(to_seq, 0, "all segments are missing"))

    def _write(self, path: Path, content: bytes) -> None:
        if path.name in self._files.list_names(self._folder):
            self._put_away(path)
        write_file(self._files, path, [content])

    def _put_away(self, path: Path) -> None:
        self._files.make_folder(self._folder / QUARANTINE)
        taken = self._files.list_names(self._folder / QUARANTINE)
        copy = self._folder / QUARANTINE / f"{path.name}.{len(taken)}"
        write_file(self._files, copy, [read_file(self._files, path)])
        self.done.quarantined.append(copy)


def _frame(wal_id: UUID, last: Position, gap: Gap) -> bytes:
    body = gap.encode()
    seq = last.seq + 1
    header = FrameHeader(len(body), seq, last.chain, Kind.GAP, seq, checksum_of([body])).encode(salt_of(wal_id))
    return header + body + bytes(padding(len(body)))


def _existing(folder: Path, files: Filesystem) -> Path:
    try:
        files.list_names(folder)
    except OSError as error:
        raise NotFoundError(f"There is no folder {folder}, so there is no write-ahead log to look at.") from error
    return folder
