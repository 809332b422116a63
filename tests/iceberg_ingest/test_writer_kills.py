"""The writer process is killed at random moments under load; afterwards every acknowledged row is there once."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iceberg_ingest import marker as markers
from iceberg_ingest import topic_tables
from iceberg_ingest.drain import drain
from iceberg_ingest.wal import Wal
from iceberg_manager.catalog import open_catalog
from iceberg_manager.settings import LakeSettings, load_settings
from tests.iceberg_ingest.test_writer import NAME, numbers, send


@pytest.mark.faults
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_writer_loses_and_repeats_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    root = tmp_path / "lake"
    root.mkdir()
    (root / "lake.yaml").write_text("root: .\ningest: {writer: {flush_interval_ms: 20}}\n")
    lake: LakeSettings = load_settings(root)
    sent = last = 0
    with Wal(lake.wal_folder) as wal:
        for _ in range(6):
            process = subprocess.Popen([sys.executable, "-m", "iceberg_ingest.writer", "--lake", str(root)])
            give_up, more = time.monotonic() + 60, chance.random()
            end = give_up
            while time.monotonic() < end:  # until it commits, and then a random moment longer
                send(wal, sent)
                sent += 10
                time.sleep(0.02)
                assert process.poll() is None, "the writer ended by itself"
                if end == give_up and committed(lake, wal) > last:
                    end = time.monotonic() + more
            process.send_signal(signal.SIGKILL)
            process.wait()
            assert committed(lake, wal) >= last
            last = committed(lake, wal)
        drain(lake)
    assert last > 0
    assert numbers(lake) == list(range(sent)), f"seed {seed}"


def committed(lake: LakeSettings, wal: Wal) -> int:
    table = topic_tables.find(open_catalog(lake), NAME)
    return markers.position_of(markers.read(table, wal.wal_id)).seq if table else 0
