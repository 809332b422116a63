"""The raw layer: the shop's files as they came, typed, one Iceberg table a file. A day run again replaces that day."""

from datetime import timedelta

import dagster as dg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from iceberg_assets.landing import landed_table
from iceberg_assets.table import iceberg_table
from iceberg_assets.tables.exports import DAYS, folder, shop_exports
from iceberg_manager.checks import row_count
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec

RAW = MaintenancePolicy(expire_after=timedelta(days=7))


@iceberg_table(
    TableSpec(
        "raw.customers",
        schema={
            "customer_id": "long",
            "name": "string",
            "email": "string",
            "country": "string",
            "updated_at": "timestamptz",
            "exported_on": "date",
        },
        partition_by=["exported_on"],
        write_mode="overwrite_partitions",
        maintenance=RAW,
    ),
    deps=[shop_exports],
    partitions_def=DAYS,
    owners=["team:shop"],
)
def customers(context: dg.AssetExecutionContext, spark: SparkSession, lake: LakeSettings) -> DataFrame:
    """Customers who signed up or moved, by the day that told us."""
    rows = spark.read.csv(_files(context, lake, "customers.csv"), header=True)
    return rows.withColumn("exported_on", _day_of_file())


@iceberg_table(
    TableSpec(
        "raw.products",
        schema={"product_id": "long", "title": "string", "category": "string", "price": "decimal(10,2)"},
        write_mode="overwrite",
        checks=[row_count(at_least=1)],
        maintenance=RAW,
    ),
    deps=[shop_exports],
    owners=["team:shop"],
)
def products(spark: SparkSession, lake: LakeSettings) -> DataFrame:
    """The product catalogue of the newest export."""
    newest = max(path for path in folder(lake, "").iterdir() if path.is_dir())
    return spark.read.csv(str(newest / "products.csv"), header=True)


@iceberg_table(
    TableSpec(
        "raw.orders",
        schema={
            "order_id": "string",
            "customer_id": "long",
            "product_id": "long",
            "quantity": "int",
            "amount": "decimal(12,2)",
            "status": "string",
            "ordered_at": "timestamptz",
        },
        partition_by=["day(ordered_at)"],
        write_mode="overwrite_partitions",
        maintenance=RAW,
    ),
    deps=[shop_exports],
    partitions_def=DAYS,
    owners=["team:shop"],
)
def orders(context: dg.AssetExecutionContext, spark: SparkSession, lake: LakeSettings) -> DataFrame:
    """Orders as exported, by the day they were placed."""
    return spark.read.json(_files(context, lake, "orders.jsonl"))


@iceberg_table(
    TableSpec(
        "raw.events",
        schema={"event_id": "string", "customer_id": "long", "page": "string", "occurred_at": "timestamptz"},
        partition_by=["day(occurred_at)"],
        write_mode="overwrite_partitions",
        maintenance=RAW,
    ),
    deps=[shop_exports],
    partitions_def=DAYS,
    owners=["team:web"],
)
def events(context: dg.AssetExecutionContext, spark: SparkSession, lake: LakeSettings) -> DataFrame:
    """Clicks as the tracker sent them, duplicates included."""
    return spark.read.json(_files(context, lake, "events.jsonl"))


web_events_landing = landed_table(
    TableSpec(
        "raw.web_events",
        schema={"event_id": "string", "customer_id": "long", "page": "string", "occurred_at": "timestamptz"},
        description="Clicks as the web servers drop them, file by file.",
        partition_by=["day(occurred_at)"],
        maintenance=RAW,
        landing=LandingPolicy(completeness="rename"),
    ),
    deps=[shop_exports],
    owners=["team:web"],
)
web_events = web_events_landing.asset


def _files(context: dg.AssetExecutionContext, lake: LakeSettings, name: str) -> list[str]:
    return [str(folder(lake, day) / name) for day in context.partition_keys]


def _day_of_file() -> F.Column:
    return F.regexp_extract("_metadata.file_path", r"/(\d{4}-\d\d-\d\d)/[^/]+$", 1)
