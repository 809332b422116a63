"""Reading a write-ahead log: what each segment holds, what is wrong with it, and which of that is harmless.

Changes nothing.

Only the last segment may end badly, and only in records that nobody was told of: a frame that was written in a later
group, or the durable mark, proves that a record had been acknowledged, and then its loss is damage. Everything else
must be perfect: names, the identity, the sequence, the chain and every checksum.
"""

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from iceberg_ingest.filesystem import Filesystem, read_file
from iceberg_ingest.wal_format import (
    ALIGNMENT,
    FRAME_HEADER_BYTES,
    MAGIC_BYTES,
    MAX_BODY_BYTES,
    SEGMENT_HEADER_BYTES,
    Entry,
    FrameHeader,
    Gap,
    Kind,
    SegmentHeader,
    chain_after,
    first_seq_of,
    salt_of,
)
from iceberg_manager.errors import DamageError

IDENTITY_NAME = "wal.json"
DURABLE_NAME = "durable"
_MARK = struct.Struct("<Q?3x")


class Position(NamedTuple):
    """A place in the log: everything up to ``seq``, and the chain value there, which no other log has."""

    seq: int
    chain: int


class Mark(NamedTuple):
    """How far the log may be read. ``proven``: it is also on disk, so a log that ends before it has lost something."""

    seq: int
    proven: bool


START = Position(0, 0)


class Record(NamedTuple):
    """A record as read back; ``position`` is the place in the log behind it."""

    position: Position
    header: FrameHeader
    body: memoryview
    offset: int

    @property
    def seq(self) -> int:
        return self.header.seq

    @property
    def content(self) -> Entry | Gap:
        found = Gap.decode(self.body) if self.header.kind == Kind.GAP else Entry.decode(self.body)
        if isinstance(found, str):
            raise DamageError(
                f"Record {self.seq} passes its checksum but cannot be read: {found}. It was left as it is."
            )
        return found


@dataclass(frozen=True)
class Damage:
    """A place where the log is not what was written. ``torn``: nobody had been told of what stood there."""

    path: Path
    offset: int
    seq: int
    problem: str
    torn: bool = False
    known_lost: int = 0

    def __str__(self) -> str:
        lost = f"{self.seq} to {self.known_lost}" if self.known_lost > self.seq else f"{self.seq} and maybe more"
        return f"{self.path.name} at byte {self.offset} (record {lost}): {self.problem}"


@dataclass(frozen=True)
class Segment:
    """One segment as it was found: its good records end at ``end`` (bytes) and ``last`` (position)."""

    path: Path
    header: SegmentHeader
    last: Position
    end: int
    size: int
    records: int
    damage: Damage | None = None


@dataclass(frozen=True)
class Survey:
    """A whole log as it was found, oldest segment first; the first damage ends it."""

    folder: Path
    wal_id: UUID | None
    segments: tuple[Segment, ...]
    damage: Damage | None
    leftovers: tuple[Path, ...]
    mark: Mark

    @property
    def last(self) -> Position:
        return self.segments[-1].last if self.segments else START

    @property
    def first_seq(self) -> int:
        return self.segments[0].header.first_seq if self.segments else 1


class SegmentReader:
    """Walks the frames of a segment's bytes; afterwards ``position``, ``offset`` and ``problem`` say where and why it
    stopped.

    ``data`` may be a part of the segment: ``base`` is where it starts, ``position`` what comes before it.
    """

    def __init__(self, data: bytes, wal_id: UUID, position: Position, base: int, limit: int = MAX_BODY_BYTES) -> None:
        self._data = memoryview(data)
        self._salt = salt_of(wal_id)
        self._limit = limit
        self._base = base
        self._at = 0
        self.position = position
        self.problem: str | None = None

    @property
    def offset(self) -> int:
        return self._base + self._at

    @property
    def rest(self) -> bytes:
        return bytes(self._data[self._at :])

    def __iter__(self) -> Iterator[Record]:
        while self._at < len(self._data) and (record := self._next()) is not None:
            self.position = record.position
            self._at += record.header.frame_bytes
            yield record

    def _next(self) -> Record | None:
        header = FrameHeader.decode(self._data, self._at, self._salt)
        if header is None:
            self.problem = "the record's header is cut off or fails its checksum"
        elif header.seq != self.position.seq + 1 or header.prev_chain != self.position.chain:
            self.problem = f"record {header.seq} stands there, which does not follow record {self.position.seq}"
        elif header.body_bytes > self._limit:
            self.problem = f"the record claims {header.body_bytes} bytes, more than the {self._limit} allowed"
        elif self._at + header.frame_bytes > len(self._data):
            self.problem = "the record is cut off"
        else:
            return self._checked(header)
        return None

    def _checked(self, header: FrameHeader) -> Record | None:
        start = self._at + FRAME_HEADER_BYTES
        body = self._data[start : start + header.body_bytes]
        if zlib.crc32(body) != header.body_crc:
            self.problem = f"the record's content fails its checksum{_names_in(body)}"
            return None
        chain = chain_after(self._data[self._at : start])
        if header.kind == Kind.GAP:
            gap = Gap.decode(body)
            if isinstance(gap, str) or gap.to_seq < header.seq:
                self.problem = "the gap record makes no sense"
                return None
            return Record(Position(gap.to_seq, gap.resume_chain or chain), header, body, self.offset)
        return Record(Position(header.seq, chain), header, body, self.offset)

    def later(self) -> Iterator[tuple[int, FrameHeader]]:
        """Frames behind the place where reading stopped that are certainly this log's, by their own checksums."""
        data, at = self.rest, 0
        while (at := data.find(MAGIC_BYTES, at + 1)) > 0:
            header = None if at % ALIGNMENT else FrameHeader.decode(data, at, self._salt)
            if header and header.seq > self.position.seq:
                yield self.offset + at, header


