"""``table_health``: asks for a maintenance run when a table's health falls below its policy's mark, and yields to writers.

It measures metadata alone, without Spark, and only decides; the run that it asks for does the work. A writer that runs, or
whose schedule is due within minutes, goes first, and while a maintenance run is on its way no other is asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg

from iceberg_manager.maintenance.upkeep import USUAL, Around, Upkeep
from iceberg_manager.spec import MaintenancePolicy
from resources.lake import LakeResource

LOOK_AHEAD = timedelta(minutes=30)
_BUSY = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
)


def table_health_sensor(
    job: dg.JobDefinition,
    policies: Mapping[str, MaintenancePolicy],
    schedules: Sequence[dg.ScheduleDefinition],
    status: dg.DefaultSensorStatus,
) -> dg.SensorDefinition:
    """A sensor over every table of the lake. ``schedules`` are those that write to tables."""

    @dg.sensor(job=job, name="table_health", minimum_interval_seconds=600, default_status=status)
    def table_health(
        context: dg.SensorEvaluationContext, lake: LakeResource
    ) -> Iterator[dg.RunRequest | dg.SkipReason]:
        """Asks for maintenance of tables in bad health."""
        running = context.instance.get_runs(dg.RunsFilter(statuses=list(_BUSY)))
        if any(run.job_name == job.name for run in running):
            yield dg.SkipReason("a maintenance run is on its way already")
            return
        with Upkeep(lake.settings, lake.catalog, policies) as upkeep:
            names = upkeep.tables()
            around = writers(running, due(schedules, datetime.now(UTC)), [str(name) for name in names])
            planned = upkeep.plan(names, by_need=True, around=around)
        needy = sorted({action.table for action in planned.actions})
        if not needy:
            yield dg.SkipReason("; ".join(f"{one.table}: {one.reason}" for one in planned.skips[:20]) or "no tables")
            return
        config = {"tables": needy, "actions": list(USUAL)}
        yield dg.RunRequest(run_config={"ops": {"maintain": {"config": config}}})

    return table_health


def writers(running: Sequence[dg.DagsterRun], due_at: datetime | None, tables: Sequence[str]) -> dict[str, Around]:
    """Who writes to each table: a run that names its asset, or one that names no assets and so may write to any."""
    found: dict[str, Around] = {}
    for table in tables:
        key = dg.AssetKey(table.split("."))
        mine = [run for run in running if run.asset_selection is None or key in run.asset_selection]
        said = f"run {mine[0].run_id[:8]} of {mine[0].job_name}" if mine else ""
        found[table] = Around(said, due_at)
    return found


def due(schedules: Sequence[dg.ScheduleDefinition], now: datetime) -> datetime | None:
    """The next tick of these schedules within ``LOOK_AHEAD``."""
    minute = now.replace(second=0, microsecond=0)
    for _ in range(int(LOOK_AHEAD / timedelta(minutes=1))):
        minute += timedelta(minutes=1)
        crons = [cron for one in schedules for cron in _crons(one)]
        if any(ticks(cron, minute) for cron in crons):
            return minute
    return None


def _crons(schedule: dg.ScheduleDefinition) -> list[str]:
    cron = schedule.cron_schedule
    return [cron] if isinstance(cron, str) else list(cron)


def ticks(cron: str, minute: datetime) -> bool:
    """Whether a cron of five fields ticks in this minute. As in cron, day of month and day of week are alternatives."""
    fields = cron.split()
    if len(fields) != 5:
        return False
    weekday = minute.isoweekday() % 7
    values = (minute.minute, minute.hour, minute.day, minute.month, weekday)
    hits = [_hits(text, value) for text, value in zip(fields, values, strict=True)]
    hits[4] = hits[4] or (weekday == 0 and _hits(fields[4], 7))
    days = hits[2] or hits[4] if "*" not in (fields[2], fields[4]) else hits[2] and hits[4]
    return hits[0] and hits[1] and hits[3] and days


def _hits(text: str, value: int) -> bool:
    for part in text.split(","):
        area, _, step = part.partition("/")
        first, _, last = area.partition("-")
        if not (area == "*" or first.isdigit()) or (step and not step.isdigit()):
            continue
        low = 0 if area == "*" else int(first)
        high = int(last) if last.isdigit() else (99 if area == "*" or step else low)
        if low <= value <= high and (value - low) % int(step or 1) == 0:
            return True
    return False
