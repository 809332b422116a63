"""Spark's settings follow from the lake's, and a Spark that cannot be reached is one sentence, soon."""

import gc
import os
import time
from pathlib import Path
from typing import Any

import pytest

from iceberg_manager import session as module
from iceberg_manager.errors import SetupError, UnavailableError
from iceberg_manager.session import LakeSession, launch, server_conf, session_conf
from iceberg_manager.settings import CatalogSettings, LakeSettings, S3Settings, SparkSettings

SECRET = "hunter2"


def _catalog(lake: LakeSettings) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{lake.catalog.name}."
    return {key.removeprefix(prefix): value for key, value in session_conf(lake).items() if key.startswith(prefix)}


def test_a_sqlite_lake_waits_for_other_writers_and_caches_nothing(tmp_path: Path):
    assert _catalog(LakeSettings(root=tmp_path)) == {
        "type": "jdbc",
        "jdbc.schema-version": "V1",
        "uri": f"jdbc:sqlite:{tmp_path}/catalog.db?journal_mode=WAL&busy_timeout=30000",
        "warehouse": f"{tmp_path}/warehouse",
        "cache-enabled": "false",
    }


def test_a_session_is_the_lakes_own_and_in_utc():
    conf = session_conf(LakeSettings(catalog=CatalogSettings(name="shop")))
    assert conf["spark.sql.catalog.shop"] == "org.apache.iceberg.spark.SparkCatalog"
    assert conf["spark.sql.defaultCatalog"] == "shop"
    assert conf["spark.sql.session.timeZone"] == "UTC"


def test_a_postgres_lake_gives_java_the_password_as_it_is():
    uri = "postgresql://m%65:p%40ss@host:5433/db?sslmode=require"
    conf = _catalog(LakeSettings(catalog=CatalogSettings(type="postgres", uri=uri)))
    assert conf["uri"] == "jdbc:postgresql://host:5433/db?sslmode=require"
    assert (conf["jdbc.user"], conf["jdbc.password"]) == ("me", "p@ss")
    bare = _catalog(LakeSettings(catalog=CatalogSettings(type="postgres", uri="postgresql://host/db")))
    assert "jdbc.user" not in bare
    assert "jdbc.password" not in bare


def test_a_rest_lake_passes_its_credentials_on():
    rest = CatalogSettings(type="rest", uri="http://h", token="t", credential="a:b", warehouse="w")
    conf = _catalog(LakeSettings(catalog=rest))
    assert conf == {
        "type": "rest", "uri": "http://h", "token": "t", "credential": "a:b", "warehouse": "w", "cache-enabled": "false",
    }  # fmt: skip


def test_an_object_store_is_reached_by_icebergs_own_client():
    keys = S3Settings(endpoint="http://h:9", region="eu", access_key_id="k", secret_access_key="s", path_style=True)
    conf = _catalog(LakeSettings(warehouse="s3://b/w", s3=keys))
    assert conf["warehouse"] == "s3://b/w"
    assert conf["io-impl"] == "org.apache.iceberg.aws.s3.S3FileIO"
    assert (conf["s3.endpoint"], conf["client.region"], conf["s3.path-style-access"]) == ("http://h:9", "eu", "true")
    assert (conf["s3.access-key-id"], conf["s3.secret-access-key"]) == ("k", "s")


def test_a_local_server_is_closed_to_the_network_quiet_and_as_the_user_says():
    conf = server_conf(
        LakeSettings(spark=SparkSettings(cores=3, memory="5g", conf={"a": 1, "spark.log.level": "INFO"}))
    )
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert (conf["spark.sql.shuffle.partitions"], conf["spark.driver.memory"]) == ("3", "5g")
    assert (conf["a"], conf["spark.log.level"], conf["spark.ui.enabled"]) == ("1", "INFO", "false")
    assert server_conf(LakeSettings())["spark.log.level"] == "WARN"
    cluster = SparkSettings(mode="remote", remote="spark://master:7077")
    assert "spark.driver.host" not in server_conf(LakeSettings(spark=cluster))


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True), ({"idle_minutes": 1}, True), ({"memory": "3g"}, False), ({"cores": 1}, False), ({"ui": True}, False),
        ({"conf": {"a": "b"}}, False),
    ],
)  # fmt: skip
def test_the_fingerprint_changes_with_what_the_server_is_started_with(change: dict[str, Any], same: bool):
    first = launch(LakeSettings(root=Path("/one"))).fingerprint
    assert (launch(LakeSettings(root=Path("/two"), spark=SparkSettings(**change))).fingerprint == first) is same


@pytest.mark.parametrize("address", ["sc://127.0.0.1:1", "sc://127.0.0.1:port", "sc://no.such.host.invalid"])
def test_a_remote_spark_that_is_not_there_is_one_sentence_soon(tmp_path: Path, address: str):
    remote = SparkSettings(mode="remote", remote=f"{address}/;token={SECRET}")
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=f"Spark at {address}/ did not answer: .*Check `spark`") as error:
        _ = LakeSession(LakeSettings(root=tmp_path, spark=remote)).spark
    assert time.monotonic() - started < 5
    assert SECRET not in str(error.value)


@pytest.mark.parametrize("mode", ["shared", "embedded"])
def test_without_java_a_session_says_what_to_install(tmp_path: Path, mode: Any, monkeypatch: pytest.MonkeyPatch):
    def none() -> Path:
        raise SetupError("Spark needs Java 17 or newer")

    monkeypatch.setattr(module, "find_java", none)
    with pytest.raises(SetupError, match="needs Java"):
        _ = LakeSession(LakeSettings(root=tmp_path, spark=SparkSettings(mode=mode))).spark


@pytest.mark.spark
def test_a_new_lake_works_from_spark_alone(session: LakeSession, settings: LakeSettings):
    assert not settings.root.exists()
    session.spark.sql("CREATE TABLE default.t USING iceberg AS SELECT 1 AS id").collect()
    assert session.spark.table("default.t").collect()[0].id == 1
    assert session.spark.conf.get("spark.sql.session.timeZone") == "UTC"
    session.close()
    assert session.spark.table("default.t").count() == 1, "a closed session opens again"


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # PySpark leaves the launcher's pipe open
def test_an_embedded_spark_that_does_not_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))  # put back afterwards
    monkeypatch.setattr(module, "find_java", lambda: tmp_path / "no-java")
    lake = LakeSettings(root=tmp_path, spark=SparkSettings(mode="embedded"))
    with pytest.raises(UnavailableError, match=r"Spark on local\[\*\] did not start: .*Check `spark` in lake.yaml"):
        _ = LakeSession(lake).spark
    gc.collect()
