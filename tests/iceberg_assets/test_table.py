"""A table asset from end to end: real Spark, a real catalog, real files."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from iceberg_assets.table import iceberg_table
from iceberg_manager.checks import in_range, row_count
from iceberg_manager.errors import SpecError
from iceberg_manager.session import LakeSession
from iceberg_manager.spec import TableSpec
from tests.iceberg_assets.conftest import Lab, metadata_of

pytestmark = pytest.mark.spark
DAYS = dg.DailyPartitionsDefinition(start_date="2026-01-01", end_date="2026-01-10")
REGIONS = dg.StaticPartitionsDefinition(["eu", "us"])
SALES = {"id": "long", "at": "timestamptz", "amount": "double"}


class World:
    """What the outside world holds; a test changes it between runs."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.calls = 0


def source(name: str, world: World, schema: dict[str, str], **spec: Any) -> dg.AssetsDefinition:
    options = {key: spec.pop(key) for key in ("partitions_def",) if key in spec}
    ddl = ", ".join(f"{column} {_spark(kind)}" for column, kind in schema.items())

    @iceberg_table(TableSpec(name, schema=schema, **spec), **options)
    def rows(spark: SparkSession) -> DataFrame:
        world.calls += 1
        return spark.createDataFrame([tuple(row[column] for column in schema) for row in world.rows], ddl)

    return rows


def _spark(kind: str) -> str:
    return {"long": "bigint", "timestamptz": "timestamp"}.get(kind, kind)


def sale(number: int, day: int, amount: float = 1.0) -> dict[str, Any]:
    return {"id": number, "at": datetime(2026, 1, day, 12, tzinfo=UTC), "amount": amount}


def test_append_adds_and_reports_what_it_did(lab: Lab) -> None:
    world = World([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
    table = source("demo.people", world, {"id": "long", "name": "string"})
    lab.materialize([table])
    world.rows = [{"id": 3, "name": "c"}]
    said = metadata_of(lab.materialize([table]), table)

    assert [row["id"] for row in lab.rows("demo.people")] == [1, 2, 3]
    first, second = lab.table("demo.people").metadata.snapshots
    assert said["iceberg/snapshot_id"] == str(second.snapshot_id)
    assert said["iceberg/parent_id"] == str(first.snapshot_id)
    assert (said["dagster/row_count"], said["iceberg/rows_added"], said["iceberg/rows_removed"]) == (3, 1, 0)
    assert said["iceberg/operation"] == "append"
    assert said["iceberg/total_files"] >= 2
    assert said["iceberg/total_bytes"] > said["iceberg/bytes_added"] > 0
    assert str(second.snapshot_id) in said["iceberg/time_travel"]
    assert [column.name for column in said["dagster/column_schema"].columns] == ["id", "name"]


def test_overwrite_replaces_everything_and_keeps_history(lab: Lab) -> None:
    world = World([{"id": 1}])
    table = source("demo.state", world, {"id": "long"}, write_mode="overwrite")
    lab.materialize([table])
    world.rows = [{"id": 2}]
    lab.materialize([table])
    assert lab.rows("demo.state") == [{"id": 2}]
    first = lab.table("demo.state").metadata.snapshots[0].snapshot_id
    assert lab.rows("demo.state", first) == [{"id": 1}]


def test_merge_updates_what_changed_inserts_what_is_new_and_touches_nothing_else(lab: Lab) -> None:
    world = World([{"id": 1, "name": "a"}, {"id": 2, "name": None}])
    table = source("demo.people", world, {"id": "long", "name": "string"}, key=["id"], write_mode="merge")
    lab.materialize([table])
    world.rows = [{"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    lab.materialize([table])
    expected = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 3, "name": "c"}]
    assert lab.rows("demo.people") == expected

    said = metadata_of(lab.materialize([table]), table)
    assert said["iceberg/operation"] == "none"
    assert lab.rows("demo.people") == expected
    assert len(lab.table("demo.people").metadata.snapshots) == 2


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], "1 rows repeat a id"),
        ([{"id": None, "name": "a"}], "1 rows have no id"),
    ],
)
def test_merge_refuses_keys_that_repeat_or_are_missing(lab: Lab, rows: list[dict[str, Any]], complaint: str) -> None:
    table = source("demo.people", World(rows), {"id": "long", "name": "string"}, key=["id"], write_mode="merge")
    result = lab.materialize([table], raise_on_error=False)
    assert not result.success
    assert complaint in _failure(result)
    assert lab.table("demo.people").current_snapshot() is None


