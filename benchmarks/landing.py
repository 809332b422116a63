"""Landing: Parquet files taken in by us against a bare Spark job and plain ``add_files``; ticks; from drop to queryable.

``python -m benchmarks.landing --files 50`` for a small run.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog

from iceberg_manager import query, spark_server
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.landing.passes import Landing
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings, SparkSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table
from sensors.landing import INTERVAL_SECONDS

SCHEMA = {"id": "long", "amount": "double", "note": "string"}
POLICY = LandingPolicy(completeness="rename", max_files=10_000, max_mb=100_000)
ROWS = 72_000  # about 1 MB


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--files", type=int, default=1000)
    options.add_argument("--handled", type=int, nargs="*", default=[0, 1_000, 100_000])
    options.add_argument("--drops", type=int, default=20)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = LakeSettings(root=Path(folder) / "lake", spark=SparkSettings(memory="2g"))
        bench = Bench(settings, open_catalog(settings), Path(folder) / "files")
        bench.make(chosen.files)
        try:
            with LakeSession(settings) as session:
                bench.copy(session)
                bench.register()
                bench.ticks(chosen.handled)
                bench.drops(session, chosen.drops)
        finally:
            spark_server.stop(settings.spark_server_dir, force=True)


class Bench:
    def __init__(self, settings: LakeSettings, catalog: Catalog, source: Path) -> None:
        self.settings, self.catalog, self.source = settings, catalog, source

    def make(self, files: int) -> None:
        """Random rows, so that they do not compress to nothing."""
        self.source.mkdir(parents=True)
        dice = np.random.default_rng(7)
        for number in range(files):
            note = pa.array(dice.integers(0, 10**6, ROWS)).cast(pa.string())
            rows = {"id": dice.integers(0, 2**40, ROWS), "amount": dice.random(ROWS).round(3), "note": note}
            pq.write_table(pa.table(rows), self.source / f"{number:05d}.parquet", compression="zstd")
        self.files = sorted(self.source.iterdir())
        self.mb = sum(path.stat().st_size for path in self.files) / 1024**2

    def landing(self, name: str, session: LakeSession | None = None, **policy: Any) -> Landing:
        spec = TableSpec(name, schema=SCHEMA, landing=replace(POLICY, **policy))
        ensure_table(self.catalog, self.settings, spec)
        assert spec.landing
        spark = (lambda: session.spark) if session else None
        landing = Landing(self.settings, self.catalog, spec.table, spec.landing, spec, spark)
        Path(landing.folder.address).mkdir(parents=True, exist_ok=True)
        return landing

    def fill(self, landing: Landing, prefix: str = "") -> None:
        """Hard links: dropping the files costs nothing."""
        for path in self.files:
            os.link(path, Path(landing.folder.address) / f"{prefix}{path.name}")

    def copy(self, session: LakeSession) -> None:
        for name in ("bare", "warm"):
            ensure_table(self.catalog, self.settings, TableSpec(f"bench.{name}", schema=SCHEMA))
        read = session.spark.read.parquet
        read(str(self.files[0])).writeTo("lake.bench.warm").append()
        bare = _time(lambda: read(*map(str, self.files)).writeTo("lake.bench.bare").append())
        landing = self.landing("bench.ours", session, engine="spark")
        self.fill(landing)
        took = _time(lambda: self._all(landing, "spark"))
        print(
            f"| {len(self.files)} files, {self.mb:,.0f} MB | seconds | files/s | MB/s | ratio |\n|---|---:|---:|---:|---:|"
        )
        self._line("bare Spark read and append, one job", bare, "1")
        self._line("landed by us through Spark", took, f"{took / bare:.2f} (goal 1.25)")
        landing = self.landing("bench.arrow", engine="arrow")
        self.fill(landing)
        took = _time(lambda: self._all(landing, "arrow"))
        self._line("landed by us without a JVM", took, f"{took / bare:.2f}")

    def register(self) -> None:
        plain = ensure_table(self.catalog, self.settings, TableSpec("bench.plain", schema=SCHEMA))
        bare = _time(lambda: plain.add_files([str(path) for path in self.files]))
        landing = self.landing("bench.registered", how="register")
        self.fill(landing)
        took = _time(lambda: self._all(landing, "register"))
        self._line("plain PyIceberg `add_files`", bare, "1")
        self._line("registered by us", took, f"{took / bare:.2f} (goal 1.5)")

    def _all(self, landing: Landing, engine: str) -> None:
        (report,) = landing.run()
        assert (report.files, report.engine) == (len(self.files), engine), report

    def _line(self, what: str, seconds: float, ratio: str) -> None:
        print(f"| {what} | {seconds:.1f} | {len(self.files) / seconds:,.0f} | {self.mb / seconds:,.0f} | {ratio} |")

    def ticks(self, handled: list[int]) -> None:
        print("\n| a tick with so many files handled before | ms |\n|---|---:|")
        landing = self.landing("bench.ticks")
        place = Path(landing.folder.address) / "_committed" / "batch"
        place.mkdir(parents=True)
        made = 0
        for count in handled:
            for number in range(made, count):
                (place / str(number)).touch()
            made = max(made, count)
            took = [_time(lambda: landing.plan(10, 20)) for _ in range(5)]
            print(f"| {count:,} | {1000 * statistics.median(took):.1f} |")

    def drops(self, session: LakeSession, count: int) -> None:
        """The pass after a drop is timed; the wait for a tick is spread evenly over the sensor's interval and added."""
        landing, took = self.landing("bench.drops", session, engine="spark"), []
        connection, dice = query.connect(self.settings), np.random.default_rng(1)
        for number in range(count):
            path = Path(landing.folder.address) / f"{number}.parquet"
            rows = {"id": [number], "amount": [0.5], "note": [str(number)]}
            pq.write_table(pa.table(rows), path.with_name(f".{number}"))
            path.with_name(f".{number}").rename(path)
            took.append(_time(lambda: _land_and_look(landing, connection, self.catalog)))
        waits = dice.uniform(0, INTERVAL_SECONDS, 10_000)
        whole = np.asarray(took)[dice.integers(0, count, 10_000)] + waits
        print("\n| from drop to queryable in DuckDB, warm Spark | p50 s | p95 s |\n|---|---:|---:|")
        print(f"| the pass alone | {np.percentile(took, 50):.2f} | {np.percentile(took, 95):.2f} |")
        p50, p95 = np.percentile(whole, 50), np.percentile(whole, 95)
        print(f"| with the wait for a tick every {INTERVAL_SECONDS} s (computed) | {p50:.2f} | {p95:.2f} |")


def _land_and_look(landing: Landing, connection: Any, catalog: Catalog) -> None:
    landing.run()
    connection.execute(f"SELECT count(*) FROM {query.scan(load_table(catalog, landing.table))}").fetchone()


def _time(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


if __name__ == "__main__":
    main()
