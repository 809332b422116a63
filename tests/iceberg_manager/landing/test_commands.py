"""``iceberg-manager landing`` as a person types it."""

import json

from typer.testing import CliRunner

from iceberg_manager.cli import app
from tests.iceberg_manager.landing.conftest import Dock


def said(dock: Dock, *words: str) -> str:
    done = CliRunner().invoke(app, ["landing", *words, "--lake", str(dock.settings.root)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_run_status_retry_and_discard(dock: Dock) -> None:
    dock.landing()
    dock.drop("a.csv")
    dock.drop("empty.csv", "")
    (report,) = json.loads(said(dock, "run", "--output", "json"))
    assert (report["state"], report["rows"], report["quarantined"]) == ("committed", 2, ["empty.csv"])
    (status,) = json.loads(said(dock, "status", "--output", "json"))
    assert [one["name"] for one in status["quarantined"]] == ["empty.csv"]
    assert "put back 1" in said(dock, "retry", "raw.people")
    said(dock, "run", "raw.people")
    assert "would delete 1" in said(dock, "discard", "raw.people", "--dry-run")
    assert "deleted 1" in said(dock, "discard", "raw.people", "--yes")
    assert dock.quarantined() == {}
