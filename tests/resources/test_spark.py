"""Spark in each of its modes, and the resource that hands it to assets."""

import os
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster_pyspark import LazyPySparkResource

from iceberg_manager import spark_server
from iceberg_manager.session import launch
from iceberg_manager.settings import load_settings
from resources import LakeResource, SparkResource

pytestmark = pytest.mark.spark

PROBE = """
import sys
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import load_settings
settings = load_settings(sys.argv[1])
catalog = open_catalog(settings)
with LakeSession(settings) as session:
    session.spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.demo").collect()
    session.spark.sql("CREATE TABLE lake.demo.t USING iceberg AS SELECT 1 AS id, current_timezone() AS zone").collect()
    print(session.spark.table("lake.demo.t").collect()[0].asDict(), session.spark.conf.get("spark.ui.enabled"))
print(len(load_table(catalog, "demo.t").scan().to_arrow()))
"""


def probe(folder: Path, spark: dict[str, object]) -> list[str]:
    (folder / "lake.yaml").write_text(yaml.safe_dump({"root": "lake", "spark": spark}))
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    command = [sys.executable, "-c", PROBE, str(folder / "lake.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("spark", [{"mode": "embedded"}, {"mode": "remote", "remote": "local[1]"}])
def test_a_session_in_the_process_writes_to_the_same_catalog_in_utc(tmp_path: Path, spark: dict[str, object]) -> None:
    assert probe(tmp_path, spark | {"memory": "1g"}) == ["{'id': 1, 'zone': 'UTC'} false", "1"]


def test_a_connect_server_that_someone_else_runs_serves_this_lake(tmp_path: Path, server_dir: Path) -> None:
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({"spark": {"server_dir": str(server_dir), "memory": "1g"}}))
    other = load_settings(tmp_path / "other.yaml")
    lease = spark_server.acquire(server_dir, launch(other))
    try:
        assert probe(tmp_path, {"mode": "remote", "remote": lease.url}) == ["{'id': 1, 'zone': 'UTC'} false", "1"]
    finally:
        lease.release()


def test_the_resource_is_dagster_pysparks_lazy_one_and_opens_nothing_before_it_is_used(
    tmp_path: Path, server_dir: Path
) -> None:
    (tmp_path / "lake.yaml").write_text(yaml.safe_dump({"spark": {"server_dir": str(server_dir), "memory": "1g"}}))
    lake = LakeResource(path=str(tmp_path / "lake.yaml"))
    assert issubclass(SparkResource, LazyPySparkResource)

    @dg.asset
    def untouched(spark: SparkResource) -> None: ...

    @dg.asset
    def used(spark: SparkResource) -> None:
        assert spark.spark_session.range(3).count() == 3
        assert spark.spark_session.conf.get("spark.sql.ansi.enabled") == "false"

    resources = {"spark": SparkResource(lake=lake, spark_config={"spark.sql.ansi.enabled": "false"})}
    assert dg.materialize([untouched], resources=resources).success
    assert not (tmp_path / "data").exists()
    assert dg.materialize([used], resources=resources).success
