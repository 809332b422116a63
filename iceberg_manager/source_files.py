"""A data file or stream as bytes: found, unpacked within limits, its format told; Parquet and Arrow files as batches.

A file that unpacks to absurdly more than it takes is refused while it is read, so that it fills neither memory nor disk.
"""

import io
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from iceberg_manager.errors import DataError, InputError, NotFoundError, first_line
from iceberg_manager.names import did_you_mean

BLOCK_BYTES = 8 * 1024 * 1024
BATCH_ROWS = 65_536
BOMB_SLACK = 1024**3
BOMB_RATIO = 250
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


class SourceFile:
    """A file's bytes, decompressed within limits, and its format."""

    def __init__(self, source: str | Path | BinaryIO, form: str | None = None) -> None:
        self.name = str(source) if isinstance(source, str | Path) else getattr(source, "name", "standard input")
        self.name = "standard input" if self.name in ("<stdin>", "0") else str(self.name)
        self.raw = _open(source)
        self._own = isinstance(source, str | Path)
        self.packed = self.spent = 0
        self.slack, self.ratio = BOMB_SLACK, BOMB_RATIO
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
        if self._inner is not self and self.spent > self.slack + self.ratio * self.packed:
            raise DataError(
                f"{self.name} unpacks to more than {self.ratio} times its size, as only a damaged or hostile file does; "
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

    def __enter__(self) -> "SourceFile":
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

    def __init__(self, file: SourceFile) -> None:
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


def binary_batches(file: SourceFile) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The columns and rows of a Parquet or Arrow file."""
    import pyarrow.parquet as pq

    source = file.seekable()
    try:
        if file.form == "parquet":
            parquet = pq.ParquetFile(source)
            return parquet.schema_arrow, parquet.iter_batches(batch_size=BATCH_ROWS)
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
