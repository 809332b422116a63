"""Reading 1M rows, now and at an old snapshot, against DuckDB's ``read_parquet`` of the same files in the same process; and
what ``diff`` and ``explain`` cost as a table grows by 10 and by 100 while the difference and the selection stay the same."""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from iceberg_manager import generate
from iceberg_manager.catalog import open_catalog
from iceberg_manager.diff import diff
from iceberg_manager.explain import explain
from iceberg_manager.query import connect, query_table
from iceberg_manager.settings import LakeSettings
from iceberg_manager.sql import SqlEngine
from iceberg_manager.time_travel import resolve

ROWS, FILES, RUNS = 1_000_000, 8, 9
GROWN = (10, 100, 1000)
PER_COMMIT = 10


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = LakeSettings(root=Path(folder))
        catalog = open_catalog(settings)
        catalog.create_namespace("default")
        with connect(settings) as duck:
            _reads(settings, catalog, duck)
            _growth(settings, catalog, duck)


def _reads(settings: LakeSettings, catalog: Catalog, duck: duckdb.DuckDBPyConnection) -> None:
    table = _users(settings, catalog)
    old = resolve(table)
    files = [task.file.file_path for task in table.scan().plan_files()]
    with table.update_schema() as update:
        update.rename_column("name", "full_name")
        update.add_column("note", StringType())
    table.append(generate.rows("users", 1_000, seed=9).read_all().rename_columns(table.schema().column_names[:-1]))
    engine = SqlEngine(settings)
    plain = f"FROM read_parquet({files})"
    where = "amount > 90 and country = 'DE'"
    print("| what | ours, ms | read_parquet, ms | ratio |\n|---|---|---|---|")
    for name, ours, peer in (
        ("all rows, old snapshot", lambda: query_table(duck, table, snapshot=old), f"SELECT * {plain}"),
        (
            "a selection, old snapshot",
            lambda: query_table(duck, table, where=where, snapshot=old),
            f"SELECT * {plain} WHERE {where}",
        ),
        (
            "two columns, old snapshot",
            lambda: query_table(duck, table, columns=["id", "amount"], snapshot=old),
            f"SELECT id, amount {plain}",
        ),
        (
            "sum by country, through sql",
            lambda: engine.run(
                catalog, f"SELECT country, sum(amount) FROM users AT (VERSION => {old.snapshot_id}) GROUP BY 1"
            ),
            f"SELECT country, sum(amount) {plain} GROUP BY 1",
        ),
    ):
        mine, theirs = _alternate(
            lambda ours=ours: ours().arrow(), lambda peer=peer: duck.execute(peer).to_arrow_table()
        )
        print(f"| {name} | {mine * 1e3:.0f} | {theirs * 1e3:.0f} | {mine / theirs:.2f} |", flush=True)


def _users(settings: LakeSettings, catalog: Catalog) -> Table:
    rows = generate.rows("users", ROWS, batch_rows=ROWS // FILES)
    table = catalog.create_table("default.users", rows.schema, location=f"{settings.warehouse_location}/default/users")
    for batch in rows:
        table.append(pa.Table.from_batches([batch]))
    return table


def _growth(settings: LakeSettings, catalog: Catalog, duck: duckdb.DuckDBPyConnection) -> None:
    print("\n| files in the table | diff of one file, ms | explain of one file, ms |\n|---|---|---|")
    for files in GROWN:
        table = _parts(settings, catalog, files)
        old, new = (entry.snapshot_id for entry in table.history()[-2:])
        differing = _median(lambda table=table, old=old, new=new: diff(duck, table, old, new, key=["id"]))
        planning = _median(lambda table=table: explain(table, "part = 5"))
        print(f"| {files:,} | {differing * 1e3:.1f} | {planning * 1e3:.1f} |", flush=True)


def _parts(settings: LakeSettings, catalog: Catalog, files: int) -> Table:
    """One file per partition, ten to a manifest, and a last commit of one file."""
    schema = Schema(NestedField(1, "id", LongType(), False), NestedField(2, "part", IntegerType(), False))
    table = catalog.create_table(
        f"default.parts{files}",
        schema,
        location=f"{settings.warehouse_location}/default/parts{files}",
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part")),
    )
    for start in range(0, files, PER_COMMIT):
        numbers = list(range(start, start + PER_COMMIT))
        table.append(pa.table({"id": numbers, "part": pa.array(numbers, pa.int32())}))
    table.append(pa.table({"id": range(10**6, 10**6 + 1000), "part": pa.array([5] * 1000, pa.int32())}))
    return table


def _alternate(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Medians of runs that take turns, so that whatever else the machine does hits both."""
    pairs = [(_seconds(ours), _seconds(peer)) for _ in range(RUNS + 1)][1:]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _median(work: Callable[[], object]) -> float:
    return statistics.median([_seconds(work) for _ in range(RUNS + 1)][1:])


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
