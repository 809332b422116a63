"""Data files that every reader can use: ids, statistics, order and partitions, and none left behind by a failure."""

import datetime as dt
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType, StringType

from iceberg_manager import arrow_files
from iceberg_manager.arrow_files import arrow_schema, write
from iceberg_manager.catalog import open_catalog
from iceberg_manager.changes import Changes
from iceberg_manager.metadata_commit import commit_changes
from iceberg_manager.query import connect, scan
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

COLUMNS = {"id": "long", "name": "string", "at": "timestamptz", "on": "date", "score": "double"}
START = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


def table(catalog: Catalog, settings: LakeSettings, **options: object) -> Table:
    return ensure_table(catalog, settings, TableSpec("t", COLUMNS, **options))  # type: ignore[arg-type]


def batch(target: Table, ids: range | list[int]) -> pa.RecordBatch:
    rows = [
        {
            "id": one,
            "name": None if one % 7 == 0 else f"name {one % 5}",
            "at": START + dt.timedelta(hours=one),
            "on": dt.date(2024, 1, 1) + dt.timedelta(days=one),
            "score": math.nan if one % 10 == 9 else one / 2,
        }
        for one in ids
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(target.schema()))


def files(settings: LakeSettings) -> list[Path]:
    return list(Path(settings.warehouse_location).rglob("*.parquet"))


def test_a_file_has_field_ids_statistics_and_bounds(catalog: Catalog, settings: LakeSettings) -> None:
    target = table(catalog, settings, properties={"write.metadata.metrics.column.on": "none"})
    (file,) = write(target, [batch(target, range(20))])
    assert [int(item.metadata[b"PARQUET:field_id"]) for item in pq.read_schema(file.file_path)] == [1, 2, 3, 4, 5]
    assert pq.ParquetFile(file.file_path).metadata.row_group(0).column(0).compression == "ZSTD"
    assert (file.record_count, file.file_size_in_bytes) == (20, Path(file.file_path).stat().st_size)
    assert (file.null_value_counts[2], file.nan_value_counts, 4 in file.lower_bounds) == (3, {5: 2}, False)
    assert (from_bytes(LongType(), file.lower_bounds[1]), from_bytes(LongType(), file.upper_bounds[1])) == (0, 19)
    assert from_bytes(StringType(), file.upper_bounds[2]) == "name 4"
    assert file.file_path.startswith(f"{target.location()}/data/")


