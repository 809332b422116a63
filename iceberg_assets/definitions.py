"""The composition root: every table under ``iceberg_assets.tables``, those that were adopted, and what keeps them.

Loading it touches neither Spark nor the network. Runs execute in one process, so that all tables of a run share one
Spark session. ``ICEBERG_ASSETS_AUTOSTART=1`` (as in ``make dev``) switches schedules and sensors on.
"""

import os

import dagster as dg

from iceberg_assets import tables
from iceberg_assets.adoption import adopted_assets
from iceberg_assets.ingest import ingest_drain
from iceberg_assets.maintenance import health_check, maintain_job, schedules
from iceberg_assets.table import declared_specs
from iceberg_assets.tables import raw
from resources import LakeDuckDBResource, LakeResource, SparkResource
from sensors.foreign_commits import foreign_commits
from sensors.ingest import ingest_sensor
from sensors.table_health import table_health_sensor

LAYERS = ("raw", "shop", "marts")
AUTOSTART = os.environ.get("ICEBERG_ASSETS_AUTOSTART") == "1"
SWITCH = dg.DefaultScheduleStatus.RUNNING if AUTOSTART else dg.DefaultScheduleStatus.STOPPED
SENSOR_SWITCH = dg.DefaultSensorStatus.RUNNING if AUTOSTART else dg.DefaultSensorStatus.STOPPED


def build() -> dg.Definitions:
    assets = dg.load_assets_from_package_module(tables)
    layer_jobs = [
        dg.define_asset_job(
            f"{layer}__materialize", dg.AssetSelection.groups(layer), description=f"The {layer} layer, one day."
        )
        for layer in LAYERS
    ]
    everything = dg.define_asset_job("materialize_lake", dg.AssetSelection.all(), description="Every table, one day.")
    daily = dg.build_schedule_from_partitioned_job(
        everything, name="materialize_lake__daily", hour_of_day=1, default_status=SWITCH
    )
    lake = LakeResource()
    declared = [key for asset in assets if isinstance(asset, dg.AssetsDefinition) for key in asset.keys]
    adopted = adopted_assets(lake, declared)
    specs = declared_specs(assets)
    maintain = maintain_job(specs, [daily])
    policies = {name: spec.maintenance for name, spec in specs.items()}
    landed = [raw.web_events_landing]
    return dg.Definitions(
        assets=[*assets, *adopted],
        asset_checks=[health_check(spec) for spec in specs.values()],
        jobs=[*layer_jobs, everything, maintain, ingest_drain, *(one.job for one in landed)],
        schedules=[daily, *schedules(maintain, specs, SWITCH)],
        sensors=[
            foreign_commits([*declared, *(spec.key for spec in adopted)], AUTOSTART),
            table_health_sensor(maintain, policies, [daily], SENSOR_SWITCH),
            ingest_sensor(ingest_drain.name, SENSOR_SWITCH),
            *(one.sensor(SENSOR_SWITCH) for one in landed),
        ],
        resources={"lake": lake, "spark": SparkResource(lake=lake), "duckdb": LakeDuckDBResource(lake=lake)},
        executor=dg.in_process_executor,
    )


defs = build()
