"""Watches the ingest writer: reports its commits, judges lag and backlog, asks for a flush, or for a run when it is off.

The writer commits by itself; the sensor only tells. Each new snapshot of a topic's table becomes one materialization without
a run. The cursor holds the last snapshot told of each topic, so a repeated tick tells nothing twice.
"""

import fcntl
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg

from iceberg_manager.settings import LakeSettings
from resources import LakeResource

if TYPE_CHECKING:
    from iceberg_ingest.topics import TopicStats

MAX_LAG_SECONDS = 60.0
MAX_BACKLOG = 100_000
CHECK = "ingest_keeps_up"


def ingest_sensor(
    drain_job: str,
    status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    max_lag: float = MAX_LAG_SECONDS,
    max_backlog: int = MAX_BACKLOG,
) -> dg.SensorDefinition:
    """The lake's one ingest sensor; ``drain_job`` is asked for when no writer runs and records wait."""

    @dg.sensor(name="ingest__report", job_name=drain_job, minimum_interval_seconds=30, default_status=status)
    def report(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | dg.SkipReason:
        from iceberg_ingest import checkpoints, topics  # heavy, and needed by ticks only

        if not lake.settings.wal_folder.is_dir():
            return dg.SkipReason("this lake has no write-ahead log")
        told: dict[str, str] = json.loads(context.cursor or "{}")
        found = [
            topics.stats(lake.catalog, lake.settings, name.namespace[0], name.table)
            for name in checkpoints.tables(lake.settings.wal_folder)
        ]
        late = [one for one in found if one.lag > max_lag or one.backlog > max_backlog]
        runs = _act(lake.settings, found, late)
        events = _events(found, told, late)
        return dg.SensorResult(
            run_requests=runs, asset_events=events, cursor=json.dumps({one.topic: one.snapshot_id for one in found})
        )

    return report


def _act(settings: LakeSettings, found: Sequence["TopicStats"], late: Sequence["TopicStats"]) -> list[dg.RunRequest]:
    if not writer_runs(settings.wal_folder):
        waiting = [one for one in found if one.backlog]
        key = f"drain-{max(one.durable_seq for one in waiting)}" if waiting else ""
        return [dg.RunRequest(run_key=key)] if waiting else []
    if late:
        ask_for_flush(settings.wal_folder)
    return []


def _events(
    found: Sequence["TopicStats"], told: dict[str, str], late: Sequence["TopicStats"]
) -> list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation]:
    events: list[dg.AssetMaterialization | dg.AssetObservation | dg.AssetCheckEvaluation] = []
    for one in found:
        key = dg.AssetKey(one.topic.split("."))
        if one.snapshot_id and told.get(one.topic) != one.snapshot_id:
            events.append(dg.AssetMaterialization(key, metadata=_metadata(one)))
        said = {"lag": one.lag, "backlog": one.backlog}
        events.append(dg.AssetCheckEvaluation(asset_key=key, check_name=CHECK, passed=one not in late, metadata=said))
    return events


def _metadata(one: "TopicStats") -> dict[str, str | int | float]:
    said = {f"ingest/{key}": value for key, value in asdict(one).items() if key not in ("topic", "snapshot_id")}
    return {"dagster/row_count": one.message_count, "iceberg/snapshot_id": one.snapshot_id, **said}


def writer_runs(wal: Path) -> bool:
    """Whether a writer holds the log's lock."""
    from iceberg_ingest.writer import LOCK_NAME

    try:
        handle = os.open(wal / LOCK_NAME, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def ask_for_flush(wal: Path) -> None:
    """The writer watches this file's time."""
    from iceberg_ingest.writer import FLUSH_NAME

    (wal / FLUSH_NAME).parent.mkdir(mode=0o700, exist_ok=True)
    (wal / FLUSH_NAME).touch()
