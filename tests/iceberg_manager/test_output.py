"""JSON and CSV hold everything; text fits the terminal and never the other way round."""

import json
import math
import os
import pty
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from iceberg_manager import output
from iceberg_manager.errors import InputError
from iceberg_manager.result import Result

ROWS = {
    "id": pa.array([1, None], pa.int64()),
    "text": ['a,"b"\n', None],
    "when": [datetime(2024, 1, 1, tzinfo=UTC), None],
    "list": [[1, 2], None],
    "ok": [True, None],
}


def test_json_is_one_array_with_a_row_a_line(capsys: pytest.CaptureFixture[str]):
    output.show(Result(pa.table(ROWS)), "json")
    out = capsys.readouterr().out
    assert json.loads(out)[0] == {
        "id": 1,
        "text": 'a,"b"\n',
        "when": "2024-01-01T00:00:00+00:00",
        "list": [1, 2],
        "ok": True,
    }
    assert json.loads(out)[1] == dict.fromkeys(ROWS)
    assert out.count("\n") == 4
    output.show(Result(pa.table({"a": pa.array([], pa.int64())})), "json")
    assert capsys.readouterr().out == "[]\n"


def test_csv_leaves_missing_values_empty_and_has_a_header_without_rows(capsys: pytest.CaptureFixture[str]):
    output.show(Result(pa.table(ROWS)), "csv")
    assert capsys.readouterr().out == (
        'id,text,when,list,ok\n1,"a,""b""\n",2024-01-01T00:00:00+00:00,"[1, 2]",true\n,,,,\n'
    )
    output.show(Result(pa.table({"a": pa.array([], pa.int64())})), "csv")
    assert capsys.readouterr().out == "a\n"


def test_values_that_json_has_no_word_for_are_texts():
    given = {
        "n": math.nan,
        "i": -math.inf,
        "d": Decimal("1.10"),
        "b": b"\x01\xff",
        "t": timedelta(days=1),
        "x": date(2024, 1, 2),
    }
    assert output.plain(given) == {
        "n": "NaN",
        "i": "-Infinity",
        "d": "1.10",
        "b": "01ff",
        "t": 86400.0,
        "x": "2024-01-02",
    }


def test_a_file_that_fails_half_way_does_not_appear(tmp_path: Path):
    def batches():
        yield pa.record_batch({"a": [1]})
        raise OSError(28, "No space left on device")

    broken = Result(pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), batches()))
    with pytest.raises(InputError, match="cannot be written"):
        output.show(broken, "csv", tmp_path / "out.csv")
    assert list(tmp_path.iterdir()) == []


def test_the_form_of_a_file_may_come_from_its_name(tmp_path: Path):
    output.show(Result(pa.table({"a": [1]})), "table", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "a\n1\n"
    with pytest.raises(InputError, match="Only rows"):
        output.show({"a": 1}, "parquet", tmp_path / "out.parquet")


def test_control_characters_in_data_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]):
    output.show(Result(pa.table({"a": ["\x1b[31mred\x07"]})))
    assert "\x1b" not in capsys.readouterr().out


def test_markup_in_data_is_only_text(capsys: pytest.CaptureFixture[str]):
    output.show(Result(pa.table({"[bold]a": ["[red]x[/red]"]})))
    assert capsys.readouterr().out == "[bold]a\n[red]x[/red]\n"


def at_a_terminal(program: str, columns: int = 80) -> list[str]:
    """What a program prints at a terminal of that width."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"COLUMNS": str(columns), "TERM": "dumb"}
    with subprocess.Popen([sys.executable, "-c", program], stdin=theirs, stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError:
            pass
    os.close(ours)
    return shown.decode().splitlines()


SHOW = "import pyarrow as pa; from iceberg_manager.output import show; from iceberg_manager.result import Result; "


def test_long_values_are_folded_not_cut_at_a_terminal():
    lines = at_a_terminal(SHOW + "show(Result(pa.table({'id': [1], 'path': ['x' * 200]})))")
    assert max(map(len, lines)) <= 80
    assert sum(line.count("x") for line in lines) == 200


def test_rows_too_wide_for_a_terminal_stand_below_one_another():
    lines = at_a_terminal(SHOW + "show(Result(pa.table({f'column_{n}': ['v' * 18] for n in range(12)})))")
    assert max(map(len, lines)) <= 80
    assert lines[0] == "row 1"
    assert [line.split() for line in lines[1:]] == [[f"column_{number}", "v" * 18] for number in range(12)]
