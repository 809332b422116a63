"""Hands what a command found to a terminal, a pipe or a file: text for people, JSON or CSV for machines, Parquet as a file.

JSON is complete: ids of snapshots are texts (many readers round large numbers), times are ISO 8601, no value is left out.
Rows are streamed; a file appears under its name only when it is whole. Progress is shown at a terminal only.
"""

import csv
import dataclasses
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, TextIO

from iceberg_manager.errors import InputError, LakeError

FORMS = ("table", "json", "csv", "parquet")
SNAPSHOT_IDS = frozenset(
    {"id", "parent_id", "snapshot_id", "current_snapshot", "first_snapshot", "from_snapshot", "to_snapshot",
     "data_version"}
)  # fmt: skip
Row = dict[str, Any]


def show(found: Any, form: str = "table", file: Path | None = None) -> None:
    """Print a Result, one record or many, in the form that was asked for, or write it to a file."""
    if file is not None or form == "parquet":
        _write_file(found, form, file)
    elif form == "table":
        from iceberg_manager import printers

        printers.show(found)
    else:
        _write_text(found, form, sys.stdout)


def show_created(table: Any, form: str) -> None:
    """A new table as a sentence and its columns, or as data."""
    if form != "table":
        show(table, form)
        return
    from iceberg_manager import printers

    printers.show_created(table)


def show_written(done: Any, what: str, form: str) -> None:
    """What a write did, as a sentence or as data."""
    if form != "table":
        show(done, form)
    else:
        counts = [f"{count:,} {verb}" for verb in ("inserted", "updated", "deleted") if (count := getattr(done, verb))]
        snapshot = f" (snapshot {done.commit.snapshot_id})" if counts else ""
        sys.stdout.write(f"{what}: {', '.join(counts) or 'nothing to do'}{snapshot}\n")
    if done.skipped.count:
        say(f"skipped {done.skipped.count:,} lines: {'; '.join(done.skipped.examples)}")


def say(message: str) -> None:
    """A sentence for people, beside the data and never in it."""
    sys.stderr.write(message + "\n")


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; with nobody to ask, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} Nothing was done: say --yes, since nobody is there to be asked.")
    import typer

    if not typer.confirm(question, err=True):
        raise LakeError("nothing was done.")


def plain(value: Any) -> Any:
    """As JSON can hold it, without losing anything."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _fact(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "to_pylist"):
        return plain(_listed(value))
    if isinstance(value, dict) or hasattr(value, "items"):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
    return value if isinstance(value, str | int | float | None) else str(value)


def _listed(data: Any) -> list[Row]:
    """Arrow data as dicts. Times in UTC get their zone here: to look it up, Arrow would load all of pandas."""
    if hasattr(data, "to_batches"):
        return [row for batch in data.to_batches() for row in _listed(batch)]
    zoned = [item for item in data.schema if str(item.type) == "timestamp[us, tz=UTC]"]
    for item in zoned:
        at = data.schema.get_field_index(item.name)
        data = data.set_column(at, item.name, data.column(at).view("timestamp[us]")) if at >= 0 else data
    rows: list[Row] = data.to_pylist()
    for name in {item.name for item in zoned}:
        for row in rows:
            row[name] = row[name] and row[name].replace(tzinfo=UTC)
    return rows


def _fact(name: str, value: Any) -> Any:
    return str(value) if name in SNAPSHOT_IDS and isinstance(value, int) else plain(value)


def _is_rows(found: Any) -> bool:
    return hasattr(found, "reader")


def _rows(found: Any) -> Iterator[Row]:
    if _is_rows(found):
        for batch in found.reader():
            yield from plain(batch)
    else:
        data = plain(found)
        yield from data if isinstance(data, list) else [data]


def _write_text(found: Any, form: str, stream: TextIO) -> None:
    if form == "csv":
        _write_csv(list(found.columns) if _is_rows(found) else None, _rows(found), stream)
    elif _is_rows(found):
        _write_json_rows(_rows(found), stream)
    else:
        stream.write(json.dumps(plain(found), indent=2, ensure_ascii=False) + "\n")


def _write_json_rows(rows: Iterable[Row], stream: TextIO) -> None:
    """One array, a row a line."""
    opening = "["
    for row in rows:
        stream.write(f"{opening}\n  {json.dumps(row, ensure_ascii=False)}")
        opening = ","
    stream.write("[]\n" if opening == "[" else "\n]\n")


def _write_csv(columns: list[str] | None, rows: Iterator[Row], stream: TextIO) -> None:
    """A value that is missing is empty; a nested one is JSON."""
    writer = csv.writer(stream, lineterminator="\n")
    if columns is not None:
        writer.writerow(columns)
    for number, row in enumerate(rows):
        if number == 0 and columns is None:
            writer.writerow(row)
        writer.writerow([_csv_cell(value) for value in row.values()])


def _csv_cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else value


def _write_file(found: Any, form: str, file: Path | None) -> None:
    """Streams to a file beside it and renames at the end: a file that is there is whole."""
    if file is None:
        raise InputError("Say where to: --output parquet FILE.")
    form = file.suffix.removeprefix(".") if form == "table" else form
    if form not in FORMS[1:]:
        raise InputError(f"Say what {file} should be: --output csv, json or parquet.")
    if not _is_rows(found) and form == "parquet":
        raise InputError("Only rows can be a Parquet file; this command has none.")
    fresh = file.with_name(file.name + ".part")
    try:
        if form == "parquet":
            _write_parquet(found.reader(), fresh)
        else:
            with fresh.open("w", encoding="utf-8", newline="") as stream:
                _write_text(found, form, stream)
        fresh.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}.") from error
    finally:
        fresh.unlink(missing_ok=True)
    say(f"wrote {file}")


def _write_parquet(reader: Any, path: Path) -> None:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetWriter(path, reader.schema, compression="zstd") as writer:
        for batch in reader:
            writer.write_batch(batch)


@contextmanager
def working(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar at a terminal; nothing elsewhere. Yields a callback of done and total."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, description=f"{label}: {done:,} of {total:,}")
