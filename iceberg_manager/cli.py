"""``iceberg-manager``: each command parses its arguments, makes one library call and prints the result.

Exit code 0 for success, 1 for an error that is explained in one sentence, 2 for wrong usage. No tracebacks. Heavy modules
are imported by the commands that need them, so that ``--help`` and completion answer at once.
"""

import logging
import os
import sys
from typing import Any

import typer

from iceberg_manager import cli_adoption, cli_landing, cli_maintenance, cli_migration
from iceberg_manager import cli_options as opt
from iceberg_manager.cli_options import DryRun, File, Form, Lake, Name, Out, Snapshot, Where, Yes, open_manager
from iceberg_manager.errors import LakeError, first_line
from iceberg_manager.output import confirm, say, show, show_created, show_written, working

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Look after an Apache Iceberg lake.")
spark_app = typer.Typer(no_args_is_help=True, help="The shared local Spark server.")
app.add_typer(spark_app, name="spark")
for more in (cli_maintenance, cli_landing, cli_adoption, cli_migration):
    app.add_typer(more.app)


def _source(data: str) -> Any:
    return sys.stdin.buffer if data == "-" else data


@app.command()
def create(
    table: Name, schema: opt.Schema = None, like: opt.Like = None, partition_by: opt.PartitionBy = [],
    sort_by: opt.SortBy = [], key: opt.Key = [], lake: Lake = None, output: Out = Form.table,
) -> None:  # fmt: skip
    """Create a table from a schema file, or like a data file."""
    if (schema is None) == (like is None):
        raise typer.BadParameter("give either --schema or --from")
    manager = open_manager(lake)
    columns = manager.infer_schema(like) if like else schema
    made = manager.create_table(table, columns, partition_by=partition_by, sort_by=sort_by, key=key)
    show_created(made, output)


@app.command()
def drop(table: Name, purge: opt.Purge = False, dry_run: DryRun = False, yes: Yes = False, lake: Lake = None) -> None:
    """Forget a table; its files stay unless --purge is said."""
    manager = open_manager(lake)
    found = manager.describe(table)
    what = f"{found.name} ({found.rows:,} rows, {found.snapshots} snapshots){' and all its files' if purge else ''}"
    if dry_run:
        typer.echo(f"would drop {what}")
        return
    confirm(f"Drop {what}?", yes)
    manager.drop_table(table, purge)
    typer.echo(f"dropped {what}" + ("" if purge else f"; its files are still in {found.location}"))


@app.command("list")
def list_tables(namespace: opt.Namespace = None, lake: Lake = None, output: Out = Form.table) -> None:
    """The tables, with their rows and snapshots."""
    show(open_manager(lake).table_overview(namespace), output)


@app.command()
def describe(table: Name, lake: Lake = None, output: Out = Form.table) -> None:
    """Columns, layout, size, branches and properties of a table."""
    show(open_manager(lake).describe(table), output)


@app.command()
def insert(
    table: Name, data: opt.Data, form: opt.Format = None, on_error: opt.Skip = opt.OnError.fail, lake: Lake = None,
    output: Out = Form.table,
) -> None:  # fmt: skip
    """Add the rows of a file."""
    with working(f"inserting into {table}"):
        done = open_manager(lake).insert_data(table, _source(data), on_error.value, form)
    show_written(done, f"insert into {table}", output)


@app.command()
def update(
    table: Name, assignments: opt.Assignments, where: Where = None, all_rows: opt.AllRows = False, lake: Lake = None,
    output: Out = Form.table,
) -> None:  # fmt: skip
    """Change rows that match a condition."""
    if (where is None) != all_rows:
        raise typer.BadParameter("give either --where or --all")
    show_written(open_manager(lake).update_expressions(table, assignments, where), f"update {table}", output)


@app.command()
def delete(table: Name, where: opt.Which, lake: Lake = None, output: Out = Form.table) -> None:
    """Delete the rows that match a condition. Earlier snapshots still have them."""
    show_written(open_manager(lake).delete_data(table, where), f"delete from {table}", output)


