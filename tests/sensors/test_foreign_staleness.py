"""After commits by plain Spark and PyIceberg exactly the downstream is stale; after a compaction nothing is."""

import dagster as dg
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from iceberg_assets.table import iceberg_table
from iceberg_manager.session import LakeSession
from iceberg_manager.spec import TableSpec
from sensors.foreign_commits import foreign_commits
from tests.iceberg_assets.conftest import Lab, lab
from tests.iceberg_assets.test_staleness import chain, compact, stale
from tests.iceberg_assets.test_table import World

__all__ = ["lab"]
pytestmark = pytest.mark.spark


def tick(lab: Lab, keys: list[dg.AssetKey]) -> None:
    context = dg.build_sensor_context(lab.instance, resources={"lake": lab.lake}, sensor_name="foreign_commits")
    foreign_commits(keys).evaluate_tick(context)


def test_a_declared_table_written_by_spark_compacted_and_rolled_back(lab: Lab) -> None:
    assets = chain(World([{"id": 1}, {"id": 2}]))
    keys = [asset.key for asset in assets]
    lab.materialize(assets)
    first = lab.table("demo.up").metadata.current_snapshot_id
    compact(lab, "demo.up")
    tick(lab, keys)
    assert stale(lab, assets) == set(), "a compaction by plain Spark"

    with LakeSession(lab.lake.settings) as session:
        session.spark.sql("INSERT INTO lake.demo.up VALUES (3)")
    tick(lab, keys)
    assert stale(lab, assets) == {"down"}
    lab.materialize(assets, selection=[assets[2]])
    assert lab.rows("demo.down") == [{"n": 3}]
    assert stale(lab, assets) == set()

    lab.table("demo.up").manage_snapshots().set_current_snapshot(first).commit()
    tick(lab, keys)
    assert stale(lab, assets) == {"down"}, "a rollback"
    lab.materialize(assets, selection=[assets[2]])
    assert lab.rows("demo.down") == [{"n": 2}]


def test_what_is_computed_from_an_adopted_table_becomes_stale(lab: Lab) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64())})
    lab.lake.catalog.create_namespace("demo")
    up = lab.lake.catalog.create_table("demo.up", rows.schema)
    up.append(rows)
    adopted = dg.AssetSpec(dg.AssetKey(["demo", "up"]))

    @iceberg_table(TableSpec("demo.down", schema={"n": "long"}, write_mode="overwrite"), inputs={"up": "demo.up"})
    def down(up: DataFrame) -> DataFrame:
        return up.agg(F.count("*").alias("n"))

    tick(lab, [adopted.key])
    lab.materialize([down, adopted])
    assets = [down, dg.AssetsDefinition(specs=[adopted])]
    assert stale(lab, assets) == set()
    up.append(rows)
    tick(lab, [adopted.key])
    assert stale(lab, assets) == {"down"}
