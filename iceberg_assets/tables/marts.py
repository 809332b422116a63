"""The marts: what people ask for. Each says in its write mode how it is kept up to date."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from iceberg_assets.table import iceberg_table
from iceberg_assets.tables import shop
from iceberg_assets.tables.exports import DAYS
from iceberg_manager.checks import in_range, not_null, row_count
from iceberg_manager.spec import Column, TableSpec

SESSION_GAP = 30 * 60


@iceberg_table(
    TableSpec(
        "marts.daily_revenue",
        schema={
            "day": "date",
            "country": "string",
            "orders": "long",
            "revenue": Column("decimal(14,2)", "Without cancelled orders."),
        },
        partition_by=["day"],
        key=["day", "country"],
        write_mode="overwrite_partitions",
        checks=[in_range("revenue", low=0)],
    ),
    inputs={"orders": shop.orders, "customers": shop.customers},
    partitions_def=DAYS,
    owners=["team:finance"],
)
def daily_revenue(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """Revenue per day and country."""
    return (
        orders.where("status <> 'cancelled'")
        .join(customers.select("customer_id", "country"), "customer_id", "left")
        .groupBy(F.to_date("ordered_at").alias("day"), F.coalesce("country", F.lit("??")).alias("country"))
        .agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
    )


@iceberg_table(
    TableSpec(
        "marts.customer_lifetime_value",
        schema={
            "customer_id": "long",
            "orders": "long",
            "revenue": "decimal(14,2)",
            "first_order": "timestamptz",
            "last_order": "timestamptz",
        },
        key=["customer_id"],
        write_mode="overwrite",
        checks=[row_count(at_least=1)],
    ),
    inputs={"orders": shop.orders},
    owners=["team:finance"],
)
def customer_lifetime_value(orders: DataFrame) -> DataFrame:
    """What each customer has bought so far. Computed whole each time; earlier values stay readable as snapshots."""
    return (
        orders.where("status <> 'cancelled'")
        .groupBy("customer_id")
        .agg(
            F.count("*").alias("orders"),
            F.sum("amount").alias("revenue"),
            F.min("ordered_at").alias("first_order"),
            F.max("ordered_at").alias("last_order"),
        )
    )


@iceberg_table(
    TableSpec(
        "marts.sessions",
        schema={
            "customer_id": "long",
            "started_at": "timestamptz",
            "ended_at": "timestamptz",
            "clicks": "long",
            "checked_out": "boolean",
        },
        partition_by=["day(started_at)"],
        key=["customer_id", "started_at"],
        write_mode="overwrite_partitions",
        checks=[not_null("started_at"), in_range("clicks", low=1)],
    ),
    inputs={"events": shop.events},
    partitions_def=DAYS,
    owners=["team:web"],
)
def sessions(events: DataFrame) -> DataFrame:
    """Clicks of one customer with no pause of half an hour between them."""
    ordered = Window.partitionBy("customer_id").orderBy("occurred_at", "event_id")
    pause = F.col("occurred_at").cast("long") - F.lag("occurred_at").over(ordered).cast("long")
    number = F.sum(F.when(pause > SESSION_GAP, 1).otherwise(0)).over(ordered)
    return (
        events.withColumn("session", number)
        .groupBy("customer_id", "session")
        .agg(
            F.min("occurred_at").alias("started_at"),
            F.max("occurred_at").alias("ended_at"),
            F.count("*").alias("clicks"),
            F.bool_or(F.col("page") == "checkout").alias("checked_out"),
        )
        .drop("session")
    )


@iceberg_table(
    TableSpec(
        "marts.revenue_forecast",
        schema={"day": "date", "country": "string", "revenue": "decimal(14,2)"},
        key=["day", "country"],
        write_mode="delete_insert",
        delete_where="day >= current_date()",
    ),
    inputs={"revenue": daily_revenue},
    owners=["team:finance"],
)
def revenue_forecast(revenue: DataFrame) -> DataFrame:
    """The week ahead, as the mean of the past. Days to come are replaced; days past stay, to be compared with the truth."""
    per_country = revenue.groupBy("country").agg(F.avg("revenue").alias("revenue"))
    days = F.sequence(F.current_date(), F.date_add(F.current_date(), 6))
    return per_country.select(F.explode(days).alias("day"), "country", "revenue")


@iceberg_table(
    TableSpec(
        "marts.kpi_log",
        schema={"measured_at": "timestamptz", "customers": "long", "orders": "long", "revenue": "decimal(16,2)"},
        write_mode="append",
        checks=[row_count(at_least=1)],
    ),
    inputs={"orders": shop.orders, "customers": shop.customers},
    owners=["team:finance"],
)
def kpi_log(orders: DataFrame, customers: DataFrame) -> DataFrame:
    """One row a run: the figures as they were seen at that moment."""
    figures = orders.agg(F.count("*").alias("orders"), F.sum("amount").alias("revenue"))
    known = customers.agg(F.count("*").alias("customers"))
    return figures.crossJoin(known).withColumn("measured_at", F.current_timestamp())
