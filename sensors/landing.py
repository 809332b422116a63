"""A sensor that watches a table's landing folder: it claims what is complete, in batches, and asks for a run per batch.

A tick lists for a bounded time and claims a bounded number of batches; it reads no file's content and commits nothing. The
run key is the batch id. A batch whose run died is asked for again, under its id and the number of the attempt.
"""

from typing import Any

import dagster as dg
from dagster import RunsFilter

from iceberg_manager.errors import ConflictError, LakeError
from iceberg_manager.landing.batches import Intent
from iceberg_manager.landing.passes import Landing
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.spec import TableSpec
from resources.lake import LakeResource

INTERVAL_SECONDS = 10
TICK_SECONDS = 20
BATCHES_PER_TICK = 10
BATCH_TAG = "iceberg/landing_batch"
_ATTEMPTS = 5


def landing_sensor(
    spec: TableSpec,
    job: Any,
    op_name: str,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
    interval_seconds: int = INTERVAL_SECONDS,
) -> dg.SensorDefinition:
    """The sensor of one table. ``op_name`` is the step of ``job`` that takes a batch in."""
    policy = spec.landing or LandingPolicy()

    @dg.sensor(
        name=f"{'__'.join(spec.table.identifier)}__landing",
        job=job,
        minimum_interval_seconds=interval_seconds,
        default_status=default_status,
        description=f"Takes in the files that arrive for {spec.name}.",
    )
    def tick(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | dg.SkipReason:
        landing = Landing(lake.settings, lake.catalog, spec.table, policy, spec)
        try:
            intents = landing.plan(limit=BATCHES_PER_TICK, seconds=TICK_SECONDS)
        except ConflictError:
            return dg.SkipReason("A run is taking files in.")
        except LakeError as error:
            return dg.SkipReason(str(error))
        wanted = [one for one in intents if one.attempts < _ATTEMPTS and not _under_way(context, one)]
        if not wanted:
            given_up = [one.failed for one in intents if one.attempts >= _ATTEMPTS]
            return dg.SkipReason(given_up[0] if given_up else "Nothing has arrived.")
        return dg.SensorResult(run_requests=[_request(one, op_name) for one in wanted])

    return tick


def _request(intent: Intent, op_name: str) -> dg.RunRequest:
    key = f"{intent.batch}.{intent.attempts}" if intent.attempts else intent.batch
    config = {"ops": {op_name: {"config": {"batch": intent.batch}}}}
    return dg.RunRequest(run_key=key, run_config=config, tags={BATCH_TAG: intent.batch})


def _under_way(context: dg.SensorEvaluationContext, intent: Intent) -> bool:
    """Whether a run that has not begun yet will take this batch in; one that has begun holds the folder's lock."""
    waiting = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.NOT_STARTED, dg.DagsterRunStatus.STARTING]
    return bool(context.instance.get_run_records(RunsFilter(tags={BATCH_TAG: intent.batch}, statuses=waiting), limit=1))
