"""Follows the catalog: a snapshot that no run of ours made becomes a runless materialization of its table's asset.

A tick asks the catalog once for all metadata pointers and loads only tables whose pointer is not in the cursor, for
``TICK_SECONDS`` at most; the rest is left to the next tick. The event log says what was recorded, the cursor only saves
work: a crash between a report and the cursor, or a lost cursor, reports nothing twice. The cache of adopted tables is kept
up to date on the way. See docs/adr/0008-adoption-and-foreign-commits.md.
"""

import hashlib
import json
import time
from collections.abc import Collection, Iterable
from typing import Any

import dagster as dg
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager import adoption
from iceberg_manager.catalog import catalog_errors
from iceberg_manager.commits import COMMIT_ID, PREFIX
from iceberg_manager.errors import LakeError
from iceberg_manager.foreign import Happened, Recorded, happened
from iceberg_manager.history import summary
from iceberg_manager.names import TableName
from iceberg_manager.table_versions import load
from resources.lake import LakeResource

TICK_SECONDS = 20.0
RUN_GRACE_SECONDS = 3600
_LOOKED_AT = 200
_NOTES = {
    "commit": "committed outside of Dagster",
    "rollback": "main was moved back or forth to this snapshot outside of Dagster",
    "replaced": "another table took this name",
}


