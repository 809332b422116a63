"""Whatever a user has as one stream of Arrow batches that fit a table, in bounded memory and with exact complaints.

Frames, Arrow data, DuckDB relations, dicts and files go through the same fitting: names are checked, missing optional
columns become null, values are cast without loss. Text files are cut into blocks of whole lines; a block that does not
parse is halved until the broken lines are found. Nothing here writes, and a stream that raised has yielded no bad row.
"""

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema

from iceberg_manager.arrow_files import arrow_schema
from iceberg_manager.errors import DataError, InputError, NotFoundError, first_line
from iceberg_manager.names import did_you_mean

OnError = Literal["fail", "skip"]
BLOCK_BYTES = 8 * 1024 * 1024
LINE_BYTES = 32 * 1024 * 1024
BATCH_ROWS = 131_072
BOMB_SLACK = 1024**3
BOMB_RATIO = 250
EXAMPLES = 5
_FORMATS = {
    "csv": "csv",
    "tsv": "tsv",
    "json": "json",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "ipc": "arrow",
}
_QUOTED = {mark: re.compile(rb'(?:(?<=[%s\n])|\A)"(?:[^"]|"")*("|\Z)' % re.escape(mark)) for mark in (b",", b"\t")}
_ZONED = r":\d{2}(\.\d+)?\s*([Zz]|[+-]\d{2}(:?\d{2})?)$"


@dataclass
class Skipped:
    """Lines left out under ``on_error="skip"``: how many, and the first few with their reason. Complete after reading."""

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Incoming:
    """Rows on their way into a table: a reader with the table's columns, and which of them were given."""

    reader: pa.RecordBatchReader
    columns: tuple[str, ...]
    skipped: Skipped = field(default_factory=Skipped)


class _MisfitError(Exception):
    """Values that do not fit; ``row`` counts from 0 within what was looked at."""

    def __init__(self, reason: str, row: int = 0) -> None:
        super().__init__(reason)
        self.row = row


def incoming(data: Any, schema: Schema, on_error: OnError = "fail", form: str | None = None) -> Incoming:
    """Open ``data`` for a table with ``schema``. Only text files have lines to skip; ``form`` names a stream's format."""
    if on_error not in ("fail", "skip"):
        raise InputError(f"on_error is 'fail' or 'skip', not {on_error!r}.")
    fitting = Fitting(schema)
    if isinstance(data, str | Path) or hasattr(data, "read"):
        return _from_file(data, fitting, on_error, form)
    names, batches = _structured(data, fitting)
    fitting.check_names(names)
    return Incoming(pa.RecordBatchReader.from_batches(fitting.arrow, _fitted(batches, fitting)), tuple(names))


def inferred_schema(path: str | Path, form: str | None = None) -> pa.Schema:
    """The columns a file seems to have, judged by its beginning: what `create --from` starts from."""
    with _File(path, form) as file:
        if file.form in ("parquet", "arrow"):
            return _binary_batches(file)[0]
        return _sniffed(file)


class Fitting:
    """How given columns become a table's columns."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.arrow = arrow_schema(schema)
        self.required = [item.name for item in schema.fields if item.required]

    def check_names(self, names: Sequence[str]) -> None:
        known = self.arrow.names
        if twice := sorted({name for name in names if list(names).count(name) > 1}):
            raise DataError(f"The data has column {twice[0]!r} twice; nothing was written. Rename one of them.")
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known) or f" Its columns are {', '.join(known)}."
                raise DataError(f"The table has no column {name!r}; nothing was written.{hint}")
        for name in self.required:
            if name not in names:
                hint = did_you_mean(name, list(names))
                raise DataError(f"Column {name!r} is required, but the data has none; nothing was written.{hint}")

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with the table's columns, types and order; raises a _MisfitError for the first value that cannot be."""
        columns = []
        for item in self.arrow:
            if item.name not in batch.schema.names:
                columns.append(pa.nulls(batch.num_rows, item.type))
                continue
            values = fit_values(batch.column(item.name), item)
            if values.null_count and not item.nullable:
                row = pc.index(values.is_null(), True).as_py()
                raise _MisfitError(f"column {item.name!r} is required and has no value", row)
            columns.append(values)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)


