"""Records that were read from the log and wait for their table's next commit. Pure bookkeeping, no files."""

import time
from dataclasses import dataclass, field

import pyarrow as pa

from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_segments import Position
from iceberg_manager.names import TableName


@dataclass(frozen=True)
class Waiting:
    """One record: where it stands in the log, and what it holds."""

    position: Position
    entry: Entry
    batches: tuple[pa.RecordBatch, ...] | Exception

    @property
    def rows(self) -> int:
        return 0 if isinstance(self.batches, Exception) else sum(batch.num_rows for batch in self.batches)


def decoded(position: Position, entry: Entry) -> Waiting:
    """A record with its rows, or with the reason why it has none."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(entry.payload)) as reader:
            return Waiting(position, entry, tuple(reader))
    except (pa.ArrowException, OSError) as error:
        return Waiting(position, entry, error)


@dataclass
class Topic:
    """One table: ``committed`` is what its marker says, ``waiting`` what has been read since."""

    name: TableName
    committed: Position
    table_uuid: str | None
    waiting: list[Waiting] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0
    since: float = 0.0
    busy: bool = False
    held_until: float = 0.0
    gaps: list[str] = field(default_factory=list)

    def add(self, record: Waiting) -> None:
        if not self.waiting:
            self.since = time.monotonic()
        self.waiting.append(record)
        self.bytes += len(record.entry.payload)
        self.rows += record.rows

    def take(self) -> list[Waiting]:
        taken, self.waiting, self.bytes, self.rows = self.waiting, [], 0, 0
        return taken

    def put_back(self, records: list[Waiting]) -> None:
        self.waiting = records + self.waiting
        self.bytes += sum(len(record.entry.payload) for record in records)
        self.rows += sum(record.rows for record in records)


def settled(topics: list[Topic], under_way: dict[TableName, Position], scanned: Position) -> Position:
    """Up to where every table holds everything: the whole scan, unless some table has records waiting."""
    open_ends = [topic.committed for topic in topics if topic.waiting or topic.name in under_way]
    return min(open_ends, key=lambda position: position.seq, default=scanned)
