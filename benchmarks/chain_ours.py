"""The six tables as this project runs them."""

import dagster as dg

from benchmarks.chain import SCHEMAS, STEPS
from iceberg_assets.table import iceberg_table
from iceberg_manager.spec import TableSpec
from resources import LakeDuckDBResource, LakeResource, SparkResource

assets = [
    iceberg_table(TableSpec(f"chain.{step.__name__}", schema=SCHEMAS[step.__name__], write_mode="overwrite"))(step)
    for step in STEPS
]
lake = LakeResource()
defs = dg.Definitions(
    assets=assets,
    resources={"lake": lake, "spark": SparkResource(lake=lake), "duckdb": LakeDuckDBResource(lake=lake)},
    executor=dg.in_process_executor,
)