def test_files_are_split_at_the_tables_target_size(
    catalog: Catalog, settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = table(
        catalog, settings, properties={"write.target-file-size-bytes": "3000", "write.parquet.row-group-limit": "50"}
    )
    made = write(target, [batch(target, range(start, start + 50)) for start in range(0, 1000, 50)])
    assert len(made) > 3
    assert sum(file.record_count for file in made) == 1000
    assert len({file.file_path for file in made}) == len(made)


def test_rows_are_sorted_within_a_file(catalog: Catalog, settings: LakeSettings) -> None:
    target = table(catalog, settings, sort_by=["name", "id desc"])
    (file,) = write(target, [batch(target, range(30)), batch(target, range(30, 50))])
    held = pq.read_table(file.file_path).select(["name", "id"]).to_pylist()
    wanted = sorted(held, key=lambda row: (row["name"] is not None, row["name"] or "", -row["id"]))
    assert held == wanted
    assert file.sort_order_id == target.sort_order().order_id


@pytest.mark.parametrize(
    "by",
    [
        ["name"],
        ["day(at)"],
        ["hour(at)"],
        ["month(on)"],
        ["year(at)"],
        ["bucket(4, id)"],
        ["bucket(4, name)"],
        ["truncate(10, id)"],
        ["truncate(3, name)"],
        ["on"],
        ["bucket(2, id)", "day(at)"],
        ["bucket(2, id)", "truncate(100, id)"],
    ],
    ids=" ".join,
)
def test_every_partition_transform_is_read_back_by_others(
    catalog: Catalog, settings: LakeSettings, by: list[str]
) -> None:
    target = table(catalog, settings, partition_by=by)
    made = write(target, [batch(target, range(40)), batch(target, range(40, 60))])
    commit_changes(catalog, target, Changes(made), {}, Operation.APPEND)
    held = catalog.load_table("default.t")
    assert sorted(held.scan().to_arrow()["id"].to_pylist()) == list(range(60))
    for one in (0, 7, 33, 59):
        moment = (START + dt.timedelta(hours=one)).isoformat()
        assert held.scan(row_filter=f"id = {one} and at = '{moment}'").to_arrow()["id"].to_pylist() == [one]
        found = (
            connect(settings).sql(f"select id from {scan(held)} where id = {one} and \"at\" = '{moment}'").fetchall()
        )
        assert found == [(one,)]
    if len({part.source_id for part in held.spec().fields}) < len(by):
        return  # PyIceberg's own writer refuses two partitions of one column
    reference = catalog.create_table("default.r", held.schema(), partition_spec=held.spec())
    reference.append(held.scan().to_arrow())
    ours, theirs = ({task.file.partition for task in each.scan().plan_files()} for each in (held, reference))
    assert ours == theirs


def test_memory_stays_bounded_by_writing_what_waits(catalog: Catalog, settings: LakeSettings) -> None:
    for options in ({"partition_by": ["bucket(3, id)"]}, {}):
        target = ensure_table(catalog, settings, TableSpec(f"b{len(options)}", COLUMNS, **options))  # type: ignore[arg-type]
        made = write(
            target, (batch(target, range(start, start + 100)) for start in range(0, 1000, 100)), buffered_bytes=9000
        )
        groups = [pq.ParquetFile(file.file_path).metadata.num_row_groups for file in made]
        assert sum(file.record_count for file in made) == 1000
        assert min(groups) > 1


def test_sorted_files_stay_sorted_when_memory_is_short(catalog: Catalog, settings: LakeSettings) -> None:
    target = table(catalog, settings, sort_by=["id desc"])
    made = write(
        target, (batch(target, range(start, start + 100)) for start in range(0, 500, 100)), buffered_bytes=9000
    )
    assert len(made) > 1
    for file in made:
        held = pq.read_table(file.file_path)["id"].to_pylist()
        assert held == sorted(held, reverse=True)


def test_many_partitions_share_few_open_files(
    catalog: Catalog, settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_files, "OPEN_FILES", 2)
    target = table(catalog, settings, partition_by=["id"])
    made = write(target, [batch(target, range(20)) for _ in range(3)], buffered_bytes=500)
    assert sum(file.record_count for file in made) == 60
    assert {file.partition[0] for file in made} == set(range(20))


def test_a_failure_leaves_no_files(catalog: Catalog, settings: LakeSettings) -> None:
    def broken(target: Table) -> Iterator[pa.RecordBatch]:
        yield batch(target, range(100))
        yield batch(target, range(100, 200))
        raise KeyboardInterrupt

    for options in ({}, {"partition_by": ["bucket(3, id)"]}, {"sort_by": ["id"]}):
        target = ensure_table(catalog, settings, TableSpec(f"f{len(str(options))}", COLUMNS, **options))  # type: ignore[arg-type]
        with pytest.raises(KeyboardInterrupt):
            write(target, broken(target), buffered_bytes=2000)
    assert files(settings) == []


def test_column_names_that_parquet_cannot_hold_are_read_back(catalog: Catalog, settings: LakeSettings) -> None:
    target = ensure_table(
        catalog, settings, TableSpec("odd", {"full name": "string", "a-b": "list<struct<x: string>>"})
    )
    rows = pa.RecordBatch.from_pylist([{"full name": "x", "a-b": [{"x": "y"}]}], schema=arrow_schema(target.schema()))
    commit_changes(catalog, target, Changes(write(target, [rows])), {}, Operation.APPEND)
    assert catalog.load_table("default.odd").scan().to_arrow().to_pylist() == [{"full name": "x", "a-b": [{"x": "y"}]}]
    assert connect(settings).sql(f"select * from {scan(target.refresh())}").fetchall() == [("x", [{"x": "y"}])]
