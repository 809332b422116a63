"""Policies from lake.yaml: which one counts, and mistakes in one clear sentence. And the commands that go by them."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from iceberg_manager.cli import app
from iceberg_manager.errors import SettingsError
from iceberg_manager.maintenance.policies import Policies, duration
from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import LakeSettings, MaintenanceSettings
from iceberg_manager.spec import MaintenancePolicy


def policies(tmp_path: Path, **said: Any) -> Policies:
    return Policies(LakeSettings(root=tmp_path, maintenance=MaintenanceSettings(**said)))


def test_a_pattern_wins_over_the_tables_properties_and_those_over_the_default(tmp_path: Path) -> None:
    manager = IcebergManager(LakeSettings(root=tmp_path / "lake"))
    for name in ("raw.a", "shop.b"):
        manager.create_table(name, {"id": "long"}, maintenance=MaintenancePolicy(keep_snapshots=7, min_input_files=9))
    found = policies(
        tmp_path, default={"health_mark": 50, "keep_snapshots": 3}, tables={"raw.*": {"expire_after": "12h"}}
    )
    raw, shop = (found.of(manager.table(name)) for name in ("raw.a", "shop.b"))
    assert raw.expire_after == timedelta(hours=12)
    assert shop.expire_after == timedelta(days=30)
    assert (raw.keep_snapshots, raw.health_mark, raw.min_input_files) == (7, 50, 9)


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"default": {"expire_after": "soon"}}, "maintenance.default.expire_after: 'soon' is not a duration"),
        ({"default": {"expire_afer": "3d"}}, "unknown key 'expire_afer'. Did you mean 'expire_after'?"),
        ({"default": {"keep_snapshots": 0}}, "keeps at least one snapshot"),
        ({"default": {"keep_snapshots": "many"}}, "is not a whole number"),
        ({"default": {"row_ttl": "9d"}}, "row_ttl and row_ttl_column go together"),
        ({"tables": {"a.*": {"compaction": "zorder"}}}, "maintenance.tables.a.*: compaction zorder needs at least two"),
        ({"default": {"compaction_cron": "0 2 * * *"}}, "belongs to a table's declaration"),
    ],
)
def test_a_policy_that_cannot_be_or_contradicts_itself_is_refused(
    tmp_path: Path, said: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        policies(tmp_path, **said)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(("text", "hours"), [("90m", 1.5), ("12h", 12), ("30d", 720), ("2w", 336)])
def test_durations(text: str, hours: float) -> None:
    assert duration(text, "x") == timedelta(hours=hours)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    place = tmp_path / "lake.yaml"
    place.write_text(
        yaml.safe_dump({"root": "lake", "maintenance": {"default": {"expire_after": "0s", "keep_snapshots": 1}}})
    )
    manager = IcebergManager(place)
    manager.create_table("events", {"id": "long"}, properties={})
    for number in range(6):
        manager.insert_data("events", [{"id": number}])
    return place


def run(lake: Path, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*words, "--lake", str(lake)])
    assert done.exit_code == code, done.output
    return done.stdout


def test_health_and_a_dry_run_say_what_is_wrong_and_change_nothing(lake: Path) -> None:
    assert "default.events" in run(lake, "health")
    assert "small_files" in run(lake, "health", "events")
    before = IcebergManager(lake).table("events").metadata_location
    planned = json.loads(run(lake, "maintain", "--dry-run", "--output", "json"))
    assert planned["planned"][0]["kind"] == "compact"
    assert planned["results"] == []
    assert IcebergManager(lake).table("events").metadata_location == before
    assert "over budget" in run(lake, "maintain", "--dry-run", "--budget", "0s")


def test_a_dry_run_of_expiry_says_what_would_stop_working(lake: Path) -> None:
    said = run(lake, "expire-snapshots", "events", "--days", "0", "--keep", "2", "--dry-run")
    assert "time travel on main to before" in said
    assert len(IcebergManager(lake).list_snapshots("events")) == 6


def test_refs_show_what_each_alone_keeps(lake: Path) -> None:
    manager = IcebergManager(lake)
    manager.tag("events", "whole")
    manager.delete_data("events", "id >= 0")
    found = json.loads(run(lake, "refs", "--output", "json"))
    assert [(one["name"], one["files"]) for one in found] == [("whole", 6)]
    assert found[0]["bytes"] > 0


def test_orphans_are_quarantined_on_request(lake: Path, tmp_path: Path) -> None:
    stray = Path(IcebergManager(lake).table("events").location()) / "data" / "stray.parquet"
    stray.write_bytes(b"x")
    assert "1 orphaned file" in run(lake, "remove-orphans", "events", "--older-than", "0s", "--force", "--dry-run")
    assert stray.exists()
    run(lake, "remove-orphans", "events", "--older-than", "0s", "--force", "--yes", "--quarantine", str(tmp_path / "q"))
    assert not stray.exists()
    assert [path.name for path in (tmp_path / "q").rglob("*.parquet")] == ["stray.parquet"]
