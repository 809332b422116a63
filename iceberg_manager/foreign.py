"""Which snapshots of a table nobody has recorded yet: a pure function of the table and of what was recorded.

Main is walked back from its head to the first recorded snapshot. What lies above it and changes rows is new, oldest first;
nothing older than a record is ever reported after it. A rollback, or a table that took another's name, is told as such.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.history import changes_rows, data_version, main_line

FIRST_SIGHT = 10  # of a table with a long past, so many snapshots are told
WALKED = 1000


@dataclass(frozen=True)
class Happened:
    """Something to record. ``kind`` is commit, rollback or replaced; without a snapshot the table is empty."""

    kind: str
    snapshot: Snapshot | None
    data_version: str


@dataclass(frozen=True)
class Recorded:
    """What the log says, newest first: snapshot ids, and the id of the table that the newest record is of."""

    snapshots: Sequence[int] = ()
    table_uuid: str = ""


def happened(
    table: Table, recorded: Recorded, awaited: Callable[[Snapshot], bool] = lambda _: False
) -> tuple[list[Happened], bool]:
    """What to record, and whether that is all: a snapshot that is ``awaited`` from a run ends the list before it."""
    uuid = str(table.metadata.table_uuid)
    replaced = bool(recorded.table_uuid) and recorded.table_uuid != uuid
    known = set() if replaced else set(recorded.snapshots)
    fresh, anchor = _walk(table, known)
    events: list[Happened] = []
    if replaced:
        fresh = fresh[-1:]
        events += [] if fresh else [Happened("replaced", None, uuid)]
    elif anchor and anchor.snapshot_id != recorded.snapshots[0]:
        events.append(_event("rollback", table, anchor))
    elif anchor is None and known and any(table.metadata.snapshot_by_id(one) for one in known):
        fresh = fresh[-1:]  # went back to before anything that was recorded
        return [_event("rollback", table, one) for one in fresh], True
    for snapshot in fresh:
        if awaited(snapshot):
            return events, False
        events.append(_event("replaced" if replaced else "commit", table, snapshot))
    return events, True


def _walk(table: Table, known: set[int]) -> tuple[list[Snapshot], Snapshot | None]:
    """Snapshots above the first known one that changed rows, oldest first, and that one."""
    fresh: list[Snapshot] = []
    for snapshot in islice(main_line(table), WALKED):
        if snapshot.snapshot_id in known:
            return fresh[::-1], snapshot
        if changes_rows(snapshot):
            fresh.append(snapshot)
    return fresh[:FIRST_SIGHT][::-1], None


def _event(kind: str, table: Table, snapshot: Snapshot) -> Happened:
    return Happened(kind, snapshot, str(data_version(table, snapshot.snapshot_id)))
