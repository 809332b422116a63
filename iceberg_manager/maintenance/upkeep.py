"""Looks after many tables: measures them, plans, and carries the plan out action by action, with a typed result for each.

What goes wrong with one table is that action's error; the others go on. Only compaction and manifests need Spark, which is
opened when the first of them comes up, and anew if it died. Each action is safe to be killed (see `runner`, `expiry`,
`orphans`): the next plan finds what is left to do. Outcomes are remembered after the action, so that a kill in between costs
experience, never work. An action loads its table afresh: a plan that has aged does no harm.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from iceberg_manager import query
from iceberg_manager.catalog import list_tables, load_table
from iceberg_manager.errors import LakeError, first_line
from iceberg_manager.maintenance import outcomes, remedies
from iceberg_manager.maintenance.actions import Action
from iceberg_manager.maintenance.costs import KINDS, Costs, Kind, learn
from iceberg_manager.maintenance.health import Health, health
from iceberg_manager.maintenance.planner import Budget, Plan, Situation, Skip, plan
from iceberg_manager.maintenance.policies import Policies
from iceberg_manager.maintenance.remedies import Done, Lake
from iceberg_manager.maintenance.statistics import TableStatistics, survey
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy

USUAL: tuple[Kind, ...] = tuple(kind for kind in KINDS if kind != "remove_orphans")


@dataclass(frozen=True)
class Around:
    """What goes on around a table: who writes to it now, who will, and whether it is being looked after already."""

    writer_running: str = ""
    writer_due: datetime | None = None
    maintenance_running: bool = False


class Upkeep:
    """Maintenance of one lake's tables. Close it when done: it may hold a Spark session.

    ``policies`` and ``needed`` are what the caller knows beyond the lake: declared policies, by table, and snapshots that
    are still needed, by table.
    """

    def __init__(
        self,
        settings: LakeSettings,
        catalog: Catalog,
        policies: Mapping[str, MaintenancePolicy] | None = None,
        needed: Mapping[str, Mapping[int, str]] | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._declared, self._read_policies, self._now = policies or {}, Policies(settings), now
        self._lake = Lake(settings, catalog, needed or {}, now)
        self._outcomes = outcomes.read(settings)

    def policy_of(self, table: Table) -> MaintenancePolicy:
        return self._declared.get(".".join(table.name())) or self._read_policies.of(table)

    def tables(self, wanted: Collection[str] = ()) -> list[TableName]:
        """Those that were asked for, or all."""
        return [TableName.parse(name) for name in wanted] or list_tables(self._lake.catalog)

    def situations(
        self, tables: Iterable[TableName], kinds: Collection[Kind] = USUAL, around: Mapping[str, Around] | None = None
    ) -> Iterator[Situation | Skip]:
        """Each table measured; one that cannot be read is a skip that says why. Orphans are listed only if asked for."""
        policies: dict[str, MaintenancePolicy] = {}

        def policy_of(table: Table) -> MaintenancePolicy:
            return policies.setdefault(".".join(table.name()), self.policy_of(table))

        lake = self._lake
        for found in survey(lake.catalog, lake.settings, tables, policy_of, self._now(), needs_of=lake.more_needed):
            if not isinstance(found, TableStatistics):
                yield Skip(found.table, None, f"it cannot be read: {found.error}")
                continue
            if "remove_orphans" in kinds:
                try:
                    found = self._with_orphans(found)
                except LakeError as error:
                    yield Skip(found.table, "remove_orphans", str(error))
            beside = (around or {}).get(found.table, Around())
            yield Situation(
                found,
                policies[found.table],
                beside.writer_running,
                beside.writer_due,
                beside.maintenance_running,
                [one for one in self._outcomes if one.table == found.table],
            )

    def healths(self, tables: Iterable[TableName]) -> Iterator[Health | Skip]:
        for found in self.situations(tables):
            yield health(found.statistics, found.policy) if isinstance(found, Situation) else found

    def plan(
        self,
        tables: Iterable[TableName],
        kinds: Collection[Kind] = USUAL,
        budget: Budget | None = None,
        by_need: bool = False,
        around: Mapping[str, Around] | None = None,
    ) -> Plan:
        found = list(self.situations(tables, kinds, around))
        situations = [one for one in found if isinstance(one, Situation)]
        made = plan(situations, self._now(), self.costs, budget, kinds, by_need)
        unread = tuple(one for one in found if isinstance(one, Skip))
        return replace(made, skips=(*unread, *made.skips))

    @property
    def costs(self) -> Costs:
        return learn(self._outcomes)

    def run(self, planned: Iterable[Action]) -> Iterator[Done]:
        """Carry actions out, one by one; each result is remembered before it is handed over."""
        for action in planned:
            yield self.do(action)

    def do(self, action: Action) -> Done:
        """One action; whatever it runs into is in the result."""
        try:
            policy = self.policy_of(load_table(self._lake.catalog, action.table))
            done, learned = remedies.REMEDIES[action.kind](self._lake, action, policy, self._outcomes)
        except Exception as error:  # noqa: BLE001 (it concerns this table alone, and is said with it)
            return self._failed(action, error)
        self._outcomes += learned
        outcomes.append(self._lake.settings, learned)
        return done

    def _failed(self, action: Action, error: Exception) -> Done:
        if action.kind in remedies.BY_SPARK:
            self._lake.close()
        said = str(error) if isinstance(error, LakeError) else f"{type(error).__name__}: {first_line(error)}"
        return Done(action.table, action.kind, action.reason, error=said)

    def _with_orphans(self, found: TableStatistics) -> TableStatistics:
        with closing(query.connect(self._lake.settings)) as connection:
            listed = remedies.orphan_plan(self._lake, TableName.parse(found.table), connection)
        if listed.refused:
            raise LakeError(listed.refused)
        return replace(found, orphan_files=len(listed.orphans), orphan_bytes=listed.bytes)

    def close(self) -> None:
        self._lake.close()

    def __enter__(self) -> "Upkeep":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
