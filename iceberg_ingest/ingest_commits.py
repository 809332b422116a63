"""Records of the log into a table, exactly once (ADR 10).

Steps: load and check; write Parquet once; commit rows and marker on exactly the state that was checked; on any failure
load again: the marker decides whether it landed, then check and try again with the same files. A crash before the swap
leaves files that nothing names; after it, a marker that the next start reads. Files are never removed after an unknown
outcome.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from iceberg_ingest import marker as markers
from iceberg_ingest.wal_segments import Position
from iceberg_manager import arrow_files
from iceberg_manager.changes import Changes
from iceberg_manager.commits import Stamp, may_retry, translate
from iceberg_manager.errors import LakeError, UnavailableError, first_line
from iceberg_manager.metadata_commit import commit_on
from iceberg_manager.names import TableName
from iceberg_manager.storage import flush, remove_files
from iceberg_manager.table_versions import load

ATTEMPTS = 5


@dataclass(frozen=True)
class Range:
    """Records of one log for one table: behind ``expect``, up to and including ``upto``."""

    wal_id: UUID
    epoch: int
    expect: Position
    upto: Position
    table_uuid: str | None
    dead_letters: int = 0
    gaps: str = ""


@dataclass(frozen=True)
class Ingested:
    """What one commit brought in."""

    table: TableName
    table_uuid: str
    position: Position
    rows: int
    bytes: int
    attempts: int
    seconds: float


def nothing(point: str) -> None:
    """What happens at a named point of a commit: in production, nothing."""


def ingest(
    catalog: Catalog, name: TableName, span: Range, batches: Sequence[pa.RecordBatch],
    clock: Callable[[], float] = time.time, at: Callable[[str], None] = nothing, sync: bool = True,
) -> Ingested:  # fmt: skip
    """Commit a range of records. ``batches`` fit the table's columns; there may be none (only dead letters)."""
    started = time.monotonic()
    table = load(catalog, name)
    markers.check(table, span.wal_id, span.expect, span.table_uuid, _ms(clock))
    uuid = str(table.metadata.table_uuid)
    at("before-parquet")
    files = arrow_files.write(table, batches) if batches else []
    if sync:
        _sync_folders(table, files)
    at("after-parquet")
    attempt = _commit(catalog, name, span, files, table, clock, at, sync)
    at("after-commit")
    rows, size = sum(file.record_count for file in files), sum(file.file_size_in_bytes for file in files)
    return Ingested(name, uuid, span.upto, rows, size, attempt, time.monotonic() - started)


def _commit(
    catalog: Catalog, name: TableName, span: Range, files: list[DataFile], table: Table, clock: Callable[[], float],
    at: Callable[[str], None], sync: bool,
) -> int:  # fmt: skip
    """Try until it landed; returns which try it was."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            at("before-commit")
            commit_on(catalog, table, _changes(table, span, files), _summary(span, files), sync)
            at("commit-returned")
            return attempt
        except Exception as error:
            table = _reload(catalog, name, error)
            if markers.position_of(markers.read(table, span.wal_id)) == span.upto:
                return attempt
            if not may_retry(error) or attempt == ATTEMPTS:
                raise translate(error, attempt) from error
            time.sleep(0.01 * 2**attempt * random.uniform(0.5, 1.5))
            try:
                markers.check(table, span.wal_id, span.expect, span.table_uuid, _ms(clock))
            except LakeError:
                if isinstance(error, CommitFailedException):  # it did not land for sure, and never will
                    remove_files(table.io, [file.file_path for file in files])
                raise
    raise AssertionError("the loop either returns or raises")


def _changes(table: Table, span: Range, files: list[DataFile]) -> Changes:
    sequence = table.metadata.next_sequence_number()
    text = markers.encode(span.upto, span.epoch, table.metadata.current_snapshot_id, sequence)
    return Changes(added=files, properties={markers.key_of(span.wal_id): text})


def _summary(span: Range, files: list[DataFile]) -> dict[str, str]:
    said = {
        "ingest.wal-id": str(span.wal_id),
        "ingest.epoch": str(span.epoch),
        "ingest.from-seq": str(span.expect.seq + 1),
        "ingest.to-seq": str(span.upto.seq),
        "ingest.rows": str(sum(file.record_count for file in files)),
        "ingest.dead-lettered": str(span.dead_letters),
    }
    stamp = Stamp(f"ingest-{span.wal_id}-{span.upto.seq}-{span.upto.chain:016x}")
    return stamp.properties() | said | ({"ingest.gaps": span.gaps} if span.gaps else {})


def _reload(catalog: Catalog, name: TableName, error: Exception) -> Table:
    for wait in (0.5, 2.0, 5.0, 0.0):
        try:
            return load(catalog, name)
        except Exception as unreadable:
            if not wait:
                raise UnavailableError(
                    f"A commit to {name} failed ({first_line(error)}) and the catalog does not answer. The log keeps the "
                    "rows; the marker will tell whether it landed."
                ) from unreadable
            time.sleep(wait)
    raise AssertionError("the loop either returns or raises")


def _sync_folders(table: Table, files: list[DataFile]) -> None:
    """New folders are entries of their parents: those up to the table's own are put on disk too."""
    location = table.location()
    if "://" in location[1:8] and not location.startswith("file://"):
        return
    root = Path(location.removeprefix("file://"))
    parents = {Path(file.file_path.removeprefix("file://")).parent for file in files} | {root / "metadata"}
    folders = {above for one in parents for above in (one, *one.parents) if above.is_relative_to(root.parent.parent)}
    flush([str(folder) for folder in folders if folder.is_dir()])


def _ms(clock: Callable[[], float]) -> int:
    return int(clock() * 1000)
