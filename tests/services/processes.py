"""Child processes that always end: stopped by their id at the end of the tests, and by the kernel if the tests die first.

Each child is its own process group, so that what it starts ends with it. On Linux it also asks to be killed when its
parent goes, which covers a test run that is itself killed with -9.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_DIE_WITH_PARENT = 1


class Process:
    """One started program and the file that holds what it said."""

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.log = log
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (tests start services before any thread)
                user=user,
                group=user,
                extra_groups=[] if user is not None else None,
                cwd=cwd,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def wait_for(self, ready: Callable[[], bool], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not ready():
            if self._child.poll() is not None or time.monotonic() > deadline:
                self.stop()
                said = self.log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self._child.args[0]} did not start: {said}")
            time.sleep(0.1)

    def kill(self) -> None:
        """As a crash would end it."""
        self._signal(signal.SIGKILL)
        self._child.wait(10)

    def stop(self, first: signal.Signals = signal.SIGTERM) -> None:
        for signum in (first, signal.SIGKILL):
            if self._child.poll() is not None:
                return
            self._signal(signum)
            try:
                self._child.wait(20)
            except subprocess.TimeoutExpired:
                continue

    def _signal(self, signum: signal.Signals) -> None:
        try:
            os.killpg(self.pid, signum)
        except ProcessLookupError:
            return


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
