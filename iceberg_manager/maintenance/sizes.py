"""How a table is laid out, in six numbers: what maintenance compares before and after. Nothing but metadata is read."""

from dataclasses import dataclass

from pyiceberg.table import Table

from iceberg_manager.history import summary


@dataclass(frozen=True)
class Size:
    """How a table is laid out."""

    files: int
    bytes: int
    rows: int
    delete_files: int
    manifests: int
    snapshots: int


def size(table: Table) -> Size:
    """From the newest snapshot's summary and its manifest list; no manifest is opened."""
    snapshot = table.current_snapshot()
    said = summary(snapshot) if snapshot else {}
    return Size(
        files=int(said.get("total-data-files", 0)),
        bytes=int(said.get("total-files-size", 0)),
        rows=int(said.get("total-records", 0)),
        delete_files=int(said.get("total-delete-files", 0)),
        manifests=len(snapshot.manifests(table.io)) if snapshot else 0,
        snapshots=len(table.metadata.snapshots),
    )