def test_delete_insert_replaces_the_rows_its_condition_names_in_one_step(lab: Lab) -> None:
    world = World([{"id": 1, "kind": "old"}, {"id": 2, "kind": "new"}])
    spec = {"write_mode": "delete_insert", "delete_where": "kind = 'new'"}
    table = source("demo.plan", world, {"id": "long", "kind": "string"}, **spec)
    lab.materialize([table])
    world.rows = [{"id": 3, "kind": "new"}]
    lab.materialize([table])
    assert [row["id"] for row in lab.rows("demo.plan")] == [1, 3]
    refs = lab.table("demo.plan").metadata.refs
    assert list(refs) == ["main"], "the branch it was prepared on is gone"


def test_a_partition_run_again_replaces_just_its_partition(lab: Lab) -> None:
    world = World([sale(1, 1)])
    table = source(
        "demo.sales", world, SALES, partition_by=["day(at)"], write_mode="overwrite_partitions", partitions_def=DAYS
    )
    lab.materialize([table], partition_key="2026-01-01")
    world.rows = [sale(2, 2)]
    lab.materialize([table], partition_key="2026-01-02")
    world.rows = [sale(1, 1, 5.0), sale(9, 1)]
    lab.materialize([table], partition_key="2026-01-01")
    assert [(row["id"], row["amount"]) for row in lab.rows("demo.sales")] == [(1, 5.0), (2, 1.0), (9, 1.0)]


def test_a_partition_run_that_finds_no_rows_empties_its_partition(lab: Lab) -> None:
    world = World([sale(1, 1)])
    table = source(
        "demo.sales", world, SALES, partition_by=["day(at)"], write_mode="overwrite_partitions", partitions_def=DAYS
    )
    lab.materialize([table], partition_key="2026-01-01")
    world.rows = []
    lab.materialize([table], partition_key="2026-01-01")
    assert lab.rows("demo.sales") == []


@pytest.mark.parametrize("mode", ["overwrite_partitions", "merge"])
def test_rows_outside_the_partition_are_refused(lab: Lab, mode: str) -> None:
    table = source(
        "demo.sales", World([sale(1, 1), sale(2, 2)]), SALES,
        partition_by=["day(at)"], key=["id"], write_mode=mode, partitions_def=DAYS,
    )  # fmt: skip
    result = lab.materialize([table], partition_key="2026-01-01", raise_on_error=False)
    assert "1 rows lie outside the partition" in _failure(result)
    assert lab.table("demo.sales").current_snapshot() is None


def test_a_range_of_days_is_one_run_and_one_commit(lab: Lab) -> None:
    world = World([sale(day, day) for day in (1, 2, 3)])
    table = source(
        "demo.sales", world, SALES, partition_by=["day(at)"], write_mode="overwrite_partitions", partitions_def=DAYS
    )
    tags = {"dagster/asset_partition_range_start": "2026-01-01", "dagster/asset_partition_range_end": "2026-01-03"}
    result = lab.materialize([table], tags=tags)
    assert len(result.asset_materializations_for_node("demo__sales")) == 3
    assert len(lab.rows("demo.sales")) == 3
    assert len(lab.table("demo.sales").metadata.snapshots) == 1


def test_static_partitions_replace_the_rows_of_their_value(lab: Lab) -> None:
    world = World([{"region": "eu", "n": 1}])
    table = source(
        "demo.regions", world, {"region": "string", "n": "long"},
        partition_by=["region"], write_mode="overwrite_partitions", partitions_def=REGIONS,
    )  # fmt: skip
    lab.materialize([table], partition_key="eu")
    world.rows = [{"region": "us", "n": 2}]
    lab.materialize([table], partition_key="us")
    world.rows = [{"region": "eu", "n": 3}]
    lab.materialize([table], partition_key="eu")
    assert lab.rows("demo.regions") == [{"region": "eu", "n": 3}, {"region": "us", "n": 2}]


