"""Decides what maintenance is worth doing now: a pure function of statistics, policies, costs and what else is going on.

Every table ends up with actions or with skips and their reasons. Actions come best first, by what they gain for what they
cost, except that within a table an action that another builds on comes before it. The budget holds for the sum of all
actions; of a compaction that does not fit, the partitions that do are taken.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from iceberg_manager.maintenance.actions import PROPOSALS, Action, Situation, Skip, compaction, recipe
from iceberg_manager.maintenance.costs import KINDS, Costs, Kind
from iceberg_manager.maintenance.health import health, size

__all__ = ["Action", "Budget", "Plan", "Situation", "Skip", "plan", "recipe"]
WRITER_MARGIN = timedelta(minutes=15)


@dataclass(frozen=True)
class Budget:
    """The most that the actions of one plan may take together; None is no limit."""

    seconds: float | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class Plan:
    """What to do, in this order, and what was left."""

    actions: tuple[Action, ...]
    skips: tuple[Skip, ...]
    seconds: float
    bytes: int


def plan(
    situations: Iterable[Situation],
    now: datetime,
    costs: Costs | None = None,
    budget: Budget | None = None,
    kinds: Collection[Kind] = KINDS,
    by_need: bool = False,
) -> Plan:
    """The actions worth doing. With ``by_need``, tables whose health is not below their policy's mark are left alone."""
    costs, skips = costs or Costs(), list[Skip]()
    wanted: list[tuple[Action, Situation]] = []
    for situation in situations:
        wanted += [(action, situation) for action in _of_table(situation, now, costs, kinds, by_need, skips)]
    wanted.sort(key=lambda pair: (-pair[0].value, pair[0].table, KINDS.index(pair[0].kind)))
    purse = _Purse(budget or Budget(), costs)
    taken = [fit for action, situation in wanted if (fit := purse.buy(action, situation, skips))]
    return Plan(tuple(_in_table_order(taken)), tuple(skips), purse.seconds, purse.bytes)


def _of_table(
    situation: Situation, now: datetime, costs: Costs, kinds: Collection[Kind], by_need: bool, skips: list[Skip]
) -> list[Action]:
    table, policy = situation.statistics.table, situation.policy
    before = health(situation.statistics, policy)
    if by_need and before.score >= policy.health_mark:
        skips.append(Skip(table, None, f"health {before.score:.0f} is not below the mark of {policy.health_mark}"))
        return []
    found, known = list[Action](), len(skips)
    for kind in KINDS:
        if kind in kinds:
            found += PROPOSALS[kind](situation, before, costs, skips)
    if not found and len(skips) == known:
        skips.append(Skip(table, None, "nothing to do"))
    return [action for action in found if not _gives_way(situation, action, now, skips)]


def _gives_way(situation: Situation, action: Action, now: datetime, skips: list[Skip]) -> bool:
    """Whether someone else goes first: no writer is to lose a commit to us."""
    reason = ""
    if situation.writer_running:
        reason = f"a writer is running: {situation.writer_running}"
    elif situation.maintenance_running:
        reason = "maintenance of this table is running already"
    elif situation.writer_due and situation.writer_due - now < max(
        WRITER_MARGIN, timedelta(seconds=2 * action.cost.seconds)
    ):
        minutes = max(0, round((situation.writer_due - now) / timedelta(minutes=1)))
        reason = f"a writer is due in {minutes} minute{'' if minutes == 1 else 's'}"
    if reason:
        skips.append(Skip(action.table, action.kind, reason))
    return bool(reason)


class _Purse:
    """A budget that is spent action by action."""

    def __init__(self, budget: Budget, costs: Costs) -> None:
        self._budget, self._costs = budget, costs
        self.seconds, self.bytes = 0.0, 0

    def buy(self, action: Action, situation: Situation, skips: list[Skip]) -> Action | None:
        """The action, or what fits of it, or None; what does not fit is a skip."""
        if short := self._short_of(action):
            smaller = self._cut(action, situation) if action.kind == "compact" else None
            left = len(action.partitions) - len(smaller.partitions if smaller else ())
            what = f"{left:,} of {len(action.partitions):,} partitions wait: " if smaller else ""
            skips.append(Skip(action.table, action.kind, f"over budget: {what}{short}"))
            if smaller is None:
                return None
            action = smaller
        self.seconds += action.cost.seconds
        self.bytes += action.cost.bytes
        return action

    def _short_of(self, action: Action) -> str:
        most = self._budget
        if most.seconds is not None and self.seconds + action.cost.seconds > most.seconds:
            return f"it needs {action.cost.seconds:.0f} s, {most.seconds - self.seconds:.0f} s are left"
        if most.bytes is not None and action.cost.bytes and self.bytes + action.cost.bytes > most.bytes:
            return f"it rewrites {size(action.cost.bytes)}, {size(max(0, most.bytes - self.bytes))} are left"
        return ""

    def _cut(self, action: Action, situation: Situation) -> Action | None:
        """As many partitions as fit, best first; a partition is never cut."""
        before = health(situation.statistics, situation.policy)
        low, high = 0, len(action.partitions)
        while low < high:
            middle = (low + high + 1) // 2
            if self._short_of(compaction(situation, before, action.partitions[:middle], self._costs)):
                high = middle - 1
            else:
                low = middle
        return compaction(situation, before, action.partitions[:low], self._costs) if low else None


def _in_table_order(actions: list[Action]) -> list[Action]:
    """Each table keeps its places in the list, and fills them in the order in which its actions build on each other."""
    waiting: dict[str, list[Action]] = {}
    for action in actions:
        waiting.setdefault(action.table, []).append(action)
    for mine in waiting.values():
        mine.sort(key=lambda action: KINDS.index(action.kind), reverse=True)
    return [waiting[action.table].pop() for action in actions]
