"""What an acknowledged batch costs: the service in each sync mode against a Flight server that does nothing, and against
Redis (XADD, appendfsync always) where ``redis-server`` is installed. All in one run.

``python -m benchmarks.ingest_acks [--seconds S] [--folder DIR]``. Every server is a process of its own.
NATS JetStream is not measured by this script.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyarrow import flight

from benchmarks.wal import Figures, percentiles

FLOOR = """
import sys
from pyarrow import flight
class Floor(flight.FlightServerBase):
    def do_put(self, context, descriptor, reader, writer):
        for chunk in reader:
            writer.write(b"ok")
server = Floor("grpc://127.0.0.1:" + sys.argv[1])
server.serve()
"""
Send = Callable[[], object]


def batch_of(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(range(rows)), "name": [f"name {n:08d}" for n in range(rows)]})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"nothing listens at {port}")


def flight_sender(port: int, batch: pa.RecordBatch) -> tuple[Send, Callable[[], None]]:
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    writer, answers = client.do_put(flight.FlightDescriptor.for_path("acme", f"rows{batch.num_rows}"), batch.schema)

    def send() -> None:
        writer.write_batch(batch)
        if answers.read() is None:
            writer.close()

    def close() -> None:
        writer.close()
        client.close()

    return send, close


def redis_sender(port: int, batch: pa.RecordBatch) -> tuple[Send, Callable[[], None]]:
    payload = batch.serialize().to_pybytes()
    words = [b"XADD", b"rows", b"*", b"b", payload]
    request = b"*5\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send() -> None:
        link.sendall(request)
        answer = b""
        while answer.count(b"\r\n") < 2:
            answer += link.recv(4096)

    return send, link.close


def measured(make: Callable[[], tuple[Send, Callable[[], None]]], clients: int, seconds: float) -> Figures:
    times: list[list[float]] = [[] for _ in range(clients)]

    def work(mine: list[float], send: Send) -> None:
        while (start := time.perf_counter()) < end:
            send()
            mine.append(time.perf_counter() - start)

    pairs = [make() for _ in range(clients)]
    for send, _ in pairs:
        send()
    end = time.perf_counter() + seconds
    workers = [threading.Thread(target=work, args=(t, send)) for t, (send, _) in zip(times, pairs, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for _, close in pairs:
        close()
    return percentiles([moment for mine in times for moment in mine], seconds)


def commands(folder: Path) -> dict[str, Callable[[int], list[str]]]:
    """How each server is started on a port."""
    serve = [sys.executable, "-m", "iceberg_ingest.cli", "serve", "--insecure", "--no-writer"]
    found: dict[str, Callable[[int], list[str]]] = {"floor": lambda port: [sys.executable, "-c", FLOOR, str(port)]}
    for mode in ("none", "periodic", "always"):
        place = folder / mode
        place.mkdir()
        wal = {"sync_mode": mode, "allow_data_loss": True}
        limits = {"slow_backlog_bytes": 1 << 40, "max_backlog_bytes": 1 << 41}
        ingest = {"wal": wal, "flight": {"metrics_port": None, "limits": limits}}
        (place / "lake.yaml").write_text(json.dumps({"root": str(place), "ingest": ingest}))
        found[mode] = lambda port, place=place: [*serve, "--lake", str(place / "lake.yaml"), "--port", str(port)]
    if redis := shutil.which("redis-server"):
        options = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--dir", str(folder)]
        found["redis"] = lambda port: [redis, "--port", str(port), "--bind", "127.0.0.1", *options]
    else:
        print("redis: skipped, redis-server is not installed (Debian package redis-server)")
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args(arguments)
    print("NATS JetStream: skipped, this script has no client for it")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        print("| server | rows | clients | p50 ms | p99 ms | acks/s | MB/s |\n|---|---|---|---|---|---|---|")
        for server, command in commands(Path(name)).items():
            port = free_port()
            process = subprocess.Popen(
                command(port), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ
            )
            try:
                wait_for(port)
                compare(server, port, args.seconds)
            finally:
                process.terminate()
                process.wait()


def compare(server: str, port: int, seconds: float) -> None:
    sender = redis_sender if server == "redis" else flight_sender
    for rows in (1, 100, 1000, 10_000):
        batch = batch_of(rows)
        for clients in (1, 8):
            p50, p99, rate = measured(lambda batch=batch: sender(port, batch), clients, seconds)
            speed = rate * batch.nbytes / 1e6
            print(f"| {server} | {rows} | {clients} | {p50 / 1e3:.2f} | {p99 / 1e3:.2f} | {rate:,.0f} | {speed:,.1f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
