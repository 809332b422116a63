"""The writer process is killed at random moments under load; afterwards every acknowledged row is there once."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from iceberg_ingest import marker as markers
from iceberg_ingest.drain import drain
from iceberg_ingest.wal import Wal
from iceberg_manager.catalog import load_table, open_catalog
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
    sent = 0
    last = 0
    with Wal(lake.wal_folder) as wal:
        for _ in range(12):
            process = subprocess.Popen([sys.executable, "-m", "iceberg_ingest.writer", "--lake", str(root)])
            end = time.monotonic() + 1.5 + chance.random() * 1.5
            while time.monotonic() < end:
                send(wal, sent)
                sent += 10
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)
            process.wait()
            if open_catalog(lake).table_exists(NAME.identifier):
                place = markers.position_of(markers.read(load_table(open_catalog(lake), NAME), wal.wal_id)).seq
                assert place >= last
                last = place
        drain(lake)
    assert last > 0
    assert numbers(lake) == list(range(sent)), f"seed {seed}"
