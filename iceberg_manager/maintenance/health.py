"""A table's health from 0 to 100, with named parts: a pure function of statistics and policy.

Each part says how well one thing is kept (0 to 100), why, and how many points it can cost at most (its weight). The health
is what is left when every part has taken its share of the rest, so that one thing in ruins shows, whatever the others are
like. A part that was not measured is left out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, log

from iceberg_manager.maintenance.statistics import TableStatistics, target_bytes
from iceberg_manager.spec import MaintenancePolicy

MANIFEST_BYTES = 8 * 1024**2  # what Iceberg aims at
_MANY_MANIFESTS = 100
_DEEP = 10.0
_METADATA = (1024**2, 64 * 1024**2)
_SKEW = (4.0, 100.0)


@dataclass(frozen=True)
class Part:
    """One aspect. ``lost`` is how many points of health it costs by itself."""

    name: str
    score: float
    weight: float
    why: str

    @property
    def lost(self) -> float:
        return self.weight * (100 - self.score) / 100


@dataclass(frozen=True)
class Health:
    """A table's health; ``worst`` is the part that costs most, None for a table in perfect health."""

    table: str
    score: float
    parts: tuple[Part, ...]

    @property
    def worst(self) -> Part | None:
        costly = max(self.parts, key=lambda part: part.lost, default=None)
        return costly if costly and costly.lost > 0 else None

    def numbers(self) -> dict[str, float]:
        """For plotting: the health and each part's score."""
        return {"health": self.score, **{f"health/{part.name}": part.score for part in self.parts}}


def health(statistics: TableStatistics, policy: MaintenancePolicy) -> Health:
    """The table's health against its policy."""
    parts = []
    for name, weight, judge in _PARTS:
        judged = judge(statistics, policy)
        if judged is not None:
            score, why = judged
            parts.append(Part(name, round(min(100.0, max(0.0, score)), 1), weight, why))
    left = 100.0
    for part in parts:
        left *= 1 - part.lost / 100
    return Health(statistics.table, round(left, 1), tuple(parts))


Judged = tuple[float, str] | None
Judge = Callable[[TableStatistics, MaintenancePolicy], Judged]


def _small_files(found: TableStatistics, policy: MaintenancePolicy) -> Judged:
    if not found.excess_files:
        return 100, f"{_files(found.files)}, none of which compaction would save."
    average = found.bytes / max(1, found.files)
    return 100 * (1 - found.excess_files / found.files), (
        f"{found.excess_files:,} of {_files(found.files)} could be saved: they hold {size(average)} on average, the target "
        f"is {size(target_bytes(policy))}."
    )


def _delete_files(found: TableStatistics, _: MaintenancePolicy) -> Judged:
    if not found.delete_files:
        return 100, "No delete files."
    share = found.delete_files / max(1, found.files)
    return 100 * (
        1 - 2 * share
    ), f"{found.delete_files:,} delete files are applied to {_files(found.files)} at each read."


def _snapshots(found: TableStatistics, policy: MaintenancePolicy) -> Judged:
    days = found.oldest_snapshot_age.days
    if not found.expirable_snapshots:
        return 100, f"{found.snapshots:,} snapshots, the oldest {days} days old, all within the policy."
    return 100 * (1 - found.expirable_snapshots / found.snapshots), (
        f"{found.expirable_snapshots:,} of {found.snapshots:,} snapshots are past the policy of {policy.expire_after.days} "
        f"days and {policy.keep_snapshots} snapshots; the oldest is {days} days old."
    )


def _metadata(found: TableStatistics, policy: MaintenancePolicy) -> Judged:
    stale = max(0, found.metadata_versions - 1 - policy.metadata_versions)
    score = _falling(found.metadata_bytes, *_METADATA) - 50 * stale / max(1, found.metadata_versions)
    said = f"Every commit writes {size(found.metadata_bytes)} of metadata"
    return score, f"{said}; {stale:,} old versions are past the policy." if stale else f"{said}."


def _manifests(found: TableStatistics, _: MaintenancePolicy) -> Judged:
    spare = max(0, found.manifests - manifests_needed(found))
    average = found.manifest_bytes / max(1, found.manifests)
    crowd = spare / max(1, found.manifests) * min(1.0, spare / _MANY_MANIFESTS)
    mixed = 0.5 * min(1.0, found.manifest_overlap / _MANY_MANIFESTS)
    return 100 * (1 - crowd) * (1 - mixed), (
        f"{found.manifests:,} manifests of {size(average)} on average, {manifests_needed(found):,} would do; each shares "
        f"partitions with {found.manifest_overlap:.1f} others."
    )


def _sort_decay(found: TableStatistics, _: MaintenancePolicy) -> Judged:
    if found.sort_column is None:
        return None
    if found.sort_overlap is None:
        share = found.unsorted_files / max(1, found.files)
        return 100 * (1 - share), f"{share:.0%} of the files were written unsorted, and have no bounds to judge by."
    return 100 * (1 - min(1.0, found.sort_overlap / _DEEP)), (
        f"A file shares its range of {found.sort_column} with {found.sort_overlap:.1f} others of its partition."
    )


def _skew(found: TableStatistics, _: MaintenancePolicy) -> Judged:
    if not found.detailed or found.partitions < 2 or not found.bytes:
        return None
    times = found.largest_partition_bytes / (found.bytes / found.partitions)
    return _falling(times, *_SKEW), f"The largest of {found.partitions:,} partitions is {times:.1f} times the average."


def _orphans(found: TableStatistics, _: MaintenancePolicy) -> Judged:
    if found.orphan_files is None or found.orphan_bytes is None:
        return None
    if not found.orphan_files:
        return 100, "No orphaned files."
    share = found.orphan_bytes / max(1, found.orphan_bytes + found.bytes)
    return 100 * (1 - share), f"{_files(found.orphan_files)} with {size(found.orphan_bytes)} belong to no snapshot."


def _references(found: TableStatistics, _: MaintenancePolicy) -> Judged:
    past = [ref.name for ref in found.references if ref.past]
    endless = [ref.name for ref in found.references if ref.retention is None]
    if not past and not endless:
        return 100, f"{len(found.references)} branches and tags beside main, each with a retention that lasts."
    return 100 - 20 * len(past) - 10 * len(endless), (
        f"{len(past)} branches and tags are past their retention, {len(endless)} have none and keep their files for ever: "
        f"{', '.join((past + endless)[:5])}."
    )


_PARTS: tuple[tuple[str, float, Judge], ...] = (
    ("small_files", 60, _small_files),
    ("delete_files", 50, _delete_files),
    ("snapshots", 40, _snapshots),
    ("metadata", 30, _metadata),
    ("manifests", 30, _manifests),
    ("sort_decay", 30, _sort_decay),
    ("partition_skew", 10, _skew),
    ("orphans", 30, _orphans),
    ("references", 15, _references),
)


def manifests_needed(found: TableStatistics) -> int:
    """How many manifests would hold the table's files at the size that Iceberg aims at."""
    return max(min(1, found.manifests), ceil(found.manifest_bytes / MANIFEST_BYTES))


def _falling(value: float, good: float, bad: float) -> float:
    """100 up to ``good``, 0 from ``bad`` on, falling with the logarithm in between."""
    if value <= good:
        return 100.0
    return max(0.0, 100 * (1 - log(value / good) / log(bad / good)))


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def _files(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"