def test_a_day_inside_a_monthly_table_is_replaced_row_by_row(lab: Lab) -> None:
    world = World([sale(1, 1)])
    table = source(
        "demo.sales", world, SALES, partition_by=["month(at)"], write_mode="overwrite_partitions", partitions_def=DAYS
    )
    lab.materialize([table], partition_key="2026-01-01")
    world.rows = [sale(2, 2)]
    lab.materialize([table], partition_key="2026-01-02")
    world.rows = [sale(3, 1)]
    lab.materialize([table], partition_key="2026-01-01")
    assert [row["id"] for row in lab.rows("demo.sales")] == [2, 3]


def test_a_run_that_died_after_its_commit_commits_once_when_the_daemon_retries_it(lab: Lab) -> None:
    table = source("demo.people", World([{"id": 1}]), {"id": "long"})
    defs = dg.Definitions([table], resources=lab.resources, executor=dg.in_process_executor)
    job = defs.resolve_implicit_global_asset_job_def()
    first = job.execute_in_process(instance=lab.instance).dagster_run.run_id

    def again(tags: dict[str, str]) -> None:
        run = lab.instance.create_run_for_job(job, tags=tags, root_run_id=first, parent_run_id=first)
        assert execute_run(InMemoryJob(job), run, lab.instance).success

    again({"dagster/retry_number": "1"})
    assert lab.rows("demo.people") == [{"id": 1}]
    again({})
    assert len(lab.rows("demo.people")) == 2, "a run that somebody asked for anew is new work"


def test_a_retried_step_of_one_run_commits_once(lab: Lab) -> None:
    """The step commits, then its checks cannot be computed once; Dagster tries the step again."""
    world = World([{"id": 1}])
    attempts = []

    @iceberg_table(TableSpec("demo.people", schema={"id": "long"}))
    def people(context: dg.AssetExecutionContext, spark: SparkSession) -> DataFrame:
        attempts.append(context.retry_number)
        return spark.createDataFrame([(1,)], "id bigint")

    class Shaky(type(lab.resources["duckdb"])):  # type: ignore[misc]
        def get_connection(self) -> Any:
            if len(attempts) == 1:
                raise ConnectionError("the checks' engine went away")
            return super().get_connection()

    resources = lab.resources | {"duckdb": Shaky(lake=lab.lake)}
    result = dg.materialize([people], resources=resources, instance=lab.instance)
    assert result.success
    assert attempts == [0, 1]
    assert lab.rows("demo.people") == [{"id": 1}]
    assert metadata_of(result, people)["iceberg/replayed"] is True
    assert world.calls == 0


def test_inputs_are_read_at_the_version_that_dagster_recorded(lab: Lab) -> None:
    world = World([{"id": 1}])
    upstream = source("demo.up", world, {"id": "long"})

    @iceberg_table(TableSpec("demo.down", schema={"n": "long"}, write_mode="overwrite"), inputs={"up": upstream})
    def down(up: DataFrame) -> DataFrame:
        return up.agg(F.count("*").alias("n"))

    lab.materialize([upstream])
    with LakeSession(lab.lake.settings) as session:
        session.spark.sql("INSERT INTO lake.demo.up VALUES (2)").collect()
    said = metadata_of(lab.materialize([upstream, down], selection=[down]), down)
    assert lab.rows("demo.down") == [{"n": 1}], "the foreign row was not recorded and is not read"
    recorded = lab.table("demo.up").metadata.snapshots[0].snapshot_id
    assert said["iceberg/inputs"] == {"demo.up": str(recorded)}


def test_a_parameter_that_is_not_named_in_inputs_is_a_table_of_the_same_namespace(lab: Lab) -> None:
    upstream = source("demo.up", World([{"id": 7}]), {"id": "long"})

    @iceberg_table(TableSpec("demo.down", schema={"id": "long"}, write_mode="overwrite"))
    def down(up: DataFrame) -> DataFrame:
        return up

    lab.materialize([upstream, down])
    assert lab.rows("demo.down") == [{"id": 7}]


