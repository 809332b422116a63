"""The writer: a process of its own that moves acknowledged records into their tables, exactly once (ADR 10).

One scan of the log feeds all topics. A topic commits when it has ``batch_size`` rows' worth, when its oldest record is
``flush_interval_ms`` old, when memory is short, or when asked to (the file ``control/flush``). Several topics commit at the
same time, one commit a topic. A lock keeps a second writer of the same log away. Per commit: dead letters, rows + marker,
local checkpoint, then old segments may go. A crash after any of these is taken up from the marker at the next start.
"""

import fcntl
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog import Catalog

from iceberg_ingest import checkpoints, dead_letters, ingest_expiry, topic_tables
from iceberg_ingest import marker as markers
from iceberg_ingest.backlog import Topic, Waiting, decoded, settled
from iceberg_ingest.checkpoints import Checkpoint
from iceberg_ingest.filesystem import RealFilesystem
from iceberg_ingest.ingest_commits import Ingested, Range, ingest, nothing
from iceberg_ingest.parquet_mode import ParquetFolder
from iceberg_ingest.wal_format import SEGMENT_HEADER_BYTES, Entry, SegmentHeader, first_seq_of
from iceberg_ingest.wal_reader import WalReader
from iceberg_ingest.wal_segments import START, Position, read_identity, read_mark
from iceberg_manager.catalog import open_catalog
from iceberg_manager.errors import DamageError, DataError, InputError, LakeError, UnavailableError, first_line
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings

_log = logging.getLogger(__name__)
LOCK_NAME = "writer.lock"
IDLE_SECONDS = 0.05
HOLD_SECONDS = 5.0
NAMELESS = TableName(("invalid",), "names")
FLUSH_NAME = Path("control") / "flush"


