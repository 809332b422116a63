"""What Dagster calls stale: exactly what lies downstream of a real change, and nothing after a compaction."""

from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from iceberg_assets.table import iceberg_table
from iceberg_manager.session import LakeSession
from iceberg_manager.spec import TableSpec
from tests.iceberg_assets.conftest import Lab, metadata_of
from tests.iceberg_assets.test_table import DAYS, SALES, World, sale, source

pytestmark = pytest.mark.spark


def chain(world: World) -> list[dg.AssetsDefinition]:
    up = source("demo.up", world, {"id": "long"}, write_mode="overwrite")
    other = source("demo.other", World([{"id": 1}]), {"id": "long"}, write_mode="overwrite")

    @iceberg_table(TableSpec("demo.down", schema={"n": "long"}, write_mode="overwrite"), inputs={"up": up})
    def down(up: DataFrame) -> DataFrame:
        return up.agg(F.count("*").alias("n"))

    @iceberg_table(TableSpec("demo.beside", schema={"n": "long"}, write_mode="overwrite"), inputs={"other": other})
    def beside(other: DataFrame) -> DataFrame:
        return other.agg(F.count("*").alias("n"))

    return [up, other, down, beside]


def stale(lab: Lab, assets: list[dg.AssetsDefinition], partition: str | None = None) -> set[str]:
    graph = dg.Definitions(assets=assets, resources=lab.resources).resolve_asset_graph()
    resolver = CachingStaleStatusResolver(lab.instance, graph, loading_context=_context(lab))
    return {
        asset.key.path[-1] for asset in assets if resolver.get_status(asset.key, partition) is not StaleStatus.FRESH
    }


def _context(lab: Lab) -> Any:
    from dagster._core.loader import LoadingContextForTest

    return LoadingContextForTest(lab.instance)


def compact(lab: Lab, table: str) -> None:
    with LakeSession(lab.lake.settings) as session:
        done = session.spark.sql(
            f"CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
        ).collect()
    assert done[0]["rewritten_data_files_count"] > 0


def test_after_a_compaction_nothing_is_stale_and_after_a_change_exactly_the_downstream_is(lab: Lab) -> None:
    world = World([{"id": 1}, {"id": 2}])
    assets = chain(world)
    up, other, down, _ = assets
    lab.materialize(assets)
    assert stale(lab, assets) == set()

    compact(lab, "demo.up")
    said = metadata_of(lab.materialize([up]), up)
    assert said["iceberg/operation"] == "none"
    assert stale(lab, assets) == set(), "the same rows again, after a compaction"

    world.rows = [{"id": 1}, {"id": 2}, {"id": 3}]
    lab.materialize([up])
    assert stale(lab, assets) == {"down"}

    lab.materialize([up, other, down], selection=[down])
    assert stale(lab, assets) == set()
    assert lab.rows("demo.down") == [{"n": 3}]


def test_a_day_that_changed_makes_only_its_own_day_stale(lab: Lab) -> None:
    world = World([sale(1, 1)])
    how: dict[str, Any] = {"partition_by": ["day(at)"], "write_mode": "overwrite_partitions"}
    up = source("demo.up", world, SALES, partitions_def=DAYS, **how)

    @iceberg_table(TableSpec("demo.down", schema=SALES, **how), inputs={"up": up}, partitions_def=DAYS)
    def down(up: DataFrame) -> DataFrame:
        return up

    lab.materialize([up, down], partition_key="2026-01-01")
    world.rows = [sale(2, 2)]
    lab.materialize([up, down], partition_key="2026-01-02")
    assert [row["id"] for row in lab.rows("demo.down")] == [1, 2]

    world.rows = [sale(2, 2, 9.0)]
    lab.materialize([up], partition_key="2026-01-02")
    assert stale(lab, [up, down], "2026-01-01") == set()
    assert stale(lab, [up, down], "2026-01-02") == {"down"}

    compact(lab, "demo.up")
    world.rows = [sale(1, 1)]
    lab.materialize([up], partition_key="2026-01-01")
    assert stale(lab, [up, down], "2026-01-01") == set(), "the day's rows are as they were"
