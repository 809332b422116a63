"""A resend is answered with the first one's place, and not kept twice.

The window: the last N ids of each producer (and the last N batch ids of each topic that came without a producer), as
far as the retained log reaches back. Filled from the log at start, so it survives a crash. A producer's numbers only
grow: one that is lower than all in the window is an old resend that can no longer be looked up, and is refused, since
keeping it might double its rows.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from iceberg_ingest.wal_format import Entry
from iceberg_manager.errors import DataError, InputError

MAX_PRODUCERS = 100_000


class Ids(NamedTuple):
    """How a sender names a batch, so that sending it again is harmless: an id, or a producer and its number."""

    batch_id: str = ""
    producer: str = ""
    producer_seq: int = 0

    @property
    def given(self) -> bool:
        return bool(self.batch_id or self.producer)


class Seen(NamedTuple):
    """Where a batch is in the log (0: on its way), and the checksum of what it held."""

    seq: int
    crc: int


@dataclass
class _Window:
    seen: OrderedDict[Hashable, Seen] = field(default_factory=OrderedDict)
    forgotten: int = 0  # the highest producer number that has left the window


class SameIdOtherRowsError(DataError):
    """An id that was used before, for other rows."""


class Dedupe:
    """The windows of all producers. Callers of one producer or batch id take turns through :meth:`claim`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._windows: OrderedDict[Hashable, _Window] = OrderedDict()
        self._guard = threading.Lock()
        self._settled = threading.Condition(self._guard)

    def claim(self, tenant: str, table: str, ids: Ids, crc: int) -> int | None:
        """The place of the first one if this is a resend; None: it is new, and now on its way."""
        if not (ids.given and self._size):
            return None
        with self._settled:
            window, key = self._window(tenant, table, ids), _key(ids)
            while (seen := window.seen.get(key)) is not None and seen.seq == 0:
                self._settled.wait()
            if seen is None:
                if ids.producer and 0 < ids.producer_seq <= window.forgotten:
                    raise InputError(
                        f"Number {ids.producer_seq} of producer {ids.producer[:80]!r} is older than the {self._size:,} that "
                        "are remembered; it was not kept, since it may be in the log already."
                    )
                window.seen[key] = Seen(0, crc)
                return None
            if seen.crc != crc:
                raise SameIdOtherRowsError("This id was used before, for other rows; this batch was not kept.")
            return seen.seq

    def settle(self, tenant: str, table: str, ids: Ids, seq: int | None, crc: int) -> None:
        """What became of a claim: its place, or None if it was not kept, so that it may be sent again."""
        if not (ids.given and self._size):
            return
        with self._settled:
            window, key = self._window(tenant, table, ids), _key(ids)
            window.seen.pop(key, None)
            if seq is not None:
                window.seen[key] = Seen(seq, crc)
                self._trim(window)
            self._settled.notify_all()

    def learn(self, entry: Entry, seq: int, crc: int) -> None:
        """A record found in the log at start."""
        self.settle(entry.tenant, entry.table, Ids(entry.batch_id, entry.producer, entry.producer_seq), seq, crc)

    def _window(self, tenant: str, table: str, ids: Ids) -> _Window:
        owner = (tenant, table, ids.producer)
        window = self._windows.setdefault(owner, _Window())
        self._windows.move_to_end(owner)
        while len(self._windows) > MAX_PRODUCERS:
            self._windows.popitem(last=False)
        return window

    def _trim(self, window: _Window) -> None:
        while len(window.seen) > self._size:
            oldest = next((key for key, seen in window.seen.items() if seen.seq), None)
            if oldest is None:
                return
            del window.seen[oldest]
            if isinstance(oldest, int):
                window.forgotten = max(window.forgotten, oldest)


def _key(ids: Ids) -> Hashable:
    return ids.batch_id or ids.producer_seq