def _names_in(body: memoryview) -> str:
    """Whose record it was, as far as a damaged body can tell."""
    entry = Entry.decode(body)
    return "" if isinstance(entry, str) else f" (it seems to be for {entry.tenant}/{entry.table})"


def survey(files: Filesystem, folder: Path, limit: int = MAX_BODY_BYTES) -> Survey:
    """Read and check everything. Damage is reported, not raised; nothing is changed."""
    names = files.list_names(folder)
    numbered = sorted(name for name in names if first_seq_of(name) is not None)
    wal_id, mark = read_identity(files, folder), read_mark(files, folder)
    segments: list[Segment] = []
    damage: Damage | None = None
    for name in numbered:
        known = segments[0].header.wal_id if segments else wal_id
        found = _inspect(
            folder / name, read_file(files, folder / name), known, segments[-1] if segments else None, limit
        )
        if isinstance(found, Damage):
            damage = found
            break
        if found.damage:
            found = replace(found, damage=_weighed(found.damage, name == numbered[-1], mark))
        segments.append(found)
        if damage := found.damage:
            break
    damage = damage or _missing(folder, wal_id, segments, mark)
    leftovers = tuple(folder / name for name in names if name.endswith(".tmp"))
    return Survey(folder, wal_id, tuple(segments), damage, leftovers, mark)


def _inspect(path: Path, data: bytes, wal_id: UUID | None, previous: Segment | None, limit: int) -> Segment | Damage:
    named = first_seq_of(path.name) or 0
    header = SegmentHeader.decode(data)
    if isinstance(header, str):
        return Damage(path, 0, previous.last.seq + 1 if previous else named, header)
    if problem := _misfit(header, named, wal_id, previous):
        return Damage(path, 0, previous.last.seq + 1 if previous else named, problem, known_lost=named - 1)
    before = Position(header.first_seq - 1, header.prev_chain)
    reader = SegmentReader(data[SEGMENT_HEADER_BYTES:], header.wal_id, before, SEGMENT_HEADER_BYTES, limit)
    records = sum(1 for _ in reader)
    return Segment(path, header, reader.position, reader.offset, len(data), records, _bad_end(reader, path))


def _misfit(header: SegmentHeader, named: int, wal_id: UUID | None, previous: Segment | None) -> str | None:
    if header.first_seq != named:
        return f"the file is named for record {named} but its header says {header.first_seq}"
    if wal_id is not None and header.wal_id != wal_id:
        return f"the file belongs to the log {header.wal_id}, not to {wal_id}"
    if previous is None:
        return None
    if header.first_seq != previous.last.seq + 1:
        return f"the file before it ends with record {previous.last.seq}, so records are missing between the two"
    if header.prev_chain != previous.last.chain or header.epoch < previous.header.epoch:
        return "the file does not continue the one before it"
    return None


def _bad_end(reader: SegmentReader, path: Path) -> Damage | None:
    """None if the good records end where the segment does, or before room that was only reserved."""
    if not reader.rest.strip(b"\0"):
        return None
    seq = reader.position.seq + 1
    later = [header for _, header in reader.later()]
    proof = max((header.group_first for header in later), default=0)
    lost = min((header.seq for header in later), default=0) - 1
    problem = reader.problem or "there is something where the log should end"
    return Damage(path, reader.offset, seq, problem, torn=proof <= seq, known_lost=lost)


def _weighed(damage: Damage, is_last: bool, mark: Mark) -> Damage:
    """Was anybody told of what stood there? A later group, a later segment and the durable mark each prove it."""
    if not is_last:
        return replace(damage, torn=False, problem=f"{damage.problem}, and a later segment follows")
    if not damage.torn or (mark.proven and mark.seq >= damage.seq):
        return replace(damage, torn=False, problem=f"{damage.problem}, and it had been acknowledged")
    return damage


def _missing(folder: Path, wal_id: UUID | None, segments: list[Segment], mark: Mark) -> Damage | None:
    last = segments[-1].last.seq if segments else 0
    if mark.proven and mark.seq > last:
        path, end = (segments[-1].path, segments[-1].end) if segments else (folder / DURABLE_NAME, 0)
        return Damage(path, end, last + 1, "the log ends before what had been acknowledged", known_lost=mark.seq)
    if wal_id is not None and not segments:
        return Damage(folder / IDENTITY_NAME, 0, 1, "the log has an identity but no segments")
    if wal_id is None and (len(segments) > 1 or any(segment.records for segment in segments)):
        return Damage(folder / IDENTITY_NAME, 0, segments[0].header.first_seq, "the log's identity file is missing")
    return None


def read_identity(files: Filesystem, folder: Path) -> UUID | None:
    """The log's identity, None for a folder that has none yet."""
    try:
        return UUID(json.loads(read_file(files, folder / IDENTITY_NAME))["wal_id"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(
            f"{folder / IDENTITY_NAME} does not hold a log's identity; nothing was changed. Restore the file, or run "
            "`iceberg-ingest wal repair --salvage`."
        ) from error


def encode_mark(mark: Mark) -> bytes:
    packed = _MARK.pack(*mark)
    return packed + zlib.crc32(packed).to_bytes(4, "little")


def read_mark(files: Filesystem, folder: Path) -> Mark:
    """How far the log may be read: (0, False) if that is not known.

    Written after the sync that covers it, so never too high.
    """
    try:
        data = read_file(files, folder / DURABLE_NAME)
    except FileNotFoundError:
        return Mark(0, False)
    if len(data) < _MARK.size + 4 or data != encode_mark(mark := Mark(*_MARK.unpack_from(data))):
        return Mark(0, False)
    return mark
