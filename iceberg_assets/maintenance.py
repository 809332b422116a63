"""The lake's upkeep in Dagster: the job ``maintain_lake``, its schedules by the policies' crons, and a health check a table.

Each action is recorded on its asset as an observation with numbers that the UI plots. An observation carries no data
version, so nothing looks stale because of it. A table whose action failed fails the run, after the others were looked after.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from iceberg_manager.catalog import load_table
from iceberg_manager.errors import LakeError
from iceberg_manager.maintenance.costs import KINDS, Kind
from iceberg_manager.maintenance.health import Health, health
from iceberg_manager.maintenance.planner import Budget
from iceberg_manager.maintenance.policies import duration
from iceberg_manager.maintenance.remedies import Done
from iceberg_manager.maintenance.statistics import collect
from iceberg_manager.maintenance.upkeep import USUAL, Upkeep
from iceberg_manager.needs import is_ingested
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from resources.duckdb import LakeDuckDBResource
from resources.lake import LakeResource
from sensors.table_health import due, writers

JOB = "maintain_lake"
_KINDS: Mapping[str, Sequence[Kind]] = {
    "compaction": ("row_ttl", "compact"),
    "manifests": ("rewrite_manifests",),
    "expiry": ("drop_refs", "expire", "drop_metadata"),
    "orphans": ("remove_orphans",),
}
_INGEST_CRON = "15 * * * *"
_ACTIVE = (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.STARTING)


class MaintainConfig(dg.Config):
    """What a maintenance run does. Without ``tables`` it looks after all of them."""

    tables: list[str] = []  # noqa: RUF012 (a pydantic field)
    exclude: list[str] = []  # noqa: RUF012
    actions: list[str] = list(USUAL)  # noqa: RUF012
    budget: str = ""
    dry_run: bool = False
    ingest_tables_only: bool = False


def maintain_job(specs: Mapping[str, TableSpec], writing: Sequence[dg.ScheduleDefinition]) -> dg.JobDefinition:
    """``specs`` are the declared tables by name; ``writing`` are the schedules to which maintenance gives way."""
    policies = {name: spec.maintenance for name, spec in specs.items()}

    @dg.op(description="Plans what each table needs and does it, one action after another.")
    def maintain(context: dg.OpExecutionContext, config: MaintainConfig, lake: LakeResource) -> None:
        if unknown := [one for one in config.actions if one not in KINDS]:
            raise dg.Failure(f"action {unknown[0]!r} is not one of {', '.join(KINDS)}", allow_retries=False)
        try:
            with Upkeep(lake.settings, lake.catalog, policies, needed_inputs(context.instance, list(specs))) as upkeep:
                failed = _maintain(context, config, lake, upkeep, writing)
        except LakeError as error:
            raise dg.Failure(str(error), allow_retries=False) from error
        if failed:
            said = "; ".join(f"{one.table}, {one.action}: {one.error}" for one in failed)
            raise dg.Failure(f"{len(failed)} actions failed: {said}", allow_retries=False)

    @dg.job(name=JOB, description="Looks after tables: compaction, expiry, clean-up, within a budget.")
    def job() -> None:
        maintain()

    return job


def _maintain(
    context: dg.OpExecutionContext,
    config: MaintainConfig,
    lake: LakeResource,
    upkeep: Upkeep,
    writing: Sequence[dg.ScheduleDefinition],
) -> list[Done]:
    names = [name for name in upkeep.tables(config.tables) if str(name) not in config.exclude]
    if config.ingest_tables_only:
        names = [name for name in names if is_ingested(load_table(lake.catalog, name))]
    active = context.instance.get_runs(dg.RunsFilter(statuses=list(_ACTIVE)))
    running = [run for run in active if run.run_id != context.run_id]
    around = writers(running, due(writing, datetime.now(UTC)), [str(name) for name in names])
    budget = Budget(seconds=duration(config.budget, "budget").total_seconds()) if config.budget else None
    planned = upkeep.plan(names, [one for one in KINDS if one in config.actions], budget, around=around)
    for skip in planned.skips:
        context.log.info("left: %s%s: %s", skip.table, f", {skip.kind}" if skip.kind else "", skip.reason)
    for action in planned.actions:
        context.log.info("%s of %s: %s", action.kind, action.table, action.reason)
    failed = []
    for done in upkeep.run(() if config.dry_run else planned.actions):
        if done.error:
            context.log.error("%s of %s failed: %s", done.action, done.table, done.error)
            failed.append(done)
        context.log_event(
            dg.AssetObservation(dg.AssetKey(done.table.split(".")), metadata=_facts(done, context.run_id))
        )
    return failed


def _facts(done: Done, run_id: str) -> dict[str, Any]:
    """Numbers as numbers, so that the UI draws them."""
    said: dict[str, Any] = {
        "maintenance/action": done.action,
        "maintenance/reason": done.reason,
        "maintenance/run_id": run_id,
        "maintenance/seconds": round(done.seconds, 3),
        "maintenance/files": done.files,
        "maintenance/bytes": done.bytes,
    }
    for when, size in (("before", done.before), ("after", done.after)):
        if size is not None:
            said |= {f"maintenance/{what}_{when}": getattr(size, what) for what in
                     ("files", "bytes", "delete_files", "manifests", "snapshots")}  # fmt: skip
    return said | ({"maintenance/error": done.error} if done.error else {})


def needed_inputs(instance: dg.DagsterInstance, tables: Sequence[str]) -> dict[str, dict[int, str]]:
    """The snapshots that the newest materialization of each table was computed from.

    Of a table in partitions only the newest counts: to keep one snapshot a day for ever would be no expiry.
    """
    found: dict[str, dict[int, str]] = {}
    for table in tables:
        event = instance.get_latest_materialization_event(dg.AssetKey(table.split(".")))
        made = event.asset_materialization if event else None
        inputs = made.metadata.get("iceberg/inputs") if made else None
        for source, snapshot in (inputs.value if inputs and isinstance(inputs.value, dict) else {}).items():
            found.setdefault(str(source), {})[int(str(snapshot))] = f"{table} was last computed from it"
    return found


def schedules(
    job: dg.JobDefinition, specs: Mapping[str, TableSpec], status: dg.DefaultScheduleStatus
) -> list[dg.ScheduleDefinition]:
    """One for each kind of work at its usual time, over all tables; a table whose policy says another time has its own."""
    usual, made = MaintenancePolicy(), []

    def schedule(name: str, cron: str, kinds: Sequence[Kind], **more: Any) -> None:
        config = {"ops": {"maintain": {"config": {"actions": list(kinds), **more}}}}
        made.append(
            dg.ScheduleDefinition(name=name, job=job, cron_schedule=cron, run_config=config, default_status=status)
        )

    for what, kinds in _KINDS.items():
        cron = getattr(usual, f"{what}_cron")
        own = {name: spec for name, spec in specs.items() if getattr(spec.maintenance, f"{what}_cron") != cron}
        schedule(f"{JOB}__{what}", cron, kinds, exclude=sorted(own))
        for name, spec in sorted(own.items()):
            schedule(
                f"{name.replace('.', '__')}__{what}", getattr(spec.maintenance, f"{what}_cron"), kinds, tables=[name]
            )
    schedule(f"{JOB}__expiry_ingest", _INGEST_CRON, _KINDS["expiry"], ingest_tables_only=True)
    return made


def health_check(spec: TableSpec) -> dg.AssetChecksDefinition:
    """A check that warns when a table's health is below its mark; it reads metadata alone."""

    @dg.asset_check(
        asset=dg.AssetKey(list(spec.table.identifier)),
        name="table_health",
        description=f"Health of at least {spec.maintenance.health_mark}: small files, snapshots, metadata and the like.",
    )
    def table_health(lake: LakeResource, duckdb: LakeDuckDBResource) -> dg.AssetCheckResult:
        with duckdb.get_connection() as connection:
            found = collect(load_table(lake.catalog, spec.table), spec.maintenance, connection)
        return _judged(health(found, spec.maintenance), spec.maintenance.health_mark)

    return table_health


def _judged(found: Health, mark: int) -> dg.AssetCheckResult:
    why = {"why": found.worst.why} if found.worst else {}
    return dg.AssetCheckResult(
        passed=found.score >= mark, severity=dg.AssetCheckSeverity.WARN, metadata={**found.numbers(), **why}
    )
