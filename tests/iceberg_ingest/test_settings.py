"""The ingest section of lake.yaml: a broker's block loads as it stands, mistakes are named, secrets do not print."""

from pathlib import Path

import pytest

from iceberg_ingest.settings import wal_options
from iceberg_manager.errors import SettingsError
from iceberg_manager.settings import LakeSettings, load_settings

BLOCK = """
storage:
  type: iceberg
  iceberg_config:
    catalog:
      type: rest
      uri: "http://localhost:8181"
    object_store:
      type: s3
      bucket: "danube-data"
      region: "us-west-2"
    wal:
      base_path: "/var/lib/danube/wal"
      max_file_size: 67108864  # 64MB
      sync_mode: periodic
    writer:
      batch_size: 1000
      flush_interval_ms: 5000
      max_memory_bytes: 134217728  # 128MB
    reader:
      poll_interval_ms: 1000
      max_concurrent_reads: 10
      prefetch_size: 5
"""


def load(tmp_path: Path, text: str, **environment: str) -> LakeSettings:
    (tmp_path / "lake.yaml").write_text(text)
    return load_settings(tmp_path / "lake.yaml", environment)


def test_a_brokers_storage_block_loads_as_it_stands(tmp_path: Path) -> None:
    lake = load(tmp_path, BLOCK)
    assert (lake.catalog.type, lake.warehouse_location, lake.s3 and lake.s3.region) == (
        "rest",
        "s3://danube-data",
        "us-west-2",
    )
    assert lake.wal_folder == Path("/var/lib/danube/wal")
    options = wal_options(lake.ingest.wal)
    assert (options.sync, options.segment_bytes) == ("periodic", 64 << 20)
    assert (lake.ingest.writer.batch_size, lake.ingest.writer.flush_interval_ms) == (1000, 5000)
    assert lake.ingest.writer.max_memory_bytes == 128 << 20
    reader = lake.ingest.reader
    assert (reader.poll_interval_ms, reader.max_concurrent_reads, reader.prefetch_size) == (1000, 10, 5)


def test_the_same_sections_stand_in_ingest(tmp_path: Path) -> None:
    lake = load(tmp_path, "ingest: {wal: {base_path: log}}", ICEBERG_LAKE__INGEST__WRITER__BATCH_SIZE="7")
    assert (lake.wal_folder, lake.ingest.writer.batch_size) == (tmp_path.resolve() / "log", 7)


def test_without_anything_the_log_is_in_the_lakes_folder(tmp_path: Path) -> None:
    assert load(tmp_path, "root: here").wal_folder == tmp_path.resolve() / "here" / "wal"


def test_a_local_object_store_is_the_warehouse(tmp_path: Path) -> None:
    block = "storage: {type: iceberg, iceberg_config: {object_store: {type: local, path: files}}}"
    assert load(tmp_path, block).warehouse_location == str(tmp_path.resolve() / "files")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("storage: {type: local}", "storage.type must be iceberg"),
        ("storage: {type: iceberg, extra: 1}", "nothing else"),
        ("storage: {type: iceberg, iceberg_config: {object_store: {type: s3}}}", "with a bucket"),
        ("catalog: {}\nstorage: {type: iceberg, iceberg_config: {catalog: {}}}", "'catalog' is given twice"),
        ("storage: {type: iceberg, iceberg_config: {wal: {sync_mod: always}}}", "Did you mean 'sync_mode'?"),
        ("ingest: {wal: {sync_mode: none}}", "allow_data_loss"),
        ("ingest: {flight: {host: 0.0.0.0}}", "can be reached by others"),
        ("ingest: {flight: {host: 0.0.0.0, insecure: true}}", "can be reached by others"),
        ("ingest: {flight: {tls_certificate: a}}", "go together"),
        ("ingest: {flight: {tokens: [{sha256: hunter2, tenant: acme}]}}", "64 hexadecimal digits"),
        ("ingest: {flight: {limits: {max_batch_bytes: 99999999999}}}", "ingest.flight.limits.max_batch_bytes"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        load(tmp_path, text)
    assert "hunter2" not in str(caught.value)


def test_hashes_do_not_print(tmp_path: Path) -> None:
    secret = "ab" * 32
    lake = load(tmp_path, f"ingest: {{flight: {{tokens: [{{sha256: {secret}, tenant: acme}}]}}}}")
    assert secret not in repr(lake)
