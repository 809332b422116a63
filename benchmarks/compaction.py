"""Compaction of 2,000 small files: ours on a warm Spark, against a process of its own that calls the procedure with its
defaults, and against the floor of reading and writing the same bytes with pyarrow; what reading gains; and how it grows.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from iceberg_manager import query, spark_server
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.java import find_java
from iceberg_manager.maintenance.runner import Runner, size
from iceberg_manager.session import LakeSession, jar_conf, session_conf
from iceberg_manager.settings import LakeSettings, load_settings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

COLUMNS = {"id": "long", "name": "string", "amount": "double", "at": "timestamptz"}
FILES, ROWS, WARM_UP, TURNS = 2_000, 2_000, 3, 3
GROWTH = (100, 1_000, 10_000)
EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--files", type=int, default=FILES)
    given.add_argument("--plain", metavar="LAKE")
    options = given.parse_args()
    if options.plain:
        _plain_job(load_settings(options.plain))
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = LakeSettings(root=Path(folder) / "lake")
        try:
            with LakeSession(settings) as session:
                _compare(settings, session.spark, options.files)
                _grow(settings, session.spark)
        finally:
            spark_server.stop(settings.spark_server_dir, force=True)


def _compare(settings: LakeSettings, spark: SparkSession, files: int) -> None:
    catalog = open_catalog(settings)
    fill(catalog, settings, "bench.small", files, ROWS)
    scattered = load_table(catalog, "bench.small")
    start = scattered.metadata.current_snapshot_id
    assert start is not None
    before = _reads(settings, spark, catalog)
    floor = statistics.median(_time(lambda: _rewrite_with_pyarrow(catalog, settings)) for _ in range(TURNS))

    def once() -> float:
        seconds = _time(lambda: Runner(spark, catalog).compact("bench.small"))
        assert size(load_table(catalog, "bench.small")).files < files / 10
        return seconds

    times = []
    for _ in range(WARM_UP + TURNS):
        _back(catalog, start)
        times.append(once())
    ours, after = statistics.median(times[WARM_UP:]), _reads(settings, spark, catalog)
    _back(catalog, start)
    plain = _time(lambda: _spark_submit(settings))
    assert size(load_table(catalog, "bench.small")).files < files / 10
    megabytes = size(scattered).bytes / 1e6
    print(f"| {files:,} files, {megabytes:.0f} MB | seconds | against ours | goal |\n|---|---:|---:|---:|")
    print(f"| ours, warm, median of {TURNS} | {ours:.1f} | 1 | |")
    print(f"| ours, the first in a new server | {times[0]:.1f} | {times[0] / ours:.1f} | |")
    print(f"| plain `rewrite_data_files` in a new Spark, whole process | {plain:.1f} | {plain / ours:.1f} | 3 |")
    print(f"| floor: pyarrow reads and writes the same | {floor:.1f} | ours is {ours / floor:.1f} of it | 2.5 |")
    print("\n| reading all of it, ms | before | after | faster by |\n|---|---:|---:|---:|")
    for engine in before:
        was, now = before[engine] * 1000, after[engine] * 1000
        print(f"| {engine} | {was:.0f} | {now:.0f} | {was / now:.1f} times |", flush=True)


def _grow(settings: LakeSettings, spark: SparkSession) -> None:
    print("\n| files of 200 rows | seconds | ms a file |\n|---:|---:|---:|")
    catalog = open_catalog(settings)
    for files in GROWTH:
        fill(catalog, settings, f"bench.grown{files}", files, 200)
        seconds = _time(lambda name=f"bench.grown{files}": Runner(spark, catalog).compact(name))  # type: ignore[misc]
        print(f"| {files:,} | {seconds:.1f} | {1000 * seconds / files:.1f} |", flush=True)


def fill(catalog: Catalog, settings: LakeSettings, name: str, files: int, rows: int) -> None:
    """A table as a busy writer would leave it: many small files."""
    table = ensure_table(catalog, settings, TableSpec(name, COLUMNS))
    folder, random = Path(table.location()) / "data", np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(files):
        names = [f"name {one:012d}" for one in random.integers(0, 10**12, rows)]
        at = pa.array(random.integers(1_700_000_000_000_000, 1_800_000_000_000_000, rows), pa.timestamp("us", "UTC"))
        columns = {"id": np.arange(number * rows, (number + 1) * rows), "name": names, "amount": random.random(rows)}
        paths.append(str(folder / f"small-{number}.parquet"))
        pq.write_table(pa.table({**columns, "at": at}), paths[-1])
    table.add_files(paths)


def _rewrite_with_pyarrow(catalog: Catalog, settings: LakeSettings) -> None:
    """What any rewrite has to do at least, with both cores busy."""
    planned = load_table(catalog, "bench.small").scan().plan_files()
    paths, halves = [task.file.file_path for task in planned], os.cpu_count() or 2

    def go(part: int) -> None:
        read = pa.concat_tables([pq.read_table(path, use_threads=False) for path in paths[part::halves]])
        pq.write_table(read, settings.root / f"floor-{part}.parquet", compression="zstd")

    threads = [threading.Thread(target=go, args=(part,)) for part in range(halves)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _spark_submit(settings: LakeSettings) -> None:
    """A process of its own, as a cron job would start it."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "PYSPARK_"))}
    environment = kept | {"JAVA_HOME": str(find_java())}
    command = [sys.executable, "-m", "benchmarks.compaction", "--plain", str(settings.root)]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _plain_job(settings: LakeSettings) -> None:
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false")
    conf = jar_conf(settings) | session_conf(settings) | {"spark.sql.extensions": EXTENSIONS}
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sql(f"CALL {settings.catalog.name}.system.rewrite_data_files(table => 'bench.small')").collect()
    spark.stop()


def _reads(settings: LakeSettings, spark: SparkSession, catalog: Catalog) -> dict[str, float]:
    """The same sum in both engines; the better of three, so that caches are warm on both sides."""
    scan = query.scan(load_table(catalog, "bench.small"))
    with query.connect(settings) as duck:
        return {
            "DuckDB": min(
                _time(lambda: duck.execute(f"SELECT sum(amount), max(name) FROM {scan}").fetchall()) for _ in range(3)
            ),
            "Spark": min(
                _time(lambda: spark.sql("SELECT sum(amount), max(name) FROM bench.small").collect()) for _ in range(3)
            ),
        }


def _back(catalog: Catalog, snapshot: int) -> None:
    with load_table(catalog, "bench.small").manage_snapshots() as manage:
        manage.set_current_snapshot(snapshot)


def _time(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
