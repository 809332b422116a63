"""Maintenance in Dagster: the job works, its numbers are on the asset, and nothing looks stale because of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from iceberg_assets.maintenance import health_check, maintain_job, needed_inputs, schedules
from iceberg_assets.table import table_spec
from iceberg_manager.history import data_version
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from sensors.table_health import due, table_health_sensor, ticks
from tests.iceberg_assets.conftest import Lab
from tests.iceberg_assets.test_staleness import chain, stale
from tests.iceberg_assets.test_table import World, source

BRISK = MaintenancePolicy(expire_after=timedelta(0), keep_snapshots=1)


def specs_of(assets: list[dg.AssetsDefinition]) -> dict[str, TableSpec]:
    return {spec.name: spec for asset in assets if (spec := table_spec(asset))}


def maintain(lab: Lab, job: dg.JobDefinition, **config: Any) -> dg.ExecuteInProcessResult:
    return job.execute_in_process(
        run_config={"ops": {"maintain": {"config": config}}},
        resources={"lake": lab.lake},
        instance=lab.instance,
        raise_on_error=False,
    )


@pytest.mark.spark
def test_the_job_compacts_and_expires_records_numbers_and_makes_nothing_stale(lab: Lab) -> None:
    world = World([{"id": 1}])
    assets = chain(world)
    lab.materialize(assets)
    one = lab.table("demo.up").scan().to_arrow()
    for _ in range(7):
        lab.table("demo.up").append(one)
    version = data_version(lab.table("demo.up"))
    rows = lab.rows("demo.up")
    brisk = {name: TableSpec(name, spec.schema, maintenance=BRISK) for name, spec in specs_of(assets).items()}
    job = maintain_job(brisk, [])

    assert maintain(lab, job, dry_run=True).success
    assert len(lab.table("demo.up").metadata.snapshots) == 8
    done = maintain(lab, job)
    assert done.success
    table = lab.table("demo.up")
    assert len(list(table.scan().plan_files())) < 3
    assert lab.rows("demo.up") == rows
    assert data_version(table) == version
    seen = lab.instance.fetch_observations(dg.AssetKey(["demo", "up"]), limit=10).records
    said = {}
    for record in seen:
        observed = record.asset_observation
        assert observed is not None
        said[observed.metadata["maintenance/action"].value] = observed.metadata
    assert {"compact", "expire"} <= said.keys()
    assert said["compact"]["maintenance/files_before"].value == 8
    assert said["compact"]["maintenance/run_id"].value == done.run_id
    assert stale(lab, assets) == set(), "foreign appends are not recorded, and maintenance is no change"

    pinned = needed_inputs(lab.instance, ["demo.down"])["demo.up"]
    assert list(pinned.values()) == ["demo.down was last computed from it"]
    assert table.metadata.snapshot_by_id(next(iter(pinned))) is not None, "an input of what is still current is spared"


@pytest.mark.spark
def test_one_table_that_fails_fails_the_run_after_the_others(lab: Lab) -> None:
    first, second = (source(f"demo.{name}", World([{"id": 1}]), {"id": "long"}) for name in ("a", "b"))
    for _ in range(2):
        lab.materialize([first, second])
    Path(lab.table("demo.a").metadata_location.removeprefix("file:")).write_text("{")
    job = maintain_job({"demo.b": TableSpec("demo.b", {"id": "long"}, maintenance=BRISK)}, [])
    assert maintain(lab, job, actions=["expire"]).success, "a table that cannot be read is left, with its reason"
    assert len(lab.table("demo.b").metadata.snapshots) == 1
    failed = maintain(lab, job, actions=["nonsense"])
    assert not failed.success


@pytest.mark.spark
def test_the_health_check_warns_below_the_mark_and_the_sensor_asks_for_a_run(lab: Lab) -> None:
    spec = TableSpec("demo.t", {"id": "long"}, maintenance=MaintenancePolicy(health_mark=95))
    world = World([{"id": 1}])
    table = source("demo.t", world, {"id": "long"})
    lab.materialize([table])
    for _ in range(7):
        lab.table("demo.t").append(lab.table("demo.t").scan().to_arrow())
    defs = dg.Definitions(assets=[table], asset_checks=[health_check(spec)], resources=lab.resources)
    checks = dg.materialize([table, health_check(spec)], resources=lab.resources, instance=lab.instance)
    verdict = next(one for one in checks.get_asset_check_evaluations() if one.check_name == "table_health")
    assert not verdict.passed
    assert verdict.severity == dg.AssetCheckSeverity.WARN
    assert 0 < float(verdict.metadata["health"].value) < 95  # type: ignore[arg-type]
    assert defs

    job = maintain_job({"demo.t": spec}, [])
    sensor = table_health_sensor(job, {"demo.t": spec.maintenance}, [], dg.DefaultSensorStatus.STOPPED)
    with dg.build_sensor_context(instance=lab.instance, resources={"lake": lab.lake}) as context:
        asked = sensor.evaluate_tick(context).run_requests or []
    assert [one.run_config["ops"]["maintain"]["config"]["tables"] for one in asked] == [["demo.t"]]

    always = dg.ScheduleDefinition(name="often", job=job, cron_schedule="* * * * *")
    polite = table_health_sensor(job, {"demo.t": spec.maintenance}, [always], dg.DefaultSensorStatus.STOPPED)
    with dg.build_sensor_context(instance=lab.instance, resources={"lake": lab.lake}) as context:
        tick = polite.evaluate_tick(context)
    assert not tick.run_requests
    assert "a writer is due in" in (tick.skip_message or "")


def test_a_table_with_times_of_its_own_has_schedules_of_its_own() -> None:
    own = TableSpec("demo.t", {"id": "long"}, maintenance=MaintenancePolicy(compaction_cron="0 5 * * 1"))
    made = {one.name: one for one in schedules(maintain_job({}, []), {"demo.t": own}, dg.DefaultScheduleStatus.STOPPED)}
    assert made["demo__t__compaction"].cron_schedule == "0 5 * * 1"
    assert made["maintain_lake__compaction"].cron_schedule == "0 2 * * *"
    assert "demo__t__expiry" not in made


@pytest.mark.parametrize(
    ("cron", "moment", "hit"),
    [
        ("0 2 * * *", datetime(2026, 11, 18, 2, 0, tzinfo=UTC), True),
        ("0 2 * * *", datetime(2026, 11, 18, 2, 1, tzinfo=UTC), False),
        ("*/15 * * * *", datetime(2026, 11, 18, 7, 45, tzinfo=UTC), True),
        ("0 4 * * 0", datetime(2026, 11, 22, 4, 0, tzinfo=UTC), True),
        ("0 4 * * 7", datetime(2026, 11, 22, 4, 0, tzinfo=UTC), True),
        ("0 4 * * 1-5", datetime(2026, 11, 22, 4, 0, tzinfo=UTC), False),
        ("0 4 1 * 1", datetime(2026, 11, 23, 4, 0, tzinfo=UTC), True),
        ("5,10 * * * *", datetime(2026, 11, 22, 4, 10, tzinfo=UTC), True),
    ],
)
def test_when_a_cron_ticks(cron: str, moment: datetime, hit: bool) -> None:
    assert ticks(cron, moment) is hit


def test_what_is_due_is_seen_half_an_hour_ahead() -> None:
    job = maintain_job({}, [])
    daily = dg.ScheduleDefinition(name="daily", job=job, cron_schedule="0 1 * * *")
    assert due([daily], datetime(2026, 11, 18, 0, 45, 30, tzinfo=UTC)) == datetime(2026, 11, 18, 1, 0, tzinfo=UTC)
    assert due([daily], datetime(2026, 11, 18, 12, 0, tzinfo=UTC)) is None