class Writer:
    """Use as a context manager; ``run`` until ``stop``, or ``drain`` once."""

    def __init__(
        self, settings: LakeSettings, catalog: Catalog | None = None, clock: Callable[[], float] = time.time,
        at: Callable[[str], None] = nothing,
    ) -> None:  # fmt: skip
        self.settings, self.options, self.wal = settings, settings.ingest.writer, settings.wal_folder
        self.catalog = catalog or open_catalog(settings)
        self._clock, self._at = clock, at
        wal_id = read_identity(RealFilesystem(), self.wal)
        if wal_id is None:
            raise InputError(f"There is no write-ahead log in {self.wal}; start the service first.")
        self.wal_id = wal_id
        self._lock = _locked(self.wal)
        self.topics: dict[TableName, Topic] = {}
        self.commits: list[Ingested] = []
        self.on_commit: Callable[[Ingested], None] = lambda _: None
        self._under_way: dict[TableName, Future[Ingested | None]] = {}
        self._taken_bytes: dict[TableName, int] = {}
        self._stopping = threading.Event()
        self._flushed_at = self._flush_asked()
        self._saved = START
        try:
            self._pool = ThreadPoolExecutor(self.options.max_concurrent_commits, thread_name_prefix="commit")
            self._reader = WalReader(self.wal, self._start())
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pool.shutdown(wait=True)
        os.close(self._lock)

    def stop(self) -> None:
        """Ask ``run`` to commit what has been read and to end."""
        self._stopping.set()

    def run(self) -> None:
        """Until ``stop``; then everything that was acknowledged is committed."""
        while not self._stopping.is_set():
            if not self.step():
                self._stopping.wait(IDLE_SECONDS)
        self.drain()

    def drain(self) -> None:
        """Commit all that the log has, then return."""
        self._stopping.set()
        while self._full() or self._read():
            self._flush(self._due())
            self._collect(block=self._full())
        self._flush(list(self.topics.values()))
        while self._under_way:
            self._collect(block=True)
            self._flush(list(self.topics.values()))
        self._save()

    def step(self) -> bool:
        """Read a little, commit what is due; False if there was nothing to read."""
        self._collect(block=self._full())
        moved = not self._full() and self._read()
        asked = self._flush_asked()
        everything = asked != self._flushed_at
        self._flush(list(self.topics.values()) if everything else self._due())
        if everything and not moved:
            self._flushed_at = asked
        return moved

    @property
    def waiting_bytes(self) -> int:
        return sum(topic.bytes for topic in self.topics.values()) + sum(self._taken_bytes.values())

    def _start(self) -> Position | None:
        """Where to scan from: the last settled place, or further back if some table went back."""
        start = checkpoints.scanned(self.wal)
        end = read_mark(RealFilesystem(), self.wal).seq
        for name in checkpoints.tables(self.wal):
            topic = self._topic(name)
            if topic.committed.seq > end:
                raise DamageError(
                    f"{name} holds the log up to record {topic.committed.seq}, but the log ends at {end}: it has lost its "
                    "end or is another log. Nothing was written; restore the log's folder."
                )
            saved = checkpoints.load(self.wal, name)
            if saved and topic.committed.seq < saved.position.seq and start and topic.committed.seq < start.seq:
                _log.warning("%s went back to record %d: its rows are replayed", name, topic.committed.seq)
                start = topic.committed
        self._saved = start or START
        return None if start == START else start

    def _topic(self, name: TableName) -> Topic:
        if name not in self.topics:
            table, saved = topic_tables.find(self.catalog, name), checkpoints.load(self.wal, name)
            committed = markers.position_of(markers.read(table, self.wal_id)) if table else START
            uuid = saved.table_uuid if saved else (str(table.metadata.table_uuid) if table else None)
            if self.options.mode == "parquet":
                committed = self._parquet(name).committed
            elif table is None and saved:
                raise markers.TableReplacedError(
                    f"{name} was written to before and is gone from the catalog. Nothing was written; the log keeps its "
                    f"rows. Restore it, or run `python -m iceberg_ingest.writer --accept {name}` to start a new one."
                )
            self.topics[name] = Topic(name, committed, uuid)
        return self.topics[name]

    def _read(self) -> bool:
        records = self._reader.read()
        for record in records:
            content = record.content
            if isinstance(content, Entry):
                self._accept(record.position, content)
            else:
                _log.error("the log lost records %d to %d: %s", record.seq, content.to_seq, content.reason)
                for topic in self.topics.values():
                    topic.gaps.append(f"{record.seq}-{content.to_seq}")
        return bool(records)

    def _accept(self, position: Position, entry: Entry) -> None:
        try:
            topic = self._topic(topic_tables.topic_name(entry.tenant, entry.table))
        except InputError as error:
            dead_letters.keep(self.wal, NAMELESS, position.seq, entry.payload, first_line(error))
            return
        if position.seq > topic.committed.seq:
            topic.add(decoded(position, entry))
        elif position.seq == topic.committed.seq and position != topic.committed and self.options.mode != "parquet":
            raise DamageError(
                f"Record {position.seq} of the log is not the one that {topic.name} was filled from: the log is another "
                "one, or was restored from a copy. Nothing was written."
            )

    def _due(self) -> list[Topic]:
        now, most = time.monotonic(), self.options.max_memory_bytes
        due = [
            topic
            for topic in self.topics.values()
            if topic.waiting
            and now >= topic.held_until
            and ((now - topic.since) * 1000 >= self.options.flush_interval_ms or topic.rows >= self.options.batch_size)
        ]
        if not due and self.waiting_bytes >= most and not self._under_way:
            due = [max(self.topics.values(), key=lambda topic: topic.bytes)]
        return due

    def _full(self) -> bool:
        return self.waiting_bytes >= self.options.max_memory_bytes

    def _flush(self, topics: list[Topic]) -> None:
        for topic in topics:
            if topic.waiting and not topic.busy:
                topic.busy = True
                self._taken_bytes[topic.name] = topic.bytes
                self._under_way[topic.name] = self._pool.submit(self._commit, topic, topic.take())

    def _collect(self, block: bool) -> None:
        """Note commits that are done; a held one (clock, busy catalog) is tried again later, any other error ends us."""
        if block and self._under_way:
            wait(self._under_way.values(), return_when="FIRST_COMPLETED")
        for name in [name for name, future in self._under_way.items() if future.done()]:
            done = self._under_way.pop(name).result()
            self._taken_bytes.pop(name, None)
            self.topics[name].busy = False
            if done:
                self.commits = [*self.commits[-99:], done]
                self.on_commit(done)
        if not self._under_way or time.monotonic() > getattr(self, "_save_at", 0.0):
            self._save()

    def _save(self) -> None:
        under_way = {name: self.topics[name].committed for name in self._under_way}
        place = settled(list(self.topics.values()), under_way, self._reader.position)
        if place.seq > self._saved.seq:
            checkpoints.save_scanned(self.wal, place)
            self._saved, self._save_at = place, time.monotonic() + 1

    def _commit(self, topic: Topic, records: list[Waiting]) -> Ingested | None:
        """In a thread of the pool: one topic's records into its table."""
        try:
            return self._ingest(topic, records)
        except (markers.ClockWentBackError, UnavailableError) as error:
            _log.warning("%s is held: %s", topic.name, error)
            topic.put_back(records)
            topic.held_until = time.monotonic() + HOLD_SECONDS
            if self._stopping.is_set():
                raise
            return None

    def _ingest(self, topic: Topic, records: list[Waiting]) -> Ingested | None:
        batches, dead = self._fitted(topic, records)
        self._at("dead-letters-kept")
        upto = records[-1].position
        if self.options.mode != "iceberg":
            self._parquet(topic.name).add(batches, upto)
            if self.options.mode == "parquet":
                topic.committed = upto
                return None
        span = Range(self.wal_id, _epoch(self.wal), topic.committed, upto, topic.table_uuid, dead, ",".join(topic.gaps))
        rows = [batch for _, batch in batches]
        done = ingest(self.catalog, topic.name, span, rows, self._clock, self._at, not self.settings.on_s3)
        topic.committed, topic.table_uuid, topic.gaps = upto, done.table_uuid, []
        checkpoints.save(self.wal, topic.name, Checkpoint(done.table_uuid, upto))
        self._at("checkpoint-saved")
        ingest_expiry.expire_some(self.catalog, topic.name)
        return done

    def _fitted(self, topic: Topic, records: list[Waiting]) -> tuple[list[tuple[Position, pa.RecordBatch]], int]:
        """The records as the table's rows; those that do not fit become dead letters."""
        found: list[tuple[Position, list[pa.RecordBatch]]] = []
        dead = 0
        for record in records:
            try:
                if isinstance(record.batches, Exception):
                    raise DataError(f"no Arrow stream: {first_line(record.batches)}")
                for schema in {batch.schema for batch in record.batches}:
                    self._prepare(topic, schema)
                found.append((record.position, list(record.batches)))
            except (InputError, pa.ArrowException) as error:
                dead += self._put_aside(topic, record, error)
        table = topic_tables.find(self.catalog, topic.name)
        rows: list[tuple[Position, pa.RecordBatch]] = []
        letters = {record.position: record for record in records}
        for position, given in found:
            try:
                assert table is not None
                rows += [(position, topic_tables.fitted(table, batch)) for batch in given if batch.num_rows]
            except InputError as error:
                dead += self._put_aside(topic, letters[position], error)
        return rows, dead

    def _prepare(self, topic: Topic, schema: pa.Schema) -> None:
        table = topic_tables.find(self.catalog, topic.name)
        if table is None:
            table = topic_tables.create(self.catalog, self.settings, topic.name, schema)
        elif not set(schema.names) <= {field.name for field in table.schema().fields}:
            table = topic_tables.grow(self.catalog, topic.name, schema)
        topic.table_uuid = topic.table_uuid or str(table.metadata.table_uuid)

    def _put_aside(self, topic: Topic, record: Waiting, error: Exception) -> int:
        _log.error("record %d does not fit %s: %s", record.position.seq, topic.name, first_line(error))
        dead_letters.keep(self.wal, topic.name, record.position.seq, record.entry.payload, first_line(error))
        return 1

    def _parquet(self, name: TableName) -> ParquetFolder:
        return ParquetFolder((self.options.parquet_path or self.settings.root / "parquet") / name.path)

    def _flush_asked(self) -> int:
        try:
            return (self.wal / FLUSH_NAME).stat().st_mtime_ns
        except FileNotFoundError:
            return 0


