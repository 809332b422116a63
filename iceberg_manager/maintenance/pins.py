"""What branches and tags hold on to: the bytes of data that only one of them still reaches. Only metadata is read.

A file counts for a ref if the head of the ref names it, and neither main's head nor any other ref's does. Dropping the ref
frees it with the next expiry, unless a retained snapshot of main's past has it too.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from iceberg_manager.references import Reference, references


@dataclass(frozen=True)
class Pinned:
    """One branch or tag, and what it alone keeps."""

    table: str
    name: str
    kind: str
    snapshot_id: int
    made: datetime | None
    retention: timedelta | None
    files: int
    bytes: int


def pinned(table: Table) -> list[Pinned]:
    """Every ref but main."""
    refs = references(table)
    held = {ref.name: _files(table, ref.snapshot_id) for ref in refs} if len(refs) > 1 else {}
    named: dict[str, int] = {}
    for files in held.values():
        for path in files:
            named[path] = named.get(path, 0) + 1
    return [_pin(table, ref, held[ref.name], named) for ref in refs if ref.name != "main"]


def _pin(table: Table, ref: Reference, files: dict[str, int], named: dict[str, int]) -> Pinned:
    alone = [size for path, size in files.items() if named[path] == 1]
    head = table.metadata.snapshot_by_id(ref.snapshot_id)
    made = datetime.fromtimestamp(head.timestamp_ms / 1000, UTC) if head else None
    return Pinned(
        ".".join(table.name()), ref.name, ref.kind, ref.snapshot_id, made, ref.retention, len(alone), sum(alone)
    )


def _files(table: Table, snapshot_id: int) -> dict[str, int]:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    return {
        entry.data_file.file_path: entry.data_file.file_size_in_bytes
        for manifest in (snapshot.manifests(table.io) if snapshot else ())
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
