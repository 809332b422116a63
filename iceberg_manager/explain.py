"""What reading the rows that a condition selects would cost. Reads metadata only, never a data file.

Manifests that the partition summaries rule out are not opened, so the cost of a plan grows with what is selected.
"""

from dataclasses import dataclass

from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.conditions import condition, render
from iceberg_manager.errors import LakeError, first_line
from iceberg_manager.history import summary
from iceberg_manager.pruning import Pruning
from iceberg_manager.time_travel import schema_at


@dataclass(frozen=True)
class Explanation:
    """What a query would look at. Files of manifests that were not opened count as skipped by partition."""

    table: str
    snapshot_id: int | None
    condition: str
    engine: str = "duckdb"
    manifests: int = 0
    manifests_skipped: int = 0
    manifests_read: int = 0
    files: int = 0
    files_skipped_by_partition: int = 0
    files_skipped_by_statistics: int = 0
    files_read: int = 0
    delete_files: int = 0
    bytes_total: int | None = None
    bytes_read: int = 0
    rows_total: int | None = None
    rows_in_files_read: int = 0


def explain(
    table: Table, where: str | BooleanExpression | None = None, snapshot: Snapshot | None = None
) -> Explanation:
    """How a query with this condition would be planned, by default on the newest snapshot."""
    schema = schema_at(table, snapshot) if snapshot else table.schema()
    selected = condition(where, schema)
    shown = render(selected, schema) if where is not None else ""
    found = snapshot or table.current_snapshot()
    name = ".".join(table.name())
    if found is None:
        return Explanation(name, None, shown, bytes_total=0, rows_total=0)
    counted = summary(found)
    plan = _Plan(table, schema, selected)
    try:
        for manifest in found.manifests(table.io):
            plan.consider(manifest)
    except OSError as error:
        raise LakeError(f"The manifests of {name} cannot be read: {first_line(error)}") from error
    return Explanation(
        name,
        found.snapshot_id,
        shown,
        bytes_total=int(counted["total-files-size"]) if "total-files-size" in counted else None,
        rows_total=int(counted["total-records"]) if "total-records" in counted else None,
        **plan.counts,  # type: ignore[arg-type]
    )


class _Plan:
    """Applies one condition to manifests and their files, counting what each step leaves out."""

    def __init__(self, table: Table, schema: Schema, selected: BooleanExpression) -> None:
        self._io, self._pruning = table.io, Pruning(table, schema, selected)
        keys = [
            field for field in Explanation.__dataclass_fields__ if field.startswith(("manifests", "files", "delete"))
        ]
        self.counts: dict[str, int] = dict.fromkeys([*keys, "bytes_read", "rows_in_files_read"], 0)

    def consider(self, manifest: ManifestFile) -> None:
        counts, data = self.counts, manifest.content == ManifestContent.DATA
        counts["manifests"] += 1
        if not self._pruning.may_hold(manifest):
            counts["manifests_skipped"] += 1
            held = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
            counts["files"] += held if data else 0
            counts["files_skipped_by_partition"] += held if data else 0
            return
        counts["manifests_read"] += 1
        for entry in manifest.fetch_manifest_entry(self._io):
            in_partition = self._pruning.in_partition(entry.data_file, manifest.partition_spec_id)
            self._consider_file(entry.data_file, in_partition)

    def _consider_file(self, file: DataFile, in_partition: bool) -> None:
        counts = self.counts
        if file.content != DataFileContent.DATA:
            counts["delete_files"] += in_partition
            return
        counts["files"] += 1
        if not in_partition:
            counts["files_skipped_by_partition"] += 1
        elif not self._pruning.by_statistics(file):
            counts["files_skipped_by_statistics"] += 1
        else:
            counts["files_read"] += 1
            counts["bytes_read"] += file.file_size_in_bytes
            counts["rows_in_files_read"] += file.record_count