def accept(settings: LakeSettings, name: TableName) -> Position:
    """Record a person's choice: the table as it is now is right. Rows behind the marker follow; nothing is repeated."""
    catalog, wal_id = open_catalog(settings), read_identity(RealFilesystem(), settings.wal_folder)
    saved = checkpoints.load(settings.wal_folder, name)
    lock = _locked(settings.wal_folder)
    try:
        table = topic_tables.find(catalog, name)
        if table is None or wal_id is None:
            (checkpoints.folder_of(settings.wal_folder) / f"{name}.json").unlink(missing_ok=True)
            return START
        found = markers.read(table, wal_id)
        place = found.position if found else (saved.position if saved else START)
        head = table.current_snapshot()
        text = markers.encode(place, 0, None, (head.sequence_number or 0) if head else 0)
        with table.transaction() as change:
            change.set_properties({markers.key_of(wal_id): text})
        checkpoints.save(settings.wal_folder, name, Checkpoint(str(table.metadata.table_uuid), place))
        return place
    finally:
        os.close(lock)


def _epoch(wal: Path) -> int:
    """Of the newest segment: how often the log was opened."""
    newest = max(name for name in RealFilesystem().list_names(wal) if first_seq_of(name) is not None)
    with (wal / newest).open("rb") as file:
        header = SegmentHeader.decode(file.read(SEGMENT_HEADER_BYTES))
    return 0 if isinstance(header, str) else header.epoch


def _locked(wal: Path) -> int:
    handle = os.open(wal / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UnavailableError(f"Another writer works on the log in {wal}; end that one first.") from None
    return handle


def main(settings: LakeSettings) -> None:
    """The writer process: until SIGTERM or SIGINT, then drain and end."""
    with Writer(settings) as writer:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: writer.stop())
        writer.run()


if __name__ == "__main__":
    import argparse
    import sys

    from iceberg_manager.settings import load_settings

    parser = argparse.ArgumentParser(prog="python -m iceberg_ingest.writer", description="Moves the log into tables.")
    parser.add_argument("--lake")
    parser.add_argument(
        "--accept", metavar="TABLE", help="go on with this table as it is now, after a rollback or a drop"
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        if given.accept:
            accept(load_settings(given.lake), TableName.parse(given.accept))
        else:
            main(load_settings(given.lake))
    except LakeError as error:
        sys.exit(f"Error: {error}")
