"""``iceberg-manager`` as people wait for it: whole processes, on a table of a million rows. Seconds, median of 5."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iceberg_manager import generate
from iceberg_manager.manager import IcebergManager

ROWS = 1_000_000
RUNS = 5


@dataclass(frozen=True)
class Case:
    """One command. Each run has its own number, since a table or a column can be made once only."""

    what: str
    goal: float
    arguments: Sequence[str]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        cases = _prepare(home)
        print(f"| {ROWS:,} rows | seconds | CPU seconds | goal |\n|---|---:|---:|---:|")
        for case in cases:
            runs = [_run(home / "lake", [part.format(run=run) for part in case.arguments]) for run in range(RUNS)]
            wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"| {case.what} | {wall:.2f} | {cpu:.2f} | < {case.goal:g} |", flush=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"\nload average at the end: {load} on {os.cpu_count()} cores; on a busy machine the CPU seconds tell more")


def _prepare(home: Path) -> list[Case]:
    import pyarrow.csv

    (home / "schema.json").write_text('{"columns": {"id": "long", "name": "string"}, "required": ["id"]}')
    generate.write_parquet_batch(home / "users.parquet", ROWS)
    manager = IcebergManager(home / "lake")
    made = generate.rows("users", ROWS)
    manager.create_table("users", made.schema)
    manager.insert_data("users", made)
    then = manager.get_current_snapshot("users").id
    manager.delete_data("users", "id < 1000")
    pyarrow.csv.write_csv(manager.query_table("users").arrow(), home / "users.csv")
    query = ["query", "users", "--where", "id < 500", "--limit", "10", "--snapshot", str(then)]
    return [
        Case("--help", 0.3, ["--help"]),
        Case("create", 1, ["create", "made_{run}", "--schema", str(home / "schema.json")]),
        Case("add-column", 1, ["add-column", "users", "column_{run}", "string"]),
        Case("query a past snapshot", 2, query),
        Case("insert a Parquet file", 10, ["insert", "users", "--data", str(home / "users.parquet")]),
        Case("insert a CSV file", 10, ["insert", "users", "--data", str(home / "users.csv")]),
    ]


def _run(lake: Path, arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    program = Path(sys.executable).with_name("iceberg-manager")
    started, before = time.monotonic(), os.times()
    done = subprocess.run(
        [program, *arguments], env=os.environ | {"ICEBERG_LAKE": str(lake)}, capture_output=True, text=True, check=False
    )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return time.monotonic() - started, cpu


if __name__ == "__main__":
    main()
