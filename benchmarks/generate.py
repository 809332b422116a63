"""Made-up rows into a Parquet file, against DuckDB making rows of the same shape, and against a bare numpy and Arrow write
of number columns alone. Rows a second, and the time of the processor per row, which a busy machine changes less."""

import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from iceberg_manager import generate

ROWS, RUNS = 3_000_000, 5
DUCKDB = """
CREATE MACRO dice(number, salt, sides) AS (hash(number, salt) % sides)::BIGINT;
COPY (
  SELECT
    range + 1 AS id,
    first[1 + dice(range, 1, 50)] || ' ' || last[1 + dice(range, 2, 50)] AS name,
    lower(first[1 + dice(range, 1, 50)]) || '.' || lower(last[1 + dice(range, 2, 50)]) || '.' || (range + 1)
      || domain[1 + dice(range, 3, 5)] AS email,
    country[1 + (25 * pow((dice(range, 4, 1000)) / 1000, 3))::INTEGER] AS country,
    make_timestamptz(1577836800000000 + range * 1000000 + dice(range, 5, 3600000000)) AS created_at,
    ((dice(range, 6, 1000000)) / 100)::DECIMAL(12, 2) AS amount,
    '{"plan":"' || plan[1 + dice(range, 7, 4)] || '","visits":' || dice(range, 8, 4096) || '}' AS payload
  FROM range($rows), (SELECT $first AS first, $last AS last, $domain AS domain, $country AS country, $plan AS plan)
) TO '$file' (FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE 524288)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        ways: dict[str, Callable[[], object]] = {
            "ours": lambda: generate.write_parquet_batch(path, ROWS),
            "DuckDB's range() and expressions, COPY": lambda: _duckdb(path),
            "numpy and Arrow, numbers only": lambda: _numbers(path),
        }
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(RUNS):
            for name, way in ways.items():
                measured[name].append(_cost(way))
    ours = statistics.median(wall for wall, _ in measured["ours"])
    print("| way | M rows/s, median | best | processor, ns per row | time against ours |\n|---|---|---|---|---|")
    for name, costs in measured.items():
        wall, best = statistics.median(cost[0] for cost in costs), min(cost[0] for cost in costs)
        spent = statistics.median(cost[1] for cost in costs) / ROWS * 1e9
        print(f"| {name} | {ROWS / wall / 1e6:.2f} | {ROWS / best / 1e6:.2f} | {spent:.0f} | {wall / ours:.2f} |")


def _cost(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock, and of all processors together."""
    before, started = _processor(), time.perf_counter()
    work()
    return time.perf_counter() - started, _processor() - before


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _duckdb(path: Path) -> None:
    words = {
        "$first": generate._FIRST.split(),
        "$last": generate._LAST.split(),
        "$domain": [f"@{domain}" for domain in generate._DOMAINS],
        "$country": generate._COUNTRIES.split(),
        "$plan": ["free", "basic", "pro", "team"],
    }
    statement = DUCKDB.replace("$rows", str(ROWS)).replace("$file", str(path))
    for name, listed in words.items():
        statement = statement.replace(name, str(listed))
    with duckdb.connect() as connection:
        connection.execute(statement)


def _numbers(path: Path) -> None:
    """The floor: the three number columns alone, made at once and written."""
    dice = np.random.default_rng(0)
    columns = {
        "id": np.arange(ROWS),
        "created_at": pa.array(dice.integers(0, 10**15, ROWS)).cast(pa.timestamp("us", "UTC")),
        "amount": dice.lognormal(3, 1, ROWS),
    }
    pq.write_table(pa.table(columns), path, use_dictionary=False, compression="snappy")


if __name__ == "__main__":
    main()
