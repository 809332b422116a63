"""Which files of a landing folder count now: complete by the table's policy, ours to read, and not claimed already.

Only looks. Links, files in progress and names that would leave the folder are never read; they are listed with the reason.
"""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from iceberg_manager.landing.folder import Entry, Folder
from iceberg_manager.landing.policy import LandingPolicy

IN_PROGRESS = (".tmp", ".part", ".partial", ".inprogress", ".crdownload", ".swp", "~")
DONE, SUCCESS = ".done", "_SUCCESS"


@dataclass
class Arrivals:
    """What a listing found. ``finished`` is False when its time was up before the folder's end."""

    ready: list[Entry] = field(default_factory=list)
    waiting: list[Entry] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)
    finished: bool = True


def arrivals(
    folder: Folder,
    policy: LandingPolicy,
    claimed: Collection[str] = (),
    enough: int | None = None,
    seconds: float | None = None,
) -> Arrivals:
    """List until the folder's end, ``enough`` ready files, or the time is up."""
    found, deadline = Arrivals(), time.monotonic() + seconds if seconds is not None else None
    complete = _Completeness(folder, policy)
    for entry in folder.entries():
        if entry.name in claimed or entry.name.endswith(DONE):
            continue
        if reason := _not_ours(entry):
            found.ignored[entry.name] = reason
        elif complete(entry):
            found.ready.append(entry)
        else:
            found.waiting.append(entry)
        if (enough and len(found.ready) >= enough) or (deadline and time.monotonic() > deadline):
            found.finished = False
            break
    return found


def batches(ready: list[Entry], policy: LandingPolicy) -> Iterator[list[Entry]]:
    """Files in the order of their names, cut so that no batch passes the policy's bounds (but for one large file)."""
    batch: list[Entry] = []
    size = 0
    for entry in sorted(ready, key=lambda one: one.name):
        if batch and (len(batch) >= policy.max_files or size + entry.size > policy.max_mb * 1024**2):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def markers_of(name: str) -> str:
    """The marker that says this file alone is complete."""
    return name + DONE


def _not_ours(entry: Entry) -> str:
    if entry.link:
        return "not a plain file: links are not followed"
    if ".." in PurePosixPath(entry.name).parts or "//" in entry.name:
        return "its name would leave the folder"
    if entry.name.lower().endswith(IN_PROGRESS):
        return "named as a file that is still being written"
    return ""


class _Completeness:
    """Whether a file is all there."""

    def __init__(self, folder: Folder, policy: LandingPolicy) -> None:
        self.folder, self.policy, self.now = folder, policy, time.time()
        self._success: dict[str, float | None] = {}

    def __call__(self, entry: Entry) -> bool:
        if self.policy.completeness == "rename":
            return True
        if self.policy.completeness == "settled":
            return not self.folder.local or self.now - entry.changed >= self.policy.settle_seconds
        return self.folder.stat(markers_of(entry.name)) is not None or self._folder_is_done(entry)

    def _folder_is_done(self, entry: Entry) -> bool:
        """A ``_SUCCESS`` speaks for the files that were there when it was written."""
        place = entry.name.rpartition("/")[0]
        if place not in self._success:
            marker = self.folder.stat(f"{place}/{SUCCESS}" if place else SUCCESS)
            self._success[place] = marker.mtime_ns / 1e9 if marker else None
        written = self._success[place]
        return written is not None and entry.mtime_ns / 1e9 <= written
