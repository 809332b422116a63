"""The composition root: every table under ``iceberg_assets.tables``, with its resources, jobs and schedule.

Loading it touches neither Spark nor the network. Runs execute in one process, so that all tables of a run share one
Spark session. ``ICEBERG_ASSETS_AUTOSTART=1`` (as in ``make dev``) switches schedules and sensors on.
"""

import os

import dagster as dg

from iceberg_assets import tables
from iceberg_assets.tables import raw
from resources import LakeDuckDBResource, LakeResource, SparkResource

LAYERS = ("raw", "shop", "marts")
AUTOSTART = os.environ.get("ICEBERG_ASSETS_AUTOSTART") == "1"
SWITCH = dg.DefaultScheduleStatus.RUNNING if AUTOSTART else dg.DefaultScheduleStatus.STOPPED
WATCH = dg.DefaultSensorStatus.RUNNING if AUTOSTART else dg.DefaultSensorStatus.STOPPED


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
    landed = [raw.web_events_landing]
    lake = LakeResource()
    return dg.Definitions(
        assets=assets,
        jobs=[*layer_jobs, everything, *(one.job for one in landed)],
        schedules=[daily],
        sensors=[one.sensor(WATCH) for one in landed],
        resources={"lake": lake, "spark": SparkResource(lake=lake), "duckdb": LakeDuckDBResource(lake=lake)},
        executor=dg.in_process_executor,
    )


defs = build()
