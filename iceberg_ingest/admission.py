"""Who may go on, who waits, who is told to come back: calls, bytes on their way, rates and the backlog.

Waiting is back-pressure: while a call waits its stream is not read, and the sender's window fills. Refusals are
UnavailableErrors, raised before anything is kept.
"""

import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from iceberg_ingest.settings import LimitSettings, TokenSettings
from iceberg_manager.errors import UnavailableError

WAIT_SECONDS = 10.0
BUCKET_BYTES = 1 << 20
Topic = tuple[str, str]


class Admission:
    """The service's limits at work."""

    def __init__(self, limits: LimitSettings) -> None:
        self.limits = limits
        self.calls = 0
        self.pending = 0
        self._tenants: defaultdict[str, int] = defaultdict(int)
        self._rates: dict[str, _Rate] = {}
        self._changed = threading.Condition()

    @contextmanager
    def call(self) -> Iterator[None]:
        """One running call."""
        with self._changed:
            if self.calls >= self.limits.max_calls:
                raise UnavailableError(f"The service is busy with {self.calls} calls; try again in a moment.")
            self.calls += 1
        try:
            yield
        finally:
            with self._changed:
                self.calls -= 1

    @contextmanager
    def bytes_of(self, tenant: str, size: int) -> Iterator[None]:
        """Room for a batch on its way into the log: waits for it, for a while."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._fits(tenant, size), WAIT_SECONDS):
                raise UnavailableError("Too many bytes are on their way into the log; try again in a moment.")
            self.pending += size
            self._tenants[tenant] += size
        try:
            yield
        finally:
            with self._changed:
                self.pending -= size
                self._tenants[tenant] -= size
                if not self._tenants[tenant]:
                    del self._tenants[tenant]
                self._changed.notify_all()

    def _fits(self, tenant: str, size: int) -> bool:
        whole = self.pending + size <= self.limits.max_pending_bytes
        return whole and self._tenants.get(tenant, 0) + size <= self.limits.max_tenant_pending_bytes

    def rate(self, token: TokenSettings | None, rows: int, size: int) -> None:
        """Wait until the token's quota has room for this batch; a wait that is too long is a refusal."""
        if token is None or not (token.max_rows_per_second or token.max_bytes_per_second):
            return
        with self._changed:
            rate = self._rates.setdefault(token.sha256.get_secret_value(), _Rate(token))
            pause = rate.take(rows, size)
        if pause:
            time.sleep(pause)


class _Rate:
    """One token's quota: a second's worth may come at once, the rest waits its turn."""

    def __init__(self, token: TokenSettings) -> None:
        self._per_second = (token.max_rows_per_second, token.max_bytes_per_second)
        self._free_at = [0.0, 0.0]

    def take(self, rows: int, size: int, now: float | None = None) -> float:
        now = time.monotonic() if now is None else now
        after = [max(free, now - 1) for free in self._free_at]
        for index, (amount, limit) in enumerate(zip((rows, size), self._per_second, strict=True)):
            if limit:
                after[index] += amount / limit
        pause = max(after) - now
        if pause > WAIT_SECONDS:
            raise UnavailableError(f"This token's quota is used up; try again in {pause:.0f} s.")
        self._free_at = after
        return max(0.0, pause)


class Backlog:
    """What is in the log and not yet in its table, by topic; the writer's checkpoints tell what has arrived."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._topics: dict[Topic, deque[tuple[int, int]]] = {}
        self._guard = threading.Lock()
        self.bytes = 0

    def add(self, topic: Topic, seq: int, size: int) -> None:
        with self._guard:
            waiting = self._topics.setdefault(topic, deque())
            self.bytes += size
            if waiting and waiting[-1][1] + size <= BUCKET_BYTES:
                last, more = waiting.pop()
                seq, size = max(seq, last), size + more
            waiting.append((seq, size))

    def settle(self, committed: Mapping[Topic, int]) -> None:
        with self._guard:
            for topic, seq in committed.items():
                waiting = self._topics.get(topic)
                while waiting and waiting[0][0] <= seq:
                    self.bytes -= waiting.popleft()[1]

    def by_topic(self) -> dict[Topic, int]:
        with self._guard:
            return {topic: sum(size for _, size in waiting) for topic, waiting in self._topics.items()}

    def last(self, topic: Topic) -> int:
        """The last record of a topic that waits; 0 if none does."""
        with self._guard:
            waiting = self._topics.get(topic)
            return waiting[-1][0] if waiting else 0

    def pause(self) -> float:
        """How long an answer is to be held back; past the limit, a refusal."""
        if self.bytes <= self._limits.slow_backlog_bytes:
            return 0.0
        if self.bytes > self._limits.max_backlog_bytes:
            raise UnavailableError(
                f"{self.bytes:,} bytes wait to be committed, which is the limit; nothing more is kept until the writer has "
                "caught up."
            )
        span = max(1, self._limits.max_backlog_bytes - self._limits.slow_backlog_bytes)
        return 0.5 * (self.bytes - self._limits.slow_backlog_bytes) / span


def read_checkpoints(folder: Path) -> dict[Topic, int]:
    """How far each topic is committed, by the files that the writer leaves in ``<log>/checkpoints``."""
    found: dict[Topic, int] = {}
    for path in sorted((folder / "checkpoints").glob("*.json")):
        tenant, _, table = path.name.removesuffix(".json").partition(".")
        try:
            found[tenant, table] = int(json.loads(path.read_text())["seq"])
        except (OSError, ValueError, KeyError, TypeError):
            continue  # being replaced, or not the writer's: the next look decides
    return found
