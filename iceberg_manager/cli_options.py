"""The vocabulary of the command line: each option and argument once, so that it means the same in every command."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from iceberg_manager.manager import IcebergManager


class Form(StrEnum):
    """How results are printed; parquet goes to a file."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


class OnError(StrEnum):
    fail = "fail"
    skip = "skip"


class Engine(StrEnum):
    duckdb = "duckdb"
    spark = "spark"


def open_manager(lake: Path | None) -> "IcebergManager":
    """The lake that a command works on; imported here, so that --help does not wait for it."""
    from iceberg_manager.manager import IcebergManager

    return IcebergManager(lake)


def option(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, show_default=False)


Lake = Annotated[Path | None, option("--lake", text="A lake.yaml or a lake's folder.")]
Out = Annotated[Form, typer.Option("--output", "-o", help="How to print: parquet goes to FILE.")]
File = Annotated[Path | None, typer.Argument(help="Where the rows go, with --output.", show_default=False)]
Name = Annotated[str, typer.Argument(help="A table: users, or shop.orders.", show_default=False)]
Where = Annotated[str | None, option("--where", text="A condition, such as \"age > 30 and country = 'DE'\".")]
Data = Annotated[str, option("--data", text="csv, json, jsonl, parquet or arrow; - is standard input.")]
Format = Annotated[str | None, option("--format", text="What standard input holds: csv, jsonl, …")]
Skip = Annotated[OnError, typer.Option("--on-error", help="What a broken line of a text file does.")]
Snapshot = Annotated[int | None, option("--snapshot", text="A snapshot's id.")]
Timestamp = Annotated[str | None, option("--timestamp", text='As it was then: "2024-01-01 10:00:00", UTC.')]
Tag = Annotated[str | None, option("--tag", text="As a tag has it.")]
Branch = Annotated[str | None, option("--branch", text="As a branch has it.")]
Run = Annotated[str | None, option("--run", text="As a Dagster run left it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Key = Annotated[list[str], option("--key", text="Columns that make a row unique.")]
Remove = Annotated[bool, typer.Option("--drop", help="Remove it instead.")]
KeepDays = Annotated[float, typer.Option("--keep-days", help="How long it is kept; 0 is for ever.")]
Schema = Annotated[Path | None, option("--schema", text="Iceberg's schema JSON or the short form.")]
Like = Annotated[Path | None, option("--from", text="Take the columns of this file.")]
PartitionBy = Annotated[list[str], option("--partition-by", text="day(ts), bucket(16, id) …")]
SortBy = Annotated[list[str], option("--sort-by", text="A column, with or without desc.")]
Namespace = Annotated[str | None, typer.Argument(help="Only this namespace.", show_default=False)]
Purge = Annotated[bool, typer.Option("--purge", help="Delete its files too.")]
Assignments = Annotated[list[str], option("--set", text="column=expression, such as age=age+1.")]
AllRows = Annotated[bool, typer.Option("--all", help="Every row, without --where.")]
Which = Annotated[str, option("--where", text="Which rows.")]
Kind = Annotated[str, typer.Argument(help="What to make: users.")]
Rows = Annotated[int, typer.Option("--rows", min=1)]
Seed = Annotated[int, typer.Option("--seed")]
ToFile = Annotated[Path | None, option("--to", text="A Parquet file.")]
IntoTable = Annotated[str | None, option("--into", text="A table, created if it is not there.")]
Select = Annotated[list[str], option("--select", text="Columns, with commas or repeated.")]
Limit = Annotated[int | None, option("--limit", text="At most so many rows.")]
Statement = Annotated[str, typer.Argument(help="One SELECT over the tables by name.", show_default=False)]
EngineChoice = Annotated[Engine, typer.Option("--engine")]
Partition = Annotated[str | None, option("--partition", text="Such as ts_day=2026-01-01.")]
Start = Annotated[int, option("--from", text="The snapshot to start from.")]
End = Annotated[int | None, option("--to", text="The snapshot to get to; the newest by default.")]
Examples = Annotated[int, typer.Option("--limit", help="At most so many rows of each kind.")]
Target = Annotated[int, option("--snapshot", text="The snapshot to go back to.")]
Days = Annotated[float, typer.Option("--days", help="Older than this.")]
Keep = Annotated[int | None, option("--keep", text="Keep at least so many; the table says by default.")]
Force = Annotated[bool, typer.Option("--force", help="Even while a run uses it.")]
