"""Results convert, show themselves and stream without reading more than they are asked for."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from iceberg_manager.errors import InputError
from iceberg_manager.result import Result

SCHEMA = pa.schema({"id": pa.int64(), "name": pa.string()})


def streamed(batches: int, read: list[int] | None = None, finished: list[str] | None = None) -> Result:
    def make() -> Iterator[pa.RecordBatch]:
        for number in range(batches):
            if read is not None:
                read.append(number)
            yield pa.record_batch({"id": [number * 10 + at for at in range(10)], "name": ["x"] * 10}, schema=SCHEMA)

    reader = pa.RecordBatchReader.from_batches(SCHEMA, make())
    return Result(reader, (lambda: finished.append("done")) if finished is not None else None)


def test_it_converts_to_every_form_more_than_once():
    result = streamed(2)
    assert len(result) == 20
    assert result.columns == ["id", "name"]
    assert result.arrow().num_rows == 20
    assert list(result.df()["id"]) == list(range(20))
    assert result.pl()["id"].to_list() == list(range(20))
    assert result.rows()[0] == {"id": 0, "name": "x"}
    assert [row["id"] for row in result] == list(range(20))


def test_a_glance_reads_no_more_than_it_shows_and_loses_nothing():
    read: list[int] = []
    result = streamed(100, read)
    assert "more than 10 rows" in repr(result)
    assert len(read) <= 3
    assert len(result) == 1000


def test_a_stream_is_read_as_it_comes_and_only_once():
    read: list[int] = []
    result = streamed(5, read)
    reader = result.reader()
    assert reader.read_next_batch().num_rows == 10
    assert len(read) < 5
    assert reader.read_all().num_rows == 40
    with pytest.raises(InputError, match="run the query again"):
        result.rows()
    assert "streamed already" in repr(result)


def test_what_it_holds_is_let_go_once_at_the_end():
    finished: list[str] = []
    result = streamed(2, finished=finished)
    result.arrow()
    result.close()
    assert finished == ["done"]


def test_it_shows_rows_as_a_table():
    text = repr(Result(pa.table({"id": [1, 22], "name": [None, "y" * 60]})))
    assert text.splitlines()[0] == "id  name"
    assert "NULL" in text
    assert "y" * 39 + "…" in text
    assert text.endswith("(2 rows)")


def test_an_empty_result_has_its_columns():
    result = Result(pa.RecordBatchReader.from_batches(SCHEMA, iter(())))
    assert (len(result), result.columns, result.rows()) == (0, ["id", "name"], [])
