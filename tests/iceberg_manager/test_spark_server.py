"""One server for all: shared by processes and lakes, replaced when it or its keeper dies, closed to everyone else."""

import dataclasses
import fcntl
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from iceberg_manager import spark_server
from iceberg_manager.errors import SettingsError, SetupError, UnavailableError
from iceberg_manager.session import LakeSession, launch
from iceberg_manager.settings import LakeSettings, SparkSettings
from iceberg_manager.spark_server import Launch, Server

_CLIENT = """
import sys
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings, SparkSettings
from pathlib import Path
lake, folder = map(Path, sys.argv[1:])
with LakeSession(LakeSettings(root=lake, spark=SparkSettings(server_dir=folder, memory="1g"))) as session:
    spark = session.spark
    spark.sql("CREATE TABLE default.t (id int) USING iceberg").collect()
    spark.sql(f"INSERT INTO default.t VALUES ({len(lake.name)})").collect()
    print(spark.table("default.t").collect()[0].id)
"""


_HOLDER = "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); sys.stdin.read()"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A server's folder with an awkward name."""
    folder = tmp_path / ("it's a long name " + "x" * 100)
    yield folder
    spark_server.stop(folder, force=True)


@pytest.fixture
def how(tmp_path: Path, folder: Path) -> Launch:
    return launch(_lake(tmp_path / "lake", folder))


def _lake(root: Path, folder: Path) -> LakeSettings:
    return LakeSettings(root=root, spark=SparkSettings(server_dir=folder, memory="1g"))


def _server(folder: Path) -> Server:
    server = spark_server.read_server(folder)
    assert server
    return server


def _jvms(folder: Path) -> list[int]:
    """Every Java that works in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder.resolve() and b"SparkConnectServer" in _command_line(process.name):
                found.append(int(process.name))
        except OSError:
            continue
    return found


def _command_line(pid: int | str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def _until(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _listeners(port: int) -> set[str]:
    """The local addresses that listen on a port, as the kernel lists them."""
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        if Path(f"/proc/net/{table}").exists()
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {line[1].rpartition(":")[0] for line in lines if line[1].endswith(f":{port:04X}") and line[3] == "0A"}


@pytest.mark.spark
@pytest.mark.slow
def test_two_lakes_that_start_at_once_share_one_server_and_keep_their_own_tables(tmp_path: Path, folder: Path):
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", _CLIENT, str(tmp_path / name), str(folder)], stdout=subprocess.PIPE, text=True
        )
        for name in ("one", "three")
    ]
    answers = [client.communicate(timeout=200)[0].strip() for client in clients]

    assert answers == ["3", "5"]
    assert _jvms(folder) == [_server(folder).pid]
    _no_one_else_gets_in(folder)
    _an_orphan_is_replaced(tmp_path, folder)


def _no_one_else_gets_in(folder: Path) -> None:
    server = _server(folder)
    assert stat.S_IMODE((folder / "server.json").stat().st_mode) == 0o600
    assert server.token.encode() not in _command_line(server.pid) + _command_line(server.keeper)
    assert server.token not in (folder / "server.log").read_text()
    assert _listeners(server.port) <= {"0100007F", "0000000000000000FFFF00000100007F"}
    assert _listeners(server.port)
    stranger = LakeSettings(
        root=folder / "x",
        spark=SparkSettings(mode="remote", remote=f"sc://localhost:{server.port}/;token=guessed"),
    )
    with pytest.raises(UnavailableError) as refused, LakeSession(stranger) as session:
        session.spark.sql("SELECT 1").collect()
    assert "guessed" not in str(refused.value)


def _an_orphan_is_replaced(tmp_path: Path, folder: Path) -> None:
    """The JVM's keeper is killed: whoever uses it may go on, and the next one after that replaces it."""
    how, orphan = launch(_lake(tmp_path / "lake", folder)), _server(folder)
    in_use = spark_server.acquire(folder, how)
    os.kill(orphan.keeper, signal.SIGKILL)
    _until(lambda: not spark_server._held(folder / "keeper"))
    spark_server.acquire(folder, how).release()
    assert _server(folder) == orphan, "a server that a run uses is left alone"
    in_use.release()

    spark_server.acquire(folder, how).release()
    assert _server(folder).pid != orphan.pid
    assert _jvms(folder) == [_server(folder).pid]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*RETRIES_EXCEEDED")  # PySpark warns before it raises
