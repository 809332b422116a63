"""The demo as its user meets it: the generator is repeatable, and the tour through the lake works twice."""

import os
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import yaml

from iceberg_assets.demo.generator import Export

ROOT = Path(__file__).parents[2]


def test_the_same_day_and_revision_are_the_same_bytes() -> None:
    assert Export(date(2026, 1, 5)).files() == Export(date(2026, 1, 5)).files()
    assert Export(date(2026, 1, 5)).files() != Export(date(2026, 1, 6)).files()


def test_a_revision_keeps_what_was_ordered_and_adds_late_orders() -> None:
    first = {order["order_id"]: order for order in Export(date(2026, 1, 5)).orders()}
    later = {order["order_id"]: order for order in Export(date(2026, 1, 5), revision=1).orders()}
    assert first.keys() < later.keys()
    assert all(later[key]["amount"] == order["amount"] for key, order in first.items())
    assert any(later[key]["status"] != order["status"] for key, order in first.items())


def test_events_and_orders_lie_within_their_day() -> None:
    export = Export(date(2026, 1, 5))
    assert {str(event["occurred_at"])[:10] for event in export.events()} == {"2026-01-05"}
    assert {str(order["ordered_at"])[:10] for order in export.orders()} == {"2026-01-05"}


@pytest.mark.spark
@pytest.mark.slow
def test_the_tour_runs_twice_and_each_time_ends_with_the_tables_and_a_look_back(
    tmp_path: Path, server_dir: Path
) -> None:
    content = {"root": "lake", "spark": {"server_dir": str(server_dir), "memory": "1g"}}
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump(content))
    (tmp_path / "dagster.yaml").write_text((ROOT / ".dagster" / "dagster.yaml").read_text())
    first, second = (_tour(tmp_path) for _ in range(2))

    assert "--partition-range" in first
    assert "--partition-range" not in second
    for said in (first, second):
        rows = dict(re.findall(r"^((?:raw|shop|marts)\.\w+) +([\d,]+)", said, re.MULTILINE))
        assert len(rows) == 13
        assert "0" not in rows.values()
        now, before = re.findall(r"snapshot \d+ +(.+)$", said, re.MULTILINE)
        assert now != before
    newest = [dict(re.findall(r"^(\S+\.\S+) .*?(\d{15,20})", said, re.MULTILINE)) for said in (first, second)]
    assert newest[0].keys() == newest[1].keys()
    assert not set(newest[0].values()) & set(newest[1].values()), "every table has a new snapshot"


def _tour(folder: Path) -> str:
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SPARK_", "DAGSTER_", "ICEBERG_"))
    } | {"ICEBERG_LAKE": str(folder / "lake.yaml"), "DAGSTER_HOME": str(folder), "COLUMNS": "100"}
    command = [sys.executable, "-m", "iceberg_assets.demo"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
