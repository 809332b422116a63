"""A record between the caller who hands it over and the committer that answers.

Encoded and checksummed in the caller's thread.
"""

import threading
from typing import NamedTuple

from iceberg_ingest.wal_format import Buffer, Entry, checksum_of, padding
from iceberg_ingest.wal_segments import Position
from iceberg_manager.errors import DataError, LakeError, UnavailableError


class Ack(NamedTuple):
    """The record's place, and how far the log was on disk when the answer was given."""

    position: Position
    durable_seq: int

    @property
    def seq(self) -> int:
        return self.position.seq


class Ticket:
    """A record on its way. ``wait`` returns its Ack, or raises if the record was not accepted."""

    def __init__(self, entry: Entry, limit: int) -> None:
        head = _head(entry)
        self.body_bytes = len(head) + len(entry.payload)
        if self.body_bytes > limit:
            raise DataError(
                f"A record of {self.body_bytes:,} bytes is over the limit of {limit:,}; it was not logged. "
                "Send smaller batches."
            )
        self.parts: tuple[Buffer, ...] = (head, entry.payload, bytes(padding(self.body_bytes)))
        self.body_crc = checksum_of(self.parts[:2])
        self._result: Ack | LakeError | None = None
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self, timeout: float | None = None) -> Ack:
        if not self._done.acquire(timeout=-1 if timeout is None else timeout):
            raise UnavailableError("The log did not answer in time; the record may or may not have been kept.")
        self._done.release()
        if isinstance(self._result, Ack):
            return self._result
        assert self._result is not None
        raise type(self._result)(*self._result.args) from self._result

    def answer(self, result: Ack | LakeError) -> None:
        """Only the first answer counts."""
        if self._result is not None:
            return
        self._result = result
        self.parts = ()
        self._done.release()


def _head(entry: Entry) -> bytes:
    for name in ("tenant", "table", "batch_id", "producer"):
        if len(getattr(entry, name).encode()) > 0xFFFF:
            raise DataError(f"The {name} of a record is longer than 65,535 bytes; the record was not logged.")
    return entry.head()