def test_a_spec_that_grew_adds_its_column_to_the_table(lab: Lab) -> None:
    lab.materialize([source("demo.people", World([{"id": 1}]), {"id": "long"})])
    grown = source("demo.people", World([{"id": 2, "name": "b"}]), {"id": "long", "name": "string"})
    lab.materialize([grown])
    assert lab.rows("demo.people") == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]


def test_a_spec_that_lost_a_column_is_refused_and_nothing_is_written(lab: Lab) -> None:
    lab.materialize([source("demo.people", World([{"id": 1, "name": "a"}]), {"id": "long", "name": "string"})])
    result = lab.materialize([source("demo.people", World([{"id": 2}]), {"id": "long"})], raise_on_error=False)
    assert "no longer names name" in _failure(result)
    assert len(lab.rows("demo.people")) == 1


def test_checks_are_reported_beside_the_materialization(lab: Lab) -> None:
    checks = [row_count(at_least=5, severity="warn"), in_range("id", low=0)]
    table = source("demo.people", World([{"id": 1}]), {"id": "long"}, key=["id"], checks=checks)
    result = lab.materialize([table])
    found = {check.check_name: (check.passed, check.severity.value) for check in result.get_asset_check_evaluations()}
    assert found == {
        "schema_as_declared": (True, "ERROR"),
        "unique_id": (True, "ERROR"),
        "row_count": (False, "WARN"),
        "range_id": (True, "ERROR"),
    }


def test_an_audited_table_publishes_nothing_that_breaks_a_check(lab: Lab) -> None:
    world = World([{"id": 1}])
    table = source("demo.people", world, {"id": "long"}, checks=[in_range("id", low=0)], audit=True)
    assert lab.materialize([table]).success
    world.rows = [{"id": -1}]
    result = lab.materialize([table], raise_on_error=False)
    assert "rows break range_id and were not published" in _failure(result)
    assert lab.rows("demo.people") == [{"id": 1}]
    assert not result.asset_materializations_for_node("demo__people")
    assert {check.check_name: check.passed for check in result.get_asset_check_evaluations()}["range_id"] is False
    refused = [ref for name, ref in lab.table("demo.people").metadata.refs.items() if name.startswith("staged_")]
    assert len(refused) == 1
    assert refused[0].max_ref_age_ms == 7 * 24 * 3600 * 1000

    world.rows = [{"id": 2}]
    assert lab.materialize([table]).success
    assert lab.rows("demo.people") == [{"id": 1}, {"id": 2}]


def test_a_function_that_fails_is_not_mistaken_for_a_catalog_that_does(lab: Lab) -> None:
    @iceberg_table(TableSpec("demo.people", schema={"id": "long"}))
    def people(spark: SparkSession) -> DataFrame:
        raise FileNotFoundError("export.csv")

    result = lab.materialize([people], raise_on_error=False)
    assert "export.csv" in str(result.all_events)
    assert "did not answer" not in str(result.all_events)


def test_bad_declarations_are_refused_when_they_are_made() -> None:
    spec = TableSpec("demo.people", schema={"id": "long"})
    with pytest.raises(SpecError, match="cannot be written by append"):
        iceberg_table(spec, partitions_def=DAYS)(lambda: None)
    with pytest.raises(SpecError, match="'up' is declared, but the function does not take it"):
        iceberg_table(spec, inputs={"up": "demo.up"})(lambda: None)
    with pytest.raises(SpecError, match="always offered"):
        iceberg_table(spec, inputs={"spark": "demo.up"})(lambda spark: None)
    no_time = TableSpec("demo.x", schema={"id": "long"}, partition_by=["id"], write_mode="overwrite_partitions")
    with pytest.raises(SpecError, match="needs day"):
        iceberg_table(no_time, partitions_def=DAYS)(lambda: None)


def _failure(result: dg.ExecuteInProcessResult) -> str:
    failed = [event for event in result.all_events if event.is_step_failure]
    return failed[0].step_failure_data.error_display_string if failed else ""
