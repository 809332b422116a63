"""Moves main and names snapshots: rollback, tags, branches. Every ref that is made here has a retention.

A rollback only moves main: no snapshot is removed, so it can itself be undone; columns and properties stay as they are now.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.commits import PREFIX, change
from iceberg_manager.errors import ConflictError, InputError, NotFoundError
from iceberg_manager.history import main_line, summary
from iceberg_manager.names import did_you_mean

KEEP = timedelta(days=90)
Load = Callable[[], Table]


@dataclass(frozen=True)
class Rollback:
    """What a rollback would do, or did: snapshots that leave main, newest first, and those that come back."""

    table: str
    from_snapshot: int
    to_snapshot: int
    undone: tuple[str, ...]
    restored: tuple[str, ...]


@dataclass(frozen=True)
class Reference:
    """A branch or tag."""

    name: str
    kind: str
    snapshot_id: int
    retention: timedelta | None


def plan_rollback(table: Table, target: Snapshot) -> Rollback:
    """What main would lose and regain."""
    head = table.current_snapshot()
    if head is None:
        raise InputError(f"{'.'.join(table.name())} has no snapshot yet: there is nothing to roll back.")
    ours = {snapshot.snapshot_id: snapshot for snapshot in main_line(table)}
    theirs = {snapshot.snapshot_id: snapshot for snapshot in main_line(table, target.snapshot_id)}
    return Rollback(
        ".".join(table.name()),
        head.snapshot_id,
        target.snapshot_id,
        tuple(_said(snapshot) for key, snapshot in ours.items() if key not in theirs),
        tuple(_said(snapshot) for key, snapshot in theirs.items() if key not in ours),
    )


def rollback(load: Load, planned: Rollback) -> Table:
    """Carry the plan out, unless main has moved since it was made."""

    def apply(table: Table) -> None:
        if table.metadata.current_snapshot_id == planned.to_snapshot:
            return
        if table.metadata.current_snapshot_id != planned.from_snapshot:
            raise ConflictError(
                f"Someone committed to {planned.table} meanwhile, so the rollback was not done; look at it again."
            )
        with table.manage_snapshots() as manage:
            manage.set_current_snapshot(planned.to_snapshot)

    return change(load, apply)


def tag(load: Load, name: str, snapshot_id: int, keep: timedelta | None = KEEP) -> Table:
    """Name a snapshot; it is kept while the tag is. ``keep=None`` is for ever."""

    def apply(table: Table) -> None:
        _refuse_taken(table, name)
        with table.manage_snapshots() as manage:
            manage.create_tag(snapshot_id, name, _milliseconds(keep))

    return change(load, apply)


def branch(load: Load, name: str, snapshot_id: int, keep: timedelta | None = KEEP) -> Table:
    """Start a branch at a snapshot."""

    def apply(table: Table) -> None:
        _refuse_taken(table, name)
        with table.manage_snapshots() as manage:
            manage.create_branch(snapshot_id, name, _milliseconds(keep))

    return change(load, apply)


def drop(load: Load, name: str) -> Table:
    """Remove a tag or branch; its snapshots go when nothing else keeps them."""

    def apply(table: Table) -> None:
        found = next((ref for ref in references(table) if ref.name == name), None)
        if found is None or name == "main":
            known = [ref.name for ref in references(table) if ref.name != "main"]
            why = "main cannot be dropped." if name == "main" else f"There is no tag or branch {name!r}."
            raise NotFoundError(why + did_you_mean(name, known))
        with table.manage_snapshots() as manage:
            (manage.remove_tag if found.kind == "tag" else manage.remove_branch)(name)

    return change(load, apply)


def references(table: Table) -> list[Reference]:
    """Every branch and tag, main first."""
    found = [
        Reference(
            name,
            "tag" if ref.snapshot_ref_type == SnapshotRefType.TAG else "branch",
            ref.snapshot_id,
            timedelta(milliseconds=ref.max_ref_age_ms) if ref.max_ref_age_ms else None,
        )
        for name, ref in table.metadata.refs.items()
    ]
    return sorted(found, key=lambda ref: (ref.name != "main", ref.name))


def row_changes(snapshot: Snapshot) -> str:
    """``+2 ~1 -3``: rows inserted, updated and deleted, as our own writers stamp them; others' by what files hold."""
    said = summary(snapshot)
    stamped = {sign: said.get(f"{PREFIX}rows-{verb}") for sign, verb in _VERBS.items()}
    if not any(stamped.values()):
        stamped = {"+": said.get("added-records"), "-": said.get("deleted-records")}
    return " ".join(f"{sign}{int(count):,}" for sign, count in stamped.items() if count and int(count)) or "0"


_VERBS = {"+": "inserted", "~": "updated", "-": "deleted"}


def _said(snapshot: Snapshot) -> str:
    operation = snapshot.summary.operation.value if snapshot.summary else "unknown"
    when = datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)
    return f"{snapshot.snapshot_id} {operation} of {when:%Y-%m-%d %H:%M:%S} ({row_changes(snapshot)} rows)"


def _refuse_taken(table: Table, name: str) -> None:
    if name in table.metadata.refs:
        raise InputError(f"{'.'.join(table.name())} has a branch or tag {name!r} already; drop it first.")


def _milliseconds(keep: timedelta | None) -> int | None:
    return int(keep.total_seconds() * 1000) if keep is not None else None
