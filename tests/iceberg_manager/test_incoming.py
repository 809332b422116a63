"""Rows from anywhere arrive as the table's columns, or with a complaint that says where to look."""

import datetime as dt
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from iceberg_manager import incoming as module
from iceberg_manager import source_files, text_files
from iceberg_manager.errors import DataError, InputError, NotFoundError
from iceberg_manager.incoming import incoming, inferred_schema
from iceberg_manager.spec import Column, TableSpec

SCHEMA = TableSpec(
    "t",
    {"id": Column("long", required=True), "name": "string", "age": "int", "at": "timestamptz", "paid": "decimal(10,2)"},
).iceberg_schema
PLAIN = pa.table({"id": [1, 2], "name": ["a", None], "age": pa.array([5, None], pa.int32())})
NOON = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)


def taken(data: Any, **options: Any) -> list[dict[str, Any]]:
    rows = incoming(data, SCHEMA, **options).reader.read_all().to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        PLAIN.to_batches()[0],
        PLAIN.to_reader(),
        PLAIN.to_pandas(),
        pl.from_arrow(PLAIN),
        pl.from_arrow(PLAIN).lazy(),
        PLAIN.to_pylist(),
        iter(PLAIN.to_pylist()),
    ],
    ids=["table", "batch", "reader", "pandas", "polars", "lazy", "dicts", "iterator"],
)
def test_rows_come_from_anything(data: Any) -> None:
    assert taken(data) == [{"id": 1, "name": "a", "age": 5}, {"id": 2}]


def test_rows_come_from_a_duckdb_relation() -> None:
    with duckdb.connect() as connection:
        assert taken(connection.sql("select 1 as id, 'a' as name")) == [{"id": 1, "name": "a"}]


def test_whatever_can_turn_itself_into_arrow_is_taken() -> None:
    class Frame:
        def toArrow(self) -> pa.Table:  # noqa: N802 (Spark's name)
            return PLAIN

    assert len(taken(Frame())) == 2


@pytest.mark.parametrize(
    "form", ["csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "json", "parquet", "arrow", "feather"]
)
def test_rows_come_from_files(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"rows.{form}"
    lines = "\n".join(json.dumps(row) for row in PLAIN.to_pylist())
    texts = {"csv": "id,name,age\n1,a,5\n2,,\n", "jsonl": lines, "json": json.dumps(PLAIN.to_pylist(), indent=1)}
    kind, _, packing = form.partition(".")
    if kind in texts:
        codec = {"gz": "gzip", "zst": "zstd"}.get(packing)
        text = texts[kind].encode()
        written(
            path, pa.compress(text, codec, asbytes=True) if codec == "zstd" else gzip.compress(text) if codec else text
        )
    elif kind == "parquet":
        pq.write_table(PLAIN, path)
    else:
        feather.write_feather(PLAIN, path)
    assert taken(path) == [{"id": 1, "name": "a", "age": 5}, {"id": 2}]
    assert taken(io.BytesIO(path.read_bytes()), form=kind) == taken(path)


def test_types_are_brought_to_the_tables() -> None:
    data = pa.table(
        {
            "id": pa.array([1], pa.uint8()),
            "name": pa.array(["x"]).dictionary_encode(),
            "age": pa.array([7.0]),
            "at": pa.array([NOON.timestamp() * 10**9 + 1], pa.int64()).cast(pa.timestamp("ns")),
            "paid": pa.array([3], pa.int32()),
        }
    )
    assert taken(data) == [{"id": 1, "name": "x", "age": 7, "at": NOON, "paid": Decimal("3.00")}]
    for text in (pa.large_string(), pa.string_view()):
        assert taken(pa.table({"id": [1], "name": pa.array(["x"], text)}))[0]["name"] == "x"


@pytest.mark.parametrize(
    "text",
    ["2024-01-01T12:00:00Z", "2024-01-01 12:00:00", "2024-01-01T14:00:00+02:00", "2024-01-01 12:00:00.000000001"],
)
def test_times_are_utc_unless_they_say_otherwise(tmp_path: Path, text: str) -> None:
    assert taken(written(tmp_path / "t.csv", f"id,at\n1,{text}\n2,2024-01-01\n"))[0]["at"] == NOON
    assert taken([{"id": 1, "at": text}])[0]["at"] == NOON
    assert taken(written(tmp_path / "t.jsonl", json.dumps({"id": 1, "at": text})))[0]["at"] == NOON


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([{"id": 1, "nmae": "x"}], "no column 'nmae'.*Did you mean 'name'"),
        ([{"name": "x"}], "'id' is required"),
        ([{"id": 1}, {"id": None}], "Row 2: column 'id' is required"),
        (pa.table({"id": ["1", "x"]}), "Row 2: column 'id' takes whole numbers of 64 bits, not 'x'"),
        (pa.table({"id": [1], "age": [2**31]}), "Row 1: column 'age'"),
        (pa.table({"id": [1], "age": [1.5]}), "column 'age'"),
        (pa.table({"id": [1], "at": [5]}), "column 'at'"),
        (pa.table({"id": [True]}), "column 'id'"),
        (pd.DataFrame({"id": [1, 2], "name": ["x", object()]}), "mixed"),
    ],
)
def test_what_does_not_fit_is_named(data: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        taken(data)


def test_a_row_far_down_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_ROWS", 10)
    with pytest.raises(DataError, match="Row 38:"):
        taken(pa.table({"id": [*range(37), None]}))


def test_a_broken_csv_line_is_an_error_with_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", 'id,name,age\n1,"two\nlines",1\n2,b\n3,c,3\n')
    with pytest.raises(DataError, match=r"t.csv, line 4: 2 values for 3 columns; nothing was written"):
        taken(path)
    path = written(tmp_path / "t.csv", "id,name,age\n\n1,a,1\n2,b,old\n")
    with pytest.raises(DataError, match=r"line 4: column 'age' takes int32 values, not 'old'"):
        taken(path)
    path = written(tmp_path / "t.csv", "id,name,age\n1,a,1\n,b,2\n")
    with pytest.raises(DataError, match=r"line 3: column 'id' is required"):
        taken(path)


def test_broken_lines_can_be_skipped_and_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 64)
    lines = [f"{number},n{number},x" if number % 10 == 3 else f'{number},"n{number}",{number}' for number in range(60)]
    opened = incoming(written(tmp_path / "t.csv", "id,name,age\r\n" + "\r\n".join(lines)), SCHEMA, on_error="skip")
    assert opened.reader.read_all()["id"].to_pylist() == [number for number in range(60) if number % 10 != 3]
    assert opened.skipped.count == 6
    assert opened.skipped.examples[0] == "line 5: column 'age' takes int32 values, not 'x'"


