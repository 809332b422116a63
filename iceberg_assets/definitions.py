"""The composition root: every table under ``iceberg_assets.tables``, with its resources, jobs and schedule.

Loading it touches neither Spark nor the network. Runs execute in one process, so that all tables of a run share one
Spark session. ``ICEBERG_ASSETS_AUTOSTART=1`` (as in ``make dev``) switches schedules on.
"""

import os

import dagster as dg

from iceberg_assets import tables
from iceberg_assets.ingest import ingest_drain
from resources import LakeDuckDBResource, LakeResource, SparkResource
from sensors.ingest import ingest_sensor

LAYERS = ("raw", "shop", "marts")
SWITCH = (
    dg.DefaultScheduleStatus.RUNNING
    if os.environ.get("ICEBERG_ASSETS_AUTOSTART") == "1"
    else dg.DefaultScheduleStatus.STOPPED
)


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
    return dg.Definitions(
        assets=assets,
        jobs=[*layer_jobs, everything, ingest_drain],
        sensors=[ingest_sensor(ingest_drain.name)],
        schedules=[daily],
        resources={"lake": lake, "spark": SparkResource(lake=lake), "duckdb": LakeDuckDBResource(lake=lake)},
        executor=dg.in_process_executor,
    )


defs = build()