def foreign_commits(keys: Iterable[dg.AssetKey], running: bool = False) -> dg.SensorDefinition:
    """The sensor for these table assets. ``running`` is whether it is on from the start."""
    assets = frozenset(keys)

    @dg.sensor(
        name="foreign_commits",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING if running else dg.DefaultSensorStatus.STOPPED,
        description="Records commits to tables that no run made, and finds new tables.",
    )
    def sensor(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | dg.SkipReason:
        try:
            with catalog_errors(lake.settings):
                return _Tick(context, lake, assets).run()
        except LakeError as error:
            return dg.SkipReason(str(error))

    return sensor


class _Tick:
    """One look at the catalog."""

    def __init__(
        self, context: dg.SensorEvaluationContext, lake: LakeResource, assets: Collection[dg.AssetKey]
    ) -> None:
        self.context, self.lake, self.assets = context, lake, assets
        self.instance = context.instance
        self.seen = _read(context.cursor)
        self.deadline = time.monotonic() + TICK_SECONDS
        self.cached = {one.name: one for one in adoption.read_cache(lake.settings).tables}
        self.reported = 0

    def run(self) -> dg.SensorResult:
        listed = adoption.pointers(self.lake.catalog)
        done = {mark for mark in self._marks(listed) if mark in self.seen}
        kept = {name: one for name, one in self.cached.items() if name in listed}
        for name, mark in self._open(listed):
            if time.monotonic() > self.deadline:
                break
            if name not in listed:
                self._gone(name)
                done.add(mark)
            elif self._follow(name, kept):
                done.add(mark)
        if kept != self.cached:
            adoption.write_cache(self.lake.settings, kept.values())
        new = [str(name) for name in kept if name not in self.cached]
        said = f"{len(new)} new tables: reload the code location to see them." if new else ""
        return dg.SensorResult(
            skip_reason=f"{self.reported} commits recorded. {said}".strip(), cursor=json.dumps(sorted(done))
        )

    def _marks(self, listed: dict[TableName, str | None]) -> dict[str, TableName]:
        """A short digest of each table's state; what a catalog does not tell is never known."""
        names = {TableName(tuple(key.path[:-1]), key.path[-1]) for key in self.assets}
        marks = {
            _digest(name, f"{location}|{name in names}"): name
            for name, location in listed.items()
            if location is not None
        }
        return marks | {_digest(name, "gone"): name for name in names if name not in listed and name.namespace}

    def _open(self, listed: dict[TableName, str | None]) -> list[tuple[TableName, str]]:
        known = [(name, mark) for mark, name in self._marks(listed).items() if mark not in self.seen]
        untold = [(name, "") for name, location in listed.items() if location is None]
        turn = int(time.time()) % len(untold) if untold else 0
        return known + untold[turn:] + untold[:turn]

    def _follow(self, name: TableName, kept: dict[TableName, adoption.AdoptedTable]) -> bool:
        """Whether the table is dealt with; if not, the next tick looks again."""
        try:
            table = load(self.lake.catalog, name)
        except Exception as error:  # noqa: BLE001 (damaged metadata raises anything; it concerns this table alone)
            self.context.log.warning("%s cannot be read: %s", name, error)
            kept[name] = adoption.unreadable(name, error)
            return True
        fresh, old = adoption.describe(name, table), self.cached.get(name)
        if old is None or _facts(old) != _facts(fresh):
            kept[name] = fresh
        key = dg.AssetKey(list(name.identifier))
        if key not in self.assets:
            return True
        recorded, runs = self._recorded(key)
        events, complete = happened(table, recorded, lambda snapshot: self._awaited(snapshot, runs))
        for event in events:
            self.instance.report_runless_asset_event(_materialization(key, table, event))
            self.reported += 1
        return complete

    def _recorded(self, key: dg.AssetKey) -> tuple[Recorded, set[str]]:
        found = self.instance.fetch_materializations(key, limit=_LOOKED_AT).records
        ids, runs, uuid = list[int](), set[str](), ""
        for number, record in enumerate(found):
            event = record.asset_materialization
            said = event.metadata if event else {}
            runs.add(record.event_log_entry.run_id)
            if number == 0 and "iceberg/table_uuid" in said:
                uuid = str(said["iceberg/table_uuid"].value)
            if "iceberg/snapshot_id" in said:
                ids.append(int(str(said["iceberg/snapshot_id"].value)))
        return Recorded(ids, uuid), runs

    def _awaited(self, snapshot: Snapshot, recorded: set[str]) -> bool:
        """Whether a run of ours made it and is still to record it."""
        run_id = summary(snapshot).get(f"{PREFIX}run-id", "")
        if not run_id or run_id in recorded or time.time() - snapshot.timestamp_ms / 1000 > RUN_GRACE_SECONDS:
            return False
        run = self.instance.get_run_by_id(run_id)
        return run is not None and not run.is_finished

    def _gone(self, name: TableName) -> None:
        """An observation, once: there is nothing to compute from, so nothing downstream is to be computed again."""
        key = dg.AssetKey(list(name.identifier))
        last = self.instance.fetch_materializations(key, limit=1).records
        if not last:
            return
        told = self.instance.fetch_observations(key, limit=1).records
        if told and told[0].storage_id > last[0].storage_id:
            return
        note = {"iceberg/event": "dropped", "iceberg/note": f"{name} is not in the catalog any more"}
        self.instance.report_runless_asset_event(dg.AssetObservation(key, metadata=note))
        self.reported += 1


def _materialization(key: dg.AssetKey, table: Table, event: Happened) -> dg.AssetMaterialization:
    metadata: dict[str, Any] = {
        "iceberg/event": event.kind,
        "iceberg/note": _NOTES[event.kind],
        "iceberg/table_uuid": str(table.metadata.table_uuid),
    }
    if event.snapshot is not None:
        metadata |= _snapshot_metadata(key, event.snapshot)
    return dg.AssetMaterialization(key, metadata=metadata, tags={"dagster/data_version": event.data_version})


def _snapshot_metadata(key: dg.AssetKey, snapshot: Snapshot) -> dict[str, Any]:
    said = summary(snapshot)
    travel = f"`iceberg-manager query {'.'.join(key.path)} --snapshot {snapshot.snapshot_id}`"
    counts = {
        "dagster/row_count": "total-records",
        "iceberg/rows_added": "added-records",
        "iceberg/rows_removed": "deleted-records",
        "iceberg/files_added": "added-data-files",
        "iceberg/files_removed": "deleted-data-files",
    }
    metadata: dict[str, Any] = {
        "iceberg/snapshot_id": str(snapshot.snapshot_id),
        "iceberg/committed_at": dg.MetadataValue.timestamp(snapshot.timestamp_ms / 1000),
        "iceberg/operation": snapshot.summary.operation.value if snapshot.summary else "unknown",
        "iceberg/writer": said.get("engine-name") or ("iceberg-assets" if COMMIT_ID in said else "unknown"),
        "iceberg/time_travel": dg.MetadataValue.md(travel),
        **{name: int(said.get(label, "0")) for name, label in counts.items()},
    }
    if snapshot.parent_snapshot_id is not None:
        metadata["iceberg/parent_id"] = str(snapshot.parent_snapshot_id)
    return metadata


def _digest(name: TableName, state: str) -> str:
    return hashlib.sha256(json.dumps([*name.identifier, state]).encode()).hexdigest()[:12]


def _facts(one: adoption.AdoptedTable) -> tuple[Any, ...]:
    return (one.description, one.location, one.columns, one.partition_by, one.problem)


def _read(cursor: str | None) -> set[str]:
    try:
        found = json.loads(cursor) if cursor else []
    except ValueError:
        return set()
    return set(found) if isinstance(found, list) else set()
