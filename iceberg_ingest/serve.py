"""``iceberg-ingest serve``: the service in this process and the writer in a second one, which is started again when it
ends by itself.

At the end (SIGTERM, SIGINT) no new batch is taken, running ones are answered, the log is closed, and the writer gets a
SIGTERM and the time to commit what it holds. A kill of either loses nothing: the log has what was acknowledged. When
the log has failed, the process ends with 1, so that whoever supervises it starts it anew.
"""

import resource
import signal
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

from iceberg_ingest.flight_server import listen
from iceberg_ingest.logs import log, log_to_stderr
from iceberg_ingest.metrics import MetricsServer
from iceberg_ingest.service import IngestService
from iceberg_manager.errors import InputError
from iceberg_manager.settings import LakeSettings

LOOK_SECONDS = 0.2
DRAIN_SECONDS = 60.0
MAX_PAUSE_SECONDS = 30.0


def with_options(settings: LakeSettings, port: int | None, insecure: bool) -> LakeSettings:
    """The settings with what the command line says on top, checked again."""
    content = settings.ingest.flight.model_dump()
    content |= {"insecure": insecure or content["insecure"]} | ({} if port is None else {"port": port})
    flight = type(settings.ingest.flight).model_validate(content)
    return settings.model_copy(update={"ingest": settings.ingest.model_copy(update={"flight": flight})})


def serve(settings: LakeSettings, lake: Path | None, with_writer: bool) -> int:
    """Run until told to end; returns the exit code."""
    log_to_stderr()
    flight = settings.ingest.flight
    if flight.limits.max_memory_bytes:
        resource.setrlimit(resource.RLIMIT_AS, (flight.limits.max_memory_bytes,) * 2)
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with IngestService(settings) as service:
        server = listen(service)
        metrics = None if flight.metrics_port is None else MetricsServer(service.metrics, flight.metrics_port)
        writer = _Writer(lake or settings.root) if with_writer else None
        log("listening", host=flight.host, port=server.port, metrics_port=metrics and metrics.port)
        while not ended.wait(LOOK_SECONDS) and service.wal.failure is None:
            if writer:
                writer.look()
        service.ending = True
        server.shutdown()
        if metrics:
            metrics.close()
    if writer:
        writer.end()
    log("ended", failed=service.wal.failure is not None)
    return 1 if service.wal.failure else 0


class _Writer:
    """The writer's process."""

    def __init__(self, lake: Path) -> None:
        if find_spec("iceberg_ingest.writer") is None:
            raise InputError("There is no writer to start; use --no-writer to only log rows.")
        self._command = [sys.executable, "-m", "iceberg_ingest.writer", "--lake", str(lake)]
        self._pause, self._next = 1.0, 0.0
        self._process = self._start()

    def look(self) -> None:
        """Start it again if it has ended, after a pause that grows with every time."""
        code = self._process.poll()
        if code is None:
            return
        if not self._next:
            log("writer ended", code=code, again_in=self._pause)
            self._next = time.monotonic() + self._pause
            self._pause = min(MAX_PAUSE_SECONDS, self._pause * 2)
        elif time.monotonic() >= self._next:
            self._next = 0.0
            self._process = self._start()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command)
