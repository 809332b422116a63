"""Dagster tells of the writer's commits once, and drains the log when no writer runs."""

from pathlib import Path

import dagster as dg

from iceberg_assets.ingest import ingest_drain, topic_asset
from iceberg_ingest.wal import Wal
from iceberg_ingest.writer import Writer
from iceberg_manager import metadata_commit
from resources import LakeResource
from sensors.ingest import ingest_sensor, writer_runs
from tests.iceberg_ingest.test_writer import numbers, send


def tick(lake: LakeResource, cursor: str | None = None) -> dg.SensorResult:
    context = dg.build_sensor_context(cursor=cursor)
    answer = ingest_sensor("ingest__drain")(context, lake=lake)
    assert isinstance(answer, dg.SensorResult)
    return answer


def told(answer: dg.SensorResult) -> list[dg.AssetMaterialization]:
    return [event for event in answer.asset_events if isinstance(event, dg.AssetMaterialization)]


def test_commits_are_told_once_and_a_backlog_without_a_writer_asks_for_a_run(tmp_path: Path) -> None:
    metadata_commit.forget()
    lake = LakeResource(path=str(tmp_path / "lake"))
    with Wal(lake.settings.wal_folder) as wal:
        send(wal, 0)
        assert ingest_drain.execute_in_process(resources={"lake": lake}).success
        assert numbers(lake.settings) == list(range(10))
        first = tick(lake)
        (event,) = told(first)
        assert event.asset_key == topic_asset("acme", "events").key
        assert event.metadata["ingest/backlog"].value == 0
        assert told(tick(lake, first.cursor)) == []
        assert first.run_requests == []
        send(wal, 10)
        (request,) = tick(lake, first.cursor).run_requests or []
        assert request.run_key == f"drain-{wal.durable_seq}"
        with Writer(lake.settings):
            assert writer_runs(lake.settings.wal_folder)
            assert tick(lake, first.cursor).run_requests == []
