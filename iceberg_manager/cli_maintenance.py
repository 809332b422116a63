"""Commands that keep tables tidy: health, compaction, expiry, clean-up. Each parses, makes one library call and prints."""

from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from iceberg_manager import cli_options as opt
from iceberg_manager.cli_options import DryRun, Form, Lake, Name, Out, Yes, open_manager, option
from iceberg_manager.output import confirm, say, show, working

if TYPE_CHECKING:
    from iceberg_manager.maintenance.costs import Kind
    from iceberg_manager.maintenance.upkeep import Upkeep

app = typer.Typer()
Names = Annotated[list[str], typer.Argument(help="Tables; all of them by default.", show_default=False)]
Actions = Annotated[list[str], option("--action", text="Only this kind of work; may be repeated.")]
Limit = Annotated[str | None, option("--budget", text="The most that it may take, such as 10m.")]
ByNeed = Annotated[bool, typer.Option("--by-need", help="Only tables whose health is below their mark.")]
OlderThan = Annotated[str, typer.Option("--older-than", help="Spare younger files; less than 24h needs --force.")]
Share = Annotated[float, typer.Option("--max-share", min=0, max=1, help="Refuse if more of the files look orphaned.")]
Quarantine = Annotated[Path | None, option("--quarantine", text="Move files there instead of deleting them.")]
Force = Annotated[bool, typer.Option("--force", help="Files younger than a day too.")]


def _upkeep(lake: Path | None) -> "Upkeep":
    from iceberg_manager.maintenance.upkeep import Upkeep

    manager = open_manager(lake)
    return Upkeep(manager.settings, manager.catalog)


def _carry_out(
    lake: Path | None, tables: Sequence[str], kinds: Collection["Kind"], form: Form, dry_run: bool = False, **how: Any
) -> None:
    """Plan, and unless it is a dry run, do it; a failed action makes the exit code 1."""
    from iceberg_manager.maintenance.report import Maintained

    with _upkeep(lake) as upkeep:
        with working("measuring"):
            planned = upkeep.plan(upkeep.tables(tables), kinds, **how)
        results = []
        if not dry_run:
            with working("working") as progress:
                for number, done in enumerate(upkeep.run(planned.actions), start=1):
                    results.append(done)
                    if progress:
                        progress(number, len(planned.actions))
        show(Maintained(dry_run, planned.actions, tuple(results), planned.skips), form)
    if any(done.error for done in results):
        raise typer.Exit(1)


@app.command()
def health(tables: Names = [], lake: Lake = None, output: Out = Form.table) -> None:
    """How well tables are kept, from 0 to 100; for one table, why."""
    from iceberg_manager.maintenance.report import healths

    with _upkeep(lake) as upkeep:
        found = list(upkeep.healths(upkeep.tables(tables)))
    show(found[0] if len(tables) == 1 else healths(found) if output is Form.table else found, output)


@app.command()
def maintain(
    tables: Names = [], dry_run: DryRun = False, budget: Limit = None, action: Actions = [], by_need: ByNeed = False,
    lake: Lake = None, output: Out = Form.table,
) -> None:  # fmt: skip
    """Do what tables need: refs, old rows, compaction, manifests, expiry, old metadata. Orphans only if asked for."""
    from iceberg_manager.maintenance.costs import KINDS
    from iceberg_manager.maintenance.planner import Budget
    from iceberg_manager.maintenance.policies import duration
    from iceberg_manager.maintenance.upkeep import USUAL

    if unknown := [one for one in action if one not in KINDS]:
        raise typer.BadParameter(f"--action {unknown[0]!r} is not one of {', '.join(KINDS)}")
    limit = Budget(seconds=duration(budget, "--budget").total_seconds()) if budget else None
    kinds = cast("list[Kind]", action) or USUAL
    _carry_out(lake, tables, kinds, output, dry_run, budget=limit, by_need=by_need)


@app.command()
def compact(tables: Names = [], dry_run: DryRun = False, lake: Lake = None, output: Out = Form.table) -> None:
    """Make few large files of many small ones, where that pays. Rows stay as they are."""
    _carry_out(lake, tables, ["compact"], output, dry_run)


@app.command("rewrite-manifests")
def rewrite_manifests(tables: Names = [], dry_run: DryRun = False, lake: Lake = None, output: Out = Form.table) -> None:
    """Make few manifests of many, ordered by partition, so that queries plan faster."""
    _carry_out(lake, tables, ["rewrite_manifests"], output, dry_run)


@app.command("remove-orphans")
def remove_orphans(
    table: Name, older_than: OlderThan = "24h", max_share: Share = 0.5, quarantine: Quarantine = None,
    force: Force = False, dry_run: DryRun = False, yes: Yes = False, lake: Lake = None, output: Out = Form.table,
) -> None:  # fmt: skip
    """Remove files in a table's folder that no snapshot names. Without --yes it shows them and asks."""
    from iceberg_manager.maintenance.policies import duration
    from iceberg_manager.maintenance.report import orphan_report, remove

    age: timedelta = duration(older_than, "--older-than")
    manager = open_manager(lake)
    with working("listing"):
        found = orphan_report(manager.settings, manager.catalog, table, age, force, max_share)
    show(found, output)
    if dry_run or not found.files:
        return
    confirm(f"Remove {found.files} files of {found.table}?", yes)
    done = remove(manager.settings, manager.catalog, found, quarantine)
    say(f"removed {done.files:,} files" + (f", they are in {done.quarantine}" if done.quarantine else ""))


@app.command("expire-snapshots")
def expire_snapshots(
    table: Name, days: opt.Days = 30, keep: opt.Keep = None, dry_run: DryRun = False, yes: Yes = False,
    lake: Lake = None, output: Out = Form.table,
) -> None:  # fmt: skip
    """Remove old snapshots and the files that only they needed. Branches, tags and what readers need stay."""
    manager = open_manager(lake)
    report = manager.expiry_report(table, days, keep)
    show(report, output)
    if dry_run or not (report.snapshots or report.references):
        return
    confirm(f"Expire {len(report.snapshots)} snapshots? They can then not be read any more.", yes)
    with working("deleting files") as progress:
        done = manager.expire_snapshots(table, days, keep, progress)
    say(f"expired {len(report.snapshots)} snapshots, deleted {done.files_deleted:,} files")


@app.command()
def refs(tables: Names = [], lake: Lake = None, output: Out = Form.table) -> None:
    """Branches and tags, how long they stay, and the bytes that each alone keeps."""
    from iceberg_manager.maintenance.pins import pinned

    manager = open_manager(lake)
    show([pin for name in tables or manager.list_tables() for pin in pinned(manager.table(name))], output)
