"""A landed file as batches that fit the table: any format, in bounded memory, bad rows set aside with their text and line.

A file that cannot be read to its end is a BadFileError with the reason; nothing else of the batch is touched by it. A row
that does not fit is handed to ``reject``; what is yielded holds no bad row.
"""

import csv
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from iceberg_manager.errors import DataError, InputError, NotFoundError, first_line
from iceberg_manager.fitting import Fitting, MisfitError
from iceberg_manager.landing.folder import Folder
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.source_files import BATCH_ROWS, SourceFile, binary_batches
from iceberg_manager.text_files import TextFile, sniffed

FORMATS = {
    "csv": "csv",
    "tsv": "tsv",
    "json": "json",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "avro": "avro",
    "orc": "orc",
}
PACKED = ("gz", "gzip", "zst", "zstd")
_MAGIC = {b"PAR1": "parquet", b"ARRO": "arrow", b"Obj\x01": "avro", b"ORC": "orc"}
_SLACK = 64 * 1024**2
_SHOWN = 64 * 1024
_PIECE = 4 * 1024**2


class BadFileError(Exception):
    """A file that is refused as a whole. ``line`` and ``column`` say where, if that is known."""

    def __init__(self, name: str, reason: str, line: int | None = None, column: str | None = None) -> None:
        super().__init__(reason)
        self.name, self.line, self.column = name, line, column


@dataclass(frozen=True)
class Reject:
    """One row that does not fit: where it stood, why, and what it said."""

    file: str
    line: int
    reason: str
    text: str


OnReject = Callable[[Reject], None]


def form_of(name: str) -> str | None:
    """The format that a file's name promises."""
    parts = PurePosixPath(name).name.lower().split(".")
    while len(parts) > 1 and parts[-1] in PACKED:
        parts.pop()
    return FORMATS.get(parts[-1]) if len(parts) > 1 else None


def content_hash(folder: Folder, name: str) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with folder.open(name) as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


