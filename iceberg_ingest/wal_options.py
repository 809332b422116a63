"""How a write-ahead log behaves, and which of its segments may go. Pure: nothing here touches a file or the clock."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from iceberg_ingest.wal_format import MAX_BODY_BYTES
from iceberg_manager.errors import SettingsError

SyncMode = Literal["always", "periodic", "none"]


@dataclass(frozen=True)
class WalOptions:
    """What an acknowledgement means, and how much is kept.

    ``always``: on disk. ``periodic``: written, and on disk within ``sync_interval_ms``. ``none``: written; a power
    loss may take any amount, so it must be allowed by ``allow_data_loss``. A killed process loses nothing
    acknowledged in any mode.
    """

    sync: SyncMode = "always"
    sync_interval_ms: float = 100
    allow_data_loss: bool = False
    segment_bytes: int = 64 << 20
    segment_seconds: float = 3600
    max_record_bytes: int = MAX_BODY_BYTES
    min_free_bytes: int | None = None
    retention_seconds: float = 24 * 3600
    retention_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        if self.sync not in get_args(SyncMode):
            raise SettingsError(
                f"The log's sync mode is {self.sync!r}; it must be one of {', '.join(get_args(SyncMode))}."
            )
        if self.sync == "none" and not self.allow_data_loss:
            raise SettingsError(
                "The log's sync mode none may lose acknowledged rows: say allow_data_loss as well, or use periodic."
            )
        for name in ("sync_interval_ms", "segment_bytes", "segment_seconds", "max_record_bytes"):
            if getattr(self, name) <= 0:
                raise SettingsError(f"The log's {name} must be more than 0.")

    @property
    def free_bytes_needed(self) -> int:
        return 2 * self.segment_bytes if self.min_free_bytes is None else self.min_free_bytes


class Kept(NamedTuple):
    """A complete segment that is still there."""

    path: Path
    first_seq: int
    last_seq: int
    created_ms: int
    size: int


def removable(segments: Sequence[Kept], committed_seq: int, now_ms: int, options: WalOptions) -> list[Kept]:
    """The oldest segments that may go: all of each is committed, and it is too old or the log is too large."""
    size = sum(segment.size for segment in segments)
    gone: list[Kept] = []
    for segment in segments:
        too_old = now_ms - segment.created_ms > options.retention_seconds * 1000
        if segment.last_seq > committed_seq or not (too_old or size > options.retention_bytes):
            break
        gone.append(segment)
        size -= segment.size
    return gone
