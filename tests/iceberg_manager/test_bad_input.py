"""Whatever is wrong with what a person gives: one clear sentence, exit code 1, and the lake is as it was before."""

import gzip
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iceberg_manager.commits import commit
from iceberg_manager.errors import ConflictError
from iceberg_manager.manager import IcebergManager
from tests.iceberg_manager.test_cli import Done, command


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with a table of two users."""
    manager = IcebergManager(tmp_path / "lake")
    manager.create_table("users", {"columns": {"id": "long", "name": "string", "age": "int"}, "required": ["id"]})
    manager.insert_data("users", [{"id": 1, "name": "Ada", "age": 36}, {"id": 2, "name": "Emil", "age": 41}])
    return tmp_path / "lake"


def contents(lake: Path) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_size) for path in (lake / "warehouse").rglob("*") if path.is_file()}


class Unchanged:
    """Checks that commands are refused in one sentence that holds ``said``, and leave every file as it was."""

    def __init__(self, lake: Path) -> None:
        self.lake = lake

    def __call__(self, said: str, *arguments: object) -> Done:
        before = contents(self.lake)
        done = command(self.lake, *arguments)
        assert (done.code, done.out) == (1, ""), done
        assert done.err.startswith("error: ")
        assert done.err.count("\n") == 1, done.err
        assert "Traceback" not in done.err
        assert "unexpected" not in done.err, done.err
        assert said in done.err
        assert contents(self.lake) == before
        return done


@pytest.fixture
def refused(lake: Path) -> Unchanged:
    return Unchanged(lake)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data.csv"


def test_an_unknown_table_is_answered_with_the_nearest(refused: Unchanged, data: Path):
    data.write_text("id\n1\n")
    for arguments in (
        ("query", "usres"),
        ("describe", "usres"),
        ("insert", "usres", "--data", data),
        ("delete", "usres", "--where", "id = 1"),
        ("add-column", "usres", "x", "int"),
        ("sql", "SELECT * FROM usres"),
    ):
        refused("users'?", *arguments)


def test_an_unknown_column_is_answered_with_the_nearest(refused: Unchanged, data: Path):
    data.write_text("id,nmae\n1,x\n")
    for arguments in (
        ("query", "users", "--where", "nmae = 'x'"),
        ("query", "users", "--select", "nmae"),
        ("insert", "users", "--data", data),
        ("upsert", "users", "--data", data, "--key", "id"),
        ("update", "users", "--set", "nmae='x'", "--where", "id = 1"),
        ("rename-column", "users", "nmae", "x"),
        ("drop-column", "users", "nmae", "--yes"),
    ):
        refused("Did you mean 'name'?", *arguments)


@pytest.mark.parametrize("broken", ["3,Zoe,old", "3,Zoe,99999999999", "x,Zoe,1", "3,Zoe,1,too much"])
def test_a_broken_line_is_named_and_nothing_is_committed(refused: Unchanged, data: Path, broken: str):
    data.write_text(f"id,name,age\n7,Ida,1\n{broken}\n")
    assert "3" in refused("ine 3", "insert", "users", "--data", data).err


def test_broken_lines_may_be_skipped(lake: Path, data: Path):
    data.write_text("id,name,age\n7,Ida,1\nx,Zoe,1\n8,Max,2\n")
    done = command(lake, "insert", "users", "--data", data, "--on-error", "skip")
    assert done.code == 0
    assert "2 inserted" in done.out
    assert done.err.startswith("skipped 1 lines: ")


def test_a_required_value_may_not_be_missing(refused: Unchanged, data: Path):
    data.write_text("id,name\n,x\n")
    refused("'id' is required", "insert", "users", "--data", data)
    data.write_text("name\nx\n")
    refused("'id' is required", "insert", "users", "--data", data)


def test_a_key_may_not_come_twice_in_an_upsert(refused: Unchanged, data: Path):
    data.write_text("id,name\n1,x\n1,y\n")
    refused("1", "upsert", "users", "--data", data, "--key", "id")


def test_an_empty_or_missing_file_is_said(refused: Unchanged, data: Path, tmp_path: Path):
    data.write_text("")
    refused("is empty", "insert", "users", "--data", data)
    refused("none.csv", "insert", "users", "--data", tmp_path / "none.csv")
    refused("none.json", "create", "t", "--schema", tmp_path / "none.json")


@pytest.mark.parametrize("name", ["../users", "a'b", 'a"b', "a..b", ".users", "users.", "a/b", "a;drop", ""])
def test_names_that_could_mean_something_else_are_refused(refused: Unchanged, name: str, tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"columns": {"id": "long"}}')
    refused("is not a table name", "create", name, "--schema", schema)
    refused("is not a table name", "query", name)


def test_a_nested_namespace_is_a_namespace(lake: Path, tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"columns": {"id": "long"}}')
    assert command(lake, "create", "a.b.c.t", "--schema", schema).code == 0
    assert IcebergManager(lake).list_tables("a.b.c") == ["a.b.c.t"]


@pytest.mark.parametrize(
    "where",
    ["1 = 1; DROP TABLE users", "id = 1) OR (1 = 1", "id = (SELECT 1)", "id = 1 --", "read_text('/etc/passwd')"],
)
def test_a_condition_is_no_place_for_sql(refused: Unchanged, where: str):
    refused("condition", "query", "users", "--where", where)
    refused("condition", "delete", "users", "--where", where)


def test_a_quote_in_a_condition_stays_a_value(lake: Path):
    done = command(lake, "query", "users", "--where", "name = 'x'' OR ''1''=''1'", "-o", "json")
    assert (done.code, done.json) == (0, []) or done.code == 1


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE users",
        "DELETE FROM users",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "COPY users TO '/tmp/x.csv'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "ATTACH 'x.db'",
        "SELECT getenv('HOME')",
        "selec 1",
    ],
)
def test_sql_only_reads_tables(refused: Unchanged, statement: str):
    refused("", "sql", statement)


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "users", "--snapshot", 12345),
        ("query", "users", "--timestamp", "2001-01-01 10:00:00"),
        ("query", "users", "--timestamp", "yesterday"),
        ("query", "users", "--tag", "v1"),
        ("query", "users", "--run", "0123456789"),
        ("rollback", "users", "--snapshot", 12345, "--yes"),
        ("diff", "users", "--from", 12345),
        ("tag", "users", "v1", "--snapshot", 12345),
        ("create", "users", "--schema", "SCHEMA"),
        ("add-column", "users", "x", "strnig"),
        ("alter-column", "users", "age", "string"),
    ],
)
def test_what_is_not_there_or_not_possible_is_said(refused: Unchanged, tmp_path: Path, arguments: tuple[object, ...]):
    schema = tmp_path / "schema.json"
    schema.write_text('{"columns": {"id": "long"}}')
    refused("", *(schema if one == "SCHEMA" else one for one in arguments))


def test_a_line_without_end_is_refused_in_bounded_memory(
    refused: Unchanged, data: Path, monkeypatch: pytest.MonkeyPatch
):
    _limit(monkeypatch, LINE_BYTES=1024 * 1024, BLOCK_BYTES=256 * 1024)
    data.write_text("id,name\n1," + "x" * (2 * 1024 * 1024) + "\n")
    refused("ine", "insert", "users", "--data", data)


def test_a_file_that_unpacks_without_end_is_refused(
    refused: Unchanged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    _limit(monkeypatch, BOMB_SLACK=1024 * 1024, BOMB_RATIO=2)
    bomb = tmp_path / "bomb.csv.gz"
    bomb.write_bytes(gzip.compress(b"id,name\n" + b"1,aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n" * 200_000))
    refused("unpacks to more than", "insert", "users", "--data", bomb)


def _limit(monkeypatch: pytest.MonkeyPatch, **limits: int) -> None:
    """Lowers the limits, wherever the reader of files keeps them."""
    for name, value in limits.items():
        places = [
            module for key, module in sys.modules.items() if key.startswith("iceberg_manager") and hasattr(module, name)
        ]
        assert places, name
        for module in places:
            monkeypatch.setattr(module, name, value)


def test_a_truncated_parquet_or_gzip_file_is_refused(refused: Unchanged, tmp_path: Path):
    (tmp_path / "cut.parquet").write_bytes(b"PAR1" + b"\0" * 100)
    refused("cut.parquet", "insert", "users", "--data", tmp_path / "cut.parquet")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"id,name\n" + os.urandom(5000).hex().encode())[:-2000])
    refused("cut.csv.gz", "insert", "users", "--data", tmp_path / "cut.csv.gz")


def test_a_missing_metadata_file_is_said(refused: Unchanged, lake: Path):
    Path(IcebergManager(lake).table("users").metadata_location).unlink()
    refused("metadata file is gone", "query", "users")
    refused("metadata file is gone", "add-column", "users", "x", "int")


def test_a_locked_catalog_is_said(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("iceberg_manager.catalog.BUSY_SECONDS", 0.2)
    schema = tmp_path / "schema.json"
    schema.write_text('{"columns": {"id": "long"}}')
    holder = sqlite3.connect(lake / "catalog.db", isolation_level=None)
    try:
        holder.execute("BEGIN EXCLUSIVE")
        refused = [command(lake, "create", "t", "--schema", schema), command(lake, "drop", "users", "--yes")]
    finally:
        holder.close()
    for done in refused:
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith("error: The sqlite catalog at ")
        assert "database is locked" in done.err
    assert IcebergManager(lake).list_tables() == ["default.users"]


def test_ctrl_c_in_the_middle_of_an_insert_leaves_nothing(lake: Path):
    before = contents(lake)
    command_line = [sys.executable, "-m", "iceberg_manager.cli", "insert", "users", "--data", "-", "--format", "csv",
                    "--lake", str(lake)]  # fmt: skip
    with subprocess.Popen(
        command_line,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 (in the background, Ctrl-C is ignored)
    ) as insert:
        assert insert.stdin
        assert insert.stderr
        insert.stdin.write("id,name\n")
        for number in range(400_000):
            insert.stdin.write(f"{number},name number {number} of many\n")
        insert.stdin.flush()
        time.sleep(0.5)
        assert insert.poll() is None
        insert.send_signal(signal.SIGINT)
        said = insert.stderr.read()
        insert.wait(30)
    assert insert.returncode == 1
    assert said == "error: interrupted; what was not committed has been discarded\n"
    assert contents(lake) == before
    assert len(IcebergManager(lake).query_table("users")) == 2


def test_a_reader_that_stops_listening_is_no_error(lake: Path):
    IcebergManager(lake).insert_data("users", [{"id": number} for number in range(50_000)])
    command_line = [sys.executable, "-m", "iceberg_manager.cli", "query", "users", "-o", "csv", "--lake", str(lake)]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as query:
        assert query.stdout
        assert query.stderr
        query.stdout.readline()
        query.stdout.close()
        assert query.stderr.read() == b""


def test_a_damaged_metadata_file_is_said_to_be_damaged(lake: Path, refused: Unchanged):
    newest = max((lake / "warehouse").rglob("*.metadata.json"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_text('{"format-version": 2, "x')
    for arguments in (("query", "users"), ("describe", "users"), ("list-snapshots", "users")):
        refused("is damaged and nothing was changed", *arguments)


def test_an_insert_that_meets_a_locked_catalog_leaves_no_file(
    lake: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("iceberg_manager.catalog.BUSY_SECONDS", 0.1)
    monkeypatch.setattr(commit, "__defaults__", (2, lambda _: None))
    manager = IcebergManager(lake)
    manager.describe("users")
    before = contents(lake)
    lock = sqlite3.connect(lake / "catalog.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(ConflictError, match="nothing was committed"):
            manager.insert_data("users", [{"id": 3, "name": "Noor", "age": 29}])
    finally:
        lock.rollback()
        lock.close()
    assert contents(lake) == before


def test_an_upsert_from_json_keeps_the_columns_that_it_does_not_name(lake: Path, tmp_path: Path) -> None:
    lines = tmp_path / "some.jsonl"
    lines.write_text('{"id": 1, "name": "Ada L."}\n')
    assert command(lake, "upsert", "users", "--data", lines, "--key", "id").code == 0
    lines.write_text('{"id": 2, "name": null}\n')
    assert command(lake, "upsert", "users", "--data", lines, "--key", "id").code == 0
    found = sorted(IcebergManager(lake).query_table("users").rows(), key=lambda row: row["id"])
    assert found == [{"id": 1, "name": "Ada L.", "age": 36}, {"id": 2, "name": None, "age": 41}]
