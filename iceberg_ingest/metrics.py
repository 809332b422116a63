"""What the service counts, as Prometheus text on the loopback address. A few counters and gauges, no dependency."""

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Labels = tuple[tuple[str, str], ...]
BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
PREFIX = "iceberg_ingest_"
MAX_SERIES = 10_000


class Metrics:
    """Counters and one histogram; ``gauges`` are asked when somebody looks."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._counters: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        self._seconds = [0] * (len(BUCKETS) + 1)
        self._seconds_sum = 0.0
        self._gauges: dict[str, Callable[[], float | Mapping[Labels, float]]] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = tuple(labels.items())
        with self._guard:
            series = self._counters[name]
            if key in series or len(series) < MAX_SERIES:
                series[key] = series.get(key, 0) + amount

    def took(self, seconds: float) -> None:
        """How long a batch took, from its arrival to its acknowledgement."""
        with self._guard:
            self._seconds[bisect_left(BUCKETS, seconds)] += 1
            self._seconds_sum += seconds

    def put(self, tenant: str, rows: int, size: int, seconds: float) -> None:
        """One acknowledged batch, under one lock."""
        key = (("tenant", tenant),)
        with self._guard:
            for name, amount in (("batches_total", 1), ("rows_total", rows), ("bytes_total", size)):
                series = self._counters[name]
                series[key] = series.get(key, 0) + amount
            self._seconds[bisect_left(BUCKETS, seconds)] += 1
            self._seconds_sum += seconds

    def gauge(self, name: str, ask: Callable[[], float | Mapping[Labels, float]]) -> None:
        self._gauges[name] = ask

    def value(self, name: str, **labels: str) -> float:
        with self._guard:
            return self._counters[name].get(tuple(labels.items()), 0)

    def text(self) -> str:
        lines: list[str] = []
        with self._guard:
            for name, series in sorted(self._counters.items()):
                _series(lines, name, "counter", series)
            _histogram(lines, self._seconds, self._seconds_sum)
        for name, ask in sorted(self._gauges.items()):
            found = ask()
            _series(lines, name, "gauge", found if isinstance(found, Mapping) else {(): found})
        return "\n".join(lines) + "\n"


def _series(lines: list[str], name: str, kind: str, series: Mapping[Labels, float]) -> None:
    lines.append(f"# TYPE {PREFIX}{name} {kind}")
    lines += [f"{PREFIX}{name}{_shown(labels)} {value:.15g}" for labels, value in series.items()]


def _histogram(lines: list[str], counts: list[int], total: float) -> None:
    name, so_far = f"{PREFIX}put_seconds", 0
    lines.append(f"# TYPE {name} histogram")
    for bound, amount in zip((*map(str, BUCKETS), "+Inf"), counts, strict=True):
        so_far += amount
        lines.append(f'{name}_bucket{{le="{bound}"}} {so_far}')
    lines += [f"{name}_sum {total:.15g}", f"{name}_count {so_far}"]


def _shown(labels: Labels) -> str:
    def quoted(text: str) -> str:
        return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return "{" + ",".join(f'{key}="{quoted(value)}"' for key, value in labels) + "}" if labels else ""


class MetricsServer:
    """``http://127.0.0.1:<port>/metrics``, served by a thread until :meth:`close`."""

    def __init__(self, metrics: Metrics, port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 5

            def do_GET(self) -> None:
                found = self.path.split("?")[0] == "/metrics"
                body = metrics.text().encode() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Scrapes are no news."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
