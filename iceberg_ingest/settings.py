"""From the ``ingest:`` section of ``lake.yaml`` to what the log takes; the sections are plain data of
``iceberg_manager``.
"""

from pathlib import Path

from iceberg_ingest.wal_options import WalOptions
from iceberg_manager.ingest_settings import (
    FlightSettings,
    IngestSettings,
    LimitSettings,
    ReaderSettings,
    TokenSettings,
    WalSettings,
    WriterSettings,
)
from iceberg_manager.settings import LakeSettings

__all__ = [
    "FlightSettings",
    "IngestSettings",
    "LimitSettings",
    "ReaderSettings",
    "TokenSettings",
    "WalSettings",
    "WriterSettings",
    "wal_folder",
    "wal_options",
]


def wal_folder(lake: LakeSettings) -> Path:
    return lake.wal_folder


def wal_options(settings: WalSettings) -> WalOptions:
    return WalOptions(
        sync=settings.sync_mode,
        sync_interval_ms=settings.sync_interval_ms,
        allow_data_loss=settings.allow_data_loss,
        segment_bytes=settings.max_file_size,
        segment_seconds=settings.max_file_age_seconds,
        min_free_bytes=settings.min_free_bytes,
        retention_seconds=settings.retention_seconds,
        retention_bytes=settings.retention_bytes,
    )
