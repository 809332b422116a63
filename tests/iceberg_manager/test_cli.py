"""``iceberg-manager spark``: what it prints, and the exit codes that scripts rely on. Run as people run it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from iceberg_manager.spark_server import Server, _announce


def _run(*arguments: object, lake: Path | None = None) -> "subprocess.CompletedProcess[str]":
    command = [
        sys.executable,
        "-m",
        "iceberg_manager.cli",
        *map(str, arguments),
        *(["--lake", str(lake)] if lake else []),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


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
