"""What happened to a table: its main line of snapshots, and which of them changed its rows.

The *data version* of a table is its last snapshot on main that changed rows. Compaction, empty writes and work on other
branches do not move it, so that nothing downstream looks stale because of them. Expiry keeps what it would forget of that in
a table property (see ``floor``), so that a data version outlives its snapshot.
"""

import json
from collections.abc import Collection, Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from iceberg_manager.errors import NotFoundError

PARTITION = "iceberg-assets.partition"
FLOOR = "iceberg-assets.data-versions"
_FLOOR_LENGTH = 2000
_ROW_CHANGES = (
    "added-records",
    "deleted-records",
    "added-delete-files",
    "removed-delete-files",
    "added-data-files",
    "deleted-data-files",
)


def summary(snapshot: Snapshot) -> Mapping[str, str]:
    """A snapshot's properties as a plain mapping."""
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def main_line(table: Table, start: int | None = None) -> Iterator[Snapshot]:
    """Main's snapshots from ``start`` (default: its head) back to the oldest one retained."""
    at = start if start is not None else table.metadata.current_snapshot_id
    for snapshot in reversed(table.metadata.snapshots):  # parents usually come first: then few are looked at for few
        if snapshot.snapshot_id == at:
            yield snapshot
            at = snapshot.parent_snapshot_id
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots} if at is not None else {}
    while at is not None and (found := known.get(at)):
        yield found
        at = found.parent_snapshot_id


def changes_rows(snapshot: Snapshot) -> bool:
    """Whether a reader could see a difference: not for a rewrite of the same rows, not for an empty write."""
    if snapshot.summary is None:
        return True
    if snapshot.summary.operation == Operation.REPLACE:
        return False
    return any(int(summary(snapshot).get(key, "0")) for key in _ROW_CHANGES)


def data_version(table: Table, start: int | None = None, partition: str = "") -> int | None:
    """The last snapshot of main, at or before ``start``, that changed rows; None for a table never written to.

    With a ``partition``, commits that are stamped with other partitions do not count; a commit by someone else does,
    because it may have touched any. When history was cut so short that none is left, what expiry noted counts, and if
    somebody else cut it, the oldest snapshot stands in.
    """
    oldest = None
    for snapshot in main_line(table, start):
        if changes_rows(snapshot) and _touches(summary(snapshot).get(PARTITION, ""), partition):
            return snapshot.snapshot_id
        oldest = snapshot
    if oldest is None:
        return None
    for stamped, noted, sequence in _noted(table):
        if sequence <= (oldest.sequence_number or 0) and _touches(stamped, partition):
            return noted
    return oldest.snapshot_id


def floor(table: Table, gone: Collection[int]) -> dict[str, str]:
    """The property that lets data versions outlive these snapshots; empty if main loses none of them.

    For each stamp of a partition it names the last snapshot that changed rows, newest first. What is older than a change
    that may have touched every partition is left out.
    """
    line = list(main_line(table))
    cut = next((place for place, snapshot in enumerate(line) if snapshot.snapshot_id in gone), None)
    if cut is None:
        return {}
    lost = [
        (summary(one).get(PARTITION, ""), one.snapshot_id, one.sequence_number or 0)
        for one in line[cut:]
        if changes_rows(one)
    ]
    kept: dict[str, tuple[str, int, int]] = {}
    for entry in [*lost, *_noted(table)]:
        kept.setdefault(entry[0], entry)
        if not entry[0]:
            break
    listed = [[stamped, str(noted), sequence] for stamped, noted, sequence in kept.values()]
    return {FLOOR: json.dumps(listed[:_FLOOR_LENGTH])} if listed else {}


def _noted(table: Table) -> list[tuple[str, int, int]]:
    try:
        listed = json.loads(table.properties.get(FLOOR, "[]"))
        return [(str(stamped), int(noted), int(sequence)) for stamped, noted, sequence in listed]
    except (ValueError, TypeError):
        return []


def _touches(stamped: str, partition: str) -> bool:
    if not partition or not stamped:
        return True
    return any(a <= d and c <= b for a, b in _ranges(stamped) for c, d in _ranges(partition))


def _ranges(text: str) -> list[tuple[str, str]]:
    """``eu,us`` and ``2026-01-01...2026-01-07`` as pairs of first and last."""
    pairs = (part.partition("...") for part in text.split(","))
    return [(first, last or first) for first, _, last in pairs]


def require_snapshot(table: Table, snapshot_id: int) -> Snapshot:
    """A snapshot that is still there, or an error that names the newest ones that are."""
    if found := table.metadata.snapshot_by_id(snapshot_id):
        return found
    newest = [str(snapshot.snapshot_id) for snapshot in main_line(table)][:3]
    there = f"The newest are {', '.join(newest)}." if newest else "The table has no snapshot yet."
    raise NotFoundError(
        f"Snapshot {snapshot_id} is not in {'.'.join(table.name()[-2:])}: never made, or expired. {there}"
    )
