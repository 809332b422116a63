"""The ``ingest:`` section of ``lake.yaml``: write-ahead log, Flight service, writer and reader.

The same sections are also understood as a broker spells them, in one block ``storage: {type: iceberg, iceberg_config:
{catalog, object_store, wal, writer, reader}}``; :func:`unfold_storage` turns that into the lake's own keys, so the two
ways cannot drift apart. Only data here: ``iceberg_ingest`` gives it a meaning.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from iceberg_manager.errors import SettingsError
from iceberg_manager.sections import Section

MIB = 1 << 20
NAME_PATTERN = r"^[a-z][a-z0-9_]{0,62}$"
INGEST_PATHS = {
    "wal": ("base_path",),
    "writer": ("parquet_path",),
    "flight": ("tls_certificate", "tls_key", "tls_client_ca"),
}


class WalSettings(Section):
    """Where acknowledged rows are kept, and what an acknowledgement means."""

    base_path: Path | None = None
    sync_mode: Literal["always", "periodic", "none"] = "always"
    sync_interval_ms: float = Field(100, gt=0)
    allow_data_loss: bool = False
    max_file_size: int = Field(64 * MIB, ge=MIB)
    max_file_age_seconds: float = Field(3600, gt=0)
    min_free_bytes: int | None = Field(None, ge=0)
    retention_seconds: float = Field(24 * 3600, ge=0)
    retention_bytes: int = Field(2048 * MIB, ge=0)

    @model_validator(mode="after")
    def _loss_is_spelled_out(self) -> "WalSettings":
        if self.sync_mode == "none" and not self.allow_data_loss:
            raise ValueError("sync_mode none may lose acknowledged rows: set allow_data_loss as well, or use periodic")
        return self


class TokenSettings(Section):
    """One token: its hash (never the token), whose it is, and what it may do."""

    sha256: SecretStr
    tenant: str = Field(pattern=NAME_PATTERN)
    topics: tuple[str, ...] = ("*",)
    actions: tuple[Literal["put", "get", "manage"], ...] = ("put", "get")
    expires: datetime | None = None
    max_rows_per_second: float | None = Field(None, gt=0)
    max_bytes_per_second: float | None = Field(None, gt=0)

    @field_validator("sha256")
    @classmethod
    def _is_a_hash(cls, given: SecretStr) -> SecretStr:
        if not re.fullmatch("[0-9a-f]{64}", given.get_secret_value()):
            raise ValueError("must be 64 hexadecimal digits; `iceberg-ingest token` makes a token and its hash")
        return given

    @field_validator("expires")
    @classmethod
    def _has_a_zone(cls, given: datetime | None) -> datetime | None:
        if given is not None and given.tzinfo is None:
            raise ValueError("must have a time zone, such as 2030-01-01T00:00:00Z")
        return given


class LimitSettings(Section):
    """What one request, one tenant and the whole service may hold. Beyond it a batch is refused before it is kept."""

    max_batch_bytes: int = Field(8 * MIB, ge=1024, le=15 * MIB)
    max_batch_rows: int = Field(1_000_000, ge=1)
    max_columns: int = Field(1000, ge=1)
    max_nesting: int = Field(8, ge=1)
    max_calls: int = Field(128, ge=1)
    max_pending_bytes: int = Field(256 * MIB, ge=MIB)
    max_tenant_pending_bytes: int = Field(64 * MIB, ge=MIB)
    slow_backlog_bytes: int = Field(1024 * MIB, ge=MIB)
    max_backlog_bytes: int = Field(4096 * MIB, ge=MIB)
    max_memory_bytes: int | None = Field(None, ge=256 * MIB)


class FlightSettings(Section):
    """The Flight service. Beyond the loopback address it needs TLS and tokens (or client certificates)."""

    host: str = "127.0.0.1"
    port: int = Field(8815, ge=0, le=65535)
    metrics_port: int | None = Field(9815, ge=0, le=65535)
    insecure: bool = False
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tokens: tuple[TokenSettings, ...] = ()
    limits: LimitSettings = LimitSettings()
    dedupe_window: int = Field(10_000, ge=0)

    @model_validator(mode="after")
    def _tls_is_whole(self) -> "FlightSettings":
        if bool(self.tls_certificate) != bool(self.tls_key):
            raise ValueError("tls_certificate and tls_key go together")
        if self.tls_client_ca and not self.tls_certificate:
            raise ValueError("tls_client_ca needs tls_certificate and tls_key")
        return self

    @model_validator(mode="after")
    def _open_to_others_only_when_safe(self) -> "FlightSettings":
        safe = bool(self.tls_certificate and self.tokens)
        if self.host not in ("127.0.0.1", "::1", "localhost") and (self.insecure or not safe):
            raise ValueError(f"host {self.host} can be reached by others: set tls_certificate, tls_key and tokens")
        return self


class WriterSettings(Section):
    """When the writer commits, how much it holds in memory, and in which form rows arrive."""

    batch_size: int = Field(100_000, ge=1)
    flush_interval_ms: float = Field(5000, gt=0)
    max_memory_bytes: int = Field(128 * MIB, ge=MIB)
    mode: Literal["parquet", "both", "iceberg"] = "iceberg"
    parquet_path: Path | None = None
    max_concurrent_commits: int = Field(4, ge=1)


class ReaderSettings(Section):
    """How a reader follows a topic's table."""

    poll_interval_ms: float = Field(1000, gt=0)
    max_concurrent_reads: int = Field(4, ge=1)
    prefetch_size: int = Field(4, ge=1)


