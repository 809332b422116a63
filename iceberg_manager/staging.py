"""The metadata files of one attempt at a commit: manifests, their list and the table's metadata file, in this order.

Nothing names them until the catalog's pointer is swapped; an attempt that failed for sure discards them.
"""

import gzip
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotSummaryCollector

from iceberg_manager.changes import Changes, spec_id
from iceberg_manager.history import summary
from iceberg_manager.manifests import ManifestFiles, live_entries, manifests_of, number
from iceberg_manager.storage import flush, remove_files
from iceberg_manager.table_versions import LightSummary, dump

_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


class Staged:
    """The files of one attempt, so that a failed one can be taken back."""

    def __init__(self, base: Table, sync: bool) -> None:
        self.base, self.io, self.sync = base, base.io, sync
        self.provider = base.location_provider()
        self.written: list[str] = []

    def snapshot(self, changes: Changes, properties: Mapping[str, str], operation: Operation) -> Snapshot:
        """Manifests and their list, and the snapshot that names them."""
        metadata, parent = self.base.metadata, self.base.current_snapshot()
        snapshot_id, sequence = metadata.new_snapshot_id(), metadata.next_sequence_number()
        parent_id = parent.snapshot_id if parent else None
        before, files = manifests_of(self.io, parent), ManifestFiles(self.base, self._new)
        location = files.write_list(files.change(changes, before, snapshot_id), snapshot_id, parent_id, sequence)
        if self.sync:
            flush([file.file_path for file in changes.added] + self.written)
        said = _summary(self.base, changes, parent, before) | dict(properties)
        return Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence,
            timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
            manifest_list=location,
            summary=LightSummary(operation=operation, **said),
            schema_id=metadata.current_schema_id if changes.schema is None else next_schema_id(self.base),
        )

    def write_metadata(self, document: Mapping[str, Any], snapshots: str) -> str:
        """The next metadata file; past snapshots are passed on as text."""
        number = re.search(r"(\d+)-[^/]*$", self.base.metadata_location)
        zipped = self.base.properties.get("write.metadata.compression-codec") == "gzip"
        version = int(number[1]) + 1 if number else 0
        location = self._new(f"{version:05d}-{uuid.uuid4()}{'.gz' if zipped else ''}.metadata.json")
        content = f'{dump(document)[:-1]},"snapshots":[{snapshots}]}}'.encode()
        with self.io.new_output(location).create() as stream:
            stream.write(gzip.compress(content) if zipped else content)
        if self.sync:
            flush([location])
        return location

    def _new(self, file_name: str) -> str:
        self.written.append(self.provider.new_metadata_location(file_name))
        return self.written[-1]

    def discard(self) -> None:
        remove_files(self.io, self.written)


def next_schema_id(base: Table) -> int:
    return max(schema.schema_id for schema in base.metadata.schemas) + 1


def _summary(base: Table, changes: Changes, parent: Snapshot | None, before: Sequence[ManifestFile]) -> dict[str, str]:
    """Exact counts of this change, and totals carried on from the parent (counted anew if it has none)."""
    collector = SnapshotSummaryCollector(number(base, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, 0))
    schema, specs = base.schema(), base.specs()
    for file in changes.added:
        collector.add_file(file, schema, specs[spec_id(file, base)])
    for file in changes.removed:
        collector.remove_file(file, schema, specs[spec_id(file, base)])
    said = {"changed-partition-count": "1"} | collector.build()
    past = summary(parent) if parent else {}
    if parent and not all(past.get(total, "").isdigit() for total in _TOTALS):
        past = _count(base, before)
    for total, (more, less) in _TOTALS.items():
        said[total] = str(int(past.get(total, "0")) + int(said.get(more, "0")) - int(said.get(less, "0")))
    return said


def _count(base: Table, manifests: Sequence[ManifestFile]) -> dict[str, str]:
    collector = SnapshotSummaryCollector()
    for manifest in manifests:
        for entry in live_entries(base.io, manifest):
            collector.metrics.add_file(entry.data_file)
    counted = collector.build()
    return {total: counted.get(more, "0") for total, (more, _) in _TOTALS.items()}
