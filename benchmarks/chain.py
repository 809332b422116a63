"""Six small tables, each from the one before, as plain PySpark: the same work for every way of running it."""

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

ROWS = 20_000


def orders(spark: SparkSession) -> DataFrame:
    ids = spark.range(ROWS)
    return ids.select(
        "id",
        (F.col("id") % 400).alias("customer"),
        (F.col("id") % 60).alias("product"),
        (F.hash("id") % 10_000 / 100).cast("double").alias("amount"),
        F.timestamp_seconds(F.lit(1_760_000_000) + F.col("id") * 30).alias("at"),
    )


def cleaned(orders: DataFrame) -> DataFrame:
    return orders.where("amount > 0")


def enriched(cleaned: DataFrame) -> DataFrame:
    return cleaned.withColumn("country", F.element_at(F.array(*map(F.lit, ("DE", "FR", "NL"))), _third("customer")))


def daily(enriched: DataFrame) -> DataFrame:
    return enriched.groupBy(F.to_date("at").alias("day"), "country").agg(
        F.count("*").alias("orders"), F.sum("amount").alias("revenue")
    )


def per_country(daily: DataFrame) -> DataFrame:
    return daily.groupBy("country").agg(F.sum("orders").alias("orders"), F.sum("revenue").alias("revenue"))


def ranking(per_country: DataFrame) -> DataFrame:
    return per_country.withColumn("place", F.expr("row_number() OVER (ORDER BY revenue DESC)"))


def _third(column: str) -> F.Column:
    return (F.col(column) % 3 + 1).cast("int")


STEPS: list[Callable[..., DataFrame]] = [orders, cleaned, enriched, daily, per_country, ranking]
SALE = {"id": "long", "customer": "long", "product": "long", "amount": "double", "at": "timestamptz"}
TOTALS = {"country": "string", "orders": "long", "revenue": "double"}
SCHEMAS = {
    "orders": SALE,
    "cleaned": SALE,
    "enriched": SALE | {"country": "string"},
    "daily": {"day": "date"} | TOTALS,
    "per_country": TOTALS,
    "ranking": TOTALS | {"place": "int"},
}