@app.command()
def upsert(
    table: Name, data: opt.Data, key: opt.Key, form: opt.Format = None, on_error: opt.Skip = opt.OnError.fail,
    lake: Lake = None, output: Out = Form.table,
) -> None:  # fmt: skip
    """Insert new rows and update those whose key is there."""
    with working(f"upserting into {table}"):
        done = open_manager(lake).upsert_data(table, _source(data), key, on_error.value, form)
    show_written(done, f"upsert into {table}", output)


@app.command()
def generate(
    kind: opt.Kind = "users", rows: opt.Rows = 1_000_000, seed: opt.Seed = 0, to: opt.ToFile = None,
    into: opt.IntoTable = None, lake: Lake = None,
) -> None:  # fmt: skip
    """Make realistic rows, the same for the same seed."""
    if (to is None) == (into is None):
        raise typer.BadParameter("give either --to or --into")
    with working(f"making {rows:,} {kind}"):
        made = open_manager(lake).generate(kind, rows, seed, to, into)
    typer.echo(made)


@app.command()
def query(
    table: Name, file: File = None, where: Where = None, select: opt.Select = [], limit: opt.Limit = None,
    snapshot: Snapshot = None, timestamp: opt.Timestamp = None, tag: opt.Tag = None, branch: opt.Branch = None,
    run: opt.Run = None, lake: Lake = None, output: Out = Form.table,
) -> None:  # fmt: skip
    """Rows of a table, now or at any time it remembers."""
    columns = [name.strip() for part in select for name in part.split(",")] or None
    at = {"snapshot": snapshot, "timestamp": timestamp, "tag": tag, "branch": branch, "run": run}
    show(open_manager(lake).query_table(table, where, columns, limit, **at), output, file)


@app.command()
def sql(
    statement: opt.Statement, file: File = None, engine: opt.EngineChoice = opt.Engine.duckdb, lake: Lake = None,
    output: Out = Form.table,
) -> None:  # fmt: skip
    """Read-only SQL over every table, and over the catalog's own views."""
    show(open_manager(lake).sql(statement, engine.value), output, file)


@app.command()
def explain(
    table: Name, where: Where = None, snapshot: Snapshot = None, lake: Lake = None, output: Out = Form.table
) -> None:
    """What a query would read: manifests and files considered, skipped and read."""
    show(open_manager(lake).explain(table, where, snapshot=snapshot), output)


@app.command()
def files(
    table: Name, file: File = None, partition: opt.Partition = None, snapshot: Snapshot = None, lake: Lake = None,
    output: Out = Form.table,
) -> None:  # fmt: skip
    """The data files of a table."""
    show(open_manager(lake).files_for_snapshot(table, snapshot, partition), output, file)


@app.command()
def partitions(
    table: Name, file: File = None, snapshot: Snapshot = None, lake: Lake = None, output: Out = Form.table
) -> None:
    """The partitions of a table, largest first."""
    show(open_manager(lake).partitions(table, snapshot), output, file)


@app.command("list-snapshots")
def list_snapshots(table: Name, lake: Lake = None, output: Out = Form.table) -> None:
    """What happened to a table, oldest first."""
    manager = open_manager(lake)
    show(manager.snapshot_overview(table) if output is Form.table else manager.list_snapshots(table), output)


@app.command()
def diff(
    table: Name, start: opt.Start, end: opt.End = None, key: opt.Key = [], limit: opt.Examples = 20, lake: Lake = None,
    output: Out = Form.table,
) -> None:  # fmt: skip
    """What differs between two snapshots: rows, columns, properties."""
    show(open_manager(lake).diff_snapshots(table, start, end, key or None, limit), output)


@app.command()
def rollback(
    table: Name, snapshot: opt.Target, dry_run: DryRun = False, yes: Yes = False, lake: Lake = None,
    output: Out = Form.table,
) -> None:  # fmt: skip
    """Make a past snapshot the current one. Nothing is deleted, so it can be undone."""
    manager = open_manager(lake)
    planned = manager.plan_rollback(table, snapshot)
    show(planned, output)
    if dry_run or planned.from_snapshot == planned.to_snapshot:
        return
    confirm(f"Roll {planned.table} back to {snapshot}?", yes)
    manager.rollback(table, snapshot)
    say(f"done; to undo it: iceberg-manager rollback {table} --snapshot {planned.from_snapshot}")


