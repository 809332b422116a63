"""Spark writes in every mode, on every kind of lake, in every mode of Spark that goes beyond one process."""

from pathlib import Path

import pytest

from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.commits import Stamp
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings, SparkSettings
from iceberg_manager.spark_writes import SparkWriter
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table
from tests.services.conftest import LAKES, make_lake

CLUSTER = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "2"}
MODES = {"append": 5, "overwrite": 2, "overwrite_partitions": 3, "merge": 4}


def _write_in_every_mode(settings: LakeSettings, namespace: str) -> None:
    """Rows 1, 2, 3, then 3 and 4; what is left depends on the mode, and a repeated commit id adds nothing."""
    catalog = open_catalog(settings)
    with LakeSession(settings) as session:
        for mode, left in MODES.items():
            key = ["id"] if mode == "merge" else []
            part = ["day"] if mode == "overwrite_partitions" else []
            spec = TableSpec(
                f"{namespace}.{mode}",
                schema={"id": "long", "day": "string"},
                key=key,
                partition_by=part,
                write_mode=mode,
            )
            ensure_table(catalog, settings, spec)
            writer = SparkWriter(session.spark, catalog, spec)
            for number, rows in enumerate(([(1, "a"), (2, "b"), (3, "b")], [(3, "b"), (4, "b")])):
                frame = session.spark.createDataFrame(rows, "id long, day string")
                done = writer.write(frame, Stamp(f"{mode}-{number}"))
                assert done.changed
                assert writer.write(frame, Stamp(f"{mode}-{number}")).replayed
            assert load_table(catalog, spec.name).scan().to_arrow().num_rows == left, mode


@pytest.mark.parametrize("lake", LAKES, indirect=True)
def test_the_shared_server_writes_in_every_mode(lake: LakeSettings) -> None:
    _write_in_every_mode(lake, "shared")


@pytest.mark.parametrize("kind", ["postgres+local", "postgres+s3", "rest+s3"])
def test_a_remote_connect_server_writes_in_every_mode(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = request.getfixturevalue("connect_server").url
    _write_in_every_mode(make_lake(request, kind, tmp_path, SparkSettings(mode="remote", remote=url)), "connect")


@pytest.mark.parametrize("kind", ["postgres+local", "postgres+s3"])
def test_a_cluster_writes_in_every_mode(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    master = request.getfixturevalue("cluster").master
    spark = SparkSettings(mode="remote", remote=master, memory="1g", conf=CLUSTER)
    _write_in_every_mode(make_lake(request, kind, tmp_path, spark), "cluster")
