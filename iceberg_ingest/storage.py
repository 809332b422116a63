"""``IcebergStorage``: a topic store in a few calls, in this process.

``store`` returns when the rows are durable in the log; a writer thread brings them into the topic's table. It owns the log:
beside a running service, use the service's client. A crash loses nothing that ``store`` returned for.
"""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import pyarrow as pa

from iceberg_ingest import checkpoints, topic_tables, topics
from iceberg_ingest.reader import NewRows, ReadPosition, TableReader
from iceberg_ingest.settings import wal_options
from iceberg_ingest.topics import TopicStats
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.writer import Writer
from iceberg_manager.catalog import open_catalog
from iceberg_manager.errors import DataError, first_line
from iceberg_manager.settings import LakeSettings

MESSAGE_SCHEMA = pa.schema(
    [
        ("payload", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("published", pa.timestamp("us", "UTC")),
    ]
)
Message: TypeAlias = bytes | tuple[bytes, Mapping[str, str]] | Mapping[str, Any] | pa.RecordBatch


class IcebergStorage:
    """Use as a context manager, or call ``shutdown``."""

    def __init__(self, settings: LakeSettings, tenant: str = "default") -> None:
        self._settings, self._tenant = settings, tenant
        self._wal = Wal(settings.wal_folder, wal_options(settings.ingest.wal))
        self._catalog = open_catalog(settings)
        self._writer = Writer(settings, self._catalog)
        self._writer.on_commit = lambda _: self._collect()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ingest-writer", daemon=True)
        self._thread.start()

    def __enter__(self) -> "IcebergStorage":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.shutdown()

    def initialize_topic(
        self, topic: str, schema: pa.Schema | None = None, partition_by: Sequence[str] = (), sort_by: Sequence[str] = ()
    ) -> None:
        """Make the topic's table; without a schema it takes opaque messages."""
        name = topic_tables.topic_name(self._tenant, topic)
        topic_tables.create(self._catalog, self._settings, name, schema or MESSAGE_SCHEMA, partition_by, sort_by)

    def store(self, topic: str, messages: Sequence[Message]) -> int:
        """Log messages (dicts, Arrow batches, or bytes with attributes) and return the last one's place once durable."""
        topic_tables.topic_name(self._tenant, topic)
        now = int(time.time() * 1000)
        entries = [
            Entry(self._tenant, topic, _stream(batch), received_ms=now)
            for batch in _batches(messages)
            if batch.num_rows
        ]
        tickets = self._wal.submit_all(entries)
        return max((ticket.wait().seq for ticket in tickets), default=self._wal.durable_seq)

    def get_topic_stats(self, topic: str) -> TopicStats:
        return topics.stats(self._catalog, self._settings, self._tenant, topic)

    def read(self, topic: str, position: ReadPosition | str | None = None, reader: str = "") -> Iterator[NewRows]:
        """Committed rows behind ``position``."""
        name = topic_tables.topic_name(self._tenant, topic)
        return TableReader(self._catalog, name, position, self._settings.ingest.reader, reader).read()

    def shutdown(self) -> None:
        """Commit everything that was stored, and end."""
        self._writer.stop()
        self._thread.join()
        self._writer.close()
        self._wal.close()
        if self.failure:
            failure, self.failure = self.failure, None
            raise failure

    def _collect(self) -> None:
        """Segments that every table holds may go, by the log's retention."""
        if settled := checkpoints.scanned(self._settings.wal_folder):
            self._wal.collect(settled.seq)

    def _run(self) -> None:
        try:
            self._writer.run()
        except BaseException as error:  # noqa: BLE001 (raised again by shutdown)
            self.failure = error


def _batches(messages: Sequence[Message]) -> list[pa.RecordBatch]:
    """Arrow batches as they are; runs of other messages as one batch each."""
    made: list[pa.RecordBatch] = []
    rows: list[Mapping[str, Any]] = []
    opaque = False
    for message in [*messages, None]:
        is_batch = isinstance(message, pa.RecordBatch)
        is_opaque = isinstance(message, bytes | tuple)
        if rows and (message is None or is_batch or is_opaque != opaque):
            made.append(_rows(rows, MESSAGE_SCHEMA if opaque else None))
            rows = []
        if isinstance(message, pa.RecordBatch):
            made.append(message)
        elif message is not None:
            opaque = is_opaque
            rows.append(_opaque(message) if isinstance(message, bytes | tuple) else message)
    return made


def _opaque(message: bytes | tuple[bytes, Mapping[str, str]]) -> dict[str, Any]:
    payload, attributes = message if isinstance(message, tuple) else (message, {})
    return {"payload": payload, "attributes": list(attributes.items()), "published": int(time.time() * 1_000_000)}


def _rows(rows: list[Mapping[str, Any]], schema: pa.Schema | None) -> pa.RecordBatch:
    names = list(dict.fromkeys(name for row in rows for name in row))
    try:
        if schema is not None:
            return pa.RecordBatch.from_pylist(rows, schema=schema)
        return pa.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})
    except pa.ArrowException as error:
        raise DataError(f"The messages are no rows of one kind; nothing was stored. {first_line(error)}") from error


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
