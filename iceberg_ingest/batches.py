"""Rows from outside: what is checked before a batch is kept, and how it is kept.

Everything a later reader could trip over is refused here: too much, too deep, types that no table can hold, and
arrays whose insides do not fit together (reading those would crash the process). Schemas are checked once a stream,
batches fully, each time.
"""

import pyarrow as pa

from iceberg_ingest.settings import LimitSettings
from iceberg_manager.errors import DataError, first_line

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class BatchCoder:
    """Checks and encodes the batches of one stream, all of one schema."""

    def __init__(self, schema: pa.Schema, limits: LimitSettings) -> None:
        check_schema(schema, limits)
        self._limits = limits
        self._schema = schema.remove_metadata()
        self._has_dictionaries = any(_holds(field.type, pa.types.is_dictionary) for field in schema)
        self._start = self._schema.serialize().to_pybytes()

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """A whole Arrow IPC stream of this batch; DataError says what is wrong with it."""
        check_batch(batch, self._limits)
        if self._has_dictionaries:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, self._schema) as stream:
                stream.write_batch(batch.replace_schema_metadata(None))
            return bytes(sink.getvalue())
        return b"".join((self._start, batch.serialize(), END_OF_STREAM))


def check_schema(schema: pa.Schema, limits: LimitSettings) -> None:
    if not 0 < len(schema) <= limits.max_columns:
        raise DataError(f"A batch has {len(schema)} columns; 1 to {limits.max_columns} are accepted.")
    if len({name.lower() for name in schema.names}) < len(schema) or "" in schema.names:
        raise DataError("Every column needs a name of its own; names that differ only in case count as the same.")
    for field in schema:
        if _depth(field.type, limits.max_nesting + 1) > limits.max_nesting:
            raise DataError(f"Column {field.name[:80]!r} is nested deeper than {limits.max_nesting} levels.")
        if _holds(field.type, _unsupported):
            raise DataError(f"Column {field.name[:80]!r} has a type that no table can hold: {str(field.type)[:80]}.")


def check_batch(batch: pa.RecordBatch, limits: LimitSettings) -> None:
    if not 0 < batch.num_rows <= limits.max_batch_rows:
        raise DataError(
            f"A batch has {batch.num_rows:,} rows; 1 to {limits.max_batch_rows:,} are accepted. Send smaller batches."
        )
    if batch.nbytes > limits.max_batch_bytes:
        raise DataError(
            f"A batch has {batch.nbytes:,} bytes; {limits.max_batch_bytes:,} are accepted. Send smaller batches."
        )
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise DataError(f"A batch is not well-formed: {first_line(error)[:200]}.") from error


def decode(payload: bytes | memoryview) -> pa.Table:
    """A record's payload as rows again."""
    with pa.ipc.open_stream(pa.py_buffer(payload)) as stream:
        return stream.read_all()


def _children(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_dictionary(kind):
        return [kind.value_type]
    return [kind.field(index).type for index in range(kind.num_fields)]


def _depth(kind: pa.DataType, limit: int) -> int:
    if limit <= 0:
        return 1
    return 1 + max((_depth(child, limit - 1) for child in _children(kind)), default=0)


def _holds(kind: pa.DataType, test: "pa.types") -> bool:
    return bool(test(kind)) or any(_holds(child, test) for child in _children(kind))


def _unsupported(kind: pa.DataType) -> bool:
    types = pa.types
    refused = (
        types.is_null, types.is_union, types.is_duration, types.is_interval, types.is_run_end_encoded, types.is_uint64,
        types.is_list_view, types.is_large_list_view, types.is_decimal256, types.is_float16,
    )  # fmt: skip
    return isinstance(kind, pa.BaseExtensionType) or any(test(kind) for test in refused)
