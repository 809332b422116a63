"""CSV and JSON files as batches, in bounded memory and with exact complaints.

A file is cut into blocks of whole records; a block that does not parse is halved until the broken lines are found. Each of
those is reported with its number, and what was yielded holds no bad row.
"""

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from iceberg_manager.errors import DataError, first_line
from iceberg_manager.fitting import Fitting, MisfitError, fit_values
from iceberg_manager.names import did_you_mean
from iceberg_manager.source_files import BLOCK_BYTES, SourceFile

BadLine = Callable[[int, str], None]
LINE_BYTES = 32 * 1024 * 1024
_QUOTED = {mark: re.compile(rb'(?:(?<=[%s\n])|\A)"(?:[^"]|"")*("|\Z)' % re.escape(mark)) for mark in (b",", b"\t")}


class TextFile:
    """A CSV or JSON file, block by block. Line numbers are those of the file (for a JSON array: of its elements)."""

    def __init__(
        self,
        file: SourceFile,
        fitting: Fitting,
        bad_line: BadLine,
        line_bytes: int | None = None,
        may_be_empty: bool = False,
    ) -> None:
        self.file, self.fitting, self.bad_line = file, fitting, bad_line
        self.line_bytes, self.may_be_empty = line_bytes or LINE_BYTES, may_be_empty
        self.bad_record = b""
        self.mark = b"\t" if file.form == "tsv" else b","
        self.is_csv = file.form in ("csv", "tsv")
        self.names: list[str] = []  # a JSON file's grow as it is read: every line may name others
        self.line = 1
        self.rest = b""
        self.bad_lines = 0

    def open(self) -> Sequence[str]:
        """Read as much as tells the columns. A JSON file tells them only as it is read: the list is complete then."""
        if not self.is_csv:
            return self.names
        self.rest = self.file.read(BLOCK_BYTES).removeprefix(b"\xef\xbb\xbf")
        end = self._end(self.rest)
        if end < 0 and len(self.rest) >= BLOCK_BYTES:
            raise DataError(f"{self.file.name}, line 1: too long for a line of column names; nothing was written.")
        head = next(iter(self._records(self._head(self.rest if end < 0 else self.rest[:end]), 1)), None)
        if head is None:
            raise DataError(f"{self.file.name} is empty; nothing was written.")
        self.line, size = head[0] + head[1].count(b"\n") + 1, head[2]
        self.rest = self.rest[size:]
        self.names = next(csv.reader([head[1].decode("utf-8", "replace")], delimiter=self.mark.decode()))
        self.names = [name.strip() for name in self.names]
        self.fitting.check_names(self.names)
        return self.names

    def _head(self, block: bytes) -> bytes:
        """The first lines with something in them, which are enough to find the first record."""
        blank = len(block) - len(block.lstrip())
        end = block.find(b"\n", blank)
        return block[: end + 1] if end >= 0 and _quotes_pair_up(block[: end + 1]) else block

    def batches(self) -> Iterator[pa.RecordBatch]:
        with self.file:
            found = False
            for line, block in self._blocks():
                for batch in self._salvage(block, line):
                    found = found or batch.num_rows > 0
                    yield batch
            if not found and not self.bad_lines and not self.may_be_empty:
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
            if end < 0 and len(block) > self.line_bytes:
                raise DataError(
                    f"{self.file.name}, line {self.line}: longer than {self.line_bytes // 1024**2} MB, or a quote that is "
                    "never closed; nothing was written."
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
                if not more or len(buffer) - at > self.line_bytes:
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
        last = block.rfind(b"\n")
        if not self.is_csv or _quotes_pair_up(block):
            return last + 1 if last >= 0 else -1
        limit = len(block)
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
        except MisfitError:
            yield from self._halved([(at, record) for at, record, _ in self._records(block, line)])

    def _halved(self, records: list[tuple[int, bytes]]) -> Iterator[pa.RecordBatch]:
        if not records:
            return
        try:
            yield self._parse(b"\n".join(record for _, record in records) + b"\n")
        except MisfitError as misfit:
            if len(records) == 1:
                self.bad_lines += 1
                self.bad_record = records[0][1]
                self.bad_line(records[0][0], self._reason(records[0][1], misfit))
                return
            yield from self._halved(records[: len(records) // 2])
            yield from self._halved(records[len(records) // 2 :])

    def _parse(self, block: bytes) -> pa.RecordBatch:
        try:
            table = (
                _parse_csv(block, self.names, self.mark, self.fitting)
                if self.is_csv
                else _parse_json(block, self.fitting)
            )
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise MisfitError(first_line(error)) from error
        if not self.is_csv:
            self.names += [name for name in _keys(block, table) if name not in self.names]
        merged = table.combine_chunks().to_batches()
        return self.fitting.fit(merged[0]) if merged else self.fitting.arrow.empty_table().to_batches()[0]

    def _reason(self, record: bytes, misfit: MisfitError) -> str:
        """Why this one record does not parse, in words about the file rather than the parser."""
        said = str(misfit)
        if counts := re.search(r"Expected (\d+) columns, got (\d+)", said):
            return f"{counts[2]} values for {counts[1]} columns"
        if value := re.search(r"In CSV column #(\d+).*conversion error to (\S+): invalid value '(.*)'", said):
            return f"column {self.names[int(value[1])]!r} takes {value[2]} values, not {value[3][:80]!r}"
        if self.is_csv:
            return said
        return _json_reason(record, self.fitting) or said


def _quotes_pair_up(block: bytes) -> bool:
    """Whether every line has an even number of quotes: then no value goes on in the next line. Fast, and usually so."""
    if b'"' not in block:
        return True
    letters = np.frombuffer(block, np.uint8)
    quotes, ends = np.flatnonzero(letters == ord('"')), np.flatnonzero(letters == ord("\n"))
    return not np.any(np.searchsorted(quotes, ends) % 2)


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
            explicit_schema=pa.schema([_as_written(item) for item in fitting.arrow]),
            unexpected_field_behavior=fitting.unexpected,
        ),
    )


def _keys(block: bytes, table: pa.Table) -> list[str]:
    """The columns that a block of JSON names: those with values, and those named with nothing but null."""
    return [
        name
        for name in table.column_names
        if table[name].null_count < len(table)
        or re.search(rb"(?<!\\)%s\s*:" % re.escape(json.dumps(name).encode()), block)
    ]


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
        if name not in fitting.arrow.names and fitting.unexpected == "error":
            return f"the table has no column {name!r}.{did_you_mean(name, fitting.arrow.names)}".rstrip(".")
    for name, value in row.items():
        if name not in fitting.arrow.names:
            continue
        try:
            fit_values(pa.array([value]), fitting.arrow.field(name))
        except (MisfitError, pa.ArrowException) as misfit:
            return str(misfit)
    return ""


def sniffed(file: SourceFile) -> pa.Schema:
    """The columns that a text file seems to have, judged by its beginning."""
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
