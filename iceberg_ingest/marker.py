"""How far a log has gone into a table: one table property for each log, set in the commit that brings the rows.

The property is the authority. It survives expiry, compaction and other writers, which a snapshot's summary does not.
The summary carries a copy, for people. Everything here is pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyiceberg.table import Table

from iceberg_ingest.wal_segments import START, Position
from iceberg_manager.errors import ConflictError, DamageError
from iceberg_manager.history import main_line

PREFIX = "ingest.wal."
CLOCK_TOLERANCE_MS = 60_000


class FencedError(ConflictError):
    """Another writer of the same log has moved the marker: this one must end."""


class RolledBackError(DamageError):
    """The table went back behind rows that the marker says are in."""


class TableReplacedError(DamageError):
    """The table was dropped and made again since rows last went in."""


class ClockWentBackError(ConflictError):
    """The clock shows a time before the table's last commit."""


@dataclass(frozen=True)
class Marker:
    """``seq`` and ``chain``: the place in the log; ``snapshot_id`` and ``sequence``: the commit that set it."""

    seq: int
    chain: int
    epoch: int
    snapshot_id: int
    sequence: int

    @property
    def position(self) -> Position:
        return Position(self.seq, self.chain)


def key_of(wal_id: UUID) -> str:
    return PREFIX + str(wal_id)


def encode(position: Position, epoch: int, parent_id: int | None, sequence: int) -> str:
    """``snap`` names the parent of the commit: its own id is not known before it is made."""
    said = {"v": 1, "seq": position.seq, "chain": str(position.chain), "epoch": epoch}
    return json.dumps(said | {"snap": str(parent_id or 0), "iseq": sequence}, separators=(",", ":"))


def read(table: Table, wal_id: UUID) -> Marker | None:
    """The marker of this log, None before its first commit."""
    if (text := table.properties.get(key_of(wal_id))) is None:
        return None
    try:
        said: Mapping[str, Any] = json.loads(text)
        return Marker(*(int(said[key]) for key in ("seq", "chain", "epoch", "snap", "iseq")))
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(
            f"{_name(table)}: the table property {key_of(wal_id)!r} is not a marker; nothing was written. Restore it from "
            "an earlier metadata file of the table."
        ) from error


def position_of(marker: Marker | None) -> Position:
    return marker.position if marker else START


def check(table: Table, wal_id: UUID, expect: Position, table_uuid: str | None, now_ms: int) -> None:
    """Raise unless rows behind ``expect`` may be committed on exactly this state of the table."""
    if table_uuid is not None and str(table.metadata.table_uuid) != table_uuid:
        raise TableReplacedError(
            f"{_name(table)} is another table than the one that was written to before: it was dropped and made again. "
            "Nothing was written; the log keeps its rows. To fill the new table from the log on, run `python -m "
            f"iceberg_ingest.writer --accept {_name(table)}`; else restore the old table."
        )
    marker = read(table, wal_id)
    if position_of(marker) != expect:
        raise FencedError(
            f"{_name(table)} holds the log up to record {position_of(marker).seq}, this writer left it at {expect.seq}: "
            "another writer of the same log is at work. Nothing was written; end one of the two."
        )
    if marker is not None:
        _refuse_rollback(table, marker)
    head = table.current_snapshot()
    if head is not None and now_ms < head.timestamp_ms - CLOCK_TOLERANCE_MS:
        raise ClockWentBackError(
            f"The clock is {(head.timestamp_ms - now_ms) / 1000:.0f} s behind the last commit of {_name(table)}. Nothing "
            "is committed until it has caught up; rows are safe in the log."
        )


def _refuse_rollback(table: Table, marker: Marker) -> None:
    head = table.current_snapshot()
    sequence = (head.sequence_number or 0) if head else 0
    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    line = {snapshot.snapshot_id for snapshot in main_line(table)}
    setter = next((one for one in table.metadata.snapshots if one.sequence_number == marker.sequence), None)
    away = setter is not None and setter.snapshot_id in known - line
    if sequence < marker.sequence or away:
        raise RolledBackError(
            f"{_name(table)} was rolled back behind record {marker.seq} of the log, which the marker says is in. Nothing "
            "was written. To go on without the rows that were undone, run `python -m iceberg_ingest.writer --accept "
            f"{_name(table)}`; to have them again, roll the table forward."
        )


def _name(table: Table) -> str:
    return ".".join(table.name())
