"""The rows of a query as Arrow, turned into what the caller likes: pandas, Polars, Arrow or plain dicts.

Nothing is read before it is asked for. Column names and a glance at the first rows come from the open stream; ``arrow``
and its kin read the rest once and keep it; ``reader`` hands the stream itself over, so that memory stays flat.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from iceberg_manager.errors import InputError

if TYPE_CHECKING:
    import pandas
    import polars

SHOWN_ROWS = 10


class Result:
    """Query results. ``len``, ``rows`` and the conversions read everything; ``columns`` and ``repr`` do not."""

    def __init__(self, source: "pa.RecordBatchReader | pa.Table", finish: Callable[[], None] | None = None) -> None:
        """``finish`` is called once, when the stream is at its end or was given up."""
        self._table: pa.Table | None = source if isinstance(source, pa.Table) else None
        self._reader = None if self._table is not None else source
        self._seen: list[pa.RecordBatch] = []
        self._finish = finish
        self.schema: pa.Schema = source.schema

    @property
    def columns(self) -> list[str]:
        return list(self.schema.names)

    def arrow(self) -> "pa.Table":
        """All rows as an Arrow table."""
        if self._table is None:
            batches = list(self._rest())
            self._table = pa.Table.from_batches(batches, schema=self.schema)
        return self._table

    def reader(self) -> "pa.RecordBatchReader":
        """The rows as a stream that can be read once; afterwards only a result that was read before still has them."""
        if self._table is not None:
            return self._table.to_reader()
        return pa.RecordBatchReader.from_batches(self.schema, self._rest())

    def df(self) -> "pandas.DataFrame":
        """All rows as a pandas frame."""
        frame: pandas.DataFrame = self.arrow().to_pandas()
        return frame

    def pl(self) -> "polars.DataFrame":
        """All rows as a Polars frame."""
        import polars

        frame = polars.from_arrow(self.arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def rows(self) -> list[dict[str, Any]]:
        """All rows as dicts."""
        listed: list[dict[str, Any]] = self.arrow().to_pylist()
        return listed

    def head(self, rows: int = SHOWN_ROWS) -> "pa.Table":
        """The first rows, without reading much more than them; they stay part of the result."""
        if self._table is not None:
            return self._table.slice(0, rows)
        while self._reader is not None and sum(len(batch) for batch in self._seen) < rows:
            batch = self._next()
            if batch is None:
                break
            self._seen.append(batch)
        return pa.Table.from_batches(self._seen, schema=self.schema).slice(0, rows)

    def close(self) -> None:
        """Give up what was not read yet."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        self._end()

    def _rest(self) -> Iterator["pa.RecordBatch"]:
        if self._reader is None:
            raise InputError("These rows were streamed or closed already: run the query again to read them again.")
        seen, self._seen = self._seen, []
        yield from seen
        try:
            while (batch := self._next()) is not None:
                yield batch
        finally:
            self.close()

    def _next(self) -> "pa.RecordBatch | None":
        assert self._reader is not None
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            return None

    def _end(self) -> None:
        finish, self._finish = self._finish, None
        if finish:
            finish()

    def __del__(self) -> None:
        with suppress(Exception):  # when the program ends, what would be let go may be gone already
            self.close()

    def __len__(self) -> int:
        return int(self.arrow().num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.reader():
            yield from batch.to_pylist()

    def __repr__(self) -> str:
        if self._table is None and self._reader is None:
            return f"<Result: columns {', '.join(self.columns)}; streamed already>"
        shown = self.head(SHOWN_ROWS + 1)
        total = f"{self._table.num_rows:,}" if self._table is not None else self._counted(shown.num_rows)
        lines = _text_table(self.columns, [list(row.values()) for row in shown.slice(0, SHOWN_ROWS).to_pylist()])
        return "\n".join([*lines, f"({total} rows)"])

    def _counted(self, shown: int) -> str:
        return f"more than {SHOWN_ROWS}" if shown > SHOWN_ROWS else str(shown)


def _text_table(columns: list[str], rows: list[list[Any]]) -> list[str]:
    cells = [columns, *[[_cell(value) for value in row] for row in rows]]
    widths = [max((len(line[at]) for line in cells), default=0) for at in range(len(columns))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _cell(value: Any) -> str:
    text = "NULL" if value is None else str(value)
    return text if len(text) <= 40 else text[:39] + "…"
