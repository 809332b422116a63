"""The cleaned layer: one row per customer, order and click, with the types, keys and checks that others rely on."""

from datetime import timedelta

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from iceberg_assets.table import iceberg_table
from iceberg_assets.tables import raw
from iceberg_assets.tables.exports import DAYS
from iceberg_manager.checks import accepted_values, fresh, in_range, not_null, row_count
from iceberg_manager.spec import Column, TableSpec


@iceberg_table(
    TableSpec(
        "shop.customers",
        schema={
            "customer_id": Column("long", "The shop's own number.", required=True),
            "name": "string",
            "email": Column("string", "Lower case."),
            "country": Column("string", "ISO 3166-1 alpha-2."),
            "updated_at": "timestamptz",
        },
        key=["customer_id"],
        write_mode="merge",
        checks=[not_null("email"), row_count(at_least=1)],
    ),
    inputs={"raw_customers": raw.customers},
    partitions_def=None,
    owners=["team:shop"],
    tags={"pii": "true"},
)
def customers(raw_customers: DataFrame) -> DataFrame:
    """Every customer as last told; rows that did not change are not written again."""
    newest = Window.partitionBy("customer_id").orderBy(F.col("updated_at").desc())
    return (
        raw_customers.withColumn("place", F.row_number().over(newest))
        .where("place = 1")
        .select("customer_id", "name", F.lower("email").alias("email"), "country", "updated_at")
    )


@iceberg_table(
    TableSpec(
        "shop.orders",
        schema={
            "order_id": Column("string", required=True),
            "customer_id": "long",
            "product_id": "long",
            "category": "string",
            "quantity": "int",
            "amount": "decimal(12,2)",
            "status": Column("string", "open, paid, shipped or cancelled."),
            "ordered_at": "timestamptz",
        },
        partition_by=["day(ordered_at)"],
        sort_by=["ordered_at"],
        key=["order_id"],
        write_mode="merge",
        checks=[
            accepted_values("status", ["open", "paid", "shipped", "cancelled"]),
            in_range("amount", low=0),
            not_null("customer_id"),
            fresh("ordered_at", within=timedelta(days=3)),
        ],
    ),
    inputs={"raw_orders": raw.orders, "products": raw.products},
    partitions_def=DAYS,
    owners=["team:shop"],
)
def orders(raw_orders: DataFrame, products: DataFrame) -> DataFrame:
    """Orders with their product's category. A restated day updates the orders that changed and adds the late ones."""
    return raw_orders.join(products.select("product_id", "category"), "product_id", "left")


@iceberg_table(
    TableSpec(
        "shop.events",
        schema={
            "event_id": Column("string", required=True),
            "customer_id": "long",
            "page": "string",
            "occurred_at": "timestamptz",
        },
        partition_by=["day(occurred_at)"],
        sort_by=["occurred_at"],
        key=["event_id"],
        write_mode="overwrite_partitions",
    ),
    inputs={"raw_events": raw.events},
    partitions_def=DAYS,
    owners=["team:web"],
)
def events(raw_events: DataFrame) -> DataFrame:
    """Clicks, each once."""
    return raw_events.dropDuplicates(["event_id"])
