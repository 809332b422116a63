"""What could be done for a table, with the gain and cost to expect: one pure proposal for each kind of work.

The gain in health is that of the statistics as they would be afterwards. A compaction names only partitions that pay: with
enough small files, or with delete files, and not where it was tried twice in vain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from iceberg_manager.maintenance.costs import Costs, Kind, Outcome
from iceberg_manager.maintenance.health import Health, health, manifests_needed, size
from iceberg_manager.maintenance.statistics import PartitionStatistics, TableStatistics, target_bytes
from iceberg_manager.spec import MaintenancePolicy


@dataclass(frozen=True)
class Gain:
    """What an action is expected to bring: files and bytes less, points of health more."""

    files: int
    bytes: int
    health: float


@dataclass(frozen=True)
class Cost:
    """What it is expected to take: seconds, and bytes read and written again."""

    seconds: float
    bytes: int


@dataclass(frozen=True)
class Action:
    """Something to do. ``partitions`` limits a compaction; ``names`` are the refs that ``drop_refs`` drops."""

    table: str
    kind: Kind
    gain: Gain
    cost: Cost
    reason: str
    partitions: tuple[PartitionStatistics, ...] = ()
    names: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """Gain for cost: health first; files and bytes break ties and pay for what health does not show."""
        return (self.gain.health + self.gain.files / 1000 + self.gain.bytes / 1e9) / max(0.001, self.cost.seconds)


@dataclass(frozen=True)
class Skip:
    """Something not done, and why. Without a kind, the whole table."""

    table: str
    kind: Kind | None
    reason: str


@dataclass(frozen=True)
class Situation:
    """One table, and what goes on around it. ``outcomes`` are its earlier ones, in any order."""

    statistics: TableStatistics
    policy: MaintenancePolicy
    writer_running: str = ""
    writer_due: datetime | None = None
    maintenance_running: bool = False
    outcomes: Sequence[Outcome] = ()


def recipe(policy: MaintenancePolicy) -> str:
    """How a compaction is done, in a word: outcomes of another recipe say nothing about this one."""
    columns = f"({', '.join(policy.compaction_columns)})" if policy.compaction_columns else ""
    return f"{policy.compaction}{columns} {policy.target_file_mb} MB"


Proposal = Callable[[Situation, Health, Costs, list[Skip]], list[Action]]


def _action(
    situation: Situation, before: Health, kind: Kind, after: TableStatistics, cost: Cost, reason: str, **more: object
) -> Action:
    """The gain is the difference that the statistics expected afterwards make."""
    now = situation.statistics
    points = max(0.0, health(after, situation.policy).score - before.score)
    freed = max(0, now.bytes - after.bytes) + (now.orphan_bytes or 0) - (after.orphan_bytes or 0)
    freed += now.expirable_bytes - after.expirable_bytes
    files = now.files + now.delete_files + now.manifests + now.metadata_versions + (now.orphan_files or 0)
    files -= after.files + after.delete_files + after.manifests + after.metadata_versions + (after.orphan_files or 0)
    gain = Gain(max(0, files), max(0, freed), round(points, 1))
    return replace(Action(now.table, kind, gain, cost, reason), **more)  # type: ignore[arg-type]


def _compact(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found, worth = situation.statistics, []
    for one in found.paying:
        if _converges(situation, one):
            worth.append(one)
        else:
            where = f" in {one.name}" if one.name else ""
            skips.append(
                Skip(
                    found.table, "compact", f"did not converge twice{where}: each rewrite left as many files as it read"
                )
            )
    return [compaction(situation, before, tuple(worth), costs)] if worth else []


def compaction(situation: Situation, before: Health, parts: tuple[PartitionStatistics, ...], costs: Costs) -> Action:
    """A compaction of these partitions, cheapest for its gain first."""
    policy, found = situation.policy, situation.statistics
    parts = tuple(sorted(parts, key=lambda one: -(one.excess(policy) + one.delete_files) / max(1, _input(one)[1])))
    saved, deletes = sum(one.excess(policy) for one in parts), sum(one.delete_files for one in parts)
    files, read = (sum(column) for column in zip(*map(_input, parts), strict=True))
    after = replace(
        found,
        files=found.files - saved,
        small_files=max(0, found.small_files - saved),
        excess_files=found.excess_files - saved,
        delete_files=max(0, found.delete_files - deletes),
    )
    where = f" in {len(parts):,} of {found.partitions:,} partitions" if found.partitions > 1 else ""
    said = f"{saved:,} files fewer and {deletes:,} delete files folded in{where}, by {recipe(policy)}"
    return _action(
        situation, before, "compact", after, Cost(costs.seconds("compact", files, read), read), said, partitions=parts
    )


def _input(one: PartitionStatistics) -> tuple[int, int]:
    """Files and bytes that a rewrite reads: delete files may concern any file, else only the small ones are touched."""
    return (one.files + one.delete_files, one.bytes) if one.delete_files else (one.small_files, one.small_bytes)


def _converges(situation: Situation, one: PartitionStatistics) -> bool:
    """Two rewrites in a row that left as many files as they read stop it, until that many more files have come."""
    policy = situation.policy
    tried = sorted(
        (
            outcome
            for outcome in situation.outcomes
            if outcome.kind == "compact" and outcome.scope in ("", one.name) and outcome.recipe in ("", recipe(policy))
        ),
        key=lambda outcome: outcome.at,
    )[-2:]
    if len(tried) < 2 or any(outcome.files_after < outcome.files for outcome in tried):
        return True
    now = one.small_files if tried[-1].scope == one.name else situation.statistics.small_files
    return now >= tried[-1].files_after + policy.min_input_files


def _rewrite_manifests(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found = situation.statistics
    needed = manifests_needed(found)
    if found.manifests - needed < situation.policy.min_input_files:
        return []
    after = replace(found, manifests=needed, manifest_overlap=0.0)
    cost = Cost(costs.seconds("rewrite_manifests", found.manifests, found.manifest_bytes), found.manifest_bytes)
    said = f"{found.manifests:,} manifests into {needed:,}"
    return [_action(situation, before, "rewrite_manifests", after, cost, said)]


def _expire(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found = situation.statistics
    if not found.expirable_snapshots:
        return []
    left = found.snapshots - found.expirable_snapshots
    smaller = round(found.metadata_bytes * max(1, left) / found.snapshots)
    after = replace(found, snapshots=left, expirable_snapshots=0, expirable_bytes=0, metadata_bytes=smaller)
    files = found.expirable_snapshots * 2 + found.expirable_bytes // target_bytes(situation.policy)
    said = f"{found.expirable_snapshots:,} of {found.snapshots:,} snapshots are past the policy"
    return [_action(situation, before, "expire", after, Cost(costs.seconds("expire", files, 0), 0), said)]


def _remove_orphans(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found = situation.statistics
    if not found.orphan_files:
        return []
    after = replace(found, orphan_files=0, orphan_bytes=0)
    cost = Cost(costs.seconds("remove_orphans", found.orphan_files, 0), 0)
    said = f"{found.orphan_files:,} files with {size(found.orphan_bytes or 0)} belong to no snapshot"
    return [_action(situation, before, "remove_orphans", after, cost, said)]


def _drop_metadata(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found, kept = situation.statistics, situation.policy.metadata_versions
    stale = found.metadata_versions - 1 - kept
    if stale <= 0:
        return []
    after = replace(found, metadata_versions=kept + 1)
    cost = Cost(costs.seconds("drop_metadata", stale, 0), 0)
    return [
        _action(situation, before, "drop_metadata", after, cost, f"{stale:,} metadata files beyond the last {kept}")
    ]


def _row_ttl(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found, policy = situation.statistics, situation.policy
    if not found.old_row_files or policy.row_ttl is None:
        return []
    after = replace(found, bytes=found.bytes - found.old_row_bytes)
    cost = Cost(costs.seconds("row_ttl", found.old_row_files, found.old_row_bytes), found.old_row_bytes)
    said = (
        f"{found.old_row_files:,} files hold rows whose {policy.row_ttl_column} is over {policy.row_ttl.days} days old"
    )
    return [_action(situation, before, "row_ttl", after, cost, said)]


def _drop_refs(situation: Situation, before: Health, costs: Costs, skips: list[Skip]) -> list[Action]:
    found = situation.statistics
    past = tuple(ref.name for ref in found.references if ref.past)
    if not past:
        return []
    after = replace(found, references=tuple(ref for ref in found.references if not ref.past))
    cost = Cost(costs.seconds("drop_refs", len(past), 0), 0)
    said = f"past their retention: {', '.join(past)}"
    return [_action(situation, before, "drop_refs", after, cost, said, names=past)]


PROPOSALS: dict[Kind, Proposal] = {
    "drop_refs": _drop_refs,
    "row_ttl": _row_ttl,
    "compact": _compact,
    "rewrite_manifests": _rewrite_manifests,
    "expire": _expire,
    "remove_orphans": _remove_orphans,
    "drop_metadata": _drop_metadata,
}
