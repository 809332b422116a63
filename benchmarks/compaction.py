"""Compaction of many small files: ours on a warm Spark, a plain ``spark-submit``, and pyarrow on the same bytes.

All in one run. Then what reading gains, what a tick over many tables costs of which few need work, and how it grows.
``python -m benchmarks.compaction [--files 2000] [--rows 2500] [--tables 200] [--quick]``
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from iceberg_manager import query, spark_server
from iceberg_manager.arrow_files import arrow_schema
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.maintenance.upkeep import Upkeep
from iceberg_manager.session import LakeSession, jar_conf, server_conf, session_conf
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

COLUMNS = {"id": "long", "name": "string", "amount": "double", "at": "timestamptz"}
READS = "SELECT count(*), sum(amount) FROM "


class Bench:
    """A lake in a temporary folder, and the figures so far."""

    def __init__(self, folder: Path) -> None:
        self.settings = LakeSettings(root=folder)
        self.catalog: Catalog = open_catalog(self.settings)
        self.figures: dict[str, float] = {}

    def say(self, what: str, figure: float) -> None:
        self.figures[what] = round(figure, 3)
        print(f"{what:<64} {figure:.2f}", flush=True)

    def table(self, name: str, files: int, rows: int) -> list[str]:
        """A table of so many files, added by one commit."""
        table = ensure_table(self.catalog, self.settings, TableSpec(name, COLUMNS))
        folder = Path(table.location()) / "data"
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for number in range(files):
            path = folder / f"{number:06}.parquet"
            pq.write_table(_rows(rows, number), path, compression="zstd")
            paths.append(str(path))
        table.add_files(paths, check_duplicate_files=False)
        return paths


def _rows(count: int, seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    data = {
        "id": np.arange(seed * count, (seed + 1) * count),
        "name": [f"name {value:x}" for value in chance.integers(0, 1 << 40, count)],
        "amount": chance.random(count),
        "at": pa.array(chance.integers(0, 2_592_000_000_000, count), pa.timestamp("us", tz="UTC")),
    }
    return pa.table(data).cast(arrow_schema(TableSpec("t", COLUMNS).iceberg_schema))


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def ours(bench: Bench, tables: list[str], everything: bool = False) -> None:
    with Upkeep(bench.settings, bench.catalog) as upkeep:
        done = list(upkeep.run(upkeep.plan(upkeep.tables([] if everything else tables), ["compact"]).actions))
    assert not any(one.error for one in done), done
    assert {one.table for one in done} == set(tables), done


def plain(bench: Bench, table: str) -> None:
    """What a user would type without us: a JVM of its own and the procedure's defaults."""
    settings = bench.settings
    script = bench.settings.root / "plain.py"
    script.write_text(
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        f"print(spark.sql(\"CALL {settings.catalog.name}.system.rewrite_data_files(table => '{table}')\").first())\n"
    )
    conf = {**server_conf(settings), **jar_conf(settings), **session_conf(settings)}
    conf.pop("spark.sql.shuffle.partitions", None)
    arguments = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    home = Path(sys.executable).parent
    command = [str(home / "spark-submit"), "--master", "local[*]", *arguments, str(script)]
    # What a Connect session leaves in this process's environment would make the plain one a Connect client too.
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=clean | {"PYSPARK_PYTHON": sys.executable}
    )
    if done.returncode:
        raise SystemExit(f"the plain spark-submit failed:\n{done.stderr[-2000:]}")


def floor(paths: list[str], target: Path) -> None:
    """The same bytes read and written, by as many threads as pyarrow takes."""
    pq.write_table(pq.read_table(paths), target, compression="zstd")


def compaction(bench: Bench, files: int, rows: int) -> None:
    names = ["bench.warm_up", "bench.ours", "bench.plain"]
    bench.table(names[0], 20, 100)
    paths = [bench.table(name, files, rows) for name in names[1:]]
    bench.say(f"MB in {files} files", sum(Path(path).stat().st_size for path in paths[0]) / 1e6)
    bare = seconds(lambda: floor(paths[0], bench.settings.root / "floor.parquet"))
    before = reading(bench, "bench.ours", "before")
    ours(bench, ["bench.warm_up"])
    mine = seconds(lambda: ours(bench, ["bench.ours"]))
    after = reading(bench, "bench.ours", "after")
    other = seconds(lambda: plain(bench, "bench.plain"))
    bench.say("pyarrow reads and writes the same bytes, s", bare)
    bench.say("ours, warm, s", mine)
    bench.say("plain spark-submit, s", other)
    bench.say("plain / ours (at least 3)", other / mine)
    bench.say("ours / pyarrow (at most 2.5)", mine / bare)
    for engine, took in before.items():
        bench.say(f"reading by {engine}: before / after", took / after[engine])


def reading(bench: Bench, name: str, when: str) -> dict[str, float]:
    table = load_table(bench.catalog, name)
    with query.connect(bench.settings) as duckdb, LakeSession(bench.settings) as session:
        session.spark.sql("SELECT 1").collect()
        found = {
            "DuckDB": seconds(lambda: duckdb.execute(READS + query.scan(table)).fetchall()),
            "Spark": seconds(lambda: session.spark.sql(f"{READS} {bench.settings.catalog.name}.{name}").collect()),
        }
    for engine, took in found.items():
        bench.say(f"reading by {engine} {when}, s", took)
    return found


def tick(bench: Bench, tables: int, files: int, rows: int) -> None:
    """A tick over many tables of which five need work, against those five alone."""
    needy = [f"tick.needy{number}" for number in range(10)]
    for name in needy:
        bench.table(name, files, rows)
    alone = seconds(lambda: ours(bench, needy[:5]))
    for number in range(tables - 5):
        bench.table(f"tick.fine{number}", 1, 10)
    among = seconds(lambda: ours(bench, needy[5:], everything=True))
    bench.say("five tables that need work, alone, s", alone)
    bench.say(f"the same among {tables} tables, s", among)
    bench.say("among all / alone (at most 1.2)", among / alone)


def growth(bench: Bench, sizes: list[int]) -> None:
    for files in sizes:
        bench.table(f"grow.f{files}", files, 100)
        bench.say(f"compaction of {files} files of 100 rows, s", seconds(lambda: ours(bench, [f"grow.f{files}"])))  # noqa: B023


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=2500)
    parser.add_argument("--tables", type=int, default=200)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    files, rows, tables = (40, 100, 10) if options.quick else (options.files, options.rows, options.tables)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            tick(bench, tables, min(files, 200), rows)
            compaction(bench, files, rows)
            growth(bench, [10, 40] if options.quick else [100, 1_000, 10_000])
        finally:
            spark_server.stop(bench.settings.spark_server_dir, force=True)
    if options.json:
        options.json.write_text(json.dumps(bench.figures, indent=1))


if __name__ == "__main__":
    main()
