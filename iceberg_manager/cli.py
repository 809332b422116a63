"""``iceberg-manager``: each command parses its arguments, makes one library call and prints the result.

Exit code 0 for success, 1 for an error that is explained in one sentence, 2 for wrong usage. No tracebacks.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as Grid

from iceberg_manager import spark_server
from iceberg_manager.errors import LakeError
from iceberg_manager.settings import load_settings

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, help="Look after an Apache Iceberg lake.")
spark_app = typer.Typer(no_args_is_help=True, help="The shared local Spark server.")
app.add_typer(spark_app, name="spark")

Lake = Annotated[Path | None, typer.Option("--lake", help="A lake.yaml or a lake's folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]


@app.callback()
def root() -> None:
    """Keeps ``spark`` a subcommand even while it is the only one."""


@spark_app.command("status")
def spark_status(lake: Lake = None, as_json: Json = False) -> None:
    """Is the shared Spark server running, since when, and is it in use?"""
    status = spark_server.status(load_settings(lake).spark_server_dir)
    if as_json:
        typer.echo(json.dumps(status))
        return
    grid = Grid(show_header=False, box=None)
    for key, value in status.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else str(value)
        grid.add_row(key.replace("_", " "), shown)
    Console().print(grid)


@spark_app.command("stop")
def spark_stop(
    lake: Lake = None, force: Annotated[bool, typer.Option("--force", help="Even while a run uses it.")] = False
) -> None:
    """End the shared Spark server. The next run that needs one starts it again."""
    stopped = spark_server.stop(load_settings(lake).spark_server_dir, force)
    typer.echo("stopped the Spark server" if stopped else "no Spark server was running")


def main() -> None:
    try:
        app()
    except LakeError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
