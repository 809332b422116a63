"""The one door for writes. Nothing is committed twice, and no outcome stays unknown.

1. The stamp (a commit id and who, what and why) goes into the snapshot's summary with the data, in the same commit.
2. Before: a snapshot on main with this commit id means it is done already; its result is returned, nothing is written.
3. After: our snapshot is found by its stamp, never by being the current one.
4. On any exception the table is loaded again and the stamp decides: landed, or not. A conflict with other writers, or a
   busy catalog, is then tried again from the start; every other error is translated and raised.

A crash before the commit leaves files that no snapshot names (orphan removal finds them); a crash after it leaves a
commit that step 2 finds when the work is done again under the same id.
"""

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, ValidationException
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.errors import ConflictError, DataError, LakeError, UnavailableError, first_line
from iceberg_manager.history import PARTITION, changes_rows, data_version, main_line, summary

_log = logging.getLogger(__name__)
PREFIX = "iceberg-assets."
COMMIT_ID = f"{PREFIX}commit-id"
ATTEMPTS = 8
_CONFLICTS = (
    "CommitFailedException",
    "conflicting files",
    "Cannot commit",
    "found new delete",
    "Cannot fast-forward",
    "is not an ancestor of",
)
_BUSY = ("SQLITE_BUSY", "database is locked", "could not serialize access", "deadlock detected")
_BAD_ROWS = (
    "NOT_NULL_ASSERT_VIOLATION",
    "CAST_INVALID_INPUT",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "ARITHMETIC_OVERFLOW",
    "CAST_OVERFLOW",
    "AnalysisException",
    "MERGE_CARDINALITY_VIOLATION",
)
_LOST = ("UNAVAILABLE", "Connection refused", "SESSION_NOT_FOUND", "SESSION_CLOSED", "INVALID_HANDLE", "Broken pipe")


@dataclass(frozen=True)
class Stamp:
    """Who commits what. Work that is done again after a failure must carry the same ``commit_id``."""

    commit_id: str
    run_id: str = ""
    asset: str = ""
    partition: str = ""
    code_version: str = ""
    inputs: Mapping[str, int] = field(default_factory=dict)
    batch: str = ""

    def properties(self) -> dict[str, str]:
        """As it stands in a snapshot's summary; what is empty is left out."""
        pinned = ",".join(f"{table}@{snapshot}" for table, snapshot in sorted(self.inputs.items()))
        said = {
            "run-id": self.run_id,
            "asset": self.asset,
            "code-version": self.code_version,
            "inputs": pinned,
            "batch": self.batch,
        }
        where = {PARTITION: self.partition} if self.partition else {}
        return {COMMIT_ID: self.commit_id} | where | {PREFIX + key: value for key, value in said.items() if value}


@dataclass(frozen=True)
class CommitResult:
    """What a commit did. ``changed`` is False when rows are as before; ``replayed`` when it had landed earlier."""

    snapshot_id: int | None
    parent_id: int | None
    data_version: int | None
    operation: str
    rows_added: int
    rows_removed: int
    files_added: int
    files_removed: int
    bytes_added: int
    total_rows: int
    total_files: int
    total_bytes: int
    schema_id: int
    changed: bool
    replayed: bool
    attempts: int
    seconds: float


def commit(
    load: Callable[[], Table],
    stamp: Stamp,
    write: Callable[[Mapping[str, str]], None],
    attempts: int = ATTEMPTS,
    pause: Callable[[float], None] = time.sleep,
) -> CommitResult:
    """Do ``write`` once, with the stamp's properties in its snapshot's summary, and say what came of it.

    ``load`` gives the table as it is now. ``write`` is called again, from the start, after a conflict.
    """
    started = time.monotonic()
    table = load()
    if landed := find(table, stamp.commit_id):
        _log.info("commit %s had landed before: nothing is written again", stamp.commit_id)
        return _result(table, landed, 0, started, stamp, replayed=True)
    searched = table.metadata.current_snapshot_id
    for attempt in range(1, attempts + 1):
        try:
            write(stamp.properties())
        except Exception as error:
            table = _reload(load, error, pause)
            if landed := find(table, stamp.commit_id, searched):
                _log.warning("the commit landed although an error was reported: %s", first_line(error))
                return _result(table, landed, attempt, started, stamp)
            if not may_retry(error) or attempt == attempts:
                raise translate(error, attempt) from error
            _log.warning("attempt %d lost to another writer, trying again: %s", attempt, first_line(error))
            pause(min(8.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.5))
        else:
            table = load()
            return _result(table, find(table, stamp.commit_id, searched), attempt, started, stamp)
    raise AssertionError("the loop either returns or raises")


