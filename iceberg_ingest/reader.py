"""Follows a table's new rows from where a reader stopped: each row once, at the cost of the new files alone.

Only snapshots behind the position are looked at, and only files that they added are opened. Compaction is passed over.
Deletes and overwrites stop the reader unless it says ``skip``. A position that history no longer reaches is an error with a
name, never a silent start from the beginning. The cursor is registered with the table, so that expiry spares what is unread.
"""

import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from iceberg_manager import cursors
from iceberg_manager.errors import DamageError, InputError, NotFoundError
from iceberg_manager.history import main_line
from iceberg_manager.ingest_settings import ReaderSettings
from iceberg_manager.names import TableName
from iceberg_manager.table_versions import load

CURSOR_SECONDS = 5.0


class PositionExpiredError(NotFoundError):
    """Snapshots between the position and now are gone: start anew, on purpose."""


class PositionRolledBackError(DamageError):
    """What was read is no longer part of the table's history."""


class PositionReplacedError(DamageError):
    """The table was dropped and made again since the position was taken."""


class RowsChangedError(DamageError):
    """Rows were deleted or overwritten; a reader of new rows cannot express that."""


@dataclass(frozen=True)
class ReadPosition:
    """Everything up to ``snapshot_id`` (0: nothing) has been read, and ``rows`` rows of the one behind it."""

    table_uuid: str
    snapshot_id: int = 0
    sequence: int = 0
    rows: int = 0

    def encode(self) -> str:
        """Text to be kept with the reader's own output."""
        said = {"table": self.table_uuid, "snapshot": str(self.snapshot_id), "sequence": self.sequence}
        return json.dumps({**said, "rows": self.rows})

    @classmethod
    def decode(cls, text: str) -> "ReadPosition":
        try:
            said = json.loads(text)
            return cls(said["table"], int(said["snapshot"]), int(said["sequence"]), int(said["rows"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"This is not a reader's position: {text[:100]!r}.") from error


@dataclass(frozen=True)
class NewRows:
    """Some new rows, and the position behind them."""

    rows: pa.RecordBatch
    position: ReadPosition


class TableReader:
    """New rows of one table. Without ``position`` it starts with the oldest snapshot, if history still has it."""

    def __init__(
        self, catalog: Catalog, name: TableName | str, position: ReadPosition | str | None = None,
        options: ReaderSettings | None = None, reader: str = "", on_change: Literal["fail", "skip"] = "fail",
    ) -> None:  # fmt: skip
        self._catalog, self._name = catalog, TableName.parse(name)
        self._options, self._reader, self._on_change = options or ReaderSettings(), reader, on_change
        given = ReadPosition.decode(position) if isinstance(position, str) else position
        self.position = given or ReadPosition(str(self._load().metadata.table_uuid))
        self._moved = -CURSOR_SECONDS
        self.files_opened = 0

    def read(self) -> Iterator[NewRows]:
        """The new rows that there are now."""
        table = self._load()
        for snapshot in new_snapshots(table, self.position):
            if self._is_append(snapshot):
                yield from self._of(table, snapshot)
            self.position = ReadPosition(self.position.table_uuid, snapshot.snapshot_id, snapshot.sequence_number or 0)
            self.register()

    def follow(self, seconds: float | None = None) -> Iterator[NewRows]:
        """New rows as they come, for ever or for some seconds."""
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            yield from self.read()
            if end is not None and time.monotonic() >= end:
                return
            time.sleep(self._options.poll_interval_ms / 1000)

    def register(self, force: bool = False) -> None:
        """Tell the table how far this reader is (every few seconds at most), if it has a name."""
        due = force or time.monotonic() - self._moved >= CURSOR_SECONDS
        if self._reader and self.position.snapshot_id and due:
            cursors.move(self._load, self._reader, self.position.snapshot_id)
            self._moved = time.monotonic()

    def _load(self) -> Table:
        return load(self._catalog, self._name)

    def _is_append(self, snapshot: Snapshot) -> bool:
        operation = snapshot.summary.operation if snapshot.summary else Operation.OVERWRITE
        if operation in (Operation.OVERWRITE, Operation.DELETE) and self._on_change == "fail":
            raise RowsChangedError(
                f"Snapshot {snapshot.snapshot_id} of {self._name} deleted or replaced rows, which a reader of new rows "
                "cannot express. Read on with on_change='skip', or read the whole table again."
            )
        return operation == Operation.APPEND

    def _of(self, table: Table, snapshot: Snapshot) -> Iterator[NewRows]:
        """The rows that one snapshot added, less those that were read before."""
        left, base = self.position.rows, replace(self.position, rows=0)
        files = []
        for file in added_files(table, snapshot):
            if left >= file.record_count:
                left, base = left - file.record_count, replace(base, rows=base.rows + file.record_count)
            else:
                files.append(file)
        for batch in self._prefetched(table, files):
            skipped = min(left, batch.num_rows)
            left -= skipped
            base = replace(base, rows=base.rows + batch.num_rows)
            self.position = base
            if rest := batch.num_rows - skipped:
                yield NewRows(batch.slice(skipped, rest), base)

    def _prefetched(self, table: Table, files: Sequence[DataFile]) -> Iterator[pa.RecordBatch]:
        """Files in order, the next ``prefetch_size`` being read meanwhile."""
        waiting: deque[Future[list[pa.RecordBatch]]] = deque()
        ahead = iter(files)
        with ThreadPoolExecutor(self._options.max_concurrent_reads, thread_name_prefix="read") as pool:
            for file in ahead:
                waiting.append(pool.submit(self._rows, table, file))
                if len(waiting) > self._options.prefetch_size:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()

    def _rows(self, table: Table, file: DataFile) -> list[pa.RecordBatch]:
        self.files_opened += 1
        scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
        try:
            return [batch for batch in scan.to_record_batches([FileScanTask(file)]) if batch.num_rows]
        except FileNotFoundError as error:
            raise PositionExpiredError(
                f"A file that {self._name} added since the position is gone: it was compacted and expired. Start anew "
                "from now, or read the whole table."
            ) from error


def new_snapshots(table: Table, position: ReadPosition) -> list[Snapshot]:
    """Main's snapshots behind the position, oldest first, or the error that says why there is no such line."""
    name = ".".join(table.name())
    if str(table.metadata.table_uuid) != position.table_uuid:
        raise PositionReplacedError(f"{name} was dropped and made again since it was read; start anew.")
    line: list[Snapshot] = []
    for snapshot in main_line(table):
        if snapshot.snapshot_id == position.snapshot_id:
            return line[::-1]
        line.append(snapshot)
    oldest = line[-1].parent_snapshot_id if line else None
    if (oldest or 0) == position.snapshot_id:
        return line[::-1]
    head = line[0].sequence_number or 0 if line else 0
    if table.metadata.snapshot_by_id(position.snapshot_id) or head < position.sequence:
        raise PositionRolledBackError(
            f"{name} was rolled back: snapshot {position.snapshot_id}, which was read, is no longer in its history. Undo "
            "what was made of it, and start anew."
        )
    raise PositionExpiredError(
        f"{name} no longer has the snapshots behind {position.snapshot_id or 'its beginning'}: they expired. Start anew "
        "from now (position_at), or read the whole table. A reader with a name keeps what it has still to read."
    )


def added_files(table: Table, snapshot: Snapshot) -> list[DataFile]:
    """The data files that a snapshot brought, in the order of its manifests."""
    return [
        entry.data_file
        for manifest in snapshot.manifests(table.io)
        if manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.status == ManifestEntryStatus.ADDED
        and entry.snapshot_id == snapshot.snapshot_id
        and entry.data_file.content == DataFileContent.DATA
    ]


def position_at(table: Table, moment: datetime | None = None) -> ReadPosition:
    """The position behind what the table held at a time (default: now)."""
    uuid = str(table.metadata.table_uuid)
    last = None
    for snapshot in main_line(table):
        if moment is None or snapshot.timestamp_ms <= moment.timestamp() * 1000:
            return ReadPosition(uuid, snapshot.snapshot_id, snapshot.sequence_number or 0)
        last = snapshot
    if last is not None and last.parent_snapshot_id is not None:
        raise PositionExpiredError(f"{'.'.join(table.name())} no longer has the snapshots of {moment}: they expired.")
    return ReadPosition(uuid)
