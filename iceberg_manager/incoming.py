"""Whatever a user has as one stream of Arrow batches that fit a table, in bounded memory and with exact complaints.

Frames, Arrow data, DuckDB relations, dicts and files go through the same fitting. Nothing here writes, and a stream that
raised has yielded no bad row.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pyiceberg.schema import Schema

from iceberg_manager.errors import DataError, InputError, first_line
from iceberg_manager.fitting import Fitting, MisfitError
from iceberg_manager.source_files import SourceFile, binary_batches
from iceberg_manager.text_files import TextFile, sniffed

OnError = Literal["fail", "skip"]
BATCH_ROWS = 131_072
EXAMPLES = 5


@dataclass
class Skipped:
    """Lines left out under ``on_error="skip"``: how many, and the first few with their reason. Complete after reading."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def note(self, line: int, reason: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"line {line}: {reason}")


@dataclass(frozen=True)
class Incoming:
    """Rows on their way into a table: a reader with the table's columns, and which of them were given.

    A JSON file names its columns line by line: ``columns`` is complete when the reader is at its end.
    """

    reader: pa.RecordBatchReader
    columns: Sequence[str]
    skipped: Skipped = field(default_factory=Skipped)


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
    with SourceFile(path, form) as file:
        if file.form in ("parquet", "arrow"):
            return binary_batches(file)[0]
        return sniffed(file)


def _from_file(source: Any, fitting: Fitting, on_error: OnError, form: str | None) -> Incoming:
    file = SourceFile(source, form)
    if file.form in ("parquet", "arrow"):
        arrow, batches = binary_batches(file)
        fitting.check_names(arrow.names)
        reader = pa.RecordBatchReader.from_batches(fitting.arrow, _fitted(_translated(batches), fitting))
        return Incoming(reader, tuple(arrow.names))
    skipped = Skipped()

    def fail(line: int, reason: str) -> None:
        raise DataError(f"{file.name}, line {line}: {reason}; nothing was written.")

    text = TextFile(file, fitting, skipped.note if on_error == "skip" else fail)
    names = text.open()
    return Incoming(pa.RecordBatchReader.from_batches(fitting.arrow, text.batches()), names, skipped)


def _fitted(batches: Iterable[pa.RecordBatch], fitting: Fitting) -> Iterator[pa.RecordBatch]:
    seen = 0
    for whole in batches:
        for start in range(0, whole.num_rows, BATCH_ROWS):
            batch = whole.slice(start, BATCH_ROWS)
            try:
                yield fitting.fit(batch)
            except MisfitError as misfit:
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
