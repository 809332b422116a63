"""Orphan removal takes what no snapshot names, however paths are spelled, and never anything else."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from iceberg_manager import expiry
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.errors import InputError
from iceberg_manager.maintenance import orphans
from iceberg_manager.maintenance.uris import canonical, is_within
from iceberg_manager.query import connect
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

LATER = datetime.now(UTC) + timedelta(days=2)
ROWS = pa.table({"id": pa.array([1, 2], pa.int64())})


@pytest.fixture
def duck(settings: LakeSettings) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(settings) as connection:
        yield connection


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


@pytest.fixture
def table(catalog: Catalog, settings: LakeSettings) -> Table:
    table = ensure_table(catalog, settings, TableSpec("t", {"id": "long"}))
    for _ in range(3):
        table.append(ROWS)
    return table


def orphan(table: Table, name: str = "data/lost.parquet") -> str:
    path = Path(table.location().removeprefix("file://")) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"lost")
    return str(path)


def find(table: Table, duck: duckdb.DuckDBPyConnection, **more: Any) -> orphans.OrphanPlan:
    options = {"other_locations": [], "now": LATER} | more
    return orphans.plan(lambda: load_table(table.catalog, "t"), duck, **options)


def test_only_what_no_snapshot_names_is_an_orphan(table: Table, duck: duckdb.DuckDBPyConnection):
    table.delete("id = 1")
    head = table.metadata.current_snapshot_id
    assert head
    with table.manage_snapshots() as manage:
        manage.create_branch(head, "audit")
    table.append(ROWS, branch="audit")
    lost = [orphan(table), orphan(table, "metadata/lost-m0.avro")]
    planned = find(table, duck)
    assert [one.uri for one in planned.orphans] == lost
    assert (planned.bytes, planned.refused, planned.young) == (8, "", 0)
    assert Path(lost[0]).exists()


def test_removing_takes_the_orphans_and_leaves_every_snapshot_readable(table: Table, duck: duckdb.DuckDBPyConnection):
    table.overwrite(ROWS)
    before = {one.snapshot_id: table.scan(snapshot_id=one.snapshot_id).to_arrow().num_rows for one in table.snapshots()}
    lost = orphan(table)
    checksum = Path(orphan(table, "data/.lost.parquet.crc"))
    removed = orphans.remove(lambda: load_table(table.catalog, "t"), find(table, duck), duck)
    assert (removed.files, removed.bytes, removed.failed) == (1, 4, ())
    assert not Path(lost).exists()
    assert not checksum.exists()
    assert before == {key: table.scan(snapshot_id=key).to_arrow().num_rows for key in before}
    assert find(table, duck).orphans == ()


def test_what_expiry_left_behind_is_found(table: Table, duck: duckdb.DuckDBPyConnection):
    table.overwrite(ROWS)
    planned = expiry.plan(table, timedelta(0), 1, now=LATER)
    ids = [one.snapshot_id for one in planned.snapshots]
    table.maintenance.expire_snapshots().by_ids(ids).commit()
    found = find(table, duck, max_share=1.0)
    assert sum(one.uri.endswith(".parquet") for one in found.orphans) == 3
    orphans.remove(lambda: load_table(table.catalog, "t"), found, duck)
    assert load_table(table.catalog, "t").scan().to_arrow().num_rows == 2


@pytest.mark.parametrize("spelling", ["file://{}", "file:{}", "{}"])
def test_a_location_is_compared_however_it_is_spelled(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection, spelling: str
):
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    folder = settings.root / "warehouse" / "default" / "t"
    catalog.create_namespace("default")
    schema = Schema(NestedField(1, "id", LongType(), required=False))
    table = catalog.create_table("default.t", schema, location=spelling.format(folder).replace("file:/", "file:///", 1)
                                 if spelling == "file:{}" else spelling.format(folder))  # fmt: skip
    for _ in range(3):
        table.append(ROWS)
    lost = folder / "data" / "lost.parquet"
    lost.write_bytes(b"lost")
    planned = find(table, duck)
    assert [one.uri for one in planned.orphans] == [str(lost)]
    orphans.remove(lambda: load_table(catalog, "t"), planned, duck)
    assert load_table(catalog, "t").scan().to_arrow().num_rows == 6


def test_files_that_manifests_spell_in_three_ways_are_all_the_tables(
    catalog: Catalog, settings: LakeSettings, duck: duckdb.DuckDBPyConnection, table: Table
):
    import pyarrow.parquet as pq

    for number, prefix in enumerate(("", "file:", "file://", "file://localhost")):
        path = Path(table.location()) / "data" / f"given-{number}.parquet"
        pq.write_table(ROWS, path)
        _register(table, f"{prefix}{path}", path.stat().st_size)
    lost = orphan(table)
    assert [one.uri for one in find(table, duck).orphans] == [lost]


def _register(table: Table, path: str, size: int) -> None:
    """As another engine would have named the file in its manifest."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    file = DataFile.from_args(
        content=DataFileContent.DATA, file_path=path, file_format=FileFormat.PARQUET, partition=Record(), record_count=2,
        file_size_in_bytes=size,
    )  # fmt: skip
    file.spec_id = 0
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(file)


def test_young_files_are_kept_and_counted(table: Table, duck: duckdb.DuckDBPyConnection):
    orphan(table)
    planned = find(table, duck, now=datetime.now(UTC))
    assert (planned.orphans, planned.young) == ((), 1)
    with pytest.raises(InputError, match="may belong to a running write; ask for force"):
        find(table, duck, older_than=timedelta(hours=1))
    assert find(table, duck, now=datetime.now(UTC), older_than=timedelta(0), force=True).orphans