def fit_values(values: pa.Array, item: pa.Field) -> pa.Array:
    """One column's values as its type, or a _MisfitError that names the first that does not fit."""
    try:
        return _cast(values, item.type)
    except (pa.ArrowException, OverflowError) as error:
        row = _first_misfit(values, item.type)
        shown = repr(values[row].as_py()) if len(values) else first_line(error)
        raise _MisfitError(f"column {item.name!r} takes {_said(item.type)}, not {shown[:80]}", row) from error


def _first_misfit(values: pa.Array, wanted: pa.DataType) -> int:
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _cast(values.slice(low, middle - low), wanted)
            low = middle
        except (pa.ArrowException, OverflowError):
            high = middle
    return low


def _said(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return f"whole numbers of {kind.bit_width} bits"
    return f"{kind} values"


def _cast(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    given = values.type
    if given.equals(wanted):
        return values
    if pa.types.is_dictionary(given):
        return _cast(values.cast(given.value_type), wanted)
    if _is_text(given):
        values = values.cast(pa.string())
        return values if pa.types.is_string(wanted) else _from_text(values, wanted)
    if pa.types.is_temporal(wanted) and pa.types.is_temporal(given):
        return _cast_time(values, wanted)
    if (
        pa.types.is_temporal(wanted) != pa.types.is_temporal(given)
        and not _is_text(wanted)
        and not pa.types.is_null(given)
    ):
        raise pa.ArrowInvalid("times and numbers do not mix")
    if pa.types.is_boolean(wanted) != pa.types.is_boolean(given) and not pa.types.is_null(given):
        raise pa.ArrowInvalid("truth values stand alone")
    if pa.types.is_decimal(wanted) and pa.types.is_integer(given):
        values = values.cast(pa.decimal128(38, wanted.scale))
    return values.cast(wanted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _cast_time(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Nanoseconds lose their last digits; a time without a zone is UTC."""
    nanoseconds = pa.types.is_timestamp(values.type) and values.type.unit == "ns"
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", values.type.tz), safe=not nanoseconds)
    return values.cast(wanted)


def _from_text(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    values = pc.utf8_trim_whitespace(values)
    if not pa.types.is_timestamp(wanted):
        return values.cast(wanted)
    zoned = pc.match_substring_regex(values, _ZONED)
    utc = pa.timestamp("us", "UTC")
    with_zone = _parsed_times(pc.if_else(zoned, values, None), "UTC")
    without = _parsed_times(pc.if_else(zoned, None, values), None)
    return pc.coalesce(with_zone.cast(utc), without.cast(utc)).cast(wanted)


def _parsed_times(values: pa.Array, zone: str | None) -> pa.Array:
    try:
        return values.cast(pa.timestamp("us", zone))
    except pa.ArrowInvalid:
        return values.cast(pa.timestamp("ns", zone)).cast(pa.timestamp("us", zone), safe=False)


def _fitted(batches: Iterable[pa.RecordBatch], fitting: Fitting) -> Iterator[pa.RecordBatch]:
    seen = 0
    for whole in batches:
        for start in range(0, whole.num_rows, BATCH_ROWS):
            batch = whole.slice(start, BATCH_ROWS)
            try:
                yield fitting.fit(batch)
            except _MisfitError as misfit:
                raise DataError(f"Row {seen + misfit.row + 1}: {misfit}; nothing was written.") from misfit
            seen += batch.num_rows


def _structured(data: Any, fitting: Fitting) -> tuple[list[str], Iterator[pa.RecordBatch]]:
    """Column names and batches of anything that is not a file."""
    if isinstance(data, pa.RecordBatch):
        return data.schema.names, iter([data])
    if hasattr(data, "toArrow"):
        data = data.toArrow()
    if type(data).__module__.partition(".")[0] == "pandas":
        return [str(name) for name in data.columns], _pandas_batches(data)
    if hasattr(data, "collect") and type(data).__name__ == "LazyFrame":
        data = data.collect()
    if hasattr(data, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(data)
        return reader.schema.names, _translated(iter(reader))
    if isinstance(data, Iterable) and not isinstance(data, Mapping | bytes):
        return _dicts(iter(data), fitting)
    raise InputError(
        f"{type(data).__name__} is not something rows can be read from: give a pandas or Polars frame, Arrow data, a list "
        "of dicts, a path, a DuckDB relation or a Spark DataFrame."
    )


def _translated(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"The data could not be read to its end; nothing was written. {first_line(error)}") from error


def _pandas_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(frame), BATCH_ROWS):
        try:
            table = pa.Table.from_pandas(frame.iloc[start : start + BATCH_ROWS], preserve_index=False)
        except pa.ArrowException as error:
            raise DataError(f"A column holds mixed types; nothing was written. {first_line(error)}") from error
        yield from table.to_batches()


def _dicts(rows: Iterator[Any], fitting: Fitting) -> tuple[list[str], Iterator[pa.RecordBatch]]:
    first = _some(rows)
    for row in first:
        if not isinstance(row, Mapping):
            raise InputError(f"A row must be a dict with a value per column, not {type(row).__name__}.")
    names = list(dict.fromkeys(str(name) for row in first for name in row))

    def batches() -> Iterator[pa.RecordBatch]:
        chunk = first
        while chunk:
            fitting.check_names(names + sorted({str(name) for row in chunk for name in row} - set(names)))
            yield pa.RecordBatch.from_arrays([_dict_column(chunk, fitting, name) for name in names], names)
            chunk = _some(rows)

    return names or fitting.arrow.names, batches()


def _some(rows: Iterator[Any]) -> list[Any]:
    return [row for row, _ in zip(rows, range(BATCH_ROWS // 4), strict=False)]


def _dict_column(rows: Sequence[Mapping[str, Any]], fitting: Fitting, name: str) -> pa.Array:
    values = [row.get(name) for row in rows]
    for kind in (fitting.arrow.field(name).type if name in fitting.arrow.names else None, None):
        try:
            return pa.array(values, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            continue
    raise DataError(f"Column {name!r} holds values of mixed types; nothing was written.")


class _File:
    """A file's bytes, decompressed within limits, and its format."""

    def __init__(self, source: str | Path | BinaryIO, form: str | None) -> None:
        self.name = str(source) if isinstance(source, str | Path) else getattr(source, "name", "standard input")
        self.name = "standard input" if self.name in ("<stdin>", "0") else str(self.name)
        self.raw = _open(source)
        self._own = isinstance(source, str | Path)
        self.packed = self.spent = 0
        head = self._peek()
        self.form = _format(self.name, form, head)
        self._inner: Any = self
        if packing := _packing(head):
            self._inner = pa.CompressedInputStream(pa.PythonFile(_Counting(self), "r"), packing)

    def _peek(self) -> bytes:
        head: bytes = self.raw.read(4096)
        if not head:
            raise DataError(f"{self.name} is empty; nothing was written.")
        self.raw = _Prefixed(head, self.raw)
        return head

    def read(self, size: int = -1) -> bytes:
        """Decoded bytes. A file that unpacks to absurdly more than it takes is refused."""
        try:
            chunk: bytes = self.raw.read(size) if self._inner is self else self._inner.read(size)
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"{self.name} cannot be unpacked: {first_line(error)}. Nothing was written.") from error
        self.spent += len(chunk)
        if self._inner is not self and self.spent > BOMB_SLACK + BOMB_RATIO * self.packed:
            raise DataError(
                f"{self.name} unpacks to more than {BOMB_RATIO} times its size, as only a damaged or hostile file does; "
                "nothing was written. Unpack it yourself if it is sound."
            )
        return chunk

    def seekable(self) -> Any:
        """For formats that are read from their end: the file itself, or a copy on disk."""
        if self._inner is self and self._own:
            self.raw.rest.seek(0)
            return self.raw.rest
        handle, place = tempfile.mkstemp()
        os.close(handle)
        with pa.OSFile(place, "wb") as copy:
            while chunk := self.read(BLOCK_BYTES):
                copy.write(chunk)
        copied = pa.OSFile(place, "rb")
        Path(place).unlink()
        return copied

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            self.raw.rest.close()


class _Prefixed:
    """A stream whose first bytes were looked at already."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self.head, self.rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if not self.head:
            return bytes(self.rest.read(size))
        chunk = self.head if size < 0 else self.head[:size]
        self.head = b"" if size < 0 else self.head[size:]
        more: bytes = self.rest.read(size - len(chunk) if size >= 0 else -1) if size != len(chunk) else b""
        return chunk + more


class _Counting(io.RawIOBase):
    """The packed bytes of a file, counted as they are taken."""

    def __init__(self, file: _File) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        chunk: bytes = self._file.raw.read(size)
        self._file.packed += len(chunk)
        return chunk


def _open(source: str | Path | BinaryIO) -> Any:
    if not isinstance(source, str | Path):
        return source
    path = Path(source).expanduser()
    try:
        return pa.OSFile(str(path), "rb")
    except FileNotFoundError:
        around = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise NotFoundError(f"There is no file {path}.{did_you_mean(path.name, around)}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}.") from error


def _packing(head: bytes) -> str | None:
    return {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(head[:2])


def _format(name: str, form: str | None, head: bytes) -> str:
    ending = form or Path(re.sub(r"\.(gz|zst|zstd)$", "", name)).suffix.lstrip(".").lower()
    if ending in _FORMATS:
        return _FORMATS[ending]
    if (ending and form) or Path(name).suffix:
        known = ", ".join(_FORMATS)
        raise InputError(f"{name}: {ending!r} is not a known format; use one of {known}, also packed as .gz or .zst.")
    by_start = {b"PAR1": "parquet", b"ARRO": "arrow"}.get(head[:4])
    return by_start or ("json" if head.lstrip()[:1] in (b"[", b"{") else "csv")


def _from_file(source: Any, fitting: Fitting, on_error: OnError, form: str | None) -> Incoming:
    file = _File(source, form)
    if file.form in ("parquet", "arrow"):
        arrow, batches = _binary_batches(file)
        fitting.check_names(arrow.names)
        reader = pa.RecordBatchReader.from_batches(fitting.arrow, _fitted(_translated(batches), fitting))
        return Incoming(reader, tuple(arrow.names))
    text = _Text(file, fitting, on_error)
    names = text.open()
    return Incoming(pa.RecordBatchReader.from_batches(fitting.arrow, text.batches()), names, text.skipped)


def _binary_batches(file: _File) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    import pyarrow.parquet as pq

    source = file.seekable()
    try:
        if file.form == "parquet":
            parquet = pq.ParquetFile(source)
            return parquet.schema_arrow, parquet.iter_batches(batch_size=BATCH_ROWS // 2)
        try:
            blocks = pa.ipc.open_file(source)
            return blocks.schema, (blocks.get_batch(number) for number in range(blocks.num_record_batches))
        except pa.ArrowInvalid:
            source.seek(0)
            stream = pa.ipc.open_stream(source)
            return stream.schema, iter(stream)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{file.name} is not a sound {file.form} file; nothing was written. {first_line(error)}"
        ) from error


class _Text:
    """A CSV or JSON file, block by block. Line numbers are those of the file (for a JSON array: of its elements)."""

    def __init__(self, file: _File, fitting: Fitting, on_error: OnError) -> None:
        self.file, self.fitting, self.on_error = file, fitting, on_error
        self.skipped = Skipped()
        self.mark = b"\t" if file.form == "tsv" else b","
        self.is_csv = file.form in ("csv", "tsv")
        self.names: list[str] = []
        self.line = 1
        self.rest = b""

    def open(self) -> tuple[str, ...]:
        """Read as much as tells the columns; a JSON file may name others in every line."""
        if not self.is_csv:
            return tuple(self.fitting.arrow.names)
        self.rest = self.file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
        end = self._end(self.rest)
        if end < 0 and len(self.rest) >= BLOCK_BYTES:
            raise DataError(f"{self.file.name}, line 1: too long for a line of column names; nothing was written.")
        head = next(iter(self._records(self.rest if end < 0 else self.rest[:end], 1)), None)
        if head is None:
            raise DataError(f"{self.file.name} is empty; nothing was written.")
        self.line, size = head[0] + head[1].count(b"\n") + 1, head[2]
        self.rest = self.rest[size:]
        self.names = next(csv.reader([head[1].decode("utf-8", "replace")], delimiter=self.mark.decode()))
        self.names = [name.strip() for name in self.names]
        self.fitting.check_names(self.names)
        return tuple(self.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self.file:
            found = False
            for line, block in self._blocks():
                for batch in self._salvage(block, line):
                    found = found or batch.num_rows > 0
                    yield batch
            if not found and not self.skipped.count:
                raise DataError(f"{self.file.name} has no rows; nothing was written.")

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole records with the line each starts at."""
        source = self._elements() if self._is_array() else None
        while True:
            chunk = next(source, b"") if source else self.file.read(BLOCK_BYTES)
            block = self.rest + chunk
            if not chunk:
                if block.strip():
                    yield self.line, block
                return
            end = self._end(block)
            if end < 0 and len(block) > LINE_BYTES:
                raise DataError(
                    f"{self.file.name}, line {self.line}: longer than {LINE_BYTES // 1024**2} MB, or a quote that is never "
                    "closed; nothing was written."
                )
            self.rest = block[max(end, 0) :]
            if end > 0:
                yield self.line, block[:end]
                self.line += block.count(b"\n", 0, end)

    def _is_array(self) -> bool:
        if self.file.form != "json":
            return False
        self.rest = self.file.read(4096)
        return self.rest.lstrip(b" \t\r\n\xef\xbb\xbf")[:1] == b"["

    def _elements(self) -> Iterator[bytes]:
        """The objects of a JSON array as lines, a block at a time."""
        decoder, text = json.JSONDecoder(), self.rest.lstrip(b" \t\r\n\xef\xbb\xbf")[1:]
        self.rest, buffer, at, number = b"", "", 0, 0
        incremental = io.IncrementalNewlineDecoder(None, False)
        import codecs

        utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        buffer = incremental.decode(utf8.decode(text))
        lines: list[str] = []
        while True:
            at = _skip(buffer, at, number)
            if buffer[at : at + 1] == "]":
                break
            try:
                element, at = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError as error:
                more = self.file.read(BLOCK_BYTES)
                if not more or len(buffer) - at > LINE_BYTES:
                    raise DataError(
                        f"{self.file.name}, element {number + 1}: {error.msg.lower()}; nothing was written."
                    ) from error
                if lines:
                    yield "".join(lines).encode()
                buffer, at, lines = buffer[at:] + utf8.decode(more), 0, []
                continue
            number += 1
            lines.append(json.dumps(element) + "\n")
        yield "".join(lines).encode()

    def _end(self, block: bytes) -> int:
        """Where the last whole record ends, or -1. A newline inside quotes ends nothing."""
        limit, spans = len(block), []
        if self.is_csv and b'"' in block:
            spans = [(match.start(), match.end()) for match in _QUOTED[self.mark].finditer(block) if b"\n" in match[0]]
            if spans and spans[-1][1] == len(block):
                limit = spans.pop()[0]
        at = block.rfind(b"\n", 0, limit)
        while spans and at >= 0 and at < spans[-1][1]:
            start = spans.pop()[0]
            at = block.rfind(b"\n", 0, start) if at >= start else at
        return at + 1 if at >= 0 else -1

    def _records(self, block: bytes, line: int) -> Iterator[tuple[int, bytes, int]]:
        """Single records: first line number, text, and where it ends in the block."""
        start = 0
        quoted = [match.span() for match in _QUOTED[self.mark].finditer(block)] if self.is_csv else []
        inside = {at for low, high in quoted for at in range(low, high) if block[at] == 10} if quoted else set()
        ends = [at for at in (match.start() for match in re.finditer(rb"\n", block)) if at not in inside]
        for end in [*ends, len(block)]:
            record = block[start:end]
            if record.strip():
                yield line, record.rstrip(b"\r"), min(end + 1, len(block))
            line += record.count(b"\n") + 1
            start = end + 1

    def _salvage(self, block: bytes, line: int) -> Iterator[pa.RecordBatch]:
        """The block's rows; if it does not parse, those that do, and a word on each of the others."""
        try:
            yield self._parse(block)
        except _MisfitError:
            yield from self._halved([(at, record) for at, record, _ in self._records(block, line)])

    def _halved(self, records: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
        if not records:
            return
        try:
            yield self._parse(b"\n".join(record for _, record in records) + b"\n")
        except _MisfitError as misfit:
            if len(records) == 1:
                self._report(records[0][0], self._reason(records[0][1], misfit))
                return
            yield from self._halved(records[: len(records) // 2])
            yield from self._halved(records[len(records) // 2 :])

    def _report(self, line: int, reason: str) -> None:
        if self.on_error == "fail":
            raise DataError(f"{self.file.name}, line {line}: {reason}; nothing was written.")
        self.skipped.count += 1
        if len(self.skipped.examples) < EXAMPLES:
            self.skipped.examples.append(f"line {line}: {reason}")

    def _parse(self, block: bytes) -> pa.RecordBatch:
        try:
            table = (
                _parse_csv(block, self.names, self.mark, self.fitting)
                if self.is_csv
                else _parse_json(block, self.fitting)
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _MisfitError(first_line(error)) from error
        merged = table.combine_chunks().to_batches()
        return self.fitting.fit(merged[0]) if merged else self.fitting.arrow.empty_table().to_batches()[0]

    def _reason(self, record: bytes, misfit: _MisfitError) -> str:
        """Why this one record does not parse, in words about the file rather than the parser."""
        said = str(misfit)
        if counts := re.search(r"Expected (\d+) columns, got (\d+)", said):
            return f"{counts[2]} values for {counts[1]} columns"
        if value := re.search(r"In CSV column #(\d+).*conversion error to (\S+): invalid value '(.*)'", said):
            return f"column {self.names[int(value[1])]!r} takes {value[2]} values, not {value[3][:80]!r}"
        if self.is_csv:
            return said
        return _json_reason(record, self.fitting) or said


def _skip(buffer: str, at: int, number: int) -> int:
    """Past white space and, between elements, one comma."""
    while at < len(buffer) and (buffer[at].isspace() or (buffer[at] == "," and number)):
        at += 1
    return at


def _parse_csv(block: bytes, names: list[str], mark: bytes, fitting: Fitting) -> pa.Table:
    import pyarrow.csv as pacsv

    plain = {
        item.name: item.type if pa.types.is_integer(item.type) or pa.types.is_floating(item.type) else pa.string()
        for item in fitting.arrow
    }
    return pacsv.read_csv(
        pa.py_buffer(block),
        read_options=pacsv.ReadOptions(column_names=names, block_size=max(len(block), 1)),
        parse_options=pacsv.ParseOptions(delimiter=mark.decode(), newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=plain, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    )


def _parse_json(block: bytes, fitting: Fitting) -> pa.Table:
    import pyarrow.json as pajson

    return pajson.read_json(
        pa.py_buffer(block),
        read_options=pajson.ReadOptions(block_size=len(block) + 1),
        parse_options=pajson.ParseOptions(
            explicit_schema=pa.schema([_as_written(item) for item in fitting.arrow]), unexpected_field_behavior="error"
        ),
    )


def _as_written(item: pa.Field) -> pa.Field:
    """The type that a JSON file holds a column in: times, dates and decimals are text there."""
    texts = (pa.types.is_temporal, pa.types.is_decimal, pa.types.is_binary, pa.types.is_fixed_size_binary)
    kind = pa.string() if any(is_text(item.type) for is_text in texts) else item.type
    return pa.field(item.name, kind)


def _json_reason(record: bytes, fitting: Fitting) -> str:
    try:
        row = json.loads(record)
    except ValueError as error:
        return f"no valid JSON: {first_line(error)}"
    if not isinstance(row, dict):
        return "a line must be an object with a value per column"
    for name in row:
        if name not in fitting.arrow.names:
            return f"the table has no column {name!r}.{did_you_mean(name, fitting.arrow.names)}".rstrip(".")
    for name, value in row.items():
        try:
            fit_values(pa.array([value]), fitting.arrow.field(name))
        except (_MisfitError, pa.ArrowException) as misfit:
            return str(misfit)
    return ""


def _sniffed(file: _File) -> pa.Schema:
    import pyarrow.csv as pacsv
    import pyarrow.json as pajson

    head = file.read(BLOCK_BYTES)
    try:
        if file.form in ("csv", "tsv"):
            options = pacsv.ParseOptions(delimiter="\t" if file.form == "tsv" else ",", newlines_in_values=True)
            return pacsv.open_csv(pa.py_buffer(head), parse_options=options).schema
        if head.lstrip()[:1] == b"[":
            return pa.Table.from_pylist(json.loads(head + file.read(LINE_BYTES))).schema
        return pajson.read_json(pa.py_buffer(head[: head.rfind(b"\n") + 1] or head)).schema
    except (pa.ArrowException, ValueError) as error:
        raise DataError(f"{file.name}: its columns cannot be told from its beginning. {first_line(error)}") from error
