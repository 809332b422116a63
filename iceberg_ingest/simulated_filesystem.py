"""A disk in memory that fails when told to and knows what a power loss would leave; ships so that users of the log
can test with it.

What a write changed is only in the page cache until the file is synced, and a name only in the folder's cache until
the folder is. :meth:`SimulatedFilesystem.after_kill` keeps the caches (the process died),
:meth:`SimulatedFilesystem.after_power_loss` keeps any subset of what was not synced, with writes torn at 512 bytes.
Syncing a file again after its sync has failed is an error in the caller.
"""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from iceberg_ingest.wal_format import Buffer

SECTOR = 512


class SyncedAfterFailureError(AssertionError):
    """The kernel reports a failed sync once and forgets the pages: a second sync that succeeds would prove nothing."""


@dataclass(frozen=True)
class Fault:
    """At the ``nth`` call of ``operation`` (from 1; "any" counts them all), do ``effect`` instead; ``lasting``
    repeats it from then on.

    Effects: ``error`` (an OSError with ``code``), ``short`` (a write takes half), ``power`` (this and every later
    call fail).
    """

    operation: str
    nth: int
    effect: str = "error"
    code: int = errno.EIO
    lasting: bool = False

    def hits(self, operation: str, count: int) -> bool:
        return operation == self.operation and (count == self.nth or (self.lasting and count > self.nth))


@dataclass
class _File:
    """Contents as a reader sees them, as the platter has them, and the changes in between."""

    cached: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Callable[[bytearray], None]] = field(default_factory=list)
    locked_by: int | None = None
    sync_failed: bool = False

    def change(self, *changes: Callable[[bytearray], None]) -> None:
        for change in changes:
            change(self.cached)
        self.pending.extend(changes)

    def copy(self, content: bytearray) -> "_File":
        return _File(cached=bytearray(content), durable=bytearray(content))


