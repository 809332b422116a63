"""How each kind of maintenance is carried out on one table, and what it teaches. One function for each kind.

Rows change by ``row_ttl`` alone, through the commit door and stamped; nothing else moves a data version. Statistics files
(Puffin, partition statistics) are not made: Spark uses them only with settings that are off by default, DuckDB and PyIceberg
not at all, and each one is a file more to keep.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import DateType, TimestamptzType

from iceberg_manager import expiry, query, references
from iceberg_manager.catalog import list_tables, load_table, table_location
from iceberg_manager.commits import Stamp, change
from iceberg_manager.errors import LakeError, NotFoundError
from iceberg_manager.maintenance import orphans, partition_filters
from iceberg_manager.maintenance.actions import Action, recipe
from iceberg_manager.maintenance.costs import Kind, Outcome
from iceberg_manager.maintenance.sizes import Size, size
from iceberg_manager.maintenance.statistics import PartitionStatistics, collect
from iceberg_manager.names import TableName
from iceberg_manager.needs import needed_snapshots
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy

if TYPE_CHECKING:
    import duckdb

    from iceberg_manager.maintenance import runner
    from iceberg_manager.session import LakeSession

BY_SPARK: frozenset[Kind] = frozenset({"compact", "rewrite_manifests"})
_AT_ONCE = 100


@dataclass(frozen=True)
class Done:
    """What one action did. ``files`` and ``bytes`` are those it rewrote or removed; ``error`` says why it did not."""

    table: str
    action: Kind
    reason: str
    before: Size | None = None
    after: Size | None = None
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    tries: int = 1
    error: str = ""

    @property
    def kind(self) -> Kind:
        return self.action


class Lake:
    """What remedies work with: a catalog, and a Spark session once one is needed."""

    def __init__(
        self,
        settings: LakeSettings,
        catalog: Catalog,
        needed: Mapping[str, Mapping[int, str]],
        now: Callable[[], datetime],
    ) -> None:
        self.settings, self.catalog, self._needed, self.now = settings, catalog, needed, now
        self._session: LakeSession | None = None

    def table(self, name: str) -> Table:
        return load_table(self.catalog, name)

    def more_needed(self, table: Table) -> Mapping[int, str]:
        """What the caller knows to be needed, beside what the table says itself."""
        return self._needed.get(".".join(table.name()), {})

    def runner(self) -> "runner.Runner":
        """On a living Spark: a session whose server died is opened anew."""
        from iceberg_manager.maintenance.runner import Runner
        from iceberg_manager.session import LakeSession

        if self._session is None:
            self._session = LakeSession(self.settings)
        return Runner(self._session.spark, self.catalog)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


Remedy = Callable[[Lake, Action, MaintenancePolicy, Sequence[Outcome]], tuple[Done, list[Outcome]]]


def _compact(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    table = lake.table(action.table)
    runs = [
        lake.runner().compact(action.table, policy, policy.compaction, tuple(policy.compaction_columns), where)
        for where in _conditions(table, action.partitions)
    ]
    done = Done(
        action.table,
        "compact",
        action.reason,
        runs[0].before,
        runs[-1].after,
        sum(one.rewritten for one in runs),
        sum(one.bytes_rewritten for one in runs),
        sum(one.seconds for one in runs),
        max(one.tries for one in runs),
    )
    return done, _lessons(lake, action, policy, done, sum(one.written for one in runs), earlier)


def _conditions(table: Table, partitions: Sequence[PartitionStatistics]) -> list[str | None]:
    """Conditions for some partitions each: one of a thousand alternatives would take Spark longer than the rewrite."""
    groups = [partitions[at : at + _AT_ONCE] for at in range(0, len(partitions), _AT_ONCE)]
    found = [partition_filters.condition(table, group) for group in groups] or [None]
    return [None] if None in found else found


def _lessons(
    lake: Lake, action: Action, policy: MaintenancePolicy, done: Done, written: int, earlier: Sequence[Outcome]
) -> list[Outcome]:
    """One outcome for the cost of it all, and one for each partition that did not gain, or did after it had not."""
    at, how = lake.now(), recipe(policy)
    whole = all(not one.name for one in action.partitions)
    total = Outcome(done.table, "compact", at, done.seconds, done.files, done.bytes, written, "" if whole else "*", how)
    if whole:
        before = sum(one.small_files + one.delete_files for one in action.partitions)
        return [total if done.files else replace(total, files=before, files_after=before)]
    with closing(query.connect(lake.settings)) as connection:
        now = collect(lake.table(done.table), policy, connection, at)
    left = {one.name: one for one in now.paying}
    known = {one.scope for one in earlier if one.table == done.table}
    found = [total]
    for one in action.partitions:
        after = left[one.name].small_files + left[one.name].delete_files if one.name in left else 0
        before = one.small_files + one.delete_files
        if after >= before or one.name in known:
            found.append(Outcome(done.table, "compact", at, 0, before, 0, after, one.name, how))
    return found


def _rewrite_manifests(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    done = lake.runner().rewrite_manifests(action.table)
    return _finished(lake, action, done.before, done.rewritten, 0, done.seconds, done.tries)


def _expire(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    started, table = time.monotonic(), lake.table(action.table)
    needed = {**needed_snapshots(table, lake.now()), **lake.more_needed(table)}
    planned = expiry.plan(table, policy.expire_after, policy.keep_snapshots, needed, lake.now())
    gone = expiry.expire(partial(lake.table, action.table), planned)
    return _finished(lake, action, size(table), gone.files_deleted, gone.bytes_freed, time.monotonic() - started)


def _drop_refs(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    started, before = time.monotonic(), size(lake.table(action.table))
    for name in action.names:
        try:
            references.drop(partial(lake.table, action.table), name)
        except NotFoundError:
            continue  # somebody else was quicker
    return _finished(lake, action, before, len(action.names), 0, time.monotonic() - started)


def _drop_metadata(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    """A commit with these properties cuts the log and removes the files; after a crash in between they are orphans."""
    started, table = time.monotonic(), lake.table(action.table)
    wanted = {key: value for key, value in policy.properties().items() if key.startswith("write.metadata.")}

    def apply(table: Table) -> None:
        with table.transaction() as transaction:
            transaction.set_properties(wanted)

    fresh = change(partial(lake.table, action.table), apply)
    removed = len(table.metadata.metadata_log) + 1 - len(fresh.metadata.metadata_log)
    return _finished(lake, action, size(table), max(0, removed), 0, time.monotonic() - started)


def _row_ttl(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    from iceberg_manager import arrow_writes

    started, table = time.monotonic(), lake.table(action.table)
    written = arrow_writes.delete(lake.catalog, action.table, old_rows(table, policy, lake.now()), Stamp(uuid4().hex))
    moved = written.commit.bytes_added
    return _finished(lake, action, size(table), written.commit.files_removed, moved, time.monotonic() - started)


def old_rows(table: Table, policy: MaintenancePolicy, now: datetime) -> str:
    """The rows that a policy lets go, as a condition."""
    if policy.row_ttl is None or policy.row_ttl_column is None:
        raise LakeError(f"{'.'.join(table.name())} has no row_ttl any more; no row was removed.")
    kind = table.schema().find_field(policy.row_ttl_column).field_type
    column = '"' + policy.row_ttl_column.replace('"', '""') + '"'
    limit = (now - policy.row_ttl).astimezone(UTC)
    if isinstance(kind, DateType):
        return f"{column} < '{limit.date().isoformat()}'"
    zone = "+00:00" if isinstance(kind, TimestamptzType) else ""
    return f"{column} < '{limit:%Y-%m-%dT%H:%M:%S}{zone}'"


def _remove_orphans(
    lake: Lake, action: Action, policy: MaintenancePolicy, earlier: Sequence[Outcome]
) -> tuple[Done, list[Outcome]]:
    started, name = time.monotonic(), TableName.parse(action.table)
    with closing(query.connect(lake.settings)) as connection:
        planned = orphan_plan(lake, name, connection)
        gone = orphans.remove(partial(lake.table, action.table), planned, connection)
    return _finished(lake, action, size(lake.table(action.table)), gone.files, gone.bytes, time.monotonic() - started)


def orphan_plan(
    lake: Lake,
    name: TableName,
    connection: "duckdb.DuckDBPyConnection",
    older_than: timedelta = orphans.AGE_FLOOR,
    force: bool = False,
    max_share: float = orphans.LARGE_SHARE,
) -> orphans.OrphanPlan:
    """What nothing names in a table's folder, with every other table and the lake's own folders fenced off."""
    others = [_location(lake, other) for other in list_tables(lake.catalog) if other != name]
    root = lake.settings.root
    protected = [lake.settings.landing_location, *(str(root / folder) for folder in ("wal", "quarantine"))]
    load = partial(lake.table, str(name))
    return orphans.plan(load, connection, others, protected, older_than, force, max_share, lake.now())


def _location(lake: Lake, name: TableName) -> str:
    """Where a table is; for one that cannot be read, where it would be put."""
    try:
        return lake.table(str(name)).location()
    except LakeError:
        return table_location(lake.settings, name)


def _finished(
    lake: Lake, action: Action, before: Size, files: int, moved: int, seconds: float, tries: int = 1
) -> tuple[Done, list[Outcome]]:
    after = size(lake.table(action.table))
    done = Done(action.table, action.kind, action.reason, before, after, files, moved, seconds, tries)
    return done, [Outcome(done.table, done.kind, lake.now(), seconds, files, moved)]


REMEDIES: Mapping[Kind, Remedy] = {
    "drop_refs": _drop_refs,
    "row_ttl": _row_ttl,
    "compact": _compact,
    "rewrite_manifests": _rewrite_manifests,
    "expire": _expire,
    "remove_orphans": _remove_orphans,
    "drop_metadata": _drop_metadata,
}
