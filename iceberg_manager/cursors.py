"""Where readers of a table have got to, kept with the table, so that expiry spares what they have still to read.

A cursor is a table property: it survives expiry, compaction and other writers, and every process that can see the table can
see it. It says "everything up to and including this snapshot has been read", so its snapshot and all later ones on main are
needed. A reader that has not moved its cursor for ``ABANDONED`` holds nothing back any more. Moving a cursor commits
metadata: readers do it every few seconds at most, and after their own output is safe.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from iceberg_manager.commits import PREFIX, change
from iceberg_manager.errors import DamageError, InputError
from iceberg_manager.history import main_line

READER = f"{PREFIX}reader."
ABANDONED = timedelta(days=7)
Load = Callable[[], Table]


@dataclass(frozen=True)
class Cursor:
    """A reader's position; ``moved`` is when it last said so."""

    reader: str
    table_uuid: str
    snapshot_id: int
    sequence: int
    moved: datetime


def move(load: Load, reader: str, snapshot_id: int, now: datetime | None = None) -> None:
    """Register a reader, or move its cursor to a snapshot that it has finished with."""
    if not reader or not reader.isprintable() or len(reader) > 100:
        raise InputError(f"{reader!r} is not a reader's name: give it up to 100 printable characters.")
    moved = now or datetime.now(UTC)

    def apply(table: Table) -> None:
        snapshot = table.metadata.snapshot_by_id(snapshot_id)
        said = {
            "table": str(table.metadata.table_uuid),
            "snapshot": str(snapshot_id),
            "sequence": snapshot.sequence_number if snapshot else 0,
            "moved": moved.isoformat(timespec="seconds"),
        }
        with table.transaction() as change_of:
            change_of.set_properties({READER + reader: json.dumps(said)})

    change(load, apply)


def forget(load: Load, reader: str) -> None:
    """Drop a reader's cursor; one that is not there is no mistake."""

    def apply(table: Table) -> None:
        if READER + reader in table.properties:
            with table.transaction() as change_of:
                change_of.remove_properties(READER + reader)

    change(load, apply)


def cursors(table: Table) -> list[Cursor]:
    """All registered readers, by name."""
    found = []
    for key, text in sorted(table.properties.items()):
        if key.startswith(READER):
            found.append(_parse(table, key.removeprefix(READER), text))
    return found


def needed(table: Table, now: datetime | None = None, abandoned: timedelta = ABANDONED) -> Mapping[int, str]:
    """The snapshots that registered readers have still to read, each with the reason to keep it."""
    now, kept = now or datetime.now(UTC), dict[int, str]()
    for cursor in cursors(table):
        if cursor.table_uuid != str(table.metadata.table_uuid) or now - cursor.moved > abandoned:
            continue
        line = []
        for snapshot in main_line(table):
            line.append(snapshot.snapshot_id)
            if snapshot.snapshot_id == cursor.snapshot_id or snapshot.parent_snapshot_id == cursor.snapshot_id:
                break
            if cursor.sequence and snapshot.sequence_number and snapshot.sequence_number <= cursor.sequence:
                break
        for snapshot_id in (*line, cursor.snapshot_id):
            kept.setdefault(snapshot_id, f"reader {cursor.reader} has still to read on from it")
    return kept


def _parse(table: Table, reader: str, text: str) -> Cursor:
    try:
        said = json.loads(text)
        return Cursor(
            reader,
            said["table"],
            int(said["snapshot"]),
            int(said["sequence"]),
            datetime.fromisoformat(said["moved"]).astimezone(UTC),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(
            f"{'.'.join(table.name())}: the cursor of reader {reader!r} cannot be read, so nothing is expired; set it "
            f"again, or remove the table property {READER + reader!r}."
        ) from error
