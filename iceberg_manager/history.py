"""What happened to a table: its main line of snapshots, and which of them changed its rows.

The *data version* of a table is its last snapshot on main that changed rows. Compaction, empty writes and work on other
branches do not move it, so that nothing downstream looks stale because of them.
"""

from collections.abc import Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from iceberg_manager.errors import NotFoundError

PARTITION = "iceberg-assets.partition"
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
    because it may have touched any. When history was cut so short that none is left, the oldest snapshot stands in.
    """
    oldest = None
    for snapshot in main_line(table, start):
        if changes_rows(snapshot) and _touches(snapshot, partition):
            return snapshot.snapshot_id
        oldest = snapshot.snapshot_id
    return oldest


def _touches(snapshot: Snapshot, partition: str) -> bool:
    stamped = summary(snapshot).get(PARTITION)
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