def change(
    load: Callable[[], Table],
    apply: Callable[[Table], None],
    attempts: int = ATTEMPTS,
    pause: Callable[[float], None] = time.sleep,
) -> Table:
    """A change of metadata alone: columns, layout, refs, properties. It makes no snapshot, so there is nothing to stamp;
    ``apply`` states what should be, from a table loaded afresh, and is done again after a conflict."""
    for attempt in range(1, attempts + 1):
        try:
            apply(load())
            break
        except Exception as error:
            if not may_retry(error) or attempt == attempts:
                raise translate(error, attempt) from error
            pause(min(8.0, 0.1 * 2**attempt) * random.uniform(0.5, 1.5))
    return load()


def _reload(load: Callable[[], Table], error: Exception, pause: Callable[[float], None]) -> Table:
    """The table after a failed write: without it nobody can tell whether the commit landed, so it is worth some tries."""
    for wait in (1.0, 4.0, 10.0):
        try:
            return load()
        except Exception as unreadable:  # noqa: BLE001 (whatever is wrong with the catalog may pass)
            _log.warning("cannot tell yet whether the commit landed: %s", first_line(unreadable))
            pause(wait)
    try:
        return load()
    except Exception as unreadable:
        raise UnavailableError(
            f"The write failed ({first_line(error)}) and the catalog does not answer, so it is unknown whether the commit "
            "landed. Trying the run again is safe: a commit that landed is found and not repeated."
        ) from unreadable


def find(table: Table, commit_id: str, searched: int | None = None) -> list[Snapshot]:
    """The snapshots of main that carry this commit id, oldest first: one commit may be several snapshots.

    ``searched`` is a former head of main without it, where the search may end; if main was rolled back past that head, it
    is not met and all of main is searched.
    """
    newer = takewhile(lambda snapshot: snapshot.snapshot_id != searched, main_line(table))
    return [snapshot for snapshot in newer if summary(snapshot).get(COMMIT_ID) == commit_id][::-1]


def may_retry(error: BaseException) -> bool:
    """Whether another writer was in the way and nothing of ours landed."""
    if isinstance(error, CommitFailedException | CommitStateUnknownException | ValidationException):
        return True
    text = str(error)
    return any(word in text for word in (*_CONFLICTS, *_BUSY))


def translate(error: BaseException, attempts: int) -> LakeError:
    """A foreign error as one of ours; our own pass through."""
    if isinstance(error, LakeError):
        return error
    text, said = f"{type(error).__name__}: {error}", first_line(error)
    if may_retry(error):
        return ConflictError(
            f"Other writers won {attempts} times; nothing was committed. Run it again when they are done. Last: {said}"
        )
    if any(word in text for word in _LOST):
        return UnavailableError(f"Spark went away during the write; nothing was committed. Run it again. {said}")
    if any(word in text for word in _BAD_ROWS):
        return DataError(f"The rows do not fit the table; nothing was committed. {said}")
    return LakeError(f"The write failed; nothing was committed. {said}")


def _result(
    table: Table, ours: Sequence[Snapshot], attempts: int, started: float, stamp: Stamp, replayed: bool = False
) -> CommitResult:
    """Sums over our snapshots; with none, the write had nothing to do and the head of main is what a reader sees."""
    last = ours[-1] if ours else table.current_snapshot()
    counts = [summary(snapshot) for snapshot in ours]

    def added(key: str) -> int:
        return sum(int(count.get(key, "0")) for count in counts)

    totals = summary(last) if last else {}
    head = last.snapshot_id if last else None
    return CommitResult(
        snapshot_id=head,
        parent_id=ours[0].parent_snapshot_id if ours else (last.parent_snapshot_id if last else None),
        data_version=data_version(table, head, stamp.partition) if head is not None else None,
        operation=last.summary.operation.value if ours and last and last.summary else "none",
        rows_added=added("added-records"),
        rows_removed=added("deleted-records"),
        files_added=added("added-data-files"),
        files_removed=added("deleted-data-files"),
        bytes_added=added("added-files-size"),
        total_rows=int(totals.get("total-records", "0")),
        total_files=int(totals.get("total-data-files", "0")),
        total_bytes=int(totals.get("total-files-size", "0")),
        schema_id=table.metadata.current_schema_id,
        changed=any(changes_rows(snapshot) for snapshot in ours),
        replayed=replayed,
        attempts=attempts,
        seconds=time.monotonic() - started,
    )
