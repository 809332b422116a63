"""One warm Spark Connect server per lake, started on demand like a build daemon and never twice.

The server's folder holds: ``lock`` (held while anyone decides to start or stop), ``in_use`` (every client holds it
shared, so the kernel itself forgets a client that dies), ``running`` (held by the keeper and the JVM, from before they
start and for as long as either lives), ``keeper`` (held by the keeper alone), ``server.json`` (address and token,
readable by its owner only) and ``server.log``.

A *keeper* process owns the JVM: it ends it when nobody used it for the idle time, or when the folder is gone. Crashes:
a client that dies frees ``in_use``; a JVM that dies ends its keeper and the next client starts anew; a keeper that
dies leaves a JVM that goes on while it is used; the next client after that ends it and starts another. A changed
configuration restarts the server, but only once no client uses it.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from iceberg_manager.errors import SettingsError, SetupError, UnavailableError

_log = logging.getLogger(__name__)
_START_SECONDS = 300.0
_BUSY_SECONDS = 600.0
_POLL_SECONDS = 0.1
_PORTS = 3
_TELLING = re.compile(r"^Exception in thread|(Exception|Error): ")


@dataclass(frozen=True)
class Launch:
    """How to start a server; two launches with one fingerprint may share it."""

    master: str
    conf: dict[str, str]
    fingerprint: str
    java_home: str
    idle_seconds: float


@dataclass(frozen=True)
class Server:
    """A server that was started: what ``server.json`` says of it."""

    pid: int
    keeper: int
    port: int
    token: str
    fingerprint: str
    started: float

    @property
    def url(self) -> str:
        return f"sc://localhost:{self.port}/;token={self.token}"


class Lease:
    """A client's hold on a running server; it cannot be stopped for idleness or restarted while one exists."""

    def __init__(self, folder: Path, server: Server, hold: int) -> None:
        self._folder, self._server, self._hold = folder, server, hold

    @property
    def url(self) -> str:
        return self._server.url

    def alive(self) -> bool:
        return read_server(self._folder) == self._server and _answers(self._server.port)

    def release(self) -> None:
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1


def acquire(folder: Path, launch: Launch, busy_seconds: float = _BUSY_SECONDS) -> Lease:
    """A lease on the folder's server, which is started, or restarted with a new configuration, if it has to be."""
    deadline = time.monotonic() + busy_seconds
    with _folder_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        while True:
            # Runs that use the old server may need the lock to finish, so it is not held while waiting for them.
            with _locked(folder / "lock"):
                if not _used_with_other_settings(folder, launch):
                    return _lease(folder, launch)
            if time.monotonic() > deadline:
                raise UnavailableError(
                    "The Spark settings changed, but other runs still use the server with the old ones. Let them finish, "
                    "or end them and run `iceberg-manager spark stop --force`."
                )
            time.sleep(_POLL_SECONDS)


def _used_with_other_settings(folder: Path, launch: Launch) -> bool:
    server = read_server(folder)
    if not server or server.fingerprint == launch.fingerprint:
        return False
    used = _held(folder / "in_use") and _answers(server.port)
    if used:
        _log.info("the Spark settings changed: waiting for the runs that still use the server with the old ones")
    return used


def _lease(folder: Path, launch: Launch) -> Lease:
    server = read_server(folder)
    if not (server and server.fingerprint == launch.fingerprint and _usable(folder, server)):
        _end(folder)
        server = _start(folder, launch)
    hold = _open(folder / "in_use")
    fcntl.flock(hold, fcntl.LOCK_SH)
    os.utime(folder / "in_use")
    return Lease(folder, server, hold)


def _usable(folder: Path, server: Server) -> bool:
    """Ours (a port in an old file may be a stranger's by now), answering, and with a keeper, or needed by others."""
    if not _held(folder / "running") or not _answers(server.port):
        return False
    return _held(folder / "keeper") or _held(folder / "in_use")