def test_a_session_survives_the_death_of_its_server_and_new_settings_wait_for_it(tmp_path: Path, folder: Path):
    lake = _lake(tmp_path / "lake", folder)
    with LakeSession(lake) as session:
        assert session.spark.sql("SELECT 1 AS one").collect()[0].one == 1
        first = _server(folder)
        stale = session.spark
        os.kill(first.pid, signal.SIGKILL)
        _until(lambda: spark_server.read_server(folder) is None)
        started = time.monotonic()
        with pytest.raises(PySparkException):
            stale.sql("SELECT 1").collect()
        assert time.monotonic() - started < 30, "a query on a dead server fails soon"
        assert session.spark.sql("SELECT 2 AS two").collect()[0].two == 2
        second = _server(folder)
        assert second.pid != first.pid

        assert spark_server.status(folder)["in_use"] is True
        other = dataclasses.replace(launch(lake), fingerprint="other", idle_seconds=2)
        with pytest.raises(UnavailableError, match="settings changed, but other runs still use"):
            spark_server.acquire(folder, other, busy_seconds=0.2)
        with pytest.raises(UnavailableError, match="in use by a running job"):
            spark_server.stop(folder)
        assert session.spark.sql("SELECT 3 AS three").collect()[0].three == 3

    lease = spark_server.acquire(folder, other)
    assert _server(folder).fingerprint == "other"
    assert _jvms(folder) == [_server(folder).pid]
    lease.release()
    _until(lambda: not _jvms(folder), seconds=30)
    _until(lambda: not spark_server._held(folder / "running"))
    assert spark_server.status(folder) == {"running": False, "folder": str(folder)}
    assert spark_server.stop(folder) is False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"java_home": "/nowhere"}, "/nowhere/bin/java: No such file"),
        ({"conf": {"spark.driver.memory": "1k"}}, "Too small maximum heap"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_leaves_nothing_behind(
    folder: Path, how: Launch, change: dict[str, Any], said: str
):
    with pytest.raises(SetupError) as error:
        spark_server.acquire(folder, dataclasses.replace(how, **change))
    assert said in str(error.value)
    assert str(folder / "server.log") in str(error.value)
    assert not spark_server._held(folder / "running")
    assert spark_server.status(folder)["running"] is False


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", "its process ended without a word."),
        ("26/11/18 11:37:38 INFO X: y\nException in thread main java.lang.X: no.\n\tat a.B\n", "java.lang.X: no."),
        ("1 WARN x\n26 ERROR SparkContext: Error initializing.\norg.apache.SparkException: bad URL\n", "bad URL."),
        (
            "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'pyspark'\n",
            "'pyspark'.",
        ),
    ],
)
def test_the_reason_is_found_in_the_log(tmp_path: Path, log: str, said: str):
    (tmp_path / "server.log").write_text(log)
    words = spark_server._last_words(tmp_path)
    assert words.endswith(said)
    assert "\n" not in words


def test_a_stale_file_never_costs_a_stranger_its_life(folder: Path):
    """After a reboot the numbers in server.json may belong to others."""
    folder.mkdir()
    (folder / "running").touch()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        stale = Server(stranger.pid, stranger.pid, 1, "token", "old", 0.0)
        spark_server._announce(folder, stale)
        assert spark_server.status(folder)["running"] is False
        assert spark_server.stop(folder, force=True) is False
        spark_server._end(folder)
        assert stranger.poll() is None
        assert spark_server.read_server(folder) is None

        spark_server._announce(folder, stale)
        with subprocess.Popen(
            [sys.executable, "-c", _HOLDER, str(folder / "running")], stdin=subprocess.PIPE
        ) as holder:
            _until(lambda: spark_server._held(folder / "running"))
            assert spark_server._pids(folder) == [holder.pid]
            assert spark_server.stop(folder, force=True) is True
        assert stranger.poll() is None, "only who holds the lock is ended"
        stranger.communicate(b"\n")


def test_a_port_that_a_stranger_took_over_is_not_taken_for_the_server(folder: Path, how: Launch):
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        stale = Server(1, 1, port, "token", how.fingerprint, 0.0)
        spark_server._announce(folder, stale)
        assert spark_server._answers(port)
        client = spark_server._open(folder / "in_use")
        fcntl.flock(client, fcntl.LOCK_SH)
        assert not spark_server._usable(folder, stale)
        os.close(client)


def test_a_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path, how: Launch):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"cannot be used.*spark.server_dir"):
        spark_server.acquire(tmp_path / "file" / "spark", how)
    assert spark_server.stop(tmp_path / "file" / "spark") is False
    assert spark_server.status(tmp_path / "file" / "spark")["running"] is False


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', json.dumps({"unknown": 1})])
def test_a_damaged_server_file_counts_as_none(tmp_path: Path, content: str):
    (tmp_path / "server.json").write_text(content)
    assert spark_server.read_server(tmp_path) is None
