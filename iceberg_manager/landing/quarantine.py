"""Files that were refused: moved to ``_quarantine/`` with a JSON beside each that says why, until a person decides.

The JSON is written before the file is moved: a crash in between leaves a note without its file, and the file is judged
again. Nothing here is deleted but on request.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from iceberg_manager.errors import NotFoundError
from iceberg_manager.landing.folder import Folder
from iceberg_manager.landing.readers import BadFileError
from iceberg_manager.names import did_you_mean

QUARANTINE, WHY = "_quarantine", ".why.json"


@dataclass(frozen=True)
class Refused:
    """A file in quarantine."""

    name: str
    size: int
    reason: str
    line: int | None = None
    column: str | None = None
    at: str = ""


def set_aside(folder: Folder, error: BadFileError) -> str:
    """Move a refused file away, under a name that no earlier one has, and say why beside it."""
    target = error.name
    turn = 0
    while folder.stat(f"{QUARANTINE}/{target}") is not None:
        turn += 1
        target = f"{error.name}.{turn}"
    why = {
        "file": error.name,
        "address": folder.uri(error.name),
        "reason": str(error),
        "line": error.line,
        "column": error.column,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    folder.write(f"{QUARANTINE}/{target}{WHY}", (json.dumps(why, indent=2) + "\n").encode())
    folder.move(error.name, f"{QUARANTINE}/{target}")
    return target


def refused(folder: Folder) -> list[Refused]:
    """What lies in quarantine."""
    found = []
    for entry in folder.entries(QUARANTINE, hidden=True):
        name = entry.name.removeprefix(QUARANTINE + "/")
        if name.endswith((WHY, ".tmp")):
            continue
        why = _why(folder, name)
        found.append(
            Refused(
                name, entry.size, why.get("reason", "unknown"), why.get("line"), why.get("column"), why.get("at", "")
            )
        )
    return sorted(found, key=lambda one: one.name)


def retry(folder: Folder, names: list[str]) -> list[str]:
    """Put refused files back where they landed (all of them, if none is named); the next pass judges them anew."""
    chosen = _chosen(folder, names)
    for one in chosen:
        original = str(_why(folder, one.name).get("file", one.name))
        folder.move(f"{QUARANTINE}/{one.name}", original if folder.stat(original) is None else one.name)
        folder.delete(f"{QUARANTINE}/{one.name}{WHY}")
    return [one.name for one in chosen]


def discard(folder: Folder, names: list[str], dry_run: bool = False) -> list[Refused]:
    """Delete refused files for good (all of them, if none is named)."""
    chosen = _chosen(folder, names)
    for one in [] if dry_run else chosen:
        folder.delete(f"{QUARANTINE}/{one.name}")
        folder.delete(f"{QUARANTINE}/{one.name}{WHY}")
    return chosen


def _chosen(folder: Folder, names: list[str]) -> list[Refused]:
    found = {one.name: one for one in refused(folder)}
    for name in names:
        if name not in found:
            raise NotFoundError(f"There is no file {name!r} in quarantine.{did_you_mean(name, list(found))}")
    return [found[name] for name in names or found]


def _why(folder: Folder, name: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(folder.read(f"{QUARANTINE}/{name}{WHY}"))
    except (FileNotFoundError, ValueError):
        return {}
    return said