def status(folder: Path) -> dict[str, Any]:
    """What a person wants to know: running or not, since when, where, and whether someone uses it. No token."""
    server = read_server(folder)
    if not server or not _held(folder / "running"):
        return {"running": False, "folder": str(folder)}
    return {
        "running": True,
        "pid": server.pid,
        "address": f"127.0.0.1:{server.port}",
        "minutes_up": round((time.time() - server.started) / 60, 1),
        "in_use": _held(folder / "in_use"),
        "folder": str(folder),
    }


def stop(folder: Path, force: bool = False) -> bool:
    """End the server. False if none ran; refuses while a client uses it, unless forced."""
    if not folder.is_dir():
        return False
    with _folder_errors(folder), _locked(folder / "lock"):
        if not _held(folder / "running"):
            return False
        if _held(folder / "in_use") and not force:
            raise UnavailableError("The Spark server is in use by a running job: wait for it, or stop with --force.")
        _end(folder)
        return True


def read_server(folder: Path) -> Server | None:
    try:
        return Server(**json.loads((folder / "server.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _start(folder: Path, launch: Launch) -> Server:
    _log.info("starting the shared Spark server (some seconds; minutes the very first time, when it fetches its jars)")
    for _ in range(_PORTS):
        server = _start_on(_free_port(), folder, launch)
        if server:
            return server
        if "java.net.BindException" not in _log_text(folder):  # else someone took the port before the JVM did
            break
    raise SetupError(f"Spark did not start: {_last_words(folder)} The whole story is in {folder / 'server.log'}.")


def _start_on(port: int, folder: Path, launch: Launch) -> Server | None:
    token = secrets.token_urlsafe(24)
    _spawn_keeper(folder, {"launch": asdict(launch), "port": port, "token": token})
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and _held(folder / "running"):
        server = read_server(folder)
        if server and server.token == token and _answers(port):
            return server
        time.sleep(_POLL_SECONDS)
    _end(folder)
    return None


def _spawn_keeper(folder: Path, order: Mapping[str, Any]) -> None:
    """The keeper is born with ``running`` in its hands, so that at no moment a second one could start."""
    running = _open(folder / "running")
    try:
        fcntl.flock(running, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (folder / "server.log").open("wb") as log:
            subprocess.run(
                [sys.executable, "-m", "iceberg_manager.spark_server", str(folder), str(running)],
                input=json.dumps(order).encode(), stdout=log, stderr=log, start_new_session=True, pass_fds=(running,),
                check=False,
            )  # fmt: skip
    except BlockingIOError:
        raise UnavailableError(
            f"The old Spark server in {folder} does not end: end it by hand (process {_pids(folder) or 'unknown'})."
        ) from None
    finally:
        os.close(running)


def _end(folder: Path) -> None:
    """End keeper and JVM, whichever still live."""
    for signum, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        if not _held(folder / "running"):
            break
        for pid in _pids(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        deadline = time.monotonic() + seconds
        while _held(folder / "running") and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    (folder / "server.json").unlink(missing_ok=True)


def _pids(folder: Path) -> list[int]:
    """Who holds ``running``. Linux tells; elsewhere ``server.json`` is believed, but only while it is held at all.

    A number in a file may meanwhile belong to a stranger's process, so it is the last resort.
    """
    server = read_server(folder)
    if not Path("/proc/self/fdinfo").is_dir():
        return [server.keeper, server.pid] if server and _held(folder / "running") else []
    return [int(process.name) for process in Path("/proc").glob("[0-9]*") if _holds(process, folder / "running")]


def _holds(process: Path, path: Path) -> bool:
    """Whether one of a process's open files is this one and carries a lock; someone who only asks has none."""
    with contextlib.suppress(OSError):
        for file in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if file.samefile(path) and "FLOCK" in (process / "fdinfo" / file.name).read_text():
                    return True
    return False


def _last_words(folder: Path) -> str:
    """The first exception in the log, or else what the launcher or the JVM said before it gave up."""
    lines = [line.strip() for line in _log_text(folder).splitlines()]
    said = [line for line in lines if line and not any(word in line for word in (" INFO ", "WARN", "Using Spark's"))]
    telling = next((line for line in said if _TELLING.search(line)), ": ".join(said[:2]))
    return f"{telling[:300].rstrip('.') or 'its process ended without a word'}."


def _log_text(folder: Path) -> str:
    with contextlib.suppress(OSError):
        return (folder / "server.log").read_text(errors="replace")
    return ""


@contextlib.contextmanager
def _folder_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"The folder {folder} of the Spark server cannot be used: {error.strerror or error}. Make it writable, or set "
            "`spark.server_dir` in lake.yaml to another one."
        ) from error


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    file = _open(path)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _held(path: Path) -> bool:
    """Whether any process locks this file. Asks thrice: another asker looks like a holder for a moment."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        for pause in (0.02, 0.05, 0.0):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return False
            time.sleep(pause)
        return True
    finally:
        os.close(file)


def _keep(folder: Path, running: int, launch: Launch, port: int, token: str) -> None:
    """The keeper's life: start the JVM, announce it, watch it, end it when idle or told to, and in any case at the end."""
    fcntl.flock(_open(folder / "keeper"), fcntl.LOCK_EX)
    jvm = subprocess.Popen(
        _command(launch, port),
        stdin=subprocess.DEVNULL,
        env=_environment(launch, token),
        pass_fds=(running,),
        cwd=folder,
    )
    signal.signal(signal.SIGTERM, lambda *_: jvm.terminate())
    try:
        _announce(folder, Server(jvm.pid, os.getpid(), port, token, launch.fingerprint, time.time()))
        while jvm.poll() is None and not (_forgotten(folder, token) or _idle(folder, launch.idle_seconds)):
            time.sleep(min(1.0, launch.idle_seconds / 4))
    finally:
        jvm.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            jvm.wait(10)
        jvm.kill()
    if not _forgotten(folder, token):
        (folder / "server.json").unlink(missing_ok=True)


def _command(launch: Launch, port: int) -> list[str]:
    import pyspark  # only the keeper needs to know where Spark is, not everyone who imports this module

    conf = launch.conf | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    flags = [part for key, value in sorted(conf.items()) for part in ("--conf", f"{key}={value}")]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    return [str(submit), "--master", launch.master, "--class", server, *flags, "spark-internal"]


def _environment(launch: Launch, token: str) -> dict[str, str]:
    """The token travels in the environment: a command line can be read by everyone on the machine."""
    kept = {
        key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "SPARK_REMOTE", "SPARK_CONF_DIR")
    }
    return kept | {
        "JAVA_HOME": launch.java_home,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
    }


def _announce(folder: Path, server: Server) -> None:
    fresh = folder / "server.json.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(asdict(server), file)
    fresh.replace(folder / "server.json")


def _forgotten(folder: Path, token: str) -> bool:
    server = read_server(folder)
    return server is None or server.token != token


def _idle(folder: Path, seconds: float) -> bool:
    """Nobody holds the server and nobody took it lately. Whoever is about to, holds ``lock``, so we ask under it."""
    in_use = folder / "in_use"
    touched = in_use.stat().st_mtime if in_use.exists() else (folder / "running").stat().st_mtime
    if _held(in_use):
        os.utime(in_use)
        return False
    if time.time() - touched < seconds:
        return False
    file = _open(folder / "lock")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        idle = not _held(in_use)
        if idle:
            (folder / "server.json").unlink(missing_ok=True)
        return idle
    finally:
        os.close(file)


if __name__ == "__main__":
    _order = json.loads(sys.stdin.read())
    if os.fork():  # nobody's child: whoever started it may end before it, or live on without a zombie
        os._exit(0)
    _keep(Path(sys.argv[1]), int(sys.argv[2]), Launch(**_order["launch"]), _order["port"], _order["token"])