class SimulatedFilesystem:
    """See the module.

    ``faults`` may be replaced between calls; ``calls`` counts each operation, and "any" for all that change the disk.
    """

    def __init__(self, faults: Sequence[Fault] = (), capacity: int = 1 << 40) -> None:
        self.faults = tuple(faults)
        self.capacity = capacity
        self.calls: dict[str, int] = {}
        self._durable_names: dict[Path, _File] = {}
        self._names: dict[Path, _File] = {}
        self._pending_names: list[tuple[Path, Callable[[dict[Path, _File]], None]]] = []
        self._open: dict[int, _File] = {}
        self._next_handle = 1000
        self._dead = False
        self._guard = threading.RLock()

    def after_kill(self) -> "SimulatedFilesystem":
        """The process died; the machine, and so the caches, live on."""
        return self._reborn({path: file.copy(file.cached) for path, file in self._names.items()})

    def after_power_loss(self, choice: random.Random) -> "SimulatedFilesystem":
        """The machine died: of what was not synced, ``choice`` says which parts reached the disk."""
        names = dict(self._durable_names)
        for _, change in self._pending_names:
            if choice.random() < 0.5:
                change(names)
        return self._reborn({path: file.copy(_torn(file, choice)) for path, file in names.items()})

    def _reborn(self, names: dict[Path, _File]) -> "SimulatedFilesystem":
        reborn = SimulatedFilesystem(capacity=self.capacity)
        reborn._names, reborn._durable_names = dict(names), dict(names)
        return reborn

    def contents(self) -> dict[Path, bytearray]:
        """Every file's bytes, as cached; changing them damages the file behind everybody's back."""
        return {path: file.cached for path, file in self._names.items()}

    def make_folder(self, folder: Path) -> None:
        """Folders need no making here."""

    def list_names(self, folder: Path) -> list[str]:
        self._step("list_names")
        return sorted(path.name for path in self._names if path.parent == folder)

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> int:
        effect = self._step("open", changes=create and path not in self._names)
        assert effect is None
        with self._guard:
            if path not in self._names:
                if not create:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                file = _File()
                self._rename_things(path, lambda names: names.__setitem__(path, file))
            self._next_handle += 1
            self._open[self._next_handle] = self._names[path]
            return self._next_handle

    def close(self, handle: int) -> None:
        with self._guard:
            file = self._open.pop(handle)
            if file.locked_by == handle:
                file.locked_by = None

    def lock(self, handle: int) -> bool:
        self._step("lock")
        file = self._open[handle]
        if file.locked_by is None:
            file.locked_by = handle
        return file.locked_by == handle

    def size(self, handle: int) -> int:
        return len(self._open[handle].cached)

    def read(self, handle: int, size: int, offset: int) -> bytes:
        self._step("read")
        return bytes(self._open[handle].cached[offset : offset + size])

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        effect = self._step("write", changes=True, partly=lambda: self._put(handle, data[: len(data) // 2], offset))
        if effect == "short":
            data = data[: max(1, len(data) // 2)]
        self._put(handle, data, offset)
        return len(data)

    def allocate(self, handle: int, size: int) -> None:
        self._step("allocate", changes=True)
        file = self._open[handle]
        file.change(lambda content: content.extend(bytes(max(0, size - len(content)))))

    def truncate(self, handle: int, size: int) -> None:
        self._step("truncate", changes=True)
        self._open[handle].change(lambda content: _resize(content, size))

    def sync(self, handle: int) -> None:
        file = self._open[handle]
        if file.sync_failed:
            raise SyncedAfterFailureError("a file was synced again after its sync had failed")
        try:
            self._step("sync", changes=True)
        except OSError:
            file.sync_failed = not self._dead
            raise
        with self._guard:
            file.durable = bytearray(file.cached)
            file.pending.clear()

    def sync_folder(self, folder: Path) -> None:
        self._step("sync_folder", changes=True)
        with self._guard:
            for _, change in self._pending_names:
                change(self._durable_names)
            self._pending_names.clear()

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", changes=True)
        file = self._names[source]

        def change(names: dict[Path, _File]) -> None:
            names.pop(source, None)
            names[target] = file

        self._rename_things(target, change)

    def remove(self, path: Path) -> None:
        self._step("remove", changes=True)
        self._rename_things(path, lambda names: names.pop(path, None))

    def free_bytes(self, folder: Path) -> int:
        return self.capacity - sum(len(file.cached) for file in self._names.values())

    def _rename_things(self, path: Path, change: Callable[[dict[Path, _File]], object]) -> None:
        with self._guard:
            change(self._names)
            self._pending_names.append((path, lambda names: (change(names), None)[1]))

    def _put(self, handle: int, data: bytes, offset: int) -> None:
        """Each sector of a write is a change of its own: a power loss may keep any of them."""
        file = self._open[handle]
        with self._guard:
            grown = max(0, offset + len(data) - len(file.cached))
            if grown > self.capacity - sum(len(other.cached) for other in self._names.values()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file.change(*_sectors(data, offset))

    def _step(self, operation: str, changes: bool = False, partly: Callable[[], None] | None = None) -> str | None:
        """Count the call and do what the faults say: raise, or name the effect that the caller has to play."""
        with self._guard:
            if self._dead:
                raise OSError(errno.EIO, "the power is off")
            for name in (operation, "any") if changes else (operation,):
                self.calls[name] = self.calls.get(name, 0) + 1
                for fault in self.faults:
                    if fault.hits(name, self.calls[name]):
                        return self._play(fault, partly)
        return None

    def _play(self, fault: Fault, partly: Callable[[], None] | None) -> str:
        if fault.effect == "short":
            return "short"
        if partly:
            partly()
        if fault.effect == "power":
            self._dead = True
        raise OSError(fault.code, os.strerror(fault.code))


def _sectors(data: bytes, offset: int) -> Iterable[Callable[[bytearray], None]]:
    at = 0
    while at < len(data):
        end = min(len(data), at + SECTOR - (offset + at) % SECTOR)
        yield _writing(data[at:end], offset + at)
        at = end


def _writing(data: bytes, offset: int) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        if len(content) < offset:
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    return change


def _resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def _torn(file: _File, choice: random.Random) -> bytearray:
    """The durable bytes with some of the pending changes: usually a random half, at times nearly all or a prefix."""
    content, keep = bytearray(file.durable), choice.choice((0.1, 0.5, 0.9, 1.0))
    prefix = choice.randrange(len(file.pending) + 1) if choice.random() < 0.3 else None
    for number, change in enumerate(file.pending):
        if (number < prefix) if prefix is not None else choice.random() < keep:
            change(content)
    return content
