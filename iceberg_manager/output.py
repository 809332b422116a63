"""Prints what a command found: a table for people, JSON or CSV for machines, or a file. Progress only at a terminal."""

import csv
import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from iceberg_manager.errors import InputError

FORMS = ("table", "json", "csv", "parquet")
SHOWN = 1000
Row = dict[str, Any]


def show(found: Any, form: str = "table", file: Path | None = None, title: str = "") -> None:
    """Print a Result, one record or many, in the form that was asked for."""
    if form not in FORMS:
        raise InputError(f"--output is one of {', '.join(FORMS)}, not {form!r}.")
    if form == "parquet" or (file is not None and hasattr(found, "reader")):
        _write_file(found, form, file)
    elif form == "json":
        sys.stdout.write(json.dumps(plain(found), default=str, indent=2, ensure_ascii=False) + "\n")
    elif form == "csv":
        _print_csv(list(_rows(found)))
    else:
        _print_table(found, title)


def say(message: str) -> None:
    """A sentence for people, beside the data and never in it."""
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed; with nobody to ask, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"{question} Nothing was done: say --yes, since nobody is there to be asked.")
    typer.confirm(question, abort=True)


def show_written(done: Any, what: str, form: str) -> None:
    """What a write did, as a sentence or as data."""
    if form != "table":
        show(done, form)
        return
    counts = [f"{count:,} {what}" for what in ("inserted", "updated", "deleted") if (count := getattr(done, what))]
    sys.stdout.write(f"{what}: {', '.join(counts) or 'nothing to do'} (snapshot {done.commit.snapshot_id})\n")
    if done.skipped.count:
        say(f"skipped {done.skipped.count:,} lines: {'; '.join(done.skipped.examples)}")


def plain(value: Any) -> Any:
    """As JSON can hold it. Ids stay exact: they are texts, since many readers of JSON round large numbers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain_field(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "to_pylist"):
        return plain(value.to_pylist())
    if hasattr(value, "rows") and callable(value.rows):
        return plain(value.rows())
    if isinstance(value, dict):
        return {str(key): _plain_field(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return value.hex()
    return value


def _plain_field(name: str, value: Any) -> Any:
    is_id = isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53
    return str(value) if is_id else plain(value)


def _rows(found: Any) -> Iterable[Row]:
    data = plain(found)
    return data if isinstance(data, list) else [data]


def _print_csv(rows: Sequence[Row]) -> None:
    if rows:
        writer = csv.DictWriter(sys.stdout, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in row.items()}
            for row in rows
        )


def _print_table(found: Any, title: str) -> None:
    console = Console(highlight=False)
    if dataclasses.is_dataclass(found):
        grid = Grid(title=title or None, title_justify="left", show_header=False, box=None, pad_edge=False)
        for name, value in plain(found).items():
            grid.add_row(name.replace("_", " "), _cell(value))
        console.print(grid)
        return
    rows = list(_head(found))
    if not rows:
        console.print("nothing")
        return
    grid = Grid(*rows[0], title=title or None, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for number, value in enumerate(rows[0].values()):
        if isinstance(value, int | float) and not isinstance(value, bool):
            grid.columns[number].justify = "right"
    for row in rows[:SHOWN]:
        grid.add_row(*(_cell(value) for value in row.values()))
    console.print(grid, soft_wrap=not sys.stdout.isatty())
    if len(rows) > SHOWN:
        say(f"the first {SHOWN:,} rows; --output csv or json gives all")


def _head(found: Any) -> Iterable[Row]:
    return _rows(found.head(SHOWN + 1)) if hasattr(found, "head") else _rows(found)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list) and all(not isinstance(item, dict | list) for item in value):
        return ", ".join(map(str, value))
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _write_file(found: Any, form: str, file: Path | None) -> None:
    """Streams to a file beside it and renames at the end: a file that is there is whole."""
    if file is None:
        raise InputError("Say where to: --output parquet FILE.")
    if not hasattr(found, "reader"):
        raise InputError("Only rows can be written to a file; this command has none.")
    fresh = file.with_name(file.name + ".part")
    try:
        _stream(found.reader(), form, fresh)
        fresh.replace(file)
    except OSError as error:
        raise InputError(f"{file} cannot be written: {error.strerror or error}.") from error
    finally:
        fresh.unlink(missing_ok=True)
    say(f"wrote {file}")


def _stream(reader: Any, form: str, path: Path) -> None:
    import pyarrow.csv
    import pyarrow.parquet

    if form == "csv":
        with pyarrow.csv.CSVWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
    elif form == "parquet":
        with pyarrow.parquet.ParquetWriter(path, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
    else:
        with path.open("w") as lines:
            for batch in reader:
                lines.writelines(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in plain(batch))


@contextmanager
def working(label: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar at a terminal; nothing elsewhere. Yields a callback of done and total."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total or None)
