"""What maintenance commands hand to their printers: plans, results and findings as plain data."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog

from iceberg_manager import query
from iceberg_manager.errors import InputError
from iceberg_manager.maintenance import orphans, remedies
from iceberg_manager.maintenance.actions import Action, Skip
from iceberg_manager.maintenance.health import Health
from iceberg_manager.maintenance.remedies import Done, Lake
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings

_EXAMPLES = 10


@dataclass(frozen=True)
class Maintained:
    """A plan and what came of it; a dry run has no results."""

    dry_run: bool
    planned: tuple[Action, ...]
    results: tuple[Done, ...]
    skips: tuple[Skip, ...]


@dataclass(frozen=True)
class Orphans:
    """A dry run of orphan removal; ``examples`` are some of the files."""

    table: str
    location: str
    files: int
    bytes: int
    young: int
    examples: tuple[str, ...]
    plan: orphans.OrphanPlan = field(repr=False)


def healths(found: Iterable[Health | Skip]) -> list[dict[str, Any]]:
    """One line a table, worst first."""
    return sorted(map(_line, found), key=lambda line: (-1 if line["health"] is None else line["health"], line["table"]))


def _line(one: Health | Skip) -> dict[str, Any]:
    if isinstance(one, Skip):
        return {"table": one.table, "health": None, "what costs most": one.reason}
    worst = f"{one.worst.name}: {one.worst.why}" if one.worst else ""
    return {"table": one.table, "health": one.score, "what costs most": worst}


def orphan_report(
    settings: LakeSettings, catalog: Catalog, table: str, older_than: timedelta, force: bool, max_share: float
) -> Orphans:
    """What nothing names; refuses where too much looks so."""
    lake = Lake(settings, catalog, {}, lambda: datetime.now(UTC))
    with closing(query.connect(settings)) as connection:
        found = remedies.orphan_plan(lake, TableName.parse(table), connection, older_than, force, max_share)
    if found.refused:
        raise InputError(found.refused)
    examples = tuple(one.uri for one in found.orphans[:_EXAMPLES])
    return Orphans(found.table, found.location, len(found.orphans), found.bytes, found.young, examples, found)


def remove(settings: LakeSettings, catalog: Catalog, found: Orphans, quarantine: Path | None) -> orphans.Removed:
    lake = Lake(settings, catalog, {}, lambda: datetime.now(UTC))
    folder = str(quarantine.resolve()) if quarantine else None
    with closing(query.connect(settings)) as connection:
        return orphans.remove(partial(lake.table, found.table), found.plan, connection, folder)
