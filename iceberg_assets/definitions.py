"""The composition root: every table under ``iceberg_assets.tables``, with its resources, jobs and schedule.

Loading it touches neither Spark nor the network. Runs execute in one process, so that all tables of a run share one
Spark session. ``ICEBERG_ASSETS_AUTOSTART=1`` (as in ``make dev``) switches schedules on.
"""

import os

import dagster as dg

from iceberg_assets import tables
from iceberg_assets.adoption import adopted_assets
from resources import LakeDuckDBResource, LakeResource, SparkResource
from sensors.foreign_commits import foreign_commits

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
    declared = [key for asset in assets if isinstance(asset, dg.AssetsDefinition) for key in asset.keys]
    adopted = adopted_assets(lake, declared)
    follow = foreign_commits([*declared, *(spec.key for spec in adopted)], SWITCH is dg.DefaultScheduleStatus.RUNNING)
    return dg.Definitions(
        assets=[*assets, *adopted],
        jobs=[*layer_jobs, everything],
        schedules=[daily],
        sensors=[follow],
        resources={"lake": lake, "spark": SparkResource(lake=lake), "duckdb": LakeDuckDBResource(lake=lake)},
        executor=dg.in_process_executor,
    )


defs = build()
