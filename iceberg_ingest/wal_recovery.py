"""Opening a write-ahead log: make it perfect again, or refuse and say where it is not.

Nothing is appended before this is done.

Steps, each of which a crash may follow, since the next start sees the same or the finished state: read and check
everything (changes nothing); remove temporary files; save a torn tail beside its segment; put the last segment in
place anew without it (written, synced, renamed: what was only in a cache, or in one that had failed to sync, is on
disk afterwards); start a segment of a new epoch.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from iceberg_ingest.filesystem import Filesystem, read_file, write_all, write_file
from iceberg_ingest.wal_format import SEGMENT_HEADER_BYTES, SegmentHeader, segment_name
from iceberg_ingest.wal_reader import chain_at
from iceberg_ingest.wal_segments import IDENTITY_NAME, Damage, Position, Segment, Survey, survey
from iceberg_manager.errors import DamageError


class HalfCreatedError(OSError):
    """A segment may or may not be in place, so nothing may be written to the one before it."""


@dataclass(frozen=True)
class Recovered:
    """A log that is ready to go on: its identity, what is in it, and the torn tail that was cut off, if there was
    one.
    """

    wal_id: UUID
    epoch: int
    last: Position
    segments: tuple[Segment, ...]
    torn: Damage | None


def recover(files: Filesystem, folder: Path, limit: int, expect: Position | None, now_ms: int) -> Recovered:
    """Check and repair a log that this process has locked; DamageError if something acknowledged is not as it was."""
    found = survey(files, folder, limit)
    refuse_damage(found)
    if expect is not None:
        _refuse_other_log(files, found, expect, limit)
    for leftover in found.leftovers:
        files.remove(leftover)
    if found.segments and (found.segments[-1].records or found.damage):
        _settle(files, found.segments[-1])
    kept = tuple(segment for segment in found.segments if segment.records)
    epoch = max((segment.header.epoch for segment in found.segments), default=0) + 1
    wal_id = found.wal_id or (found.segments[0].header.wal_id if found.segments else uuid4())
    if found.wal_id is None:
        _start(files, folder, SegmentHeader(wal_id, epoch, 1, 0, now_ms))
    return Recovered(wal_id, epoch, found.last, kept, found.damage)


def refuse_damage(found: Survey) -> None:
    """Raise unless the log is whole, or torn only where nobody had been told of anything."""
    if found.damage is None or found.damage.torn:
        return
    raise DamageError(
        f"The write-ahead log in {found.folder} is damaged: {found.damage}. Nothing was changed. Restore the file from "
        "a copy if there is one; otherwise `iceberg-ingest wal repair --salvage` keeps what can be read and records "
        "the gap. (In the sync modes periodic and none a power loss can do this; in always it means a failing disk or "
        "a changed file.)",
        [found.damage],
    )


def _refuse_other_log(files: Filesystem, found: Survey, expect: Position, limit: int) -> None:
    """The table's marker must be a place in this log: same number, same chain."""
    if expect.seq > found.last.seq:
        problem = f"ends with record {found.last.seq}, but the table already holds everything up to {expect.seq}"
    elif expect.seq + 1 < found.first_seq or chain_at(files, found, expect.seq, limit) == expect.chain:
        return
    else:
        problem = f"is not the one that the table was filled from: its record {expect.seq} is another one"
    raise DamageError(
        f"The write-ahead log in {found.folder} {problem}. Nothing was changed. It has lost its end or is another log: "
        "restore the right folder, or start in an empty one."
    )


def _settle(files: Filesystem, segment: Segment) -> None:
    data = read_file(files, segment.path)
    if segment.damage is not None:
        torn = segment.path.with_name(f"{segment.path.name}.{segment.end}.torn")
        write_file(files, torn, [data[segment.end :].rstrip(b"\0")])
    write_file(files, segment.path, [data[: segment.end]])


def _start(files: Filesystem, folder: Path, header: SegmentHeader) -> None:
    """A new log: its first segment, then its identity, so that an identity without segments means that they were
    lost.
    """
    files.close(create_segment(files, folder, header, SEGMENT_HEADER_BYTES))
    write_file(files, folder / IDENTITY_NAME, [json.dumps({"wal_id": str(header.wal_id)}).encode()])


def create_segment(files: Filesystem, folder: Path, header: SegmentHeader, size: int) -> int:
    """Put an empty segment in place, durably, and return its handle. It replaces an empty one of the same name.

    An error before the rename leaves the log as it was; from the rename on it raises :class:`HalfCreatedError`.
    """
    path = folder / segment_name(header.first_seq)
    temporary = path.with_name(path.name + ".tmp")
    handle = files.open(temporary, create=True)
    try:
        files.truncate(handle, 0)
        files.allocate(handle, size)
        write_all(files, handle, [header.encode()], 0)
        files.sync(handle)
    except OSError:
        files.close(handle)
        files.remove(temporary)
        raise
    try:
        files.rename(temporary, path)
        files.sync_folder(folder)
    except OSError as error:
        files.close(handle)
        raise HalfCreatedError(*error.args) from error
    return handle
