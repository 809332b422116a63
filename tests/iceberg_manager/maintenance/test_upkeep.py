"""Many tables looked after: each kind of work from survey to result, and one table's trouble is its own."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from iceberg_manager import cursors, query, references, spark_server
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.history import data_version, main_line
from iceberg_manager.maintenance import outcomes
from iceberg_manager.maintenance.costs import Kind, Outcome
from iceberg_manager.maintenance.remedies import Done
from iceberg_manager.maintenance.upkeep import Upkeep
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table

DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)
SCHEMA = {"id": "long", "at": "timestamptz"}
BRISK = MaintenancePolicy(expire_after=timedelta(0), keep_snapshots=1)


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


def rows(number: int, day: int = 0) -> pa.Table:
    at = pa.array([DAY + timedelta(days=day)], pa.timestamp("us", tz="UTC"))
    return pa.table({"id": pa.array([number], pa.int64()), "at": at})


def fill(catalog: Catalog, settings: LakeSettings, name: str, files: int = 6, days: int = 1, **spec: object) -> None:
    ensure_table(catalog, settings, TableSpec(name, schema=SCHEMA, **spec))  # type: ignore[arg-type]
    for number in range(files):
        load_table(catalog, name).append(rows(number, number % days))


def later() -> datetime:
    return datetime.now(UTC) + timedelta(minutes=1)


def look_after(catalog: Catalog, settings: LakeSettings, *kinds: Kind, tables: tuple[str, ...] = ()) -> list[Done]:
    with Upkeep(settings, catalog, now=later) as upkeep:
        return list(upkeep.run(upkeep.plan(upkeep.tables(tables), kinds).actions))


def everywhere(
    catalog: Catalog, settings: LakeSettings, session: LakeSession, name: str
) -> list[list[tuple[object, ...]]]:
    table = load_table(catalog, name)
    with query.connect(settings) as duckdb:
        found = [
            [tuple(row) for row in session.spark.sql(f"SELECT id, cast(at AS long) FROM lake.{name}").collect()],
            [(row["id"], int(row["at"].timestamp())) for row in table.scan().to_arrow().to_pylist()],
            duckdb.execute(f'SELECT id, epoch("at")::BIGINT FROM {query.scan(table)}').fetchall(),
        ]
    return [sorted(one) for one in found]


@pytest.mark.spark
def test_every_kind_of_work_leaves_the_rows_as_they_are_for_every_engine(
    catalog: Catalog, settings: LakeSettings, session: LakeSession
) -> None:
    fill(catalog, settings, "demo.t", 18, days=3, partition_by=["day(at)"], maintenance=BRISK)
    load = partial(load_table, catalog, "demo.t")
    with load().transaction() as transaction:
        transaction.set_properties({"write.metadata.delete-after-commit.enabled": "false"})
    references.tag(load, "old", list(main_line(load()))[-1].snapshot_id, timedelta(seconds=1))
    stray = Path(load().location()) / "data" / "stray.parquet"
    stray.write_bytes(b"x" * 100)
    before, version = everywhere(catalog, settings, session, "demo.t"), data_version(load())

    done = {one.action: one for one in look_after(catalog, settings, "drop_refs", "compact", "expire")}
    assert {kind: one.error for kind, one in done.items()} == {"drop_refs": "", "compact": "", "expire": ""}
    assert done["compact"].before.files == 18  # type: ignore[union-attr]
    assert done["compact"].after.files == 3  # type: ignore[union-attr]
    assert done["expire"].after.snapshots == 1  # type: ignore[union-attr]
    assert done["expire"].files > 18
    assert list(load().metadata.refs) == ["main"]
    assert everywhere(catalog, settings, session, "demo.t") == before
    assert before[0] == before[1] == before[2]
    assert data_version(load()) == version, "its snapshot has expired, and nothing downstream is to look stale"
    assert load().metadata.snapshot_by_id(version or 0) is None
    assert stray.exists(), "it is too young"
    assert look_after(catalog, settings, "compact", "expire", "drop_refs") == []


@pytest.mark.spark
def test_only_the_partitions_that_pay_are_compacted(catalog: Catalog, settings: LakeSettings) -> None:
    fill(catalog, settings, "demo.t", 6, days=1, partition_by=["day(at)"])
    load_table(catalog, "demo.t").append(rows(7, 5))
    quiet = {task.file.file_path for task in load_table(catalog, "demo.t").scan("id = 7").plan_files()}
    done = look_after(catalog, settings, "compact")
    assert [(one.error, one.files) for one in done] == [("", 6)]
    now = {task.file.file_path for task in load_table(catalog, "demo.t").scan().plan_files()}
    assert len(now) == 2
    assert quiet <= now


@pytest.mark.spark
def test_one_table_in_trouble_does_not_keep_the_others_from_it(catalog: Catalog, settings: LakeSettings) -> None:
    for name in ("demo.damaged", "demo.fine", "demo.gone"):
        fill(catalog, settings, name)
    damaged = load_table(catalog, "demo.damaged").current_snapshot()
    assert damaged is not None
    manifest = damaged.manifests(load_table(catalog, "demo.damaged").io)[0]
    with Upkeep(settings, catalog) as upkeep:
        planned = upkeep.plan(upkeep.tables(), ["compact"])
        assert len(planned.actions) == 3
        catalog.drop_table(("demo", "gone"))
        Path(manifest.manifest_path.removeprefix("file://")).write_bytes(b"not avro")
        done = {one.table: one.error for one in upkeep.run(planned.actions)}
    assert done["demo.fine"] == ""
    assert "There is no table 'demo.gone'" in done["demo.gone"]
    assert done["demo.damaged"]
    assert "\n" not in done["demo.damaged"]


@pytest.mark.faults
def test_a_spark_that_died_costs_one_action_and_is_opened_anew(
    catalog: Catalog, settings: LakeSettings, tmp_path: Path
) -> None:
    own = settings.model_copy(update={"spark": settings.spark.model_copy(update={"server_dir": tmp_path / "spark"})})
    for name in ("demo.a", "demo.b", "demo.c"):
        fill(catalog, own, name)
    try:
        with Upkeep(own, catalog) as upkeep:
            actions = upkeep.plan(upkeep.tables(), ["compact"]).actions
            first = upkeep.do(actions[0])
            spark_server.stop(own.spark_server_dir, force=True)
            rest = list(upkeep.run(actions[1:]))
    finally:
        spark_server.stop(own.spark_server_dir, force=True)
    assert first.error == ""
    assert rest[-1].error == "", rest


def test_a_table_that_cannot_be_read_is_a_skip_with_its_reason(catalog: Catalog, settings: LakeSettings) -> None:
    fill(catalog, settings, "demo.t", 1)
    Path(load_table(catalog, "demo.t").metadata_location.removeprefix("file://")).unlink()
    with Upkeep(settings, catalog) as upkeep:
        planned = upkeep.plan(upkeep.tables())
    assert planned.actions == ()
    assert "metadata file is gone" in planned.skips[0].reason


def test_old_rows_go_through_the_commit_door(catalog: Catalog, settings: LakeSettings) -> None:
    age = datetime.now(UTC) - DAY - timedelta(days=2, hours=12)
    policy = MaintenancePolicy(row_ttl_column="at", row_ttl=age)
    fill(catalog, settings, "demo.t", 6, days=6, maintenance=policy)
    done = look_after(catalog, settings, "row_ttl")
    assert [(one.action, one.error) for one in done] == [("row_ttl", "")]
    table = load_table(catalog, "demo.t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [3, 4, 5]
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary.additional_properties["iceberg-assets.commit-id"]
    assert look_after(catalog, settings, "row_ttl") == []


def test_expiry_spares_readers_markers_and_what_the_caller_needs(catalog: Catalog, settings: LakeSettings) -> None:
    fill(catalog, settings, "demo.t", 6, maintenance=BRISK)
    load = partial(load_table, catalog, "demo.t")
    line = [one.snapshot_id for one in main_line(load())]
    cursors.move(load, "billing", line[1])
    marker = {"v": 1, "seq": 1, "chain": 1, "epoch": 1, "snap": str(line[3]), "iseq": 1}
    with load().transaction() as transaction:
        transaction.set_properties({"ingest.wal.abc": json.dumps(marker)})
    with Upkeep(settings, catalog, needed={"demo.t": {line[4]: "an input of marts.x"}}, now=later) as upkeep:
        done = list(upkeep.run(upkeep.plan(upkeep.tables(), ["expire"]).actions))
    assert [one.error for one in done] == [""]
    assert {one.snapshot_id for one in load().metadata.snapshots} == {*line[:2], line[3], line[4]}


def test_a_damaged_ingest_marker_stops_expiry_of_that_table(catalog: Catalog, settings: LakeSettings) -> None:
    fill(catalog, settings, "demo.t", 3, maintenance=BRISK)
    with load_table(catalog, "demo.t").transaction() as transaction:
        transaction.set_properties({"ingest.wal.abc": "{"})
    with Upkeep(settings, catalog, now=later) as upkeep:
        planned = upkeep.plan(upkeep.tables(), ["expire"])
    assert planned.actions == ()
    assert "ingest marker 'ingest.wal.abc' cannot be read" in planned.skips[0].reason


def test_old_metadata_files_go(catalog: Catalog, settings: LakeSettings) -> None:
    fill(catalog, settings, "demo.t", 8)
    with load_table(catalog, "demo.t").transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "100"})
    with Upkeep(settings, catalog, policies={"demo.t": MaintenancePolicy(metadata_versions=2)}) as upkeep:
        done = list(upkeep.run(upkeep.plan(upkeep.tables(), ["drop_metadata"]).actions))
    assert [one.error for one in done] == [""]
    table = load_table(catalog, "demo.t")
    assert len(table.metadata.metadata_log) == 2
    folder = Path(table.location()) / "metadata"
    assert len(list(folder.glob("*.metadata.json"))) == 3
    assert done[0].files == 8, "and the commit that does it adds one"


def test_orphans_are_looked_for_only_when_asked_for(catalog: Catalog, settings: LakeSettings) -> None:
    fill(catalog, settings, "demo.t", 6)
    stray = Path(load_table(catalog, "demo.t").location()) / "data" / "stray.parquet"
    stray.write_bytes(b"x" * 100)

    def tomorrow() -> datetime:
        return datetime.now(UTC) + timedelta(days=2)

    with Upkeep(settings, catalog, now=tomorrow) as upkeep:
        assert "remove_orphans" not in {one.kind for one in upkeep.plan(upkeep.tables()).actions}
        done = list(upkeep.run(upkeep.plan(upkeep.tables(), ["remove_orphans"]).actions))
    assert [(one.error, one.files, one.bytes) for one in done] == [("", 1, 100)]
    assert not stray.exists()


def test_outcomes_outlive_the_process_and_the_file_stays_small(
    settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Outcome("a.b", "compact", DAY, 1.5, 10, 1000, 2, "day=1", "binpack")
    outcomes.append(settings, [one])
    assert outcomes.read(settings) == [one]
    with outcomes.outcomes_file(settings).open("a") as file:
        file.write('{"table": "torn')
    outcomes.append(settings, [])
    assert outcomes.read(settings) == [one]
    monkeypatch.setattr(outcomes, "MOST", 10)
    outcomes.outcomes_file(settings).write_text("")
    for _ in range(50):
        outcomes.append(settings, [one] * 3)
    assert 0 < len(outcomes.read(settings)) <= 20


@pytest.mark.spark
def test_a_compaction_in_vain_is_not_tried_a_third_time(catalog: Catalog, settings: LakeSettings) -> None:
    """Two outcomes of earlier processes that left as many files as they read stop it, and the reason is said."""
    fill(catalog, settings, "demo.t")
    with Upkeep(settings, catalog) as upkeep:
        action = upkeep.plan(upkeep.tables(), ["compact"]).actions[0]
    how = "binpack 128 MB"
    vain = [Outcome("demo.t", "compact", DAY + timedelta(hours=n), 1, 6, 9, 6, "", how) for n in (1, 2)]
    outcomes.append(settings, vain)
    with Upkeep(settings, catalog) as upkeep:
        planned = upkeep.plan(upkeep.tables(), ["compact"])
        assert planned.actions == ()
        assert "did not converge twice" in planned.skips[0].reason
        assert upkeep.do(action).error == "", "asked for by name, it is done"
    assert outcomes.read(settings)[-1].files_after < 6
