"""What earlier maintenance did, one JSON line an outcome, in the lake's folder: what the planner learns from (ADR 6).

Lines are appended whole. The file is cut to its newest half when it has grown past ``MOST`` lines, into a new file that
replaces it. A crash loses at most the line being written, or leaves the file uncut. A line that cannot be read is passed
over: what is lost here is experience, never data.
"""

import fcntl
import json
from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from iceberg_manager.maintenance.costs import KINDS, Outcome
from iceberg_manager.settings import LakeSettings

MOST = 4000
_LINE = 200


def outcomes_file(settings: LakeSettings) -> Path:
    return settings.root / "maintenance" / "outcomes.jsonl"


def read(settings: LakeSettings) -> list[Outcome]:
    """Every outcome that is remembered, oldest first."""
    try:
        lines = outcomes_file(settings).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [found for line in lines if (found := _parsed(line))]


def append(settings: LakeSettings, outcomes: Iterable[Outcome]) -> None:
    """Remember these."""
    text = "".join(json.dumps({**asdict(one), "at": one.at.isoformat()}) + "\n" for one in outcomes)
    if not text:
        return
    place = outcomes_file(settings)
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with place.open("a", encoding="utf-8") as file:
            file.write(text)
        if place.stat().st_size > MOST * _LINE:
            _cut(place)


def _cut(place: Path) -> None:
    lines = place.read_text(encoding="utf-8").splitlines(keepends=True)
    if len(lines) > MOST:
        fresh = place.with_suffix(".part")
        fresh.write_text("".join(lines[-MOST // 2 :]), encoding="utf-8")
        fresh.replace(place)


def _parsed(line: str) -> Outcome | None:
    try:
        said = json.loads(line)
        made = Outcome(**{**said, "at": datetime.fromisoformat(said["at"])})
    except (ValueError, KeyError, TypeError):
        return None
    return made if made.kind in KINDS else None
