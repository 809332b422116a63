"""What there is to know about topics: their list, columns, rows, and how far their table is behind the log."""

import time
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from iceberg_ingest import checkpoints, dead_letters, topic_tables
from iceberg_ingest import marker as markers
from iceberg_ingest.filesystem import RealFilesystem
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_reader import WalReader
from iceberg_ingest.wal_segments import START, Record, read_identity, read_mark
from iceberg_manager.errors import NotFoundError
from iceberg_manager.history import summary
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings


@dataclass(frozen=True)
class TopicStats:
    """``backlog`` counts acknowledged records that are not in the table yet, ``lag`` the age of the oldest in seconds."""

    topic: str
    message_count: int
    bytes_stored: int
    committed_seq: int
    durable_seq: int
    backlog: int
    backlog_bytes: int
    lag: float
    dead_letters: int
    snapshot_id: str


def list_topics(catalog: Catalog, tenant: str) -> list[str]:
    """The topics of a tenant that have a table."""
    if not catalog.namespace_exists((tenant,)):
        return []
    return sorted(parts[-1] for parts in catalog.list_tables((tenant,)))


def schema_of(catalog: Catalog, tenant: str, topic: str) -> pa.Schema:
    return schema_to_pyarrow(_table(catalog, topic_tables.topic_name(tenant, topic)).schema(), include_field_ids=False)


def stats(catalog: Catalog, settings: LakeSettings, tenant: str, topic: str) -> TopicStats:
    """Of one topic; it reads the log from the last settled place on."""
    name = topic_tables.topic_name(tenant, topic)
    table, wal = topic_tables.find(catalog, name), settings.wal_folder
    wal_id = read_identity(RealFilesystem(), wal) if wal.is_dir() else None
    head = table.current_snapshot() if table else None
    said = summary(head) if head else {}
    committed = markers.position_of(markers.read(table, wal_id)) if table and wal_id else START
    waiting = _waiting(settings, name, committed.seq) if wal_id else []
    received = [entry.received_ms for _, entry in waiting if entry.received_ms]
    return TopicStats(
        topic=str(name),
        message_count=int(said.get("total-records", "0")),
        bytes_stored=int(said.get("total-files-size", "0")),
        committed_seq=committed.seq,
        durable_seq=read_mark(RealFilesystem(), wal).seq if wal_id else 0,
        backlog=len(waiting),
        backlog_bytes=sum(len(entry.payload) for _, entry in waiting),
        lag=max(0.0, time.time() - min(received) / 1000) if received else 0.0,
        dead_letters=len(dead_letters.letters(wal, name)),
        snapshot_id=str(head.snapshot_id) if head else "",
    )


def tail(settings: LakeSettings, catalog: Catalog, tenant: str, topic: str) -> list[pa.RecordBatch]:
    """Rows that were acknowledged but are not in the table yet. They will come again, as rows of the table."""
    name = topic_tables.topic_name(tenant, topic)
    table, wal_id = topic_tables.find(catalog, name), read_identity(RealFilesystem(), settings.wal_folder)
    committed = markers.position_of(markers.read(table, wal_id)) if table and wal_id else START
    return [
        batch
        for _, entry in _waiting(settings, name, committed.seq)
        for batch in pa.ipc.open_stream(pa.py_buffer(entry.payload))
    ]


def _waiting(settings: LakeSettings, name: TableName, committed: int) -> list[tuple[Record, Entry]]:
    start = checkpoints.scanned(settings.wal_folder)
    reader = WalReader(settings.wal_folder, start if start and start.seq <= committed else None)
    found: list[tuple[Record, Entry]] = []
    while records := reader.read():
        for record in records:
            content = record.content
            if not isinstance(content, Entry) or record.seq <= committed:
                continue
            if (content.tenant, content.table) == (name.namespace[0], name.table):
                found.append((record, content))
    return found


def _table(catalog: Catalog, name: TableName) -> Table:
    if (found := topic_tables.find(catalog, name)) is None:
        raise NotFoundError(f"There is no topic {name}.")
    return found
