"""Commands for tables that were there before: adopt."""

from typing import Annotated

import typer

from iceberg_manager.cli_options import Form, Lake, Out, open_manager
from iceberg_manager.output import say, show

app = typer.Typer()
PlanOnly = Annotated[bool, typer.Option("--plan", help="Only say what was found.")]


@app.command()
def adopt(plan: PlanOnly = False, lake: Lake = None, output: Out = Form.table) -> None:
    """Find the catalog's tables for Dagster: their health, and what maintenance would do."""
    from iceberg_manager import adoption

    manager = open_manager(lake)
    before = adoption.read_cache(manager.settings).tables
    tables, found = adoption.survey(manager.catalog, manager.settings)
    show(found if output is not Form.table else [_line(one) for one in found], output)
    if plan:
        return
    adoption.write_cache(manager.settings, tables)
    came, went = adoption.difference(before, tables)
    say(
        f"{len(tables):,} tables, {len(came):,} new, {len(went):,} gone; reload the code location to see them in Dagster"
    )


def _line(one: object) -> dict[str, object]:
    said = vars(one)
    doing = "; ".join(said["maintenance"]) or "nothing"
    shown = {key: said[key] for key in ("table", "adopted", "health", "files", "snapshots")}
    return shown | {"maintenance would": said["problem"] or doing}
