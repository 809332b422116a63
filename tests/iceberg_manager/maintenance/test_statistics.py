"""What metadata says about a table is measured right, and a damaged table does not keep the others from being measured."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyiceberg.types import BinaryType, DateType, DecimalType, DoubleType, IntegerType, LongType, StringType

from iceberg_manager.catalog import list_tables, load_table, open_catalog
from iceberg_manager.errors import LakeError
from iceberg_manager.maintenance import bounds, orphans
from iceberg_manager.maintenance.statistics import TableStatistics, Unreadable, collect, survey
from iceberg_manager.query import connect
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table

SCHEMA = {"id": "long", "at": "timestamptz", "who": "string"}
POLICY = MaintenancePolicy(min_input_files=3)
NOW = datetime.now(UTC)


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


@pytest.fixture
def duck(settings: LakeSettings) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(settings) as connection:
        yield connection


def rows(ids: list[int], day: int = 1) -> pa.Table:
    moment = datetime(2026, 1, day, tzinfo=UTC)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([moment] * len(ids), pa.timestamp("us", tz="UTC")),
            "who": pa.array([str(number) for number in ids]),
        }
    )


def make(catalog: Catalog, settings: LakeSettings, **options: Any) -> Table:
    return ensure_table(catalog, settings, TableSpec("t", SCHEMA, **options))


def test_a_table_never_written_to_has_nothing_to_count(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    found = collect(make(catalog, settings), POLICY, duck, NOW)
    assert (found.table, found.files, found.snapshots, found.snapshot_id) == ("default.t", 0, 0, None)
    assert found.metadata_bytes > 0


def test_small_plain_tables_are_settled_by_the_summary_alone(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings)
    for number in range(4):
        table.append(rows([number]))
    for manifest in Path(settings.warehouse_location).rglob("*-m0.avro"):
        manifest.write_bytes(b"nobody reads this")
    found = collect(table, POLICY, duck, NOW)
    assert (found.files, found.small_files, found.excess_files, found.rows, found.manifests) == (4, 4, 3, 4, 4)
    assert found.bytes == found.paying[0].small_bytes > 0
    assert not found.detailed


def test_partitions_that_pay_are_found_by_their_manifests(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings, partition_by=["day(at)"])
    for number in range(4):
        table.append(rows([number], day=1))
    table.append(rows([9], day=2))
    found = collect(table, POLICY, duck, NOW)
    assert (found.files, found.partitions, found.excess_files, found.detailed) == (5, 2, 3, True)
    assert [(one.values, one.files, one.rows) for one in found.paying] == [({"at_day": date(2026, 1, 1)}, 4, 4)]
    assert found.paying[0].name == "at_day=2026-01-01"
    assert found.bytes == sum(task.file.file_size_in_bytes for task in table.scan().plan_files())


def test_files_that_were_deleted_do_not_count(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings, partition_by=["day(at)"])
    for day in (1, 2, 3, 4):
        table.append(rows([day], day))
    table.delete("at >= '2026-01-02T00:00:00+00:00'")
    found = collect(table, MaintenancePolicy(min_input_files=2, row_ttl_column="at", row_ttl=timedelta(1)), duck, NOW)
    assert (found.files, found.partitions) == (1, 1)


def test_manifests_that_duckdb_cannot_read_together_are_read_all_the_same(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    old = ensure_table(
        catalog, settings, TableSpec("t", SCHEMA, partition_by=["day(at)", "who"], properties={"format-version": "1"})
    )
    for _ in range(4):
        old.append(rows([7], day=1))
    assert old.format_version == 1
    by_one = collect(old, POLICY, duck, NOW)
    with old.transaction() as upgrade:
        upgrade.upgrade_table_version(2)
    old.append(rows([7], day=1))
    by_two = collect(old, POLICY, duck, NOW)
    assert [(one.values, one.files) for one in by_one.paying] == [({"at_day": date(2026, 1, 1), "who": "7"}, 4)]
    assert [(one.values, one.files) for one in by_two.paying] == [({"at_day": date(2026, 1, 1), "who": "7"}, 5)]
    assert by_two.bytes == sum(task.file.file_size_in_bytes for task in old.scan().plan_files())


def test_a_changed_partitioning_is_counted_under_each_of_its_specs(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings, partition_by=["day(at)"])
    table.append(rows([1, 2]))
    with table.update_spec() as update:
        update.add_identity("who")
    table.append(rows([1, 2]))
    found = collect(table, MaintenancePolicy(min_input_files=2), duck, NOW)
    assert (found.files, found.partitions) == (3, 3)


def test_a_warehouse_whose_path_looks_like_a_pattern_is_measured(tmp_path: Path):
    settings = LakeSettings(root=tmp_path / "lake [1]*")
    table = make(open_catalog(settings), settings, partition_by=["day(at)"])
    for number in range(3):
        table.append(rows([number]))
    with connect(settings) as connection:
        found = collect(table, POLICY, connection, NOW)
    assert (found.files, found.excess_files, found.manifests) == (3, 2, 3)


@pytest.mark.parametrize(
    ("batches", "overlap"),
    [
        ([[0, 9], [10, 19], [20, 29]], 0.0),
        ([[0, 9], [9, 19], [19, 29]], 0.0),
        ([[0, 29], [0, 29], [0, 29]], 2.0),
        ([[0, 29], [5, 6], [50, 60]], 2 / 3),
        ([[-5, -1], [-3, 2], [1, 300]], 4 / 3),
    ],
)
def test_sort_decay_is_the_overlap_of_files_on_the_sort_column(
    catalog: Catalog,
    settings: LakeSettings,
    duck: duckdb.DuckDBPyConnection,
    batches: list[list[int]],
    overlap: float,
):
    table = make(catalog, settings, sort_by=["id"])
    for batch in batches:
        table.append(rows(batch))
    found = collect(table, POLICY, duck, NOW)
    assert (found.sort_column, found.sort_overlap) == ("id", pytest.approx(overlap))
    assert found.unsorted_files == 3


def test_files_of_different_partitions_do_not_overlap(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings, sort_by=["id"], partition_by=["day(at)"])
    for day in (1, 2, 3):
        table.append(rows([0, 100], day))
    assert collect(table, POLICY, duck, NOW).sort_overlap == 0
    table.append(rows([50, 60], 3))
    assert collect(table, POLICY, duck, NOW).sort_overlap == pytest.approx(2 / 4)


def test_manifests_that_hold_the_same_day_overlap(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings, partition_by=["day(at)"])
    for day in (1, 1, 1, 2):
        table.append(rows([1], day))
    assert collect(table, POLICY, duck, NOW).manifest_overlap == pytest.approx(6 / 4)


def test_files_with_rows_past_their_time_are_counted(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings)
    for day in (1, 2, 3):
        table.append(rows([day], day))
    policy = MaintenancePolicy(row_ttl_column="at", row_ttl=timedelta(days=10))
    found = collect(table, policy, duck, datetime(2026, 1, 12, 12, tzinfo=UTC))
    assert found.old_row_files == 2
    assert 0 < found.old_row_bytes < found.bytes


def test_snapshots_and_refs_are_counted_against_the_policy(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings)
    for number in range(6):
        table.append(rows([number]))
    head = table.metadata.current_snapshot_id
    assert head
    with table.manage_snapshots() as manage:
        manage.create_tag(head, "kept", 1000).create_branch(head, "endless")
    policy = MaintenancePolicy(expire_after=timedelta(days=1), keep_snapshots=2, ref_retention=timedelta(days=90))
    found = collect(table, policy, duck, datetime.now(UTC) + timedelta(days=2))
    assert (found.snapshots, found.expirable_snapshots) == (6, 4)
    assert found.oldest_snapshot_age.days >= 1
    assert [(ref.name, ref.kind, ref.past) for ref in found.references] == [
        ("endless", "branch", False),
        ("kept", "tag", True),
    ]


def test_a_damaged_manifest_is_one_clear_error(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection
):
    table = make(catalog, settings, partition_by=["day(at)"])
    for number in range(3):
        table.append(rows([number]))
    next(Path(settings.warehouse_location).rglob("*-m0.avro")).write_bytes(b"broken")
    with pytest.raises(LakeError, match=r"default\.t: the manifest .*-m0\.avro cannot be read .*Nothing was changed"):
        collect(table, POLICY, duck, NOW)


def test_a_table_that_vanished_or_broke_does_not_stop_the_survey(catalog: Catalog, settings: LakeSettings):
    for name in ("a", "b", "c", "d"):
        ensure_table(catalog, settings, TableSpec(name, SCHEMA)).append(rows([1]))
    names = list_tables(catalog)
    catalog.drop_table("default.b")
    Path(load_table(catalog, "c").metadata_location).write_text("{")
    found = list(survey(catalog, settings, names))
    assert [type(one) for one in found] == [TableStatistics, Unreadable, Unreadable, TableStatistics]
    assert "There is no table 'default.b'" in str(found[1])


@pytest.mark.spark
@pytest.mark.parametrize("version", ["2", "3"])
def test_delete_files_and_manifests_of_two_engines_are_counted(
    settings: LakeSettings, session: LakeSession, duck: duckdb.DuckDBPyConnection, catalog: Catalog, version: str
):
    catalog.create_namespace("default")
    session.spark.sql(
        "CREATE TABLE lake.default.t (id BIGINT, at TIMESTAMP, who STRING) USING iceberg PARTITIONED BY (days(at)) "
        f"LOCATION '{settings.warehouse_location}/default/t' "
        f"TBLPROPERTIES ('format-version' = '{version}', 'write.delete.mode' = 'merge-on-read')"
    )
    for first in (0, 100):
        session.spark.range(first, first + 50, numPartitions=1).selectExpr(
            "id", "timestamp '2026-01-01 00:00:00' AS at", "CAST(id AS STRING) AS who"
        ).writeTo("lake.default.t").append()
    session.spark.sql("DELETE FROM lake.default.t WHERE id = 7")
    if version == "2":
        load_table(catalog, "t").append(rows([500]))
    table = load_table(catalog, "t")
    found, head = collect(table, POLICY, duck, NOW), table.current_snapshot()
    assert head
    files = 3 if version == "2" else 2
    assert (found.files, found.delete_files, found.partitions) == (files, 1, 1)
    assert [(one.name, one.files, one.delete_files) for one in found.paying] == [("at_day=2026-01-01", files, 1)]
    assert found.bytes == sum(
        entry.data_file.file_size_in_bytes
        for manifest in head.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
        if entry.data_file.content == DataFileContent.DATA
    )
    late = NOW + timedelta(days=3)
    assert orphans.plan(lambda: load_table(catalog, "t"), duck, [], now=late).orphans == ()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (LongType(), [(-5).to_bytes(8, "little", signed=True), (3).to_bytes(8, "little"), (300).to_bytes(8, "little")]),
        (LongType(), [(-5).to_bytes(4, "little", signed=True), (3).to_bytes(8, "little"), (300).to_bytes(4, "little")]),
        (IntegerType(), [(-1).to_bytes(4, "little", signed=True), (256).to_bytes(4, "little")]),
        (DateType(), [(0).to_bytes(4, "little"), (20_000).to_bytes(4, "little")]),
        (DoubleType(), [np.float64(-2.5).tobytes(), np.float32(1.5).tobytes(), np.float64(1e300).tobytes()]),
        (DecimalType(9, 2), [b"\xff", b"\x00", b"\x01\x00"]),
        (StringType(), [b"", b"a", b"a\x00", b"ab", "é".encode()]),
        (BinaryType(), [b"\x00", b"\x00\x00", b"\xff"]),
    ],
)
def test_bounds_of_every_type_compare_in_the_order_of_their_values(kind: Any, values: list[bytes]):
    read = list(bounds.comparable(values, kind))
    assert read == sorted(read)
    assert len(set(read)) == len(values)


def test_overlaps_agree_with_a_plain_count():
    chance = np.random.default_rng(3)
    low = chance.integers(0, 1000, 200)
    high = low + chance.integers(1, 200, 200)
    groups = chance.integers(0, 4, 200)
    for touching in (False, True):
        pairs = sum(
            (low[i] <= high[j] and low[j] <= high[i]) if touching else (low[i] < high[j] and low[j] < high[i])
            for i in range(200)
            for j in range(200)
            if i != j and groups[i] == groups[j]
        )
        assert bounds.overlaps(low, high, groups, touching) == pairs
