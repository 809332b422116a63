"""Plans open no more than they must, and count what they leave out."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    IntegerType,
    LongType,
    NestedField,
)

from iceberg_manager.catalog import open_catalog
from iceberg_manager.errors import LakeError
from iceberg_manager.explain import explain
from iceberg_manager.settings import LakeSettings
from iceberg_manager.time_travel import resolve


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    return LakeSettings(root=tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def catalog(lake: LakeSettings) -> Catalog:
    catalog = open_catalog(lake)
    catalog.create_namespace("default")
    return catalog


@pytest.fixture(scope="module")
def parted(catalog: Catalog, lake: LakeSettings) -> Table:
    """Ten commits, each one partition of one file with its own range of ids."""
    schema = Schema(NestedField(1, "id", LongType(), False), NestedField(2, "part", IntegerType(), False))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    place = f"{lake.warehouse_location}/default/parted"
    table = catalog.create_table("default.parted", schema, location=place, partition_spec=spec)
    for number in range(10):
        table.append(
            pa.table({"id": [number * 10, number * 10 + 9], "part": pa.array([number // 2, number // 2], pa.int32())})
        )
    return table


def test_partitions_and_statistics_are_counted_apart(parted: Table):
    plan = explain(parted, "part = 3 and id >= 70")
    assert (plan.manifests, plan.manifests_skipped, plan.manifests_read) == (10, 8, 2)
    assert (plan.files, plan.files_skipped_by_partition, plan.files_skipped_by_statistics, plan.files_read) == (
        10,
        8,
        1,
        1,
    )
    assert (plan.rows_total, plan.rows_in_files_read, plan.delete_files) == (20, 2, 0)
    assert plan.bytes_total is not None
    assert 0 < plan.bytes_read < plan.bytes_total
    assert plan.condition == '("part" = 3 AND "id" >= 70)'
    assert plan.engine == "duckdb"


def test_without_a_condition_everything_is_read(parted: Table):
    plan = explain(parted)
    assert (plan.files_read, plan.bytes_read, plan.rows_in_files_read) == (10, plan.bytes_total, plan.rows_total)


def test_an_old_snapshot_is_planned_as_it_was(parted: Table):
    third = resolve(parted, snapshot=parted.history()[2].snapshot_id)
    assert explain(parted, "part = 0", third).files_read == 2
    assert explain(parted, snapshot=third).files == 3


def test_manifests_that_are_ruled_out_are_not_opened(parted: Table):
    manifests = parted.current_snapshot().manifests(parted.io)
    away = {manifest: manifest.with_suffix(".away") for manifest in (Path(m.manifest_path) for m in manifests)}
    kept = Path(next(m for m in manifests if explain(parted, "part = 4").files_read).manifest_path)
    newest = sorted(away, key=lambda path: path.stat().st_mtime_ns)[-2:]
    hidden = [path for path in away if path not in newest]
    for path in hidden:
        path.rename(away[path])
    try:
        assert kept in away
        assert explain(parted, "part = 4").files_read == 2
        with pytest.raises(LakeError, match="cannot be read"):
            explain(parted, "part = 0")
    finally:
        for path in hidden:
            away[path].rename(path)


def test_a_table_without_snapshots_has_nothing_to_read(catalog: Catalog, lake: LakeSettings):
    schema = Schema(NestedField(1, "age", IntegerType(), False))
    table = catalog.create_table("default.none", schema, location=f"{lake.warehouse_location}/default/none")
    assert (explain(table, "age > 3").files, explain(table, "age > 3").condition) == (0, '"age" > 3')
