"""Commands for files that arrive: what waits, one pass, retry, discard."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from iceberg_manager.cli_options import DryRun, Form, Lake, Name, Out, Yes, open_manager, option
from iceberg_manager.errors import LakeError
from iceberg_manager.output import confirm, say, show, working

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from iceberg_manager.session import LakeSession
    from iceberg_manager.settings import LakeSettings

app = typer.Typer()
landing = typer.Typer(no_args_is_help=True, help="Files that arrive: take them in, see what was refused.")
app.add_typer(landing, name="landing")

Tables = Annotated[list[str], typer.Argument(help="Tables; all that take in files by default.", show_default=False)]
Files = Annotated[list[str], typer.Argument(help="Files in quarantine; all by default.", show_default=False)]
Create = Annotated[bool, typer.Option("--create", help="Make a missing table from its first batch.")]
Drift = Annotated[str | None, option("--drift", text="strict, additive or ignore, for this pass.")]


@landing.command()
def status(tables: Tables = [], lake: Lake = None, output: Out = Form.table) -> None:
    """What waits, what is under way, what was refused and why."""
    from iceberg_manager.landing.overview import status as look

    manager = open_manager(lake)
    found = look(manager.settings, manager.catalog, tables)
    if output != Form.table:
        show(found, output)
        return
    rows = [
        {
            "table": one.table, "ready": one.ready, "bytes": one.ready_bytes, "incomplete": one.incomplete,
            "unfinished": len(one.unfinished), "quarantined": len(one.quarantined), "ignored": len(one.ignored),
        }
        for one in found
    ]  # fmt: skip
    show(rows, output)
    for one in found:
        for refused in one.quarantined:
            say(f"{one.table}: {refused.name!r} was refused: {refused.reason}")
        for name, reason in one.ignored.items():
            say(f"{one.table}: {name!r} is left alone: {reason}")


@landing.command()
def run(
    tables: Tables = [], create: Create = False, drift: Drift = None, lake: Lake = None, output: Out = Form.table
) -> None:
    """Take in everything that is ready: one whole pass, without Dagster."""
    from iceberg_manager.landing.overview import chosen
    from iceberg_manager.landing.passes import Landing, policy_of
    from iceberg_manager.landing.policy import LandingPolicy

    manager = open_manager(lake)
    given: dict[str, Any] = {"create_from_first_batch": True} if create else {}
    given |= {"drift": drift} if drift else {}
    reports = []
    with working("taking files in"), _LazySpark(manager.settings) as spark:
        for table in chosen(manager.settings, manager.catalog, tables):
            policy = replace(policy_of(manager.catalog, table) or LandingPolicy(), **given)
            try:
                reports += Landing(manager.settings, manager.catalog, table, policy, spark=spark).run()
            except LakeError as error:
                if len(tables) == 1:
                    raise
                say(f"{table}: {error}")
    show(reports, output)
    if failed := [one for one in reports if one.state == "failed"]:
        raise LakeError(f"{failed[0].table}: {failed[0].error}")


@landing.command()
def retry(table: Name, files: Files = [], lake: Lake = None) -> None:
    """Put refused files back, to be judged anew by the next pass."""
    from iceberg_manager.landing import quarantine
    from iceberg_manager.landing.folder import folder_of
    from iceberg_manager.names import TableName

    folder = folder_of(open_manager(lake).settings, TableName.parse(table))
    typer.echo(f"put back {len(quarantine.retry(folder, files))} files")


@landing.command()
def discard(table: Name, files: Files = [], dry_run: DryRun = False, yes: Yes = False, lake: Lake = None) -> None:
    """Delete refused files for good."""
    from iceberg_manager.landing import quarantine
    from iceberg_manager.landing.folder import folder_of
    from iceberg_manager.names import TableName

    folder = folder_of(open_manager(lake).settings, TableName.parse(table))
    found = quarantine.discard(folder, files, dry_run=True)
    if dry_run or not found:
        typer.echo(f"would delete {len(found)} files: {', '.join(one.name for one in found) or 'none'}")
        return
    confirm(f"Delete {len(found)} refused files of {table} for good?", yes)
    typer.echo(f"deleted {len(quarantine.discard(folder, files))} files")


class _LazySpark:
    """A Spark session that is opened when a batch is large enough to need it, and closed at the end."""

    def __init__(self, settings: "LakeSettings") -> None:
        self._settings = settings
        self._session: LakeSession | None = None

    def __enter__(self) -> "_LazySpark":
        return self

    def __call__(self) -> "SparkSession":
        from iceberg_manager.session import LakeSession

        if self._session is None:
            self._session = LakeSession(self._settings)
        return self._session.spark

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
