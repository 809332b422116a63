"""Which snapshots someone still needs, and why: the one place that expiry asks.

Readers say so by their cursors, the ingest service by its markers: the snapshot that a marker names tells, after a crash,
whether a batch landed, so it stays while it is there. Inputs of Dagster's materializations are added by its own layer.
"""

import json
from collections.abc import Mapping
from datetime import datetime

from pyiceberg.table import Table

from iceberg_manager import cursors
from iceberg_manager.errors import DamageError

INGEST_MARKER = "ingest.wal."


def needed_snapshots(table: Table, now: datetime | None = None) -> Mapping[int, str]:
    """The snapshots that readers and ingest markers need, each with its reason."""
    found = dict(cursors.needed(table, now))
    for key, text in table.properties.items():
        if key.startswith(INGEST_MARKER) and (snapshot := _marked(table, key, text)) is not None:
            found.setdefault(snapshot, f"the ingest marker {key.removeprefix(INGEST_MARKER)} names it")
    return found


def is_ingested(table: Table) -> bool:
    """Whether the ingest service writes to the table."""
    return any(key.startswith(INGEST_MARKER) for key in table.properties)


def _marked(table: Table, key: str, text: str) -> int | None:
    """The snapshot of a marker, if it is still there; a first marker may name none."""
    try:
        said = json.loads(text)["snap"]
        snapshot = int(said) if said else None
    except (ValueError, KeyError, TypeError) as error:
        raise DamageError(
            f"{'.'.join(table.name())}: the ingest marker {key!r} cannot be read, so nothing is expired; let the ingest "
            "service write it again, or remove that table property if the service is gone for good."
        ) from error
    return snapshot if snapshot is not None and table.metadata.snapshot_by_id(snapshot) else None
