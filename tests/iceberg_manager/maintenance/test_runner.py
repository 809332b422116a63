"""Maintenance through real Spark: the layout changes, no row does, and all three engines agree."""

import threading

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from iceberg_manager import query
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.errors import NotFoundError
from iceberg_manager.history import data_version
from iceberg_manager.maintenance.runner import Runner, Size, compaction_options
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table

pytestmark = pytest.mark.spark
SCHEMA = {"id": "long", "name": "string"}


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


def fill(catalog: Catalog, settings: LakeSettings, files: int, **spec: object) -> None:
    ensure_table(catalog, settings, TableSpec("demo.t", schema=SCHEMA, **spec))  # type: ignore[arg-type]
    for number in range(files):
        ids = pa.array([number, number + 1000], pa.int64())
        load_table(catalog, "demo.t").append(pa.table({"id": ids, "name": pa.array(["b", "a"])}))


def everywhere(catalog: Catalog, settings: LakeSettings, session: LakeSession) -> list[list[tuple[int, str]]]:
    """The rows as Spark, PyIceberg and DuckDB see them."""
    table = load_table(catalog, "demo.t")
    with query.connect(settings) as duckdb:
        found = [
            [tuple(row) for row in session.spark.table("lake.demo.t").collect()],
            [tuple(row.values()) for row in table.scan().to_arrow().to_pylist()],
            duckdb.execute(f"SELECT * FROM {query.scan(table)}").fetchall(),
        ]
    return [sorted(rows) for rows in found]


def test_compaction_makes_few_files_of_many_and_changes_no_row(
    catalog: Catalog, settings: LakeSettings, session: LakeSession
) -> None:
    fill(catalog, settings, 12)
    before, version = everywhere(catalog, settings, session), data_version(load_table(catalog, "demo.t"))
    done = Runner(session.spark, catalog).compact("demo.t")
    assert (done.before.files, done.rewritten) == (12, 12)
    assert done.after.files == done.written < 3
    assert done.converged
    after = everywhere(catalog, settings, session)
    assert after == before
    assert after[0] == after[1] == after[2]
    assert data_version(load_table(catalog, "demo.t")) == version

    again = Runner(session.spark, catalog).compact("demo.t")
    assert (again.rewritten, again.written) == (0, 0)


def test_a_sort_orders_rows_by_the_columns_given(
    catalog: Catalog, settings: LakeSettings, session: LakeSession
) -> None:
    fill(catalog, settings, 6)
    Runner(session.spark, catalog).compact("demo.t", strategy="sort", columns=("name", "id"))
    names = [row["name"] for row in session.spark.table("lake.demo.t").collect()]
    assert names == sorted(names)


def test_delete_files_are_folded_in(catalog: Catalog, settings: LakeSettings, session: LakeSession) -> None:
    fill(catalog, settings, 2, properties={"write.delete.mode": "merge-on-read"})
    session.spark.sql("DELETE FROM lake.demo.t WHERE id = 0").collect()
    assert load_table(catalog, "demo.t").current_snapshot().summary["total-delete-files"] == "1"  # type: ignore[union-attr, index]
    before = everywhere(catalog, settings, session)
    done = Runner(session.spark, catalog).compact("demo.t")
    assert (done.before.delete_files, done.after.delete_files) == (1, 0)
    assert everywhere(catalog, settings, session) == before


def test_manifests_are_merged(catalog: Catalog, settings: LakeSettings, session: LakeSession) -> None:
    fill(catalog, settings, 8)
    before = everywhere(catalog, settings, session)
    done = Runner(session.spark, catalog).rewrite_manifests("demo.t")
    assert done.before.manifests == 8
    assert done.after.manifests == 1
    assert everywhere(catalog, settings, session) == before


def test_a_writer_is_never_failed_and_loses_no_row(
    catalog: Catalog, settings: LakeSettings, session: LakeSession
) -> None:
    fill(catalog, settings, 20)
    failed: list[Exception] = []

    def write() -> None:
        mine = open_catalog(settings)
        try:
            for number in range(5000, 5010):
                load_table(mine, "demo.t").append(pa.table({"id": pa.array([number], pa.int64()), "name": ["w"]}))
        except Exception as error:  # noqa: BLE001 (whatever it is, the test is about it)
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    Runner(session.spark, catalog).compact("demo.t")
    writer.join()
    assert not failed
    found = everywhere(catalog, settings, session)
    assert len(found[0]) == 50
    assert found[0] == found[1] == found[2]


def test_a_table_that_vanished_is_one_clear_error(catalog: Catalog, session: LakeSession) -> None:
    with pytest.raises(NotFoundError, match=r"no table 'demo\.gone'"):
        Runner(session.spark, catalog).compact("demo.gone")


def test_a_small_table_is_written_by_every_core_and_a_large_one_in_files_of_the_policy() -> None:
    small = compaction_options(Size(100, 200 * 2**20, 0, 0, 1, 1), MaintenancePolicy(target_file_mb=128), cores=2)
    assert small["target-file-size-bytes"] == str(100 * 2**20)
    large = compaction_options(Size(100, 2**40, 0, 0, 1, 1), MaintenancePolicy(target_file_mb=128), cores=2)
    assert large["target-file-size-bytes"] == str(128 * 2**20)
