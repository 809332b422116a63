"""The landing sensor decides, the run commits, and the asset tells what came of it."""

from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iceberg_assets.landing import CHECK, LandedTable, landed_table
from iceberg_manager.landing.passes import Landing
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.spec import TableSpec
from tests.iceberg_assets.conftest import Lab, metadata_of


def declared(**policy: Any) -> LandedTable:
    how = LandingPolicy(completeness="rename", **policy)
    return landed_table(TableSpec("raw.clicks", schema={"id": "long", "page": "string"}, landing=how))


def drop(lab: Lab, name: str, text: str) -> Path:
    path = Path(lab.lake.settings.landing_location) / "raw" / "clicks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tick(lab: Lab, landed: LandedTable) -> list[dg.RunRequest]:
    definitions = dg.Definitions([landed.asset], jobs=[landed.job], sensors=[landed.sensor()], resources=lab.resources)
    with dg.build_sensor_context(
        lab.instance, repository_def=definitions.get_repository_def(), resources={"lake": lab.lake}
    ) as context:
        return list(landed.sensor().evaluate_tick(context).run_requests)


def run(lab: Lab, landed: LandedTable, request: dg.RunRequest) -> dict[str, Any]:
    return metadata_of(lab.materialize([landed.asset], run_config=request.run_config), landed.asset)


def test_a_batch_is_asked_for_by_its_id_and_taken_in_by_the_run(lab: Lab) -> None:
    landed = declared()
    assert tick(lab, landed) == []
    drop(lab, "a.csv", "id,page\n1,home\nx,bad\n")
    (request,) = tick(lab, landed)
    assert [one.run_key for one in tick(lab, landed)] == [request.run_key], "Dagster drops a key that it has seen"
    result = lab.materialize([landed.asset], run_config=request.run_config)
    said = metadata_of(result, landed.asset)
    assert said["landing/batch"] == request.run_key
    wanted = {"files": 1, "rows": 1, "rejected_rows": 1, "quarantined_files": 0, "bytes": 21}
    assert {key: said[f"landing/{key}"] for key in wanted} == wanted
    assert said["landing/lag_seconds"] >= 0
    (check,) = result.get_asset_check_evaluations()
    assert (check.check_name, check.passed) == (CHECK, False)
    assert lab.rows("raw.clicks") == [{"id": 1, "page": "home"}]
    assert tick(lab, landed) == []


def test_a_batch_whose_run_died_is_asked_for_again_under_another_key(lab: Lab) -> None:
    landed = declared()
    drop(lab, "a.csv", "id,page\n1,home\n")
    (request,) = tick(lab, landed)

    class Died(BaseException):
        pass

    def die(step: str) -> None:
        if step == "read":
            raise Died

    spec = landed.spec
    assert spec.landing
    dying = Landing(lab.lake.settings, lab.lake.catalog, spec.table, spec.landing, spec, reached=die)
    with pytest.raises(Died):
        dying.carry_out(str(request.run_key))
    (again,) = tick(lab, landed)
    assert again.run_key == f"{request.run_key}.1"
    assert run(lab, landed, again)["landing/rows"] == 1
    assert len(lab.rows("raw.clicks")) == 1


def test_a_run_by_hand_takes_in_all_that_is_ready(lab: Lab) -> None:
    landed = declared(max_files=1)
    for number in range(3):
        drop(lab, f"{number}.csv", f"id,page\n{number},x\n")
    result = lab.materialize([landed.asset])
    assert metadata_of(result, landed.asset)["landing/files"] == 3
    assert len(lab.rows("raw.clicks")) == 3


@pytest.mark.spark
def test_spark_copies_a_large_batch_in_one_commit_with_the_property(lab: Lab) -> None:
    landed = declared(engine="spark")
    folder = drop(lab, "x.csv.tmp", "").parent
    for number in range(4):
        rows = {"id": pa.array([number], pa.int32()), "page": ["p"]} if number % 2 else {"id": [number]}
        pq.write_table(pa.table(rows), folder / f"{number}.parquet")
    (request,) = tick(lab, landed)
    said = run(lab, landed, request)
    assert said["landing/rows"] == 4
    assert [row["id"] for row in lab.rows("raw.clicks")] == [0, 1, 2, 3]
    table = lab.table("raw.clicks")
    assert len(table.metadata.snapshots) == 1
    assert f"iceberg-assets.landing.batch.{request.run_key}" in table.properties
    tables = [name[-1] for name in lab.lake.catalog.list_tables("raw")]
    assert tables == ["clicks"], "the entry that Spark wrote to is gone"
    spark_wrote = table.inspect.files()["file_path"].to_pylist()
    assert all("/raw/clicks/data/" in path for path in spark_wrote)


@pytest.mark.spark
def test_a_value_that_spark_refuses_is_found_row_by_row(lab: Lab) -> None:
    landed = declared(engine="spark")
    folder = drop(lab, "x.csv.tmp", "").parent
    pq.write_table(pa.table({"id": ["1", "two"], "page": ["a", "b"]}), folder / "a.parquet")
    said = run(lab, landed, tick(lab, landed)[0])
    assert (said["landing/rows"], said["landing/rejected_rows"]) == (1, 1)
