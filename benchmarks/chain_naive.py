"""The six tables as one would first write them: Dagster's default executor, and a new local Spark session per step."""

import inspect
from collections.abc import Callable

import dagster as dg
from pyspark.sql import DataFrame, SparkSession

from benchmarks.chain import STEPS
from iceberg_manager.session import jar_conf, session_conf
from iceberg_manager.settings import load_settings


def _session() -> SparkSession:
    settings = load_settings()
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    extensions = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    for key, value in (jar_conf(settings) | session_conf(settings) | {"spark.sql.extensions": extensions}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _asset(step: Callable[..., DataFrame]) -> dg.AssetsDefinition:
    upstream = [name for name in inspect.signature(step).parameters if name != "spark"]

    @dg.asset(name=step.__name__, deps=upstream)
    def table() -> None:
        spark = _session()
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.naive").collect()
        rows = step(*[spark.table(f"lake.naive.{name}") for name in upstream] or [spark])
        rows.writeTo(f"lake.naive.{step.__name__}").createOrReplace()
        spark.stop()

    return table


defs = dg.Definitions(assets=[_asset(step) for step in STEPS])
