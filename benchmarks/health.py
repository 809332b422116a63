"""The health of many small tables and of one large one, from metadata alone, and how time and memory grow with the files.

Manifests are written directly and name data files that do not exist: nothing but metadata is read. Each measurement of a
large table is a process of its own, so that its peak of memory is its own too.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, ManifestEntryStatus, write_manifest
from pyiceberg.manifest import write_manifest_list as write_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record
from pyiceberg.types import LongType

from iceberg_manager.catalog import list_tables, load_table, open_catalog
from iceberg_manager.maintenance.health import health
from iceberg_manager.maintenance.planner import Situation, plan
from iceberg_manager.maintenance.statistics import TableStatistics, collect, survey
from iceberg_manager.query import connect
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table

COLUMNS = {"id": "long", "day": "date", "a": "double", "b": "string", "c": "long"}
GROWN = (1_000, 10_000, 100_000)
RUNS = 3


def main() -> None:
    given = argparse.ArgumentParser()
    given.add_argument("--tables", type=int, default=1_000)
    given.add_argument("--measure", nargs=2, metavar=("ROOT", "TABLE"))
    options = given.parse_args()
    if options.measure:
        _measure(Path(options.measure[0]), options.measure[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        _many(Path(folder) / "many", options.tables)
        _large(Path(folder) / "large")


def _many(root: Path, tables: int) -> None:
    print(
        "| tables of 100 files | manifests | seconds, median | of the processor | goal | peak, MB |\n"
        + "|---" * 6
        + "|"
    )
    sorted_days = {"partition_by": ["day(day)"], "sort_by": ["id"]}
    for shape, count, manifests, layout in (
        ("plain: the summary settles it", tables, 10, {}),
        ("by day and sorted", tables, 10, sorted_days),
        ("by day and sorted, a manifest for each file", tables // 10, 100, sorted_days),
    ):
        settings = LakeSettings(root=root)
        catalog = open_catalog(settings)
        for number in range(count):
            fill(catalog, settings, TableSpec(f"bench.t{number}", COLUMNS, **layout), 100, manifests)  # type: ignore[arg-type]
        times = [_survey(settings) for _ in range(RUNS)]
        wall, spent = (statistics.median(run[place] for run in times) for place in (0, 1))
        figures = f"{wall:.1f} | {spent:.1f} | {30 * count / tables:.0f} | {_peak():.0f}"
        print(f"| {count:,} {shape} | {manifests} | {figures} |", flush=True)
        shutil.rmtree(root)


def _survey(settings: LakeSettings) -> tuple[float, float]:
    started, spent = time.perf_counter(), time.process_time()
    catalog, policy, now = open_catalog(settings), MaintenancePolicy(), datetime.now(UTC)
    found = list(survey(catalog, settings, list_tables(catalog)))
    good = [one for one in found if isinstance(one, TableStatistics)]
    assert len(good) == len(found)
    assert all(health(one, policy).score < 100 for one in good)
    assert plan([Situation(one, policy) for one in good], now).actions
    return time.perf_counter() - started, time.process_time() - spent


def _large(root: Path) -> None:
    settings = LakeSettings(root=root)
    catalog = open_catalog(settings)
    print(
        "\n| files of one table, by day and sorted | manifests | seconds, median | peak memory, MB |\n|---|---|---|---|"
    )
    fill(catalog, settings, TableSpec("bench.empty", COLUMNS), 10, 1)
    tables = {"empty": (10, 1)} | {f"t{files}": (files, files // 100) for files in GROWN}
    for name, (files, manifests) in tables.items():
        spec = TableSpec(f"bench.{name}", COLUMNS, partition_by=["day(day)"], sort_by=["id"])
        if name != "empty":
            fill(catalog, settings, spec, files, manifests)
        command = [sys.executable, "-m", "benchmarks.health", "--measure", str(root), spec.name]
        runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(RUNS)]
        seconds, peak = (statistics.median(float(run[place]) for run in runs) for place in (0, 1))
        print(f"| {files:,} | {manifests:,} | {seconds:.2f} | {peak:.0f} |", flush=True)


def _measure(root: Path, name: str) -> None:
    settings, policy = LakeSettings(root=root), MaintenancePolicy()
    started = time.perf_counter()
    with connect(settings) as duck:
        health(collect(load_table(open_catalog(settings), name), policy, duck), policy)
    print(time.perf_counter() - started, _peak())


def _peak() -> float:
    """In MB. What getrusage says of a new process begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def fill(catalog: Catalog, settings: LakeSettings, spec: TableSpec, files: int, manifests: int) -> Table:
    """One snapshot that names as many files of 1 MB as asked for, spread over 30 days."""
    table = ensure_table(catalog, settings, spec)
    snapshot = uuid.uuid4().int >> 66
    folder = f"{table.location()}/metadata/{uuid.uuid4()}"
    written, each = [], files // manifests
    for number in range(manifests):
        output = table.io.new_output(f"{folder}-m{number}.avro")
        with write_manifest(2, table.spec(), table.schema(), output, snapshot, "deflate") as writer:
            for place in range(number * each, (number + 1) * each):
                writer.add_entry(_entry(table, place, snapshot))
        written.append(writer.to_manifest_file())
    listing = f"{folder}-list.avro"
    with write_list(2, table.io.new_output(listing), snapshot, None, 1, "deflate") as writer:
        writer.add_manifests(written)
    totals = {"total-data-files": files, "total-files-size": files * 1_000_000, "total-records": files * 1000}
    made = Snapshot(
        snapshot_id=snapshot, parent_snapshot_id=None, sequence_number=1, timestamp_ms=int(time.time() * 1000),
        manifest_list=listing, schema_id=table.schema().schema_id,
        summary=Summary(Operation.APPEND, **{key: str(value) for key, value in totals.items()}),
    )  # fmt: skip
    ref = SetSnapshotRefUpdate(ref_name="main", type="branch", snapshot_id=snapshot)
    catalog.commit_table(table, (), (AddSnapshotUpdate(snapshot=made), ref))
    return table


def _entry(table: Table, place: int, snapshot: int) -> ManifestEntry:
    low, high = to_bytes(LongType(), place * 10), to_bytes(LongType(), place * 10 + 15)
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{uuid.uuid4()}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*([20_000 + place % 30] * len(table.spec().fields))),
        record_count=1000,
        file_size_in_bytes=1_000_000,
        column_sizes=dict.fromkeys(range(1, 6), 200000),
        value_counts=dict.fromkeys(range(1, 6), 1000),
        null_value_counts=dict.fromkeys(range(1, 6), 0),
        lower_bounds={1: low, 5: low},
        upper_bounds={1: high, 5: high},
    )
    return ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot, data_file=file)


if __name__ == "__main__":
    main()