def test_an_empty_csv_value_is_null_and_a_quoted_one_is_empty_text(tmp_path: Path) -> None:
    assert taken(written(tmp_path / "t.csv", '\ufeffid,name\n1,""\n2,\n')) == [{"id": 1, "name": ""}, {"id": 2}]


def test_quotes_inside_a_value_do_not_swallow_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 40)
    rows = "".join(f'{number},5" pipe,1\n{number},"a ""b""\n,c",2\n' for number in range(20))
    found = taken(written(tmp_path / "t.csv", "id,name,age\n" + rows))
    assert len(found) == 40
    assert {row["name"] for row in found} == {'5" pipe', 'a "b"\n,c'}


def test_a_broken_json_line_is_an_error_with_its_number(tmp_path: Path) -> None:
    for line, said in (
        ('{"id": 2,', "line 2: no valid JSON"),
        ('{"id": 2, "agee": 1}', "line 2: the table has no column 'agee'. Did you mean 'age'"),
        ('{"id": 2, "age": "old"}', "line 2: column 'age' takes"),
        ('{"name": "x"}', "line 2: column 'id' is required"),
        ("[1]", "line 2: a line must be an object"),
    ):
        path = written(tmp_path / "t.jsonl", f'{{"id": 1}}\n{line}\n{{"id": 3}}\n')
        with pytest.raises(DataError, match=said):
            taken(path)
        assert [row["id"] for row in taken(path, on_error="skip")] == [1, 3]


def test_a_json_array_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 50)
    path = written(tmp_path / "t.json", json.dumps([{"id": one, "name": "é" * one} for one in range(40)], indent=2))
    assert [len(row.get("name", "")) for row in taken(path)] == list(range(40))
    with pytest.raises(DataError, match="element 40"):
        taken(written(tmp_path / "t.json", path.read_text()[:-3]))


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.json", "t.parquet", "t.arrow"])
def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="is empty"):
        taken(written(tmp_path / name, ""))


def test_a_file_with_a_header_alone_has_no_rows(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no rows"):
        taken(written(tmp_path / "t.csv", "id,name\n"))


@pytest.mark.parametrize("name", ["t.parquet", "t.arrow", "t.csv.gz"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    content = gzip.compress(b"id\n" + b"1\n" * 5000)[:40] if name.endswith("gz") else b"nonsense" * 100
    with pytest.raises(DataError, match=r"sound|unpacked"):
        taken(written(tmp_path / name, content))


def test_an_endless_line_is_refused_without_being_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(text_files, "LINE_BYTES", 4000)
    for name, head in (
        ("t.csv", b"id,name\n1,"),
        ("t.jsonl", b'{"id": 1, "name": "'),
        ("t.json", b'[{"id": 1, "name": "'),
    ):
        path = written(tmp_path / name, head + b"x" * 50_000)
        with pytest.raises(DataError, match=r"line 2: longer|line 1: longer|element 1"):
            taken(path)
    with pytest.raises(DataError, match="line 1: too long"):
        taken(written(tmp_path / "t.csv", b"x" * 50_000))


def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_files, "BOMB_SLACK", 1_000_000)
    monkeypatch.setattr(text_files, "BLOCK_BYTES", 100_000)
    with pytest.raises(DataError, match="unpacks to more than"):
        taken(written(tmp_path / "t.csv.gz", gzip.compress(b"id\n" + b"1\n" * 5_000_000)))


def test_a_missing_file_and_an_unknown_format_are_named(tmp_path: Path) -> None:
    written(tmp_path / "users.csv", "id\n1\n")
    with pytest.raises(NotFoundError, match=r"Did you mean 'users.csv'"):
        taken(tmp_path / "user.csv")
    with pytest.raises(InputError, match="'xlsx' is not a known format"):
        taken(written(tmp_path / "t.xlsx", "x"))
    with pytest.raises(InputError, match="not something rows can be read from"):
        taken(42)


def test_a_files_columns_can_be_told_from_its_beginning(tmp_path: Path) -> None:
    assert inferred_schema(written(tmp_path / "t.csv", "id,name\n1,x\n")).names == ["id", "name"]
    assert inferred_schema(written(tmp_path / "t.json", '[{"id": 1}]')).field("id").type == pa.int64()
    assert inferred_schema(written(tmp_path / "t.jsonl", '{"id": 1}\n{"id": 2}')).names == ["id"]
    pq.write_table(PLAIN, tmp_path / "t.parquet")
    assert inferred_schema(tmp_path / "t.parquet").names == ["id", "name", "age"]
