"""Writes Arrow batches as a table's data files: Parquet with field ids and statistics, sized, sorted and partitioned.

Memory is bounded: rows wait in buffers of a fixed total size, one per partition, and leave as row groups of open files
(or, when the table has a sort order, as whole sorted files). The files belong to nobody until a commit names them; if
anything fails, Ctrl-C included, those written so far are removed. A crash leaves them to orphan removal.
"""

import itertools
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import OutputFile, OutputStream
from pyiceberg.io.fileformat import FileFormatFactory, FileFormatWriter
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec, partition_record_value
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from iceberg_manager.storage import remove_files

BUFFERED_BYTES = 256 * 1024 * 1024
ROW_GROUP_BYTES = 128 * 1024 * 1024
OPEN_FILES = 64
THREADS = 2
_NOT_FOR_PYICEBERG = ("write.parquet.row-group-size-bytes", "write.parquet.bloom-filter")


def arrow_schema(schema: Schema) -> pa.Schema:
    """How a table's rows look in Arrow: field ids attached, strings and lists in their 32-bit form."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # it brings pandas along

    return pa.schema([_small_field(item) for item in schema_to_pyarrow(schema)])


def write(
    table: Table,
    reader: pa.RecordBatchReader | Iterable[pa.RecordBatch],
    schema: Schema | None = None,
    buffered_bytes: int = BUFFERED_BYTES,
) -> list[DataFile]:
    """Write every batch and return the files. Batches have the columns of :func:`arrow_schema`, in its order."""
    return _Writing(table, schema or table.schema(), buffered_bytes).run(reader)


def _small_field(item: pa.Field) -> pa.Field:
    return item.with_type(small(item.type))


def small(kind: pa.DataType) -> pa.DataType:
    """A type with 32-bit offsets throughout."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_small_field(item) for item in kind])
    if pa.types.is_large_list(kind):
        return pa.list_(_small_field(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(_small_field(kind.key_field), _small_field(kind.item_field))
    return kind


class _Tracked(OutputFile):
    """An output file that tells how much has been written to it."""

    def __init__(self, inner: OutputFile) -> None:
        super().__init__(inner.location)
        self._inner = inner
        self._stream: Any = None

    def __len__(self) -> int:
        return len(self._inner)

    def exists(self) -> bool:
        return self._inner.exists()

    def to_input_file(self) -> Any:
        return self._inner.to_input_file()

    def create(self, overwrite: bool = False) -> OutputStream:
        self._stream = self._inner.create(overwrite=False)
        return self._stream  # type: ignore[no-any-return]

    def size(self) -> int:
        return int(self._stream.tell()) if self._stream is not None else 0


@dataclass
class _Partition:
    """Rows of one partition that wait, the file that is open for it, and the write that is under way."""

    values: tuple[Any, ...]
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    rows: int = 0
    output: _Tracked | None = None
    writer: FileFormatWriter | None = None
    nans: dict[int, int] = field(default_factory=dict)
    pending: "Future[None] | None" = None

    def take(self) -> pa.Table:
        taken = pa.Table.from_batches(self.waiting)
        self.waiting, self.bytes, self.rows = [], 0, 0
        return taken

    def settle(self) -> None:
        pending, self.pending = self.pending, None
        if pending:
            pending.result()


class _Writing:
    """One call of :func:`write`."""

    def __init__(self, table: Table, schema: Schema, buffered_bytes: int) -> None:
        properties = table.properties
        self.table, self.schema, self.limit = table, schema, buffered_bytes
        self.spec, self.order = table.spec(), table.sort_order()
        self.file_schema = sanitize_column_names(schema)
        self.arrow = arrow_schema(self.file_schema)
        self.target = property_as_int(properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, 128 * 1024 * 1024) or 1
        self.group_rows = property_as_int(properties, TableProperties.PARQUET_ROW_GROUP_LIMIT, 1_048_576) or 1
        group = property_as_int(properties, TableProperties.PARQUET_ROW_GROUP_SIZE_BYTES, ROW_GROUP_BYTES) or 1
        self.group_bytes = min(group, ROW_GROUP_BYTES, buffered_bytes)
        self.properties = {k: v for k, v in properties.items() if not k.startswith(_NOT_FOR_PYICEBERG)}
        self.provider = table.location_provider()
        self.floats = [item.field_id for item in schema.fields if str(item.field_type) in ("float", "double")]
        self.partitions: dict[tuple[Any, ...], _Partition] = {}
        self.files: list[DataFile] = []
        self.locations: list[str] = []
        self.write_id, self.numbers = uuid.uuid4(), itertools.count()

    def run(self, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="parquet") as self.pool:
            try:
                for batch in batches:
                    self._accept(batch)
                self._flush(list(self.partitions.values()), close=True)
            except BaseException:
                self._abandon()
                raise
        return self.files

    def _accept(self, batch: pa.RecordBatch) -> None:
        for values, rows in _split(batch, self.spec, self.schema):
            if values not in self.partitions:
                self.partitions[values] = _Partition(values)
            partition = self.partitions[values]
            partition.waiting.append(rows)
            partition.rows += rows.num_rows
            partition.bytes += rows.nbytes
            if not self._sorts and (partition.bytes >= self.group_bytes or partition.rows >= self.group_rows):
                self._submit(partition, close=False)
        if sum(partition.bytes for partition in self.partitions.values()) >= self.limit:
            self._flush(list(self.partitions.values()), close=self._sorts)

    @property
    def _sorts(self) -> bool:
        return not self.order.is_unsorted

    def _flush(self, partitions: list[_Partition], close: bool) -> None:
        """Write all that waits; slices of one batch keep each other's memory, so they leave together."""
        for partition in partitions:
            self._submit(partition, close=close)
            self._close_idle()
        for partition in partitions:
            partition.settle()

    def _submit(self, partition: _Partition, close: bool) -> None:
        partition.settle()
        rows = partition.take() if partition.waiting else None
        if rows is not None or (close and partition.writer is not None):
            partition.pending = self.pool.submit(self._write, partition, rows, close)

    def _close_idle(self) -> None:
        """Many partitions share a bounded number of open files: the oldest is finished first."""
        opened = [one for one in self.partitions.values() if one.writer is not None]
        for partition in opened[: max(0, len(opened) - OPEN_FILES)]:
            self._submit(partition, close=True)
            partition.settle()

    def _write(self, partition: _Partition, rows: pa.Table | None, close: bool) -> None:
        if rows is not None:
            rows = _sort(rows, self.order, self.schema) if self._sorts else rows
            if partition.writer is None:
                self._open(partition)
            assert partition.writer is not None
            self._count_nans(partition, rows)
            partition.writer.write(rows.rename_columns(self.arrow.names).cast(self.arrow))
        if partition.output is not None and (close or self._sorts or partition.output.size() >= self.target):
            self._close(partition)

    def _open(self, partition: _Partition) -> None:
        name = f"00000-{next(self.numbers)}-{self.write_id}.parquet"
        folder = f"{self.spec.partition_to_path(Record(*partition.values), self.schema)}/" if partition.values else ""
        location = self.provider.new_data_location(folder + name)
        self.locations.append(location)
        partition.output = _Tracked(self.table.io.new_output(location))
        model = FileFormatFactory.get(FileFormat.PARQUET)
        partition.writer = model.create_writer(partition.output, self.file_schema, self.properties)
        partition.nans = dict.fromkeys(self.floats, 0)

    def _count_nans(self, partition: _Partition, rows: pa.Table) -> None:
        """Parquet's bounds leave NaN out, so a reader has to know whether there are any."""
        for field_id in self.floats:
            found = pc.sum(pc.is_nan(rows.column(self.schema.find_column_name(field_id)))).as_py()
            partition.nans[field_id] += found or 0

    def _close(self, partition: _Partition) -> None:
        assert partition.writer is not None and partition.output is not None  # noqa: PT018 (both are set by _open)
        statistics = partition.writer.close()
        statistics.nan_value_counts.update(
            {key: nans for key, nans in partition.nans.items() if key in statistics.value_counts}
        )
        self.files.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=partition.output.location,
                file_format=FileFormat.PARQUET,
                partition=Record(*partition.values),
                file_size_in_bytes=len(partition.output),
                sort_order_id=self.order.order_id if self._sorts else None,
                spec_id=self.spec.spec_id,
                equality_ids=None,
                key_metadata=None,
                **statistics.to_serialized_dict(),
            )
        )
        self.files[-1].spec_id = self.spec.spec_id
        partition.writer = partition.output = None

    def _abandon(self) -> None:
        for partition in self.partitions.values():
            try:
                partition.settle()
                if partition.writer is not None:
                    partition.writer.close()
            except Exception:  # noqa: BLE001, S112 (the first error is the one that is raised)
                continue
        remove_files(self.table.io, self.locations)


