"""``make run``: builds the demo lake with the commands that a Dagster user would type, and shows what is in it.

The first time it loads a week of days as one backfill, then the newest day; later it exports and loads the newest day
again, with late orders and changed statuses. Everything Dagster prints goes to ``<lake>/run.log``.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

from pyiceberg.table import Table
from rich.console import Console
from rich.table import Table as Grid

from iceberg_assets.tables.exports import DAYS
from iceberg_manager import query
from iceberg_manager.catalog import list_tables, load_table, open_catalog
from iceberg_manager.errors import LakeError
from iceberg_manager.history import changes_rows, main_line, summary
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings, load_settings

WEEK = 7
SHOWN = "marts.daily_revenue"
_STEP = re.compile(r" - (\w+) - STEP_(SUCCESS|FAILURE) - ")


def main() -> int:
    console = Console(highlight=False)
    try:
        lake = load_settings()
        for arguments in _commands(lake):
            if not _materialize(arguments, lake, console):
                return 1
        _summary(lake, console)
    except LakeError as error:
        console.print(f"error: {error}", style="red", markup=False)
        return 1
    return 0


def _commands(lake: LakeSettings) -> list[list[str]]:
    """A backfill of the past days if the lake is new, and the newest day in any case."""
    days = DAYS.get_partition_keys()[-WEEK:]
    new = not any(table == TableName.parse(SHOWN) for table in list_tables(open_catalog(lake)))
    backfill = [["--partition-range", f"{days[0]}...{days[-2]}"]] if new and len(days) > 1 else []
    return [*backfill, ["--partition", days[-1]]]


def _materialize(arguments: list[str], lake: LakeSettings, console: Console) -> bool:
    """Run ``dagster asset materialize`` on everything, with a line for each table that is done."""
    command = ["dagster", "asset", "materialize", "-m", "iceberg_assets.definitions", "--select", "*", *arguments]
    console.print(f"[bold]$ {shlex.join(command)}", soft_wrap=True)
    environment = {"DAGSTER_HOME": str(Path.cwd() / ".dagster"), **os.environ, "PYTHONWARNINGS": "ignore"}
    log = lake.root / "run.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    started = last = time.monotonic()
    with log.open("a") as file, console.status("starting") as status:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        for line in process.stdout or ():
            file.write(line)
            if step := _STEP.search(line):
                now = time.monotonic()
                mark = "[green]ok[/]" if step[2] == "SUCCESS" else "[red]failed[/]"
                console.print(f"  {mark}  {step[1].replace('__', '.', 1):<32}{now - last:6.1f} s")
                last = now
                status.update("working")
        process.wait()
    if process.returncode:
        console.print(f"[red]It failed.[/] {_reason(log)}\nAll that Dagster said is in {log}.", markup=True)
    else:
        console.print(f"  [dim]{time.monotonic() - started:.0f} s in all[/]\n")
    return process.returncode == 0


def _reason(log: Path) -> str:
    said = [line for line in log.read_text().splitlines() if re.search(r"Failure:|Error: |Exception: ", line)]
    return said[-1].strip() if said else ""


def _summary(lake: LakeSettings, console: Console) -> None:
    catalog = open_catalog(lake)
    grid = Grid("table", "rows", "files", "newest snapshot", "of", box=None, header_style="bold", pad_edge=False)
    for column in (1, 2, 3, 4):
        grid.columns[column].justify = "right"
    for name in list_tables(catalog):
        table = load_table(catalog, name)
        snapshot = table.current_snapshot()
        said = summary(snapshot) if snapshot else {}
        grid.add_row(
            str(name),
            f"{int(said.get('total-records', 0)):,}",
            said.get("total-data-files", "0"),
            str(snapshot.snapshot_id) if snapshot else "none",
            str(len(table.metadata.snapshots)),
        )
    console.print(grid)
    _time_travel(lake, load_table(catalog, SHOWN), console)


def _time_travel(lake: LakeSettings, table: Table, console: Console) -> None:
    """The same question asked now and at the snapshot before."""
    now, *before = [snapshot for snapshot in main_line(table) if changes_rows(snapshot)]
    if not before:
        return
    question = "count(DISTINCT day), sum(orders), sum(revenue)"
    console.print(f"\nTime travel: what {SHOWN} says now, and what it said before its last change")
    connection = query.connect(lake)
    for when, snapshot in (("now", now), ("before", before[0])):
        found = connection.execute(f"SELECT {question} FROM {query.scan(table, snapshot.snapshot_id)}").fetchall()
        days, orders, revenue = found[0]
        console.print(f"  {when:<7}snapshot {snapshot.snapshot_id:<20}{days} days {orders:>7,} orders {revenue:>12,} €")


if __name__ == "__main__":
    sys.exit(main())
