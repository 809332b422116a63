"""The write-ahead log: when ``append`` returns, the record is as safe as the sync mode promises, and it has its place
for ever.

Whoever owns the file (a caller if nobody does, else the committer thread) takes all that is waiting, writes it as one
group, syncs once and then answers everybody. A crash before the write leaves nothing; during it a torn tail, cut off
before the next append; between write and sync a record that nobody was told of and that may survive; after the sync,
the record. Rotation completes the old segment before the new one gets its name. A failed write fails its group and is
undone. After a failed sync nothing is acknowledged any more: end the process, open anew.
"""

import errno
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from iceberg_ingest.filesystem import Filesystem, RealFilesystem, write_all
from iceberg_ingest.wal_format import (
    SEGMENT_HEADER_BYTES,
    Buffer,
    Entry,
    FrameHeader,
    Kind,
    SegmentHeader,
    chain_after,
    frame_bytes,
    salt_of,
    segment_name,
)
from iceberg_ingest.wal_options import Kept, WalOptions, removable
from iceberg_ingest.wal_recovery import HalfCreatedError, create_segment, recover
from iceberg_ingest.wal_segments import DURABLE_NAME, Mark, Position, encode_mark
from iceberg_ingest.wal_ticket import Ack, Ticket
from iceberg_manager.errors import LakeError, UnavailableError, first_line

LOCK_NAME = "lock"
GROUP_BYTES = 8 << 20
ZERO_AHEAD_BYTES = 1 << 20
SMALL_GROUP_BYTES = 64 << 10
SPACE_CHECK_SECONDS = 0.1
_ZEROS = bytes(ZERO_AHEAD_BYTES)


