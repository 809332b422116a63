"""The service's process: it starts, ends on SIGTERM, and a SIGKILL in the middle of puts loses and doubles nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from iceberg_ingest.batches import decode
from iceberg_ingest.client import IngestClient
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_reader import read_from
from iceberg_manager.errors import LakeError

ENVIRONMENT = {**os.environ, "ICEBERG_LAKE__INGEST__FLIGHT__METRICS_PORT": "0"}


def start(root: Path, port: int = 0) -> tuple["subprocess.Popen[bytes]", int]:
    command = [sys.executable, "-m", "iceberg_ingest.cli", "serve", "--lake", str(root), "--insecure", "--no-writer"]
    root.mkdir(exist_ok=True)
    with (root / "service.log").open("w") as said:
        process = subprocess.Popen([*command, "--port", str(port)], stderr=said, env=ENVIRONMENT)
    while not (text := (root / "service.log").read_text()).endswith("\n"):
        assert process.poll() is None, text
        time.sleep(0.02)
    return process, int(json.loads(text.splitlines()[0])["port"])


def kept(root: Path) -> list[tuple[str, int]]:
    contents = [record.content for record in read_from(root / "wal")]
    tables = [decode(content.payload) for content in contents if isinstance(content, Entry)]
    return [(row["producer"], row["n"]) for table in tables for row in table.to_pylist()]


def test_it_starts_answers_and_ends_when_told(tmp_path: Path) -> None:
    process, port = start(tmp_path)
    try:
        with IngestClient(f"grpc://127.0.0.1:{port}") as client:
            assert client.put("acme/orders", [{"producer": "a", "n": 1}]).durable_seq == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
    assert kept(tmp_path) == [("a", 1)]
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "wal").iterdir())


def send(address: str, name: str, acked: list[tuple[str, int]], ended: threading.Event) -> None:
    with IngestClient(address, producer=name, attempts=30) as client:
        n = 0
        while not ended.is_set():
            n += 1
            try:
                client.put("acme/orders", [{"producer": name, "n": n}])
            except LakeError:
                return
            acked.append((name, n))


@pytest.mark.faults
def test_a_kill_in_the_middle_of_puts_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    process, port = start(tmp_path)
    acked: list[tuple[str, int]] = []
    ended = threading.Event()
    senders = [
        threading.Thread(target=send, args=(f"grpc://127.0.0.1:{port}", f"p{i}", acked, ended)) for i in range(5)
    ]
    try:
        for sender in senders:
            sender.start()
        for _ in range(5):
            time.sleep(chance.uniform(2, 5))  # back-off of clients reaches seconds
            process.kill()
            process.wait()
            process, _ = start(tmp_path, port)
        ended.set()
        for sender in senders:
            sender.join()
    finally:
        ended.set()
        process.kill()
        process.wait()
    found = kept(tmp_path)
    assert len(acked) > 100
    assert set(acked) <= set(found)
    assert len(found) == len(set(found))