class LandedFile:
    """One file of a batch, opened as often as it is read."""

    def __init__(self, folder: Folder, name: str, policy: LandingPolicy) -> None:
        self.folder, self.name, self.policy = folder, name, policy
        form = form_of(name)
        if form is None:
            known = ", ".join(FORMATS)
            raise BadFileError(name, f"its name ends in no known format: {known}, also packed as .gz or .zst")
        self.form = form
        self._handles: list[Any] = []

    def schema(self) -> pa.Schema:
        """The columns it has; of a text file those that its beginning shows."""
        with self._reading():
            if self.form in ("orc", "avro"):
                return self._binary()[0]
            if self.form in ("parquet", "arrow"):
                return binary_batches(self._source())[0]
            try:
                return sniffed(self._source())
            except DataError:
                return self._first_names()
        raise AssertionError("reading either returns or raises")

    def _first_names(self) -> pa.Schema:
        """Of a text file whose beginning has broken lines: the columns that its first sound line names, as text."""
        head = self._source().read(_PIECE).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace").lstrip()
        if self.form in ("csv", "tsv"):
            names = next(csv.reader(head.splitlines()[:1], delimiter="\t" if self.form == "tsv" else ","), [])
            return pa.schema([(name.strip(), pa.string()) for name in names])
        for line in head.splitlines():
            with suppress(ValueError):
                if isinstance(row := json.loads(line), dict):
                    return pa.schema([(str(name), pa.string()) for name in row])
        raise BadFileError(self.name, "its beginning holds no valid JSON")

    def batches(self, fitting: Fitting, reject: OnReject) -> Iterator[pa.RecordBatch]:
        """Its rows as the table has them."""
        with self._reading():
            if self.form in ("csv", "tsv", "json", "jsonl"):
                yield from self._text_rows(fitting, reject)
            else:
                _, batches = self._binary()
                yield from self._fitted(batches, fitting, reject)

    def _text_rows(self, fitting: Fitting, reject: OnReject) -> Iterator[pa.RecordBatch]:
        def bad_line(line: int, reason: str) -> None:
            shown = text.bad_record[:_SHOWN].decode("utf-8", "replace")
            reject(Reject(self.name, line, reason, shown))

        limit = self.policy.max_line_mb * 1024**2
        text = TextFile(self._source(), fitting, bad_line, limit, may_be_empty=True)
        text.open()
        yield from text.batches()

    def _fitted(
        self, batches: Iterator[pa.RecordBatch], fitting: Fitting, reject: OnReject
    ) -> Iterator[pa.RecordBatch]:
        seen = 0
        for whole in batches:
            for start in range(0, whole.num_rows, BATCH_ROWS):
                batch = whole.slice(start, BATCH_ROWS)
                yield from self._fit(batch, seen, fitting, reject)
                seen += batch.num_rows

    def _fit(self, batch: pa.RecordBatch, seen: int, fitting: Fitting, reject: OnReject) -> Iterator[pa.RecordBatch]:
        """The rows that fit; the first that does not is set aside, and the rest is looked at anew."""
        while batch.num_rows:
            try:
                yield fitting.fit(batch)
                return
            except MisfitError as misfit:
                at, reason = misfit.row, str(misfit)
            if at:
                yield from self._fit(batch.slice(0, at), seen, fitting, reject)
            text = json.dumps(batch.slice(at, 1).to_pylist()[0], default=str)[:_SHOWN]
            reject(Reject(self.name, seen + at + 1, reason, text))
            batch, seen = batch.slice(at + 1), seen + at + 1

    def _source(self) -> SourceFile:
        if self.folder.local:
            source = SourceFile(self.folder.uri(self.name), self.form)
            self._handles.append(source.raw.rest)
        else:
            source = SourceFile(_Named(self._open(), self.name), self.form)  # type: ignore[arg-type]
        source.slack, source.ratio = _SLACK, self.policy.max_unpack_ratio
        self._check_magic(source.raw.head)
        return source

    def _check_magic(self, head: bytes) -> None:
        said = next((form for magic, form in _MAGIC.items() if head.startswith(magic)), None)
        if said != (self.form if self.form in _MAGIC.values() else None) and (said or head[:2] not in _PACKING):
            shown = said or "no " + self.form
            raise BadFileError(self.name, f"named as {self.form}, but its content is {shown}")

    def _binary(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        if self.form in ("parquet", "arrow"):
            return binary_batches(self._source())
        with self.folder.open(self.name) as file:
            head = file.read(4)
        if not head:
            raise BadFileError(self.name, "it is empty")
        self._check_magic(head)
        return self._orc() if self.form == "orc" else self._avro()

    def _orc(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        from pyarrow import orc

        file = orc.ORCFile(pa.PythonFile(self._open(), "r"))
        return file.schema, (file.read_stripe(number) for number in range(file.nstripes))

    def _avro(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """By DuckDB, in a stream; from a bucket, or where DuckDB finds names too odd, by Polars, which reads it whole."""
        import duckdb

        from iceberg_manager.query import load_avro

        if self.folder.local:
            connection = duckdb.connect()
            load_avro(connection)
            path = self.folder.uri(self.name).translate(_GLOB)
            try:
                reader = connection.execute("SELECT * FROM read_avro(?)", [path]).to_arrow_reader(BATCH_ROWS)
                return reader.schema, _closing(reader, connection)
            except duckdb.Error:
                connection.close()
        return self._avro_whole()

    def _avro_whole(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        import polars

        try:
            table = polars.read_avro(self._open()).to_arrow()
        except polars.exceptions.PolarsError as error:
            raise BadFileError(self.name, f"not a sound avro file: {first_line(error)}") from error
        return table.schema, iter(table.to_batches())

    def _open(self) -> Any:
        self._handles.append(self.folder.open(self.name))
        return self._handles[-1]

    def _reading(self) -> "_Reading":
        return _Reading(self.name, self.folder.uri(self.name), self._handles)


class _Reading:
    """Translates whatever goes wrong while a file is read into the reason for which it is refused; closes it behind."""

    def __init__(self, name: str, address: str, handles: list[Any]) -> None:
        self.name, self.address, self.handles = name, address, handles

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        while self.handles:
            self.handles.pop().close()
        if isinstance(error, InputError | pa.ArrowException | UnicodeError) and not isinstance(error, NotFoundError):
            said = first_line(error).replace(self.address, self.name)
            line = re.search(r", line (\d+):", said)
            raise BadFileError(self.name, _without_name(said, self.name), int(line[1]) if line else None) from error
        if isinstance(error, NotFoundError):
            raise FileNotFoundError(self.address) from error
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise BadFileError(self.name, f"it cannot be read: {first_line(error)}") from error


class _Named:
    """A stream with the name by which complaints call it."""

    def __init__(self, stream: Any, name: str) -> None:
        self._stream, self.name = stream, name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self._stream, attribute)


_PACKING = (b"\x1f\x8b", b"\x28\xb5")
_GLOB = str.maketrans({letter: f"[{letter}]" for letter in "*?["})


def _closing(reader: Any, connection: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    finally:
        connection.close()


def _without_name(said: str, name: str) -> str:
    return said.removeprefix(f"{name}, ").removeprefix(f"{name}: ").replace("; nothing was written.", ".").strip()