class Wal:
    """An open log; use it as a context manager.

    ``expect`` is a place that a table already holds: a log without it is refused.
    """

    def __init__(
        self, folder: Path, options: WalOptions | None = None, *, expect: Position | None = None,
        files: Filesystem | None = None, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self.folder = folder
        self.options = options or WalOptions()
        self.failure: LakeError | None = None
        self._files = files or RealFilesystem()
        self._clock = clock
        self._waiting: deque[Ticket] = deque()
        self._changed = threading.Condition(threading.Lock())
        self._owner = threading.Lock()
        self._closing = False
        self._free_checked = -SPACE_CHECK_SECONDS
        self._segments_guard = threading.Lock()
        self.groups = self.syncs = 0
        try:
            self._open(expect)
        except OSError as error:
            raise UnavailableError(
                f"The log in {folder} cannot be opened: {first_line(error)}. Nothing was lost."
            ) from error
        self._committer = threading.Thread(target=self._run, name="wal-committer", daemon=True)
        self._committer.start()

    def __enter__(self) -> "Wal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def written(self) -> Position:
        """The last record in the log; in the modes periodic and none it may not be on disk yet."""
        return self._written

    @property
    def durable_seq(self) -> int:
        return self._durable.seq

    def append(self, entry: Entry, timeout: float | None = None) -> Ack:
        """Log one record and wait until it is safe."""
        (ticket,) = self._enqueue([entry])
        self._lead()
        return ticket.wait(timeout)

    def submit(self, entry: Entry) -> Ticket:
        """Hand a record over and go on; its ticket has the answer."""
        return self.submit_all([entry])[0]

    def submit_all(self, entries: Iterable[Entry]) -> list[Ticket]:
        """Hand over records that follow one another without waiting; they are written in this order."""
        tickets = self._enqueue(entries)
        with self._changed:
            self._changed.notify()
        return tickets

    def sync(self) -> int:
        """Put everything that was acknowledged so far on disk, in any mode; returns how far that is."""
        with self._owner:
            if not (self._closing or self.failure or self._durable == self._written):
                self._sync()
            if self.failure:
                raise type(self.failure)(*self.failure.args)
            return self._durable.seq

    def collect(self, committed_seq: int) -> list[Path]:
        """Remove the oldest segments that ``committed_seq`` and the retention rules let go, one after the other."""
        with self._segments_guard, _translated(f"Old segments of the log in {self.folder} could not be removed"):
            gone = removable(self._complete, committed_seq, int(self._clock() * 1000), self.options)
            for segment in gone:
                self._files.remove(segment.path)
                self._files.sync_folder(self.folder)  # each on its own: a hole in the middle would be damage
                self._complete.remove(segment)
        return [segment.path for segment in gone]

    def close(self) -> None:
        """Write what is waiting, sync, complete the segment and let go of the lock. Harmless when called again."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        self._committer.join()
        with self._owner:
            while self._waiting:
                self._serve()
            if not self.failure:
                self._rotate(SEGMENT_HEADER_BYTES)
            for handle in (self._handle, self._mark_handle, self._lock_handle):
                self._files.close(handle)

    def _enqueue(self, entries: Iterable[Entry]) -> list[Ticket]:
        tickets = [Ticket(entry, self.options.max_record_bytes) for entry in entries]
        self._refuse_when_full()
        with self._changed:
            if self.failure:
                raise type(self.failure)(*self.failure.args)
            if self._closing:
                raise UnavailableError("The log is closed; the record was not kept.")
            self._waiting.extend(tickets)
        return tickets

    def _lead(self) -> None:
        """With nobody at the file, do the work in this thread, which saves two hand-overs; else the committer will."""
        if self._owner.acquire(blocking=False):
            try:
                self._serve()
            finally:
                self._owner.release()
        if self._waiting:
            with self._changed:
                self._changed.notify()

    def _open(self, expect: Position | None) -> None:
        files, options = self._files, self.options
        files.make_folder(self.folder)
        self._lock_handle = files.open(self.folder / LOCK_NAME, create=True)
        try:
            if not files.lock(self._lock_handle):
                raise UnavailableError(f"The log in {self.folder} is in use by another process; end that one first.")
            found = recover(files, self.folder, options.max_record_bytes, expect, int(self._clock() * 1000))
            self.wal_id, self.epoch, self.torn = found.wal_id, found.epoch, found.torn
            self._salt = salt_of(found.wal_id)
            self._written = self._durable = found.last
            self._complete = [
                Kept(s.path, s.header.first_seq, s.last.seq, s.header.created_ms, s.end) for s in found.segments
            ]
            self._mark_handle = files.open(self.folder / DURABLE_NAME, create=True)
            self._new_segment(options.segment_bytes)
            self._publish()
        except BaseException:
            files.close(self._lock_handle)
            raise

    def _new_segment(self, size: int) -> None:
        created_ms = int(self._clock() * 1000)
        header = SegmentHeader(self.wal_id, self.epoch, self._written.seq + 1, self._written.chain, created_ms)
        self._handle = create_segment(self._files, self.folder, header, size)
        self._first_seq, self._created_ms = header.first_seq, created_ms
        self._started = self._synced_at = time.monotonic()
        self._end = self._zeroed = SEGMENT_HEADER_BYTES

    def _run(self) -> None:
        """The committer: serves whatever nobody leads, and keeps the time of syncs and rotations."""
        while not self.failure:
            with self._changed:
                if not (self._waiting or self._closing):
                    self._changed.wait(self._pause())
                if self._closing:
                    return
            with self._owner:
                self._serve()

    def _serve(self) -> None:
        """Commit all that is waiting as one group; whoever calls it owns the file. Everybody gets an answer."""
        with self._changed:
            group = self._take()
        try:
            if group and not self.failure:
                self._commit(group)
            if not self.failure:
                self._keep_time()
        except Exception as error:  # noqa: BLE001 (whatever it was, nobody may be left waiting)
            self._fail(f"the committer stopped: {first_line(error)}")
        if self.failure:
            with self._changed:
                group += self._waiting
                self._waiting.clear()
            for ticket in group:
                ticket.answer(self.failure)

    def _take(self) -> list[Ticket]:
        group: list[Ticket] = []
        room = GROUP_BYTES
        while self._waiting and (not group or room >= self._waiting[0].body_bytes):
            group.append(self._waiting.popleft())
            room -= group[-1].body_bytes
        return group

    def _pause(self) -> float:
        """How long the committer may sleep before a sync or a rotation is due."""
        now, interval = time.monotonic(), self.options.sync_interval_ms / 1000
        due = self._started + self.options.segment_seconds
        if self.options.sync == "periodic":
            due = min(due, now + interval if self._durable == self._written else self._synced_at + interval)
        return min(max(0.0, due - now), threading.TIMEOUT_MAX)

    def _keep_time(self) -> None:
        now = time.monotonic()
        late = now >= self._synced_at + self.options.sync_interval_ms / 1000
        if self.options.sync == "periodic" and late and self._durable != self._written:
            self._sync()
        if now >= self._started + self.options.segment_seconds:
            self._started = now
            self._rotate(self.options.segment_bytes)

    def _commit(self, group: list[Ticket]) -> None:
        """Write a group, sync it if the mode says so, then answer. Any trouble is the answer for the whole group."""
        size = sum(frame_bytes(ticket.body_bytes) for ticket in group)
        problem = None
        if self._end + size > self.options.segment_bytes:
            problem = self._rotate(self.options.segment_bytes)
        positions, buffers = self._frames(group)
        problem = problem or self._write(buffers, size)
        if problem is None:
            self._written = positions[-1]
            if self.options.sync == "always":
                problem = self._sync()
            elif self.options.sync == "none":
                self._publish()
        self.groups += 1
        for ticket, position in zip(group, positions, strict=True):
            ticket.answer(problem or Ack(position, self._durable.seq))

    def _frames(self, group: list[Ticket]) -> tuple[list[Position], list[Buffer]]:
        (seq, chain), first = self._written, self._written.seq + 1
        positions: list[Position] = []
        buffers: list[Buffer] = []
        for ticket in group:
            seq += 1
            header = FrameHeader(ticket.body_bytes, seq, chain, Kind.ENTRY, first, ticket.body_crc).encode(self._salt)
            chain = chain_after(header)
            positions.append(Position(seq, chain))
            buffers += (header, *ticket.parts)
        return positions, buffers

    def _write(self, buffers: list[Buffer], size: int) -> LakeError | None:
        try:
            if self.options.sync == "always" and size <= SMALL_GROUP_BYTES and self._end + size > self._zeroed:
                self._zero_ahead()
            write_all(self._files, self._handle, buffers, self._end)
        except OSError as error:
            return self._undo(error)
        self._end += size
        return None

    def _zero_ahead(self) -> None:
        """Syncing bytes over zeros that were written before takes half as long as over room that was only reserved."""
        size = min(ZERO_AHEAD_BYTES, self.options.segment_bytes - self._end)
        self._zeroed = write_all(self._files, self._handle, [_ZEROS[:size]], self._end)

    def _undo(self, error: OSError) -> LakeError:
        try:
            self._files.truncate(self._handle, self._end)
        except OSError as second:
            return self._fail(f"a write failed ({first_line(error)}) and could not be undone ({first_line(second)})")
        self._zeroed = self._end
        full = " The disk is full." if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return UnavailableError(
            f"The log could not be written: {first_line(error)}.{full} The record was not kept; try later."
        )

    def _sync(self) -> LakeError | None:
        try:
            self._files.sync(self._handle)
        except OSError as error:
            return self._fail(f"a sync failed: {first_line(error)}")
        self.syncs += 1
        self._synced_at = time.monotonic()
        self._durable = self._written
        return self._publish()

    def _publish(self) -> LakeError | None:
        """Tell readers in other processes how far they may read. Not synced: it may lag behind, never run ahead."""
        by_hope = self.options.sync == "none" and self._durable != self._written
        mark = Mark(self._written.seq if by_hope else self._durable.seq, not by_hope)
        try:
            write_all(self._files, self._mark_handle, [encode_mark(mark)], 0)
        except OSError as error:
            return self._fail(f"the durable mark could not be written: {first_line(error)}")
        return None

    def _rotate(self, size: int) -> LakeError | None:
        """Complete this segment, then start the next. Without room for one nothing changes."""
        if self._written.seq < self._first_seq:
            return None
        if self._durable != self._written and (problem := self._sync()):
            return problem
        kept = Kept(
            self.folder / segment_name(self._first_seq), self._first_seq, self._written.seq, self._created_ms, self._end
        )
        old = self._handle
        try:
            self._files.truncate(old, self._end)
            self._new_segment(size)
        except HalfCreatedError as error:
            return self._fail(f"a new segment could not be put in place: {first_line(error)}")
        except OSError as error:
            self._zeroed = self._end
            return UnavailableError(
                f"No new segment of the log could be made: {first_line(error)}. The record was not kept."
            )
        self._files.close(old)
        with self._segments_guard:
            self._complete.append(kept)
        return None

    def _fail(self, what: str) -> LakeError:
        self.failure = UnavailableError(
            f"The log in {self.folder} has failed: {what}. Everything acknowledged before is kept, this record may or may "
            "not be; nothing more is accepted until the process has been started again."
        )
        return self.failure

    def _refuse_when_full(self) -> None:
        now = time.monotonic()
        if now - self._free_checked < SPACE_CHECK_SECONDS:
            return
        with _translated(f"The disk under {self.folder} does not answer"):
            free = self._files.free_bytes(self.folder)
        if free < self.options.free_bytes_needed:
            raise UnavailableError(
                f"Only {free:,} bytes are free where the log is, and {self.options.free_bytes_needed:,} are kept for "
                "draining it; the record was not kept. Free some space or wait until the writer has caught up."
            )
        self._free_checked = now


@contextmanager
def _translated(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{what}: {first_line(error)}. Nothing acknowledged was lost; try again.") from error