@app.command()
def tag(
    table: Name, name: str, snapshot: Snapshot = None, keep_days: opt.KeepDays = 90, drop: opt.Remove = False,
    lake: Lake = None,
) -> None:  # fmt: skip
    """Name a snapshot, so that it is kept."""
    manager = open_manager(lake)
    manager.drop_reference(table, name) if drop else manager.tag(table, name, snapshot, keep_days or None)
    typer.echo(f"{'dropped' if drop else 'made'} tag {name} of {table}")


@app.command()
def branch(
    table: Name, name: str, snapshot: Snapshot = None, keep_days: opt.KeepDays = 90, drop: opt.Remove = False,
    lake: Lake = None,
) -> None:  # fmt: skip
    """Start a branch at a snapshot."""
    manager = open_manager(lake)
    manager.drop_reference(table, name) if drop else manager.branch(table, name, snapshot, keep_days or None)
    typer.echo(f"{'dropped' if drop else 'made'} branch {name} of {table}")


@app.command("add-column")
def add_column(table: Name, name: str, type: str, lake: Lake = None) -> None:  # noqa: A002
    """Add an optional column; rows that are there have no value in it."""
    open_manager(lake).add_column(table, name, type)
    typer.echo(f"added {name} {type} to {table}")


@app.command("rename-column")
def rename_column(table: Name, name: str, new_name: str, lake: Lake = None) -> None:
    """Rename a column; past snapshots keep its old name."""
    open_manager(lake).rename_column(table, name, new_name)
    typer.echo(f"renamed {name} of {table} to {new_name}")


@app.command("alter-column")
def alter_column(table: Name, name: str, type: str, lake: Lake = None) -> None:  # noqa: A002
    """Widen a column's type: int to long, float to double, a decimal to more digits."""
    open_manager(lake).alter_column(table, name, type)
    typer.echo(f"{name} of {table} is {type} now")


@app.command("drop-column")
def drop_column(table: Name, name: str, dry_run: DryRun = False, yes: Yes = False, lake: Lake = None) -> None:
    """Drop a column; past snapshots still have it."""
    manager = open_manager(lake)
    manager.check_column(table, name)
    if dry_run:
        typer.echo(f"would drop {name} of {table}")
        return
    confirm(f"Drop column {name} of {table}?", yes)
    manager.drop_column(table, name)
    typer.echo(f"dropped {name} of {table}")


@app.command("schema-history")
def schema_history(table: Name, lake: Lake = None, output: Out = Form.table) -> None:
    """Every set of columns that a table had."""
    show(open_manager(lake).schema_history(table), output)


@spark_app.command("status")
def spark_status(lake: Lake = None, output: Out = Form.table) -> None:
    """Is the shared Spark server running, since when, and is it in use?"""
    show(open_manager(lake).spark_status(), output)


@spark_app.command("stop")
def spark_stop(lake: Lake = None, force: opt.Force = False) -> None:
    """End the shared Spark server. The next run that needs one starts it again."""
    stopped = open_manager(lake).spark_stop(force)
    typer.echo("stopped the Spark server" if stopped else "no Spark server was running")


def main() -> None:
    logging.getLogger().addHandler(logging.NullHandler())  # what a person needs to know is printed, once
    try:
        app()
    except LakeError as error:
        _fail(str(error))
    except SystemExit as end:
        if end.code == 130:  # typer's own code for Ctrl-C
            _fail("interrupted; what was not committed has been discarded")
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        if os.environ.get("ICEBERG_DEBUG"):
            raise
        _fail(f"unexpected {type(error).__name__}: {first_line(error)} (ICEBERG_DEBUG=1 shows where)")


def _fail(message: str) -> None:
    typer.echo(f"error: {message}", err=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
