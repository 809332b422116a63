"""Eight processes append to one table: every commit lands once. ``WRITERS_COMMITS=2000`` is the full size."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import SparkSettings
from tests.services.conftest import make_lake

WRITERS = 8
COMMITS = int(os.environ.get("WRITERS_COMMITS", "80"))
_WRITER = """
import sys
from iceberg_manager.manager import IcebergManager
lake, writer, commits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
manager = IcebergManager(lake)
for number in range(commits):
    manager.insert_data("many.rows", [{"writer": writer, "number": number}])
"""


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite+local", "postgres+local"])
def test_no_commit_is_lost_doubled_or_given_up(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    settings = make_lake(request, kind, tmp_path, SparkSettings())
    content: dict[str, object] = {"root": str(settings.root)}
    if settings.catalog.uri:
        content["catalog"] = {"type": "postgres", "uri": settings.catalog.uri.get_secret_value()}
    lake = tmp_path / "lake.yaml"
    lake.write_text(yaml.safe_dump(content))
    manager = IcebergManager(settings)
    manager.create_table("many.rows", {"writer": "long", "number": "long"})
    started, each = time.monotonic(), COMMITS // WRITERS
    command = [sys.executable, "-c", _WRITER, str(lake)]
    writers = [subprocess.Popen([*command, str(one), str(each)], stderr=subprocess.PIPE) for one in range(WRITERS)]
    try:
        failures = [writer.communicate()[1].decode()[-500:] for writer in writers]
    finally:
        for writer in writers:
            writer.kill()
    assert [writer.returncode for writer in writers] == [0] * WRITERS, failures
    seconds = time.monotonic() - started
    rows = [(row["writer"], row["number"]) for row in manager.query_table("many.rows").rows()]
    assert sorted(rows) == [(writer, number) for writer in range(WRITERS) for number in range(each)]
    assert len(manager.list_snapshots("many.rows")) == each * WRITERS
    sys.stderr.write(f"\n{kind}: {each * WRITERS} commits by {WRITERS} processes, {each * WRITERS / seconds:.1f}/s\n")