class IngestSettings(Section):
    """Everything about ingest."""

    wal: WalSettings = WalSettings()
    flight: FlightSettings = FlightSettings()
    writer: WriterSettings = WriterSettings()
    reader: ReaderSettings = ReaderSettings()


INGEST_SECTIONS = (
    IngestSettings,
    WalSettings,
    FlightSettings,
    LimitSettings,
    WriterSettings,
    ReaderSettings,
)


def unfold_storage(content: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The lake's own keys in place of a ``storage:`` block; without one, the content as it was."""
    unfolded = dict(content)
    if (block := unfolded.pop("storage", None)) is None:
        return unfolded
    config = _config_of(block, source)
    store = config.pop("object_store", None)
    for key, value in (_object_store(store, source) if store is not None else {}).items():
        _put(unfolded, key, value, source)
    if (catalog := config.pop("catalog", None)) is not None:
        _put(unfolded, "catalog", catalog, source)
    if config:
        _put(unfolded, "ingest", config, source)
    return unfolded


def _config_of(block: Any, source: str) -> dict[str, Any]:
    if not isinstance(block, Mapping) or block.get("type") != "iceberg":
        raise SettingsError(f"{source}: storage.type must be iceberg.")
    config = block.get("iceberg_config") or {}
    if set(block) - {"type", "iceberg_config"} or not isinstance(config, Mapping):
        raise SettingsError(f"{source}: storage holds type and iceberg_config, nothing else.")
    return dict(config)


def _object_store(store: Any, source: str) -> dict[str, Any]:
    given = dict(store) if isinstance(store, Mapping) else {}
    kind, bucket, prefix = given.pop("type", None), given.pop("bucket", None), given.pop("prefix", "")
    if kind == "local":
        if set(given) != {"path"}:
            raise SettingsError(f"{source}: object_store of type local takes a path and nothing else.")
        return {"warehouse": given["path"]}
    if kind not in ("s3", "minio") or not bucket:
        raise SettingsError(f"{source}: object_store must be of type s3 or minio with a bucket, or of type local.")
    if kind == "minio":
        given.setdefault("path_style", True)
    return {"warehouse": f"s3://{bucket}/{prefix}".rstrip("/"), "s3": given}


def _put(content: dict[str, Any], key: str, value: Any, source: str) -> None:
    if key in content:
        raise SettingsError(f"{source}: {key!r} is given twice, once in storage.iceberg_config; keep one of them.")
    content[key] = value
