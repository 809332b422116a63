"""``landed_table``: a table that is filled by the files that arrive for it, as an asset with a job and a sensor.

A run takes one batch in, or, when it was started by hand, everything that is ready. It commits through
``iceberg_manager.landing``, as ``iceberg-manager landing run`` does. A run that is tried again finishes its batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from iceberg_assets.metadata import column_schema, definition_metadata
from iceberg_assets.table import remember_spec
from iceberg_manager.catalog import catalog_errors, load_table
from iceberg_manager.errors import LakeError, SpecError
from iceberg_manager.history import data_version, summary
from iceberg_manager.landing.batches import BatchReport
from iceberg_manager.landing.passes import Landing
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table
from resources.lake import LakeResource
from resources.spark import SparkResource
from sensors.landing import landing_sensor

CHECK = "nothing_refused"


@dataclass(frozen=True)
class LandedTable:
    """What belongs in the definitions: the asset, the job that takes a batch in, and the sensor that asks for it."""

    spec: TableSpec
    asset: dg.AssetsDefinition
    job: Any

    def sensor(self, default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED) -> dg.SensorDefinition:
        return landing_sensor(self.spec, self.job, self.asset.op.name, default_status)


class LandingConfig(dg.Config):
    """``batch`` is the one to take in; empty means a whole pass."""

    batch: str = ""


def landed_table(
    spec: TableSpec,
    *,
    deps: Sequence[dg.AssetsDefinition | dg.AssetKey | str] = (),
    owners: Sequence[str] = (),
    max_refused: int = 0,
) -> LandedTable:
    """Declare a table that files land in. The check fails when a run refuses more than ``max_refused`` rows and files."""
    policy = spec.landing
    if policy is None:
        raise SpecError(f"{spec.name}: a landed table needs a landing policy: landing=LandingPolicy().")
    name = "__".join(spec.table.identifier)

    @dg.asset(
        name=spec.table.table,
        key_prefix=list(spec.table.namespace),
        description=spec.description,
        deps=deps,
        group_name="_".join(spec.table.namespace),
        owners=owners,
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"iceberg", "pyspark"},
        metadata=definition_metadata(spec),
        check_specs=[
            dg.AssetCheckSpec(CHECK, asset=list(spec.table.identifier), description="Every row and file was taken in.")
        ],
        pool=name,
    )
    def asset(
        context: dg.AssetExecutionContext, config: LandingConfig, lake: LakeResource, spark: SparkResource
    ) -> dg.MaterializeResult:
        try:
            with catalog_errors(lake.settings):
                if not policy.create_from_first_batch and policy.drift != "additive":
                    ensure_table(lake.catalog, lake.settings, spec)
                landing = Landing(
                    lake.settings, lake.catalog, spec.table, policy, spec, spark=lambda: spark.spark_session
                )
                run = context.run.run_id
                reports = [landing.carry_out(config.batch, run)] if config.batch else landing.run(run)
                return _result(spec, lake, reports, max_refused)
        except LakeError as error:
            raise dg.Failure(str(error), allow_retries=False) from error

    remember_spec(asset, spec)
    job = dg.define_asset_job(f"{name}__land", dg.AssetSelection.assets(asset), description=f"Files into {spec.name}.")
    return LandedTable(spec, asset, job)


def _result(
    spec: TableSpec, lake: LakeResource, reports: Sequence[BatchReport], max_refused: int
) -> dg.MaterializeResult:
    """What all batches of the run did; a batch that failed fails the run after the others were reported."""
    if failed := [one for one in reports if one.state in ("failed", "busy")]:
        raise LakeError(f"Batch {failed[0].batch}: {failed[0].error}")
    refused = sum(one.rejected + len(one.quarantined) for one in reports)
    metadata: dict[str, Any] = {
        "landing/files": sum(one.files for one in reports),
        "landing/rows": sum(one.rows for one in reports),
        "landing/rejected_rows": sum(one.rejected for one in reports),
        "landing/quarantined_files": sum(len(one.quarantined) for one in reports),
        "landing/duplicate_files": sum(one.duplicates for one in reports),
        "landing/bytes": sum(one.bytes for one in reports),
        "landing/lag_seconds": max((one.lag_seconds for one in reports), default=0.0),
        "landing/batch": ", ".join(one.batch for one in reports) or "none",
    }
    version = None
    if lake.catalog.table_exists(spec.table.identifier):
        table = load_table(lake.catalog, spec.table)
        head = table.current_snapshot()
        metadata["dagster/column_schema"] = column_schema(table.schema())
        metadata["iceberg/table_uuid"] = str(table.metadata.table_uuid)
        if head:
            metadata["dagster/row_count"] = int(summary(head).get("total-records", "0"))
            version = data_version(table, head.snapshot_id)
        if ours := [one.snapshot_id for one in reports if one.snapshot_id]:
            metadata["iceberg/snapshot_id"] = str(ours[-1])
    return dg.MaterializeResult(
        metadata=metadata,
        data_version=dg.DataVersion(str(version)) if version is not None else None,
        check_results=[
            dg.AssetCheckResult(
                check_name=CHECK,
                passed=refused <= max_refused,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"refused": refused, "table_of_rejects": f"{spec.name}__rejects"},
            )
        ],
    )