def _split(
    batch: pa.RecordBatch, spec: PartitionSpec, schema: Schema
) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The batch's rows by partition value, in their order; all of them at once when there are no partitions."""
    if not batch.num_rows:
        return
    if spec.is_unpartitioned():
        yield (), batch
        return
    keys = pa.table({str(number): _transformed(batch, part, schema) for number, part in enumerate(spec.fields)})
    keys = keys.append_column("row", pa.array(np.arange(batch.num_rows)))
    groups = keys.group_by(keys.column_names[:-1], use_threads=False).aggregate([("row", "list")])
    for group in groups.to_batches():
        for number in range(group.num_rows):
            raw = [group.column(str(part))[number].as_py() for part in range(len(spec.fields))]
            values = tuple(
                None if value is None else partition_record_value(part, value, schema)
                for part, value in zip(spec.fields, raw, strict=True)
            )
            rows = group.column("row_list")[number].values
            yield values, batch if len(rows) == batch.num_rows else batch.take(rows)


def _transformed(batch: pa.RecordBatch, part: Any, schema: Schema) -> pa.Array:
    values = _column(batch, schema.find_column_name(part.source_id) or "")
    if pa.types.is_string(values.type):
        values = values.cast(pa.large_string())
    return part.transform.pyarrow_transform(schema.find_field(part.source_id).field_type)(values)


def _column(rows: pa.RecordBatch | pa.Table, path: str) -> Any:
    """A column, or a field inside struct columns."""
    if path in rows.schema.names:
        return rows.column(path)
    first, *inner = path.split(".")
    return pc.struct_field(rows.column(first), inner)


def _sort(rows: pa.Table, order: SortOrder, schema: Schema) -> pa.Table:
    keys: dict[str, Any] = {}
    directions: list[tuple[str, str]] = []
    for number, part in enumerate(order.fields):
        values = _transformed(rows, part, schema)
        if values.null_count:
            keys[f"{number}n"] = pc.is_null(values)
            directions.append((f"{number}n", "descending" if part.null_order == NullOrder.NULLS_FIRST else "ascending"))
        keys[str(number)] = values
        directions.append((str(number), "descending" if part.direction == SortDirection.DESC else "ascending"))
    return rows.take(pc.sort_indices(pa.table(keys), sort_keys=directions))
