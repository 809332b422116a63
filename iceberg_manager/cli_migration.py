"""The command that moves a lake to another catalog."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from iceberg_manager.cli_options import DryRun, Form, Out, Yes, option
from iceberg_manager.output import confirm, say, show

app = typer.Typer()
Old = Annotated[Path, option("--from", text="The lake.yaml that names the catalog in use.")]
New = Annotated[Path, option("--to", text="The lake.yaml that names the new catalog.")]
Tables = Annotated[list[str], option("--table", text="Only this table; may be given more than once.")]


@app.command("migrate-catalog")
def migrate_catalog(
    source: Old, target: New, table: Tables = [], dry_run: DryRun = False, yes: Yes = False, output: Out = Form.table
) -> None:
    """Make the tables of one catalog known to another. Files stay where they are, and the old catalog is only read."""
    from iceberg_manager import catalog_migration
    from iceberg_manager.catalog import catalog_errors, open_catalog
    from iceberg_manager.settings import load_settings

    old, new = load_settings(source), load_settings(target)
    with catalog_errors(old), catalog_errors(new):
        from_catalog, to_catalog = open_catalog(old), open_catalog(new)
        planned = catalog_migration.plan(from_catalog, to_catalog, table)
        if dry_run:
            show([asdict(move) for move in planned], output)
            return
        confirm(f"Register {len(planned)} tables in the {new.catalog.type} catalog? Stop their writers first.", yes)
        done = catalog_migration.migrate(from_catalog, to_catalog, table)
    show([asdict(move) for move in done], output)
    say(f"{len(done)} tables are in the new catalog; point lake.yaml to it before anything writes again")
