"""Batches on disk: the intent that claims files, and the markers that remember what was taken in.

An intent is written whole before anything is done under its name and removed when all is done, so what lies in
``_intents/`` is the work that a pass must carry on with. Markers are empty files named after a content; one that is there
already is left alone. See docs/adr/0007-landing-protocol.md for what a crash leaves at each step.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace

from iceberg_manager.errors import DamageError
from iceberg_manager.landing.folder import Entry, Folder

INTENTS, HANDLED, COMMITTED = "_intents", "_handled", "_committed"
BATCH_PROPERTY = "iceberg-assets.landing.batch."


@dataclass(frozen=True)
class Claimed:
    """One file of a batch as it was when it was listed; ``content`` is its SHA-256, known once it was read."""

    name: str
    size: int
    mtime_ns: int
    content: str = ""

    def same_as(self, seen: Entry | None) -> bool:
        return seen is not None and (seen.size, seen.mtime_ns) == (self.size, self.mtime_ns)

    @property
    def key(self) -> str:
        """Who a file is while nobody has read it: its name, size and time."""
        return (
            "n-"
            + hashlib.sha256(
                f"{self.name}\0{self.size}\0{self.mtime_ns}".encode("utf-8", "surrogateescape")
            ).hexdigest()
        )


@dataclass(frozen=True)
class Intent:
    """A batch under way. ``attempts`` counts how often a run began on it."""

    batch: str
    table: str
    files: tuple[Claimed, ...]
    duplicates: tuple[Claimed, ...] = ()
    attempts: int = 0
    failed: str = ""

    @property
    def path(self) -> str:
        return f"{INTENTS}/{self.batch}.json"

    @property
    def rejects(self) -> str:
        return f"{INTENTS}/{self.batch}.rejects"

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def contents(self) -> list[str]:
        return sorted(file.content[:32] for file in self.files)


def new_intent(table: str, entries: Sequence[Entry]) -> Intent:
    """A batch of these files. The id is made of them, so that whoever sees the same files names the same batch."""
    files = tuple(Claimed(one.name, one.size, one.mtime_ns) for one in sorted(entries, key=lambda one: one.name))
    identity = "|".join([table, *(file.key for file in files)])
    return Intent(hashlib.sha256(identity.encode()).hexdigest()[:24], table, files)


class Ledger:
    """The batches and markers of one landing folder."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def save(self, intent: Intent) -> Intent:
        self.folder.write(intent.path, json.dumps(asdict(intent)).encode())
        return intent

    def begin(self, intent: Intent) -> Intent:
        return self.save(replace(intent, attempts=intent.attempts + 1, failed=""))

    def load(self, batch: str) -> Intent | None:
        try:
            return _parsed(self.folder.read(f"{INTENTS}/{batch}.json"))
        except FileNotFoundError:
            return None

    def unfinished(self) -> list[Intent]:
        """Oldest name first; the folder holds what is under way, never history."""
        names = [one.name for one in self.folder.entries(INTENTS) if one.name.endswith(".json")]
        found = [self.load(name.removeprefix(INTENTS + "/").removesuffix(".json")) for name in sorted(names)]
        return [intent for intent in found if intent is not None]

    def end(self, intent: Intent) -> None:
        self.folder.delete(intent.rejects)
        self.folder.delete(intent.path)

    def handled(self, key: str) -> bool:
        return self.folder.stat(_marker(key)) is not None

    def remember(self, intent: Intent, by_name: bool) -> None:
        keys: Iterable[str] = (file.content for file in intent.files)
        if by_name:
            keys = [*keys, *(file.key for file in (*intent.files, *intent.duplicates))]
        self.folder.mark([_marker(key) for key in keys if key and not self.handled(key)])


@dataclass
class BatchReport:
    """What became of one batch."""

    table: str
    batch: str
    state: str = "committed"
    files: int = 0
    rows: int = 0
    rejected: int = 0
    duplicates: int = 0
    quarantined: list[str] = field(default_factory=list)
    returned: list[str] = field(default_factory=list)
    bytes: int = 0
    lag_seconds: float = 0.0
    engine: str = ""
    added_columns: list[str] = field(default_factory=list)
    dropped_columns: list[str] = field(default_factory=list)
    snapshot_id: int | None = None
    error: str = ""


def _marker(key: str) -> str:
    return f"{HANDLED}/{key[:4] if key.startswith('n-') else key[:2]}/{key}"


def _parsed(text: bytes) -> Intent:
    try:
        said = json.loads(text)
        for part in ("files", "duplicates"):
            said[part] = tuple(Claimed(**file) for file in said[part])
        return Intent(**said)
    except (ValueError, TypeError, KeyError) as error:
        raise DamageError(
            "An intent file in _intents/ is damaged, so it is unknown which files it claims; nothing was done. Move it "
            "away to have its files taken in anew: what was committed is known by its content."
        ) from error
