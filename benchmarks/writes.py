"""How fast writes without a JVM are, as ratios within one run: ``python -m benchmarks.writes [--rows N] [--quick]``.

Bare writes and appends alternate and their medians are compared; a change of a million rows runs once on each side.
PyIceberg's upsert gets a process of its own and a time limit: past it the figure is a "more than".
"""

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import And, GreaterThanOrEqual, LessThan

from iceberg_manager import metadata_commit
from iceberg_manager.arrow_files import arrow_schema
from iceberg_manager.arrow_writes import append, delete, expr, update, upsert
from iceberg_manager.catalog import open_catalog
from iceberg_manager.commits import Stamp
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.table_versions import load
from iceberg_manager.tables import ensure_table

LIMIT_SECONDS = 60
COLUMNS = {"id": "long", "name": "string", "country": "string", "amount": "double", "at": "timestamptz", "n": "int"}


class Bench:
    """A lake in a temporary folder, and the figures so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings = LakeSettings(root=folder)
        self.catalog: Catalog = open_catalog(self.settings)
        self.figures: dict[str, float | str] = {}

    def table(self, name: str, **properties: str) -> str:
        ensure_table(self.catalog, self.settings, TableSpec(name, COLUMNS, properties=properties))
        return f"default.{name}"

    def say(self, what: str, figure: float | str) -> None:
        self.figures[what] = round(figure, 3) if isinstance(figure, float) else figure
        print(f"{what:<64} {self.figures[what]}", flush=True)


def stamp() -> Stamp:
    return Stamp(uuid.uuid4().hex)


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def rows(count: int, first: int = 0) -> pa.Table:
    chance = np.random.default_rng(7)
    words = np.array([f"user name {number}" for number in range(50_000)])
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "name": words[chance.integers(0, len(words), count)],
            "country": np.array(["de", "us", "fr", "nl"])[chance.integers(0, 4, count)],
            "amount": chance.random(count) * 100,
            "at": pa.array(chance.integers(0, 2_592_000_000_000, count), pa.timestamp("us", tz="UTC")),
            "n": pa.array(chance.integers(0, 100, count), pa.int32()),
        }
    ).cast(arrow_schema(TableSpec("t", COLUMNS).iceberg_schema))


def appends(bench: Bench, count: int, repeats: int) -> None:
    data = rows(count)
    bare, ours = [], []
    for number in range(repeats):
        name = bench.table(f"append{number}")
        bare.append(seconds(lambda: pq.write_table(data, bench.folder / "bare.parquet", compression="zstd")))
        ours.append(seconds(lambda name=name: append(bench.catalog, name, data, stamp())))
    bench.say(f"bare Parquet write of {count} rows, s", statistics.median(bare))
    bench.say(f"append of {count} rows, s", statistics.median(ours))
    bench.say("append / bare write (at most 1.5)", statistics.median(ours) / statistics.median(bare))


def changes(bench: Bench, count: int, touched: int) -> None:
    low = count // 2
    data = rows(count)
    name, theirs, mine_to_cut, theirs_to_cut = (
        bench.table(each) for each in ("ours", "theirs", "delete_ours", "delete_theirs")
    )
    for each in (name, theirs, mine_to_cut, theirs_to_cut):
        append(bench.catalog, each, data, stamp())
    middle = And(GreaterThanOrEqual("id", low), LessThan("id", low + touched))
    pair(
        bench,
        f"update of {touched} of {count} rows",
        lambda: update(bench.catalog, name, {"n": expr("n + 1")}, stamp(), where=middle),
        lambda: pyiceberg_update(bench.catalog, theirs, middle),
    )
    pair(
        bench,
        f"delete of {touched} of {count} rows",
        lambda: delete(bench.catalog, mine_to_cut, middle, stamp()),
        lambda: bench.catalog.load_table(theirs_to_cut).delete(middle),
    )
    upserts(bench, count, touched, ["id"])
    upserts(bench, count, touched, ["id", "country"])


def pyiceberg_update(catalog: Catalog, name: str, condition: And) -> None:
    """PyIceberg has no update: read the rows, change them, overwrite them."""
    table = catalog.load_table(name)
    found = table.scan(row_filter=condition).to_arrow()
    new = pa.compute.add(found["n"], 1).cast(pa.int32())
    table.overwrite(found.set_column(found.schema.get_field_index("n"), found.schema.field("n"), new), condition)


def upserts(bench: Bench, count: int, touched: int, key: list[str]) -> None:
    """PyIceberg runs in a process of its own, which can be ended at the limit and may crash on many composite keys."""
    joined = "_".join(key)
    name, theirs = bench.table(f"upsert_ours_{joined}"), bench.table(f"upsert_theirs_{joined}")
    for each in (name, theirs):
        append(bench.catalog, each, rows(count), stamp())
    fresh, what = changed_rows(count, touched), f"upsert of {touched} of {count} rows by {' and '.join(key)}"
    ours = seconds(lambda: upsert(bench.catalog, name, fresh, key, stamp()))
    bench.say(f"{what}, s", ours)
    context = multiprocessing.get_context("spawn")
    result = context.Queue()
    process = context.Process(target=pyiceberg_upsert, args=(bench.folder, theirs, count, touched, key, result))
    process.start()
    process.join(LIMIT_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        bench.say(f"{what} by PyIceberg, s", f"more than {LIMIT_SECONDS}")
    elif process.exitcode:
        bench.say(f"{what} by PyIceberg", f"crashed (exit code {process.exitcode})")
    else:
        other = result.get()
        bench.say(f"{what} by PyIceberg, s", other)
        bench.say(f"{what}: PyIceberg / ours", other / ours)


def changed_rows(count: int, touched: int) -> pa.Table:
    return rows(touched, count // 2).set_column(5, "n", pa.array([-1] * touched, pa.int32()))


def pyiceberg_upsert(folder: Path, name: str, count: int, touched: int, key: list[str], result: Any) -> None:
    table = open_catalog(LakeSettings(root=folder)).load_table(name)
    fresh = changed_rows(count, touched)
    result.put(seconds(lambda: table.upsert(fresh, join_cols=key)))


def pair(bench: Bench, what: str, ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    mine, other = seconds(ours), seconds(theirs)
    bench.say(f"{what}, s", mine)
    bench.say(f"{what} by PyIceberg, s", other)
    bench.say(f"{what}: PyIceberg / ours", other / mine)
    return mine, other


def small_files(bench: Bench, count: int) -> None:
    name, theirs = bench.table("many"), bench.table("many_theirs")
    for number in range(count):
        for each in (name, theirs):
            append(bench.catalog, each, rows(100, number * 100), stamp())
    odd = "n = 7"
    pair(
        bench,
        f"delete that touches {count} small files",
        lambda: delete(bench.catalog, name, odd, stamp()),
        lambda: bench.catalog.load_table(theirs).delete(odd),
    )


def commits(bench: Bench, sizes: list[int]) -> None:
    """Latency of a one-row append as history grows: alone, after another writer's commit, and in a new process."""
    name, row = bench.table("history"), rows(1)
    seen: dict[str, dict[int, float]] = {
        "alone": {},
        "by PyIceberg": {},
        "after another's commit": {},
        "new process": {},
    }

    def ours() -> object:
        return append(bench.catalog, name, row, stamp())

    for size in sizes:
        while len(load(bench.catalog, name).metadata.snapshots) < size - 5:
            ours()
        seen["alone"][size] = statistics.median(seconds(ours) for _ in range(11))
        for number in range(3):
            theirs = seconds(lambda: bench.catalog.load_table(name).append(row))
            after, new = seconds(ours), seconds(lambda: forgetful(ours))
            for what, took in (("by PyIceberg", theirs), ("after another's commit", after), ("new process", new)):
                seen[what][size] = min(took, seen[what].get(size, took)) if number else took
        for what, times in seen.items():
            bench.say(f"append of one row at {size} snapshots, {what}, ms", times[size] * 1000)
    for what, times in seen.items():
        bench.say(f"latency at {sizes[-1]} / at {sizes[0]} snapshots, {what}", times[sizes[-1]] / times[sizes[0]])


def forgetful(work: Callable[[], object]) -> None:
    metadata_commit.forget()
    work()


def main(arguments: list[str] | None = None) -> dict[str, float | str]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args(arguments)
    count = 20_000 if options.quick else options.rows
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        appends(bench, count, 2 if options.quick else 5)
        changes(bench, count, max(100, count // 100))
        small_files(bench, 10 if options.quick else 150)
        commits(bench, [10, 30] if options.quick else [10, 100, 1000])
    if options.json:
        options.json.write_text(json.dumps(bench.figures, indent=1))
    return bench.figures


if __name__ == "__main__":
    main()
