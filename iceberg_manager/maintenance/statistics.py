"""Measures tables by their metadata alone. Nothing is written, no data file is opened.

The newest snapshot's summary is asked first. Manifests are read, by DuckDB, only where the summary cannot tell: several
files in a partitioned or sorted table, or a mix of large and small ones. Files are added up inside DuckDB, and of the
partitions only the ``WORST`` most in need are kept, so that memory does not follow the number of files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import nlargest
from math import ceil
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager import expiry
from iceberg_manager.catalog import load_table
from iceberg_manager.errors import LakeError, first_line
from iceberg_manager.history import summary
from iceberg_manager.maintenance import bounds, manifests
from iceberg_manager.names import TableName
from iceberg_manager.needs import needed_snapshots
from iceberg_manager.query import connect
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy

if TYPE_CHECKING:
    import duckdb

WORST = 1000
SMALL = 0.75  # of the target size, as Spark's own compaction has it


@dataclass(frozen=True)
class PartitionStatistics:
    """One partition's live files; ``small`` ones are under three quarters of the target. An unpartitioned table is one."""

    spec_id: int
    values: Mapping[str, Any]
    files: int
    bytes: int
    rows: int
    small_files: int
    small_bytes: int
    delete_files: int
    unsorted_files: int = 0

    @property
    def name(self) -> str:
        return "/".join(f"{key}={value}" for key, value in self.values.items())

    def excess(self, policy: MaintenancePolicy) -> int:
        """Files that compaction would save; none where too few are small."""
        if self.small_files < policy.min_input_files:
            return 0
        return max(0, self.small_files - ceil(self.small_bytes / target_bytes(policy)))

    def pays(self, policy: MaintenancePolicy) -> bool:
        return self.excess(policy) > 0 or self.delete_files > 0


@dataclass(frozen=True)
class ReferenceStatistics:
    """A branch or tag other than main; ``retention`` is its own, or the policy's for those without."""

    name: str
    kind: str
    age: timedelta
    retention: timedelta | None

    @property
    def past(self) -> bool:
        return self.retention is not None and self.age > self.retention


@dataclass(frozen=True)
class TableStatistics:
    """A table as its metadata shows it. What was not measured is None.

    ``paying`` are the partitions that compaction would help, worst first, at most ``WORST`` of them;
    ``excess_files`` counts over all. ``sort_overlap`` is how many other files of its partition a file shares a part of the
    sort column's range with, on average. ``detailed`` says whether manifests had to be read.
    """

    table: str
    snapshot_id: int | None = None
    files: int = 0
    bytes: int = 0
    rows: int = 0
    delete_files: int = 0
    small_files: int = 0
    excess_files: int = 0
    partitions: int = 0
    largest_partition_bytes: int = 0
    paying: tuple[PartitionStatistics, ...] = ()
    snapshots: int = 0
    expirable_snapshots: int = 0
    expirable_bytes: int = 0
    oldest_snapshot_age: timedelta = timedelta(0)
    metadata_bytes: int = 0
    metadata_versions: int = 0
    manifests: int = 0
    manifest_bytes: int = 0
    manifest_overlap: float = 0.0
    sort_column: str | None = None
    sort_overlap: float | None = None
    unsorted_files: int = 0
    references: tuple[ReferenceStatistics, ...] = ()
    old_row_files: int = 0
    old_row_bytes: int = 0
    orphan_files: int | None = None
    orphan_bytes: int | None = None
    detailed: bool = False


@dataclass(frozen=True)
class Unreadable:
    """A table whose metadata could not be read, and why; the others are not kept from being measured."""

    table: str
    error: str


@dataclass
class _Sums:
    """What is added up while partitions stream by."""

    policy: MaintenancePolicy
    totals: dict[str, int] = field(default_factory=dict)
    paying: list[PartitionStatistics] = field(default_factory=list)

    def add(self, partitions: Iterable[PartitionStatistics]) -> None:
        for one in partitions:
            found = {"files": one.files, "bytes": one.bytes, "rows": one.rows, "delete_files": one.delete_files,
                     "small_files": one.small_files, "excess_files": one.excess(self.policy), "partitions": 1,
                     "unsorted_files": one.unsorted_files}  # fmt: skip
            for name, count in found.items():
                self.totals[name] = self.totals.get(name, 0) + count
            largest = self.totals.get("largest_partition_bytes", 0)
            self.totals["largest_partition_bytes"] = max(largest, one.bytes)
            if one.pays(self.policy):
                self.paying.append(one)
            if len(self.paying) >= 2 * WORST:
                self.paying = self.worst()

    def worst(self) -> list[PartitionStatistics]:
        return nlargest(WORST, self.paying, key=lambda one: one.excess(self.policy) + one.delete_files)


