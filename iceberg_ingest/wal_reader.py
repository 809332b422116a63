"""Reading a log while another process appends to it: every record once, in order, and only what its owner has
published.

Needs no lock and changes nothing. In the modes always and periodic what it yields is on disk, so a table never gets
ahead of its log.
"""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

from iceberg_ingest.filesystem import Filesystem, RealFilesystem, read_file
from iceberg_ingest.wal_format import (
    FRAME_HEADER_BYTES,
    MAX_BODY_BYTES,
    SEGMENT_HEADER_BYTES,
    SegmentHeader,
    first_seq_of,
    segment_name,
)
from iceberg_ingest.wal_segments import Position, Record, SegmentReader, Survey, read_mark
from iceberg_manager.errors import DamageError

CHUNK_BYTES = 4 << 20


class WalReader:
    """Follows a log from ``after`` (exclusive; None: from the oldest record that is kept).

    ``position`` is how far it has come.
    """

    def __init__(
        self, folder: Path, after: Position | None = None, files: Filesystem | None = None, limit: int = MAX_BODY_BYTES
    ) -> None:
        self._folder = folder
        self._files = files or RealFilesystem()
        self._limit = limit
        self._path, self._offset = Path(), 0
        self.position = after or self._oldest()

    def read(self, max_bytes: int = CHUNK_BYTES) -> list[Record]:
        """The next published records, about ``max_bytes`` of them; an empty list if there are none yet."""
        mark = read_mark(self._files, self._folder).seq
        if mark <= self.position.seq:
            return []
        try:
            if not self._offset:
                self._find()
            return self._advance(mark, max_bytes) or self._cross(mark, max_bytes)
        except FileNotFoundError as error:
            raise self._gone() from error

    def _advance(self, mark: int, max_bytes: int) -> list[Record]:
        handle = self._files.open(self._path)
        try:
            records = self._chunk(handle, mark, max_bytes)
            whole = self._limit + FRAME_HEADER_BYTES + 8
            return records or (self._chunk(handle, mark, whole) if max_bytes < whole else [])
        finally:
            self._files.close(handle)

    def _chunk(self, handle: int, mark: int, size: int) -> list[Record]:
        header = self._header(handle)
        data = self._files.read(handle, size, self._offset)
        reader = SegmentReader(data, header.wal_id, self.position, self._offset, self._limit)
        records = list(takewhile(lambda record: record.seq <= mark, reader))
        if records:
            self.position = records[-1].position
            self._offset = records[-1].offset + records[-1].header.frame_bytes
        return records

    def _cross(self, mark: int, max_bytes: int) -> list[Record]:
        """On to the next segment; what was published must be there."""
        following = self._folder / segment_name(self.position.seq + 1)
        if following.name in self._files.list_names(self._folder) and following != self._path:
            self._path, self._offset = following, SEGMENT_HEADER_BYTES
            if records := self._advance(mark, max_bytes):
                return records
        raise DamageError(
            f"{self._path} at byte {self._offset}: record {self.position.seq + 1} was acknowledged but cannot be read. "
            "Nothing was changed; `iceberg-ingest wal verify` says more."
        )

    def _find(self) -> None:
        """The segment and the offset at which ``position`` ends, with the chain checked."""
        numbers = [
            number for name in self._files.list_names(self._folder) if (number := first_seq_of(name)) is not None
        ]
        starts = [number for number in numbers if number <= self.position.seq + 1]
        if not starts:
            raise self._gone()
        self._path = self._folder / segment_name(max(starts))
        last, self._offset = _walk(read_file(self._files, self._path), self._path, self.position.seq, self._limit)
        if last != self.position:
            raise DamageError(
                f"The log in {self._folder} has another record {self.position.seq} than the one to go on from: it is not "
                "the log that was read before, or it has lost its end. Nothing was changed."
            )

    def _oldest(self) -> Position:
        names = [name for name in self._files.list_names(self._folder) if first_seq_of(name) is not None]
        if not names:
            raise DamageError(f"There is no write-ahead log in {self._folder}.")
        handle = self._files.open(self._folder / min(names))
        try:
            header = self._header(handle)
        finally:
            self._files.close(handle)
        return Position(header.first_seq - 1, header.prev_chain)

    def _header(self, handle: int) -> SegmentHeader:
        return _header_of(self._files.read(handle, SEGMENT_HEADER_BYTES, 0), self._path)

    def _gone(self) -> DamageError:
        return DamageError(
            f"Record {self.position.seq + 1} is no longer in the log in {self._folder}: the log's retention has removed it. "
            "Nothing was changed; what lies between has to be sent again or given up on purpose."
        )


def read_from(
    folder: Path, after: Position | int | None = None, *, files: Filesystem | None = None, limit: int = MAX_BODY_BYTES
) -> Iterator[Record]:
    """Every published record behind ``after``, in order, then the end; None and 0: from the oldest that is kept.

    A sequence number alone says nothing about which log it was in: give a Position wherever one is known.
    """
    files = files or RealFilesystem()
    if isinstance(after, int):
        after = position_at(folder, after, files, limit) if after else None
    reader = WalReader(folder, after, files, limit)
    while records := reader.read():
        yield from records


def position_at(folder: Path, seq: int, files: Filesystem | None = None, limit: int = MAX_BODY_BYTES) -> Position:
    """The place behind record ``seq`` in this log."""
    files = files or RealFilesystem()
    starts = [number for name in files.list_names(folder) if (number := first_seq_of(name)) is not None]
    if fitting := [number for number in starts if number <= seq + 1]:
        path = folder / segment_name(max(fitting))
        position, _ = _walk(read_file(files, path), path, seq, limit)
        if position.seq == seq:
            return position
    raise DamageError(f"The log in {folder} does not hold record {seq}; nothing was changed.")


def chain_at(files: Filesystem, found: Survey, seq: int, limit: int = MAX_BODY_BYTES) -> int | None:
    """The chain value after record ``seq``, None if the log no longer (or never) has it."""
    for segment in found.segments:
        if segment.header.first_seq - 1 <= seq <= segment.last.seq:
            position, _ = _walk(read_file(files, segment.path), segment.path, seq, limit)
            return position.chain if position.seq == seq else None
    return None


def _walk(data: bytes, path: Path, seq: int, limit: int) -> tuple[Position, int]:
    """The last place in a segment that is not behind ``seq``, and its offset."""
    header = _header_of(data, path)
    before = Position(header.first_seq - 1, header.prev_chain)
    reader = SegmentReader(data[SEGMENT_HEADER_BYTES:], header.wal_id, before, SEGMENT_HEADER_BYTES, limit)
    last, offset = before, SEGMENT_HEADER_BYTES
    for record in takewhile(lambda record: record.position.seq <= seq, reader):
        last, offset = record.position, record.offset + record.header.frame_bytes
    return last, offset


def _header_of(data: bytes, path: Path) -> SegmentHeader:
    header = SegmentHeader.decode(data)
    if isinstance(header, str):
        raise DamageError(f"{path}: {header}. Nothing was changed; `iceberg-ingest wal verify` says more.")
    return header
