"""``iceberg-manager``: every spelling that people and scripts rely on, what it prints, and its exit codes."""

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import typer

from iceberg_manager.cli import app, main
from iceberg_manager.manager import IcebergManager
from iceberg_manager.spark_server import Server, _announce

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def command(lake: Path, *arguments: object) -> Done:
    """Runs a command as the program does, in this process: most tests need no process of their own."""
    out, err, argv = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["iceberg-manager", *map(str, arguments), "--lake", str(lake)]
    code = 0
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = argv
    return Done(code, out.getvalue(), err.getvalue())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A lake with a table of three users."""
    folder = tmp_path / "lake"
    schema = tmp_path / "schema.json"
    schema.write_text('{"columns": {"id": "long", "name": "string", "age": "int"}, "required": ["id"]}')
    data = tmp_path / "users.csv"
    data.write_text("id,name,age\n1,Ada,36\n2,Emil,41\n3,Noor,29\n")
    assert command(folder, "create", "users", "--schema", schema, "--key", "id").code == 0
    assert command(folder, "insert", "users", "--data", data).code == 0
    return folder


def rows(lake: Path, *arguments: object) -> list[dict[str, Any]]:
    return sorted(command(lake, "query", "users", *arguments, "-o", "json").json, key=lambda row: row["id"])


def snapshots(lake: Path) -> list[str]:
    return [one["id"] for one in command(lake, "list-snapshots", "users", "-o", "json").json]


def test_create_says_what_it_made_and_lists_the_columns(tmp_path: Path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"columns": {"id": "long", "ts": "timestamptz"}, "required": ["id"]}')
    done = command(tmp_path, "create", "shop.users", "--schema", schema, "--partition-by", "day(ts)", "--sort-by", "id")
    assert done.out.splitlines() == [
        "created shop.users with 2 columns, partitioned by day(ts), sorted by id asc",
        "column  type",
        "id      long         required",
        "ts      timestamptz",
    ]


def test_create_takes_icebergs_own_schema_and_infers_one_from_a_file(tmp_path: Path):
    own = {"type": "struct", "fields": [{"id": 7, "name": "n", "type": "decimal(9,2)", "required": False}]}
    (tmp_path / "own.json").write_text(json.dumps(own))
    (tmp_path / "like.csv").write_text("id,when\n1,2024-01-01 10:00:00\n")
    assert command(tmp_path, "create", "a", "--schema", tmp_path / "own.json").code == 0
    made = command(tmp_path, "create", "b", "--from", tmp_path / "like.csv", "-o", "json").json
    assert [column["name"] for column in made["columns"]] == ["id", "when"]
    assert command(tmp_path, "create", "c").code == 2


def test_query_filters_selects_and_limits(lake: Path):
    assert rows(lake, "--where", "age > 30") == [
        {"id": 1, "name": "Ada", "age": 36},
        {"id": 2, "name": "Emil", "age": 41},
    ]
    assert rows(lake, "--select", "id,age", "--select", "name", "--where", "id = 1") == [
        {"id": 1, "age": 36, "name": "Ada"}
    ]
    assert len(rows(lake, "--limit", 2)) == 2
    assert command(lake, "query", "users", "--where", "id = 1").out == "id  name  age\n 1  Ada    36\n"
    assert command(lake, "query", "users", "--where", "id > 9").out == "no rows\n"


def test_every_way_to_name_a_past_state_reads_it(lake: Path):
    first = snapshots(lake)[0]
    when = command(lake, "list-snapshots", "users", "-o", "json").json[0]["time"]
    assert command(lake, "tag", "users", "v1", "--snapshot", first).out == "made tag v1 of users\n"
    assert command(lake, "branch", "users", "audit", "--keep-days", 1).code == 0
    command(lake, "delete", "users", "--where", "id < 3")
    for how in (["--snapshot", first], ["--timestamp", when], ["--tag", "v1"], ["--branch", "audit"]):
        assert len(rows(lake, *how)) == 3, how
    assert len(rows(lake)) == 1
    shown = command(lake, "describe", "users").out
    assert re.search(r"audit +branch +\d+ +1 days", shown)
    assert re.search(r"v1 +tag +\d+ +90 days", shown)
    assert command(lake, "tag", "users", "v1", "--drop").out == "dropped tag v1 of users\n"
    assert command(lake, "query", "users", "--tag", "v1").code == 1


def test_update_delete_and_upsert_say_what_they_did(lake: Path, tmp_path: Path):
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": 3, "name": "N.", "age": 30}\n{"id": 4, "name": "Zoe", "age": 50}\n')
    done = [
        command(lake, "update", "users", "--set", "age=age+1", "--where", "id = 1"),
        command(lake, "upsert", "users", "--data", more, "--key", "id"),
        command(lake, "delete", "users", "--where", "id = 2"),
        command(lake, "delete", "users", "--where", "id = 2"),
    ]
    said = [re.sub(r"\d{6,}", "N", one.out) for one in done]
    assert said == [
        "update users: 1 updated (snapshot N)\n",
        "upsert into users: 1 inserted, 1 updated (snapshot N)\n",
        "delete from users: 1 deleted (snapshot N)\n",
        "delete from users: nothing to do\n",
    ]
    assert [(row["id"], row["age"]) for row in rows(lake)] == [(1, 37), (3, 30), (4, 50)]
    assert command(lake, "update", "users", "--set", "age=1").code == 2


def test_columns_are_added_renamed_widened_and_dropped(lake: Path):
    assert command(lake, "add-column", "users", "email", "string").out == "added email string to users\n"
    assert command(lake, "rename-column", "users", "name", "full_name").code == 0
    assert command(lake, "alter-column", "users", "age", "long").out == "age of users is long now\n"
    assert command(lake, "drop-column", "users", "email", "--dry-run").out == "would drop email of users\n"
    assert command(lake, "drop-column", "users", "email").code == 1
    assert "email" in rows(lake)[0]
    assert command(lake, "drop-column", "users", "email", "--yes").code == 0
    lines = command(lake, "schema-history", "users").out.splitlines()
    assert [line.split("  ")[-1].strip() for line in lines[1:]] == [
        "created with id long, name string, age int",
        "added email string",
        "renamed name to full_name",
        "age became long, was int",
        "dropped email",
    ]
    assert list(rows(lake)[0]) == ["id", "full_name", "age"]


def test_rollback_tells_what_it_undoes_asks_and_can_be_undone(lake: Path):
    first = snapshots(lake)[0]
    command(lake, "delete", "users", "--where", "id = 1")
    last = snapshots(lake)[-1]
    plan = command(lake, "rollback", "users", "--snapshot", first, "--dry-run")
    assert plan.code == 0
    assert "takes 1 snapshot off main:" in plan.out
    assert "(-1 rows)" in plan.out
    refused = command(lake, "rollback", "users", "--snapshot", first)
    assert (refused.code, "say --yes" in refused.err) == (1, True)
    assert len(rows(lake)) == 2
    done = command(lake, "rollback", "users", "--snapshot", first, "--yes")
    assert f"rollback users --snapshot {last}" in done.err
    assert len(rows(lake)) == 3
    assert command(lake, "rollback", "users", "--snapshot", last, "--yes").code == 0
    assert len(rows(lake)) == 2
    assert "already: nothing to do" in command(lake, "rollback", "users", "--snapshot", last).out


def test_expiry_says_first_what_goes_and_what_stays(lake: Path):
    command(lake, "delete", "users", "--where", "id = 1")
    assert "nothing of default.users goes: 2 snapshots stay" in command(lake, "expire-snapshots", "users").out
    arguments = ("expire-snapshots", "users", "--days", 0, "--keep", 1)
    plan = command(lake, *arguments, "--dry-run")
    assert plan.out.startswith("1 snapshot of default.users go, and 1 data file (")
    assert "1 snapshot stays" in plan.out or "1 snapshot stay" in plan.out
    assert command(lake, *arguments).code == 1
    assert len(snapshots(lake)) == 2
    done = command(lake, *arguments, "--yes")
    assert done.err.startswith("expired 1 snapshots, deleted ")
    assert len(snapshots(lake)) == 1
    assert len(rows(lake)) == 2


def test_diff_prints_counts_then_rows_then_columns(lake: Path, tmp_path: Path):
    first = snapshots(lake)[0]
    more = tmp_path / "more.csv"
    more.write_text("id,name,age,city\n3,Noor,30,Oslo\n4,Zoe,50,Rome\n")
    command(lake, "add-column", "users", "city", "string")
    command(lake, "upsert", "users", "--data", more, "--key", "id")
    command(lake, "delete", "users", "--where", "id = 1")
    done = command(lake, "diff", "users", "--from", first, "--to", snapshots(lake)[-1], "--key", "id")
    assert "rows: 1 added, 1 removed, 1 changed\n" in done.out
    assert re.search(r"added\n +id +name +age +city\n +4 +Zoe +50 +Rome\n", done.out)
    assert re.search(r"changed\n +id +column +before +after\n +3 +age +29 +30\n +3 +city +- +Oslo\n", done.out)
    assert "column city was added (string)\n" in done.out
    data = command(lake, "diff", "users", "--from", first, "--key", "id", "-o", "json").json
    assert data["from_snapshot"] == first
    assert data["changed"] == [{"key": {"id": 3}, "old": {"age": 29, "city": None}, "new": {"age": 30, "city": "Oslo"}}]
    without_key = command(lake, "diff", "users", "--from", first).out
    assert "rows: 2 added, 2 removed\n" in without_key


def test_describe_reads_from_facts_to_details(lake: Path):
    text = command(lake, "describe", "users").out
    assert text.startswith("default.users: 3 rows in 1 file (")
    order = [text.index(part) for part in ("location", "column  type", "branch or tag", "property")]
    assert order == sorted(order)
    assert "{" not in text
    assert max(map(len, text.splitlines())) < 150


def test_explain_reads_as_a_plan(lake: Path):
    text = command(lake, "explain", "users", "--where", "age > 100").out
    assert '"age" > 100' in text
    assert "1: 1 skipped by column statistics, 0 read" in text
    assert "0 of 3 are in the files that are read" in text
    assert command(lake, "explain", "users", "-o", "json").json["files_read"] == 1


def test_list_files_and_partitions(lake: Path):
    assert command(lake, "list").out.splitlines()[1].split()[:2] == ["default.users", "3"]
    assert command(lake, "list", "shop").out == "nothing\n"
    (file,) = command(lake, "files", "users", "-o", "json").json
    assert (file["rows"], file["content"]) == (3, "data")
    assert Path(file["path"]).stat().st_size == file["bytes"]
    assert command(lake, "partitions", "users", "-o", "json").json[0]["files"] == 1


def test_sql_joins_tables_and_reads_the_past(lake: Path):
    first = snapshots(lake)[0]
    command(lake, "delete", "users", "--where", "id = 1")
    done = command(lake, "sql", f"SELECT count(*) AS n FROM users AT (VERSION => {first})", "-o", "csv")
    assert done.out == "n\n3\n"
    done = command(lake, "sql", "SELECT count(*) AS n FROM users JOIN table_snapshots ON true", "-o", "json")
    assert done.json == [{"n": 4}]


def test_rows_go_to_csv_json_and_parquet_files(lake: Path, tmp_path: Path):
    for form in ("csv", "json", "parquet"):
        target = tmp_path / f"out.{form}"
        done = command(lake, "query", "users", "--output", form, target)
        assert (done.code, done.out) == (0, "")
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 3
    assert len(list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))) == 3
    assert {row["name"] for row in json.loads((tmp_path / "out.json").read_text())} == {"Ada", "Emil", "Noor"}
    assert command(lake, "query", "users", "--output", "parquet").code == 1
    assert command(lake, "query", "users", tmp_path / "out.xlsx").code == 1
    assert command(lake, "query", "users", tmp_path / "no" / "out.csv").code == 1
    assert not list(tmp_path.glob("*.part"))


def test_ids_in_json_are_texts_and_data_is_as_it_is(lake: Path):
    (one,) = command(lake, "list-snapshots", "users", "-o", "json").json
    assert isinstance(one["id"], str)
    assert one["parent_id"] is None
    described = command(lake, "describe", "users", "-o", "json").json
    assert described["current_snapshot"] == one["id"]
    assert described["columns"][0] == {"id": 1, "name": "id", "type": "long", "required": True, "doc": ""}
    assert command(lake, "sql", "SELECT 9007199254740993 AS big", "-o", "json").json == [{"big": 9007199254740993}]


def test_generate_makes_a_file_or_fills_a_table(lake: Path, tmp_path: Path):
    file = tmp_path / "made.parquet"
    assert command(lake, "generate", "users", "--rows", 50, "--seed", 3, "--to", file).code == 0
    assert pq.read_table(file).num_rows == 50
    assert "inserted 20 rows into default.made" in command(lake, "generate", "--rows", 20, "--into", "made").out
    assert command(lake, "generate", "users").code == 2


def test_drop_asks_first_and_keeps_the_files(lake: Path):
    assert command(lake, "drop", "users", "--dry-run").out == "would drop default.users (3 rows, 1 snapshots)\n"
    assert command(lake, "drop", "users").code == 1
    assert IcebergManager(lake).list_tables() == ["default.users"]
    done = command(lake, "drop", "users", "--yes")
    assert "its files are still in" in done.out
    assert list((lake / "warehouse").rglob("*.parquet"))
    assert IcebergManager(lake).list_tables() == []


def test_standard_input_is_data_too(lake: Path):
    done = _run("insert", "users", "--data", "-", "--format", "csv", lake=lake, given="id,name\n9,Ida\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(lake)[-1] == {"id": 9, "name": "Ida", "age": None}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands(shell: str):
    program = Path(sys.executable).with_name("iceberg-manager")
    asked = {"_ICEBERG_MANAGER_COMPLETE": f"complete_{shell}", "COMP_WORDS": "iceberg-manager ren", "COMP_CWORD": "1",
             "_TYPER_COMPLETE_ARGS": "iceberg-manager ren", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}  # fmt: skip
    done = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=False)
    assert "rename-column" in done.stdout


def test_the_command_line_reference_is_up_to_date():
    written = (ROOT / "docs" / "cli.md").read_text()
    made = subprocess.run(
        [sys.executable, "-m", "typer", "iceberg_manager.cli", "utils", "docs", "--name", "iceberg-manager"],
        capture_output=True, text=True, timeout=60, check=True, cwd=ROOT, env=os.environ | {"TERM": "dumb"},
    ).stdout  # fmt: skip
    assert written.strip() == made.strip(), (
        "docs/cli.md is old; to make it anew: "
        "python -m typer iceberg_manager.cli utils docs --name iceberg-manager --output docs/cli.md"
    )


def test_every_command_says_what_it_is_for():
    commands = typer.main.get_command(app).commands
    assert all(one.help for one in commands.values())
    assert {"create", "insert", "query", "add-column", "rename-column", "list-snapshots", "rollback", "expire-snapshots",
            "drop-column", "diff", "sql", "explain", "describe", "files", "partitions", "schema-history", "tag", "branch",
            "upsert", "update", "delete", "generate", "list", "drop"} <= commands.keys()  # fmt: skip


def _run(*arguments: object, lake: Path | None = None, given: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "iceberg_manager.cli",
        *map(str, arguments),
        *(["--lake", str(lake)] if lake else []),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, input=given)


_HOLDER = """
import fcntl, sys
files = [open(path, "w") for path in sys.argv[1:]]
for file in files:
    fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def _holder(*files: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that holds locks as a server or a client does."""
    command = [sys.executable, "-c", _HOLDER, *map(str, files)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == b"held\n"
        yield holder


def test_status_of_a_server_that_does_not_run(tmp_path: Path):
    done = _run("spark", "status", "--output", "json", lake=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"running": False, "folder": str(tmp_path / "spark")}
    assert "running" in _run("spark", "status", lake=tmp_path).stdout


def test_status_and_stop_of_a_server_that_runs(tmp_path: Path):
    folder = tmp_path / "spark"
    folder.mkdir()
    with _holder(folder / "running") as holder:
        _announce(folder, Server(holder.pid, holder.pid, 1, "s3cret", "f", 0.0))
        done = _run("spark", "status", "--output", "json", lake=tmp_path)
        said = json.loads(done.stdout)
        assert (said["running"], said["in_use"], said["address"]) == (True, False, "127.0.0.1:1")
        assert "s3cret" not in done.stdout + _run("spark", "status", lake=tmp_path).stdout
        assert _run("spark", "stop", lake=tmp_path).stdout == "stopped the Spark server\n"
    assert _run("spark", "stop", lake=tmp_path).stdout == "no Spark server was running\n"


def test_a_server_in_use_is_not_stopped_by_accident(tmp_path: Path):
    folder = tmp_path / "spark"
    folder.mkdir()
    with _holder(folder / "running", folder / "in_use") as holder:
        done = _run("spark", "stop", lake=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: The Spark server is in use")
        assert holder.poll() is None
        assert _run("spark", "stop", "--force", lake=tmp_path).returncode == 0
        holder.wait(5)


@pytest.mark.parametrize("text", ["spark: {mdoe: x}", "a: b: c", "root: [1]"])
def test_a_bad_lake_file_is_one_sentence_and_exit_code_1(tmp_path: Path, text: str):
    (tmp_path / "lake.yaml").write_text(text)
    for command in ("status", "stop"):
        done = _run("spark", command, lake=tmp_path / "lake.yaml")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [("spark", "strat"), ("spark", "status", "--nope"), ("nope",)])
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]):
    done = _run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