def target_bytes(policy: MaintenancePolicy) -> int:
    return policy.target_file_mb * 1024**2


def collect(
    table: Table,
    policy: MaintenancePolicy,
    connection: "duckdb.DuckDBPyConnection",
    now: datetime | None = None,
    needed: Mapping[int, str] | None = None,
) -> TableStatistics:
    """One table's statistics, measured against its policy. ``connection`` comes from ``query.connect``.

    ``needed`` are snapshots that expiry has to spare, beside those that the table itself says are needed.
    """
    now = now or datetime.now(UTC)
    name = ".".join(table.name())
    spared = {**needed_snapshots(table, now), **(needed or {})}
    found: dict[str, Any] = {"table": name, **_history(table, policy, now, spared), **_metadata(table)}
    if head := table.current_snapshot():
        listed = manifests.read_list(connection, table, head)
        found |= {"snapshot_id": head.snapshot_id, **_manifest_fit(table, listed)}
        totals = _from_summary(table, head, policy)
        if totals is None:
            totals = _from_manifests(connection, table, listed, policy, now) | {"detailed": True}
        found |= totals
    return TableStatistics(**found)


def survey(
    catalog: Catalog,
    settings: LakeSettings,
    tables: Iterable[TableName],
    policy_of: Callable[[Table], MaintenancePolicy] | None = None,
    now: datetime | None = None,
    workers: int = 2,
    needs_of: Callable[[Table], Mapping[int, str]] | None = None,
) -> Iterator[TableStatistics | Unreadable]:
    """Many tables in the order given; one that cannot be read is reported as such, and the others go on."""
    now = now or datetime.now(UTC)
    connection = connect(settings)
    connection.execute("SET threads = 1")  # tables are measured side by side; manifests are too small to share out

    def measure(name: TableName) -> TableStatistics | Unreadable:
        try:
            table = load_table(catalog, name)
            policy = policy_of(table) if policy_of else MaintenancePolicy.of_properties(table.properties)
            with closing(connection.cursor()) as cursor:
                return collect(table, policy, cursor, now, needs_of(table) if needs_of else None)
        except Exception as error:  # noqa: BLE001 (damaged metadata raises anything; it concerns this table alone)
            return Unreadable(str(name), str(error) if isinstance(error, LakeError) else first_line(error))

    with connection, ThreadPoolExecutor(workers) as pool:
        yield from pool.map(measure, tables)


def _from_summary(table: Table, head: Snapshot, policy: MaintenancePolicy) -> dict[str, Any] | None:
    """The totals, where the summary alone settles them; None where manifests have to be read."""
    said = summary(head)
    keys = {"files": "total-data-files", "bytes": "total-files-size", "rows": "total-records"}
    if any(key not in said for key in keys.values()):
        return None
    totals = {name: int(said[key]) for name, key in keys.items()}
    files, size, target = totals["files"], totals["bytes"], target_bytes(policy)
    plain = table.spec().is_unpartitioned() and len(table.specs()) == 1 and table.sort_order().is_unsorted
    few = files < policy.min_input_files
    all_small, all_large = size < SMALL * target, files > 0 and size >= target * files
    if int(said.get("total-delete-files", "0")) or policy.row_ttl_column or (not plain and not few):
        return None
    if not few and not all_small and not all_large:
        return None
    small = files if all_small else 0
    one = PartitionStatistics(0, {}, files, size, totals["rows"], small, size if small else 0, 0)
    sums = _Sums(policy)
    sums.add([one] if files else [])
    return {**totals, **sums.totals, "paying": tuple(sums.paying)}


def _from_manifests(
    connection: "duckdb.DuckDBPyConnection",
    table: Table,
    listed: list[manifests.ManifestRow],
    policy: MaintenancePolicy,
    now: datetime,
) -> dict[str, Any]:
    sums, overlap, old = _Sums(policy), _Overlap(table), _OldRows(table, policy, now)
    columns = {one.field_id for one in (overlap.field, old.field) if one}
    for group in manifests.entries(connection, table, listed):
        for some in group.partitions(int(SMALL * target_bytes(policy)), table.metadata.default_sort_order_id, columns):
            sums.add(PartitionStatistics(*row) for row in some.counts())
            overlap.add(some)
            old.add(some)
    return {**sums.totals, "paying": tuple(sums.worst()), **overlap.found(), **old.found()}


