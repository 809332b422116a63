"""Removing segments whose rows are all in their tables, from any process, while another one appends.

Oldest first, and each removal is made durable before the next, so a crash leaves a shorter log and never a hole. The
newest segment always stays. A segment is only read, to see whose rows it holds, once it is too old or the log too
large; what cannot be read stays.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from time import time

from iceberg_ingest.filesystem import Filesystem, RealFilesystem, read_file
from iceberg_ingest.wal_format import SEGMENT_HEADER_BYTES, Entry, SegmentHeader, first_seq_of
from iceberg_ingest.wal_options import Kept, WalOptions, removable
from iceberg_ingest.wal_segments import Position, SegmentReader
from iceberg_manager.errors import UnavailableError, first_line

Topic = tuple[str, str]


def collect(
    folder: Path, committed: Mapping[Topic, int], options: WalOptions, *, dry_run: bool = False,
    files: Filesystem | None = None, now_ms: int | None = None,
) -> list[Path]:  # fmt: skip
    """Remove what every topic's committed sequence number and the retention rules let go; returns those paths."""
    files = files or RealFilesystem()
    gone: list[Path] = []
    try:
        segments = _complete(files, folder)
        moment = int(time() * 1000) if now_ms is None else now_ms
        for segment in removable(segments, segments[-1].last_seq if segments else 0, moment, options):
            if not _all_in(files, segment, committed, options.max_record_bytes):
                break
            if not dry_run:
                files.remove(segment.path)
                files.sync_folder(folder)
            gone.append(segment.path)
    except OSError as error:
        raise UnavailableError(
            f"Old segments of the log in {folder} could not be removed: {first_line(error)}. Nothing uncommitted was "
            "touched; try again."
        ) from error
    return gone


def _complete(files: Filesystem, folder: Path) -> list[Kept]:
    """All segments but the newest, by their names: where one starts, the one before it has ended."""
    numbered = sorted((number, name) for name in files.list_names(folder) if (number := first_seq_of(name)) is not None)
    found: list[Kept] = []
    for (first, name), (following, _) in pairwise(numbered):
        handle = files.open(folder / name)
        try:
            header = SegmentHeader.decode(files.read(handle, SEGMENT_HEADER_BYTES, 0))
            size = files.size(handle)
        finally:
            files.close(handle)
        if isinstance(header, str):
            break
        found.append(Kept(folder / name, first, following - 1, header.created_ms, size))
    return found


def _all_in(files: Filesystem, segment: Kept, committed: Mapping[Topic, int], limit: int) -> bool:
    """Has every topic with rows in this segment committed its last one there? A segment with damage stays."""
    data = read_file(files, segment.path)
    header = SegmentHeader.decode(data)
    if isinstance(header, str):
        return False
    before = Position(header.first_seq - 1, header.prev_chain)
    reader = SegmentReader(data[SEGMENT_HEADER_BYTES:], header.wal_id, before, SEGMENT_HEADER_BYTES, limit)
    for record in reader:
        content = record.content
        if isinstance(content, Entry) and committed.get((content.tenant, content.table), 0) < record.seq:
            return False
    return reader.position.seq == segment.last_seq
