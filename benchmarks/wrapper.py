"""An append of 1M rows in a warm session: the whole of what a table asset does, against a bare ``writeTo().append()``."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from iceberg_manager import query, spark_server
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.checks import evaluate, row_count
from iceberg_manager.commits import Stamp
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spark_writes import SparkWriter
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import declared_differences, ensure_table

ROWS, TURNS = 1_000_000, 7
SCHEMA = {"id": "long", "customer": "long", "amount": "double", "note": "string", "at": "timestamptz"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = LakeSettings(root=Path(folder))
        try:
            with LakeSession(settings) as session:
                _measure(settings, session.spark)
        finally:
            spark_server.stop(settings.spark_server_dir, force=True)


def _measure(settings: LakeSettings, spark: SparkSession) -> None:
    catalog, connection = open_catalog(settings), query.connect(settings)
    ours, bare = TableSpec("bench.ours", schema=SCHEMA), TableSpec("bench.bare", schema=SCHEMA)
    for spec in (ours, bare):
        ensure_table(catalog, settings, spec)
    turn = 0

    def through_us() -> None:
        nonlocal turn
        turn += 1
        ensure_table(catalog, settings, ours)
        result = SparkWriter(spark, catalog, ours).write(_rows(spark), Stamp(f"turn-{turn}"))
        table = load_table(catalog, ours.table)
        evaluate(connection, query.scan(table, result.snapshot_id), [row_count()])
        declared_differences(table, ours)

    def bare_append() -> None:
        _rows(spark).writeTo("lake.bench.bare").append()

    times: dict[str, list[float]] = {"bare": [], "ours": []}
    for _ in range(TURNS + 2):  # the first two warm the server up
        times["bare"].append(_time(bare_append))
        times["ours"].append(_time(through_us))
    floor, us = (statistics.median(times[name][2:]) for name in ("bare", "ours"))
    print(f"| append of {ROWS:,} rows, median of {TURNS} | seconds | ratio |\n|---|---:|---:|")
    print(f"| bare `df.writeTo(…).append()` | {floor:.2f} | 1 |")
    print(f"| through us: ensure table, stamp, write, find, check | {us:.2f} | {us / floor:.2f} (goal 1.15) |")


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).select(
        "id",
        (F.col("id") % 1000).alias("customer"),
        F.rand(1).alias("amount"),
        F.sha1(F.col("id").cast("string")).alias("note"),
        F.timestamp_seconds(F.lit(1_760_000_000) + F.col("id")).alias("at"),
    )


def _time(work: Callable[[], None]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    main()