class _Overlap:
    """How far files overlap on the first sort column, by their bounds."""

    def __init__(self, table: Table) -> None:
        order = table.sort_order()
        self.field = None if order.is_unsorted else table.schema().find_field(order.fields[0].source_id)
        self._name = table.schema().find_column_name(self.field.field_id) if self.field else None
        self._shared = self._measured = 0

    def add(self, some: manifests.Partitions) -> None:
        if self.field:
            parts, _, low, high = some.bounds(self.field.field_id)
            first, last = (bounds.comparable(one, self.field.field_type) for one in (low, high))
            self._shared += bounds.overlaps(first, last, parts)
            self._measured += len(low)

    def found(self) -> dict[str, Any]:
        average = self._shared / self._measured if self._measured else None
        return {"sort_column": self._name, "sort_overlap": average}


class _OldRows:
    """Files that hold rows past the policy's age."""

    def __init__(self, table: Table, policy: MaintenancePolicy, now: datetime) -> None:
        self.field = table.schema().find_field(policy.row_ttl_column) if policy.row_ttl_column else None
        self._limit = (
            bounds.of_time(now - policy.row_ttl, self.field.field_type) if self.field and policy.row_ttl else 0
        )
        self._files = self._bytes = 0

    def add(self, some: manifests.Partitions) -> None:
        if self.field:
            _, sizes, low, _ = some.bounds(self.field.field_id)
            old = bounds.comparable(low, self.field.field_type) < self._limit
            self._files += int(old.sum())
            self._bytes += int(sizes[old].sum())

    def found(self) -> dict[str, int]:
        return {"old_row_files": self._files, "old_row_bytes": self._bytes}


def _history(table: Table, policy: MaintenancePolicy, now: datetime, needed: Mapping[int, str]) -> dict[str, Any]:
    planned = expiry.plan(table, policy.expire_after, policy.keep_snapshots, needed, now)
    gone = {snapshot.snapshot_id for snapshot in planned.snapshots}
    times = [snapshot.timestamp_ms for snapshot in table.metadata.snapshots]
    # A file that a snapshot removed is freed when that snapshot's parent goes.
    freed = (one for one in table.metadata.snapshots if one.parent_snapshot_id in gone)
    return {
        "snapshots": len(times),
        "expirable_snapshots": len(gone),
        "expirable_bytes": sum(int(summary(one).get("removed-files-size", "0")) for one in freed),
        "oldest_snapshot_age": now - _time(min(times)) if times else timedelta(0),
        "references": tuple(_references(table, policy, now)),
    }


def _references(table: Table, policy: MaintenancePolicy, now: datetime) -> Iterator[ReferenceStatistics]:
    for name, ref in sorted(table.metadata.refs.items()):
        if name == "main":
            continue
        head = table.metadata.snapshot_by_id(ref.snapshot_id)
        own = timedelta(milliseconds=ref.max_ref_age_ms) if ref.max_ref_age_ms else None
        age = now - _time(head.timestamp_ms) if head else timedelta(0)
        yield ReferenceStatistics(name, ref.snapshot_ref_type.value, age, own or policy.ref_retention)


def _metadata(table: Table) -> dict[str, int]:
    return {
        "metadata_bytes": len(table.io.new_input(table.metadata_location)),
        "metadata_versions": len(table.metadata.metadata_log) + 1,
    }


def _manifest_fit(table: Table, listed: list[manifests.ManifestRow]) -> dict[str, Any]:
    """How many manifests there are, and how many others share a part of each one's first partition range, on average."""
    spec = table.spec()
    overlap = 0.0
    if not spec.is_unpartitioned() and len(listed) > 1:
        kind = spec.partition_type(table.schema()).fields[0].field_type
        known = [one for one in listed if one.spec_id == spec.spec_id and one.low is not None and one.high is not None]
        low, high = (bounds.comparable([getattr(one, end) for one in known], kind) for end in ("low", "high"))
        overlap = bounds.overlaps(low, high, touching=True) / len(known) if known else 0.0
    return {
        "manifests": len(listed),
        "manifest_bytes": sum(one.size for one in listed),
        "manifest_overlap": overlap,
    }


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