def test_a_large_share_of_orphans_is_refused(table: Table, duck: duckdb.DuckDBPyConnection):
    lost = [orphan(table, f"data/lost-{number}.parquet") for number in range(30)]
    planned = find(table, duck)
    assert "look orphaned, more than 50%" in planned.refused
    with pytest.raises(InputError, match="Nothing was removed"):
        orphans.remove(lambda: table, planned, duck)
    assert all(Path(path).exists() for path in lost)
    assert find(table, duck, max_share=0.9).refused == ""


def test_another_tables_files_and_protected_folders_are_never_entered(table: Table, duck: duckdb.DuckDBPyConnection):
    kept = [orphan(table, "nested/data/theirs.parquet"), orphan(table, "wal/0001.log")]
    lost = orphan(table)
    planned = find(
        table, duck, other_locations=[f"file://{table.location()}/nested/"], protected=[f"file:{table.location()}/wal"]
    )
    assert [one.uri for one in planned.orphans] == [lost]
    assert all(Path(path).exists() for path in kept)


@pytest.mark.parametrize("outer", ["", "/..", "/../.."])
def test_a_table_within_anothers_location_or_a_protected_folder_is_refused(
    table: Table, duck: duckdb.DuckDBPyConnection, outer: str
):
    folder = os.path.normpath(table.location() + outer)
    with pytest.raises(InputError, match="another table"):
        find(table, duck, other_locations=[f"file:{folder}"])
    with pytest.raises(InputError, match="protected"):
        find(table, duck, protected=[folder])


def test_a_neighbour_whose_name_begins_alike_is_no_obstacle(table: Table, duck: duckdb.DuckDBPyConnection):
    orphan(table)
    assert len(find(table, duck, other_locations=[f"{table.location()}2", f"{table.location()}/data2"]).orphans) == 1


def test_links_are_not_followed(table: Table, duck: duckdb.DuckDBPyConnection, tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious.parquet").write_bytes(b"x")
    (Path(table.location()) / "link").symlink_to(tmp_path / "elsewhere")
    (Path(table.location()) / "link.parquet").symlink_to(tmp_path / "elsewhere" / "precious.parquet")
    assert find(table, duck).orphans == ()


def test_a_lake_reached_through_a_link_keeps_its_files(table: Table, duck: duckdb.DuckDBPyConnection, tmp_path: Path):
    import pyarrow.parquet as pq

    other = tmp_path / "other way"
    other.symlink_to(table.location())
    pq.write_table(ROWS, other / "data" / "given.parquet")
    _register(table, f"{other}/data/given.parquet", 100)
    assert find(table, duck).orphans == ()


def test_a_name_that_differs_in_host_alone_is_not_guessed_about(table: Table, duck: duckdb.DuckDBPyConnection):
    _register(table, f"file://elsewhere{orphan(table)}", 4)
    with pytest.raises(InputError, match="whether these are the same file cannot be told"):
        find(table, duck)


def test_quarantine_keeps_what_was_removed(table: Table, duck: duckdb.DuckDBPyConnection, tmp_path: Path):
    lost = orphan(table, "data/day=1/lost.parquet")
    removed = orphans.remove(
        lambda: table, find(table, duck), duck, quarantine=f"file://{tmp_path}/quarantine", now=LATER
    )
    assert not Path(lost).exists()
    kept = tmp_path / "quarantine" / "default.t" / f"{LATER:%Y%m%dT%H%M%SZ}" / "data" / "day=1" / "lost.parquet"
    assert kept.read_bytes() == b"lost"
    assert removed.quarantine == str(kept.parents[2])
    with pytest.raises(InputError, match="inside the table's own location"):
        orphans.remove(lambda: table, find(table, duck), duck, quarantine=f"{table.location()}/quarantine")


def test_a_file_named_since_the_plan_is_spared(table: Table, duck: duckdb.DuckDBPyConnection):
    lost, found = orphan(table), orphan(table, "data/found.parquet")
    planned = find(table, duck)
    _register(table, found, 4)
    removed = orphans.remove(lambda: load_table(table.catalog, "t"), planned, duck)
    assert (removed.files, removed.spared) == (1, (found,))
    assert Path(found).exists()
    assert not Path(lost).exists()


def test_a_file_that_someone_else_removed_is_no_failure(table: Table, duck: duckdb.DuckDBPyConnection):
    Path(orphan(table)).rename(Path(orphan(table, "data/other.parquet")))
    planned = find(table, duck)
    Path(planned.orphans[0].uri).unlink()
    assert orphans.remove(lambda: table, planned, duck).failed == ()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("/x/y", "/x/y"), ("file:/x/y", "/x/y"), ("file:///x/y", "/x/y"), ("file://localhost/x/y", "/x/y"),
        ("//x//y/", "/x/y"), ("file:////x/y", "/x/y"), ("/x/../y", "/y"), ("s3a://b/k", "s3://b/k"), ("s3n://b/k", "s3://b/k"),
        ("s3://b/k//z", "s3://b/k//z"), ("file://host/x", "file://host/x"), ("/a%20b/c=%2F", "/a%20b/c=%2F"),
    ],
)  # fmt: skip
def test_one_spelling_for_every_address(address: str, expected: str):
    assert canonical(address) == expected
    assert canonical(canonical(address)) == expected


def test_a_folder_holds_what_lies_below_it_and_nothing_else():
    assert is_within("/a/b", "/a/b")
    assert is_within("/a/b/c", "/a/b/")
    assert not is_within("/a/bc", "/a/b")
    assert not is_within("/a", "/a/b")
