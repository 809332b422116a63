"""Opens Spark sessions on the lake, in any of the three modes. The only place that names a Spark setting.

What a server is started with (`server_conf`) is apart from what a session sets for itself (`session_conf`), so that one
warm server can serve several lakes. Sessions are in UTC, do not cache tables (other engines write too), and show no UI
unless asked.
"""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from iceberg_manager import jars, spark_server
from iceberg_manager.catalog import BUSY_SECONDS, CONNECT_SECONDS, login
from iceberg_manager.errors import UnavailableError, first_line
from iceberg_manager.java import find_java
from iceberg_manager.settings import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql.connect.client import SparkConnectClient

_CONNECT_PORT = 15002
_LOCAL_RETRIES = 4
_EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


class LakeSession:
    """A Spark session on one lake. Reopens by itself when the shared server was replaced; close it when done."""

    def __init__(self, settings: LakeSettings) -> None:
        self.settings = settings
        self._spark: SparkSession | None = None
        self._lease: spark_server.Lease | None = None

    @property
    def spark(self) -> SparkSession:
        if self._lease and not self._lease.alive():
            self.close()
        if self._spark is None:
            self._spark = self._open()
        return self._spark

    def close(self) -> None:
        """Lets go of the session; a shared server goes on for others until it is idle."""
        spark, lease, self._spark, self._lease = self._spark, self._lease, None, None
        if spark is not None and (lease is None or lease.alive()):
            spark.stop()
        elif spark is not None:
            _abandon(spark)
        if lease:
            lease.release()

    def __enter__(self) -> "LakeSession":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _open(self) -> SparkSession:
        spark = self.settings.spark
        remote = spark.remote.get_secret_value() if spark.remote else ""
        if self.settings.catalog.type == "sqlite":
            self.settings.root.mkdir(parents=True, exist_ok=True)  # SQLite makes its file, but not the folder
        if spark.mode == "shared":
            self._lease = spark_server.acquire(self.settings.spark_server_dir, launch(self.settings))
            spark_session = self._connect(self._lease.url)
            _give_up_soon(spark_session)
            return spark_session
        if remote.startswith("sc://"):
            return self._connect(remote, _own_conf(self.settings))
        return self._classic(remote or local_master(self.settings))

    def _connect(self, url: str, own: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
        """``own`` is what the user asks of a server that we do not start."""
        session: SparkSession | None = None
        try:
            _require_answer(url)
            session = SparkSession.builder.remote(url).create()
            for key, value in (session_conf(self.settings) | dict(own)).items():
                session.conf.set(key, value)
        except (PySparkException, OSError, ValueError) as error:
            if session:
                _abandon(session)
            self.close()
            shown = url.partition(";")[0]
            raise UnavailableError(
                f"Spark at {shown} did not answer: {first_line(error)}. Check `spark` in lake.yaml and that it runs."
            ) from error
        return session

    def _classic(self, master: str) -> SparkSession:
        os.environ["JAVA_HOME"] = str(find_java())
        os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)  # left by an earlier Connect session of this process
        builder = SparkSession.builder.master(master).appName("iceberg-assets")
        conf = server_conf(self.settings) | jar_conf(self.settings, local=master.startswith("local"))
        for key, value in (conf | session_conf(self.settings)).items():
            builder = builder.config(key, value)
        try:
            session: SparkSession = builder.getOrCreate()
        except (PySparkException, Py4JError, OSError) as error:
            raise UnavailableError(
                f"Spark on {master} did not start: {first_line(error)}. Check `spark` in lake.yaml."
            ) from error
        return session


def _abandon(spark: SparkSession) -> None:
    """Let go of a client whose server is gone, or refused it: PySpark would ask it again for minutes, even at exit."""
    _client(spark)._channel.close()
    spark.release_session_on_close = False  # type: ignore[attr-defined]
    spark.stop()


def _give_up_soon(spark: SparkSession) -> None:
    """A local server that died is gone: by default a client waits ten minutes for it, here some seconds."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    _client(spark).set_retry_policies([DefaultPolicy(max_retries=_LOCAL_RETRIES)])


def _client(spark: SparkSession) -> "SparkConnectClient":
    return cast("SparkConnectClient", spark.client)  # type: ignore[operator]


def _require_answer(url: str) -> None:
    """Spark's client tries an address where nobody listens for ten minutes; a look at its port costs nothing."""
    place = urlsplit(url)
    socket.create_connection((place.hostname or "", place.port or _CONNECT_PORT), timeout=CONNECT_SECONDS).close()


def local_master(settings: LakeSettings) -> str:
    return f"local[{settings.spark.cores}]"


def session_conf(settings: LakeSettings) -> dict[str, str]:
    """What makes a session this lake's: its catalog under its name, UTC, and no cached tables."""
    name = settings.catalog.name
    own = {f"spark.sql.catalog.{name}.{key}": value for key, value in _catalog_conf(settings).items()}
    return {
        f"spark.sql.catalog.{name}": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.defaultCatalog": name,
        "spark.sql.session.timeZone": "UTC",
        **own,
    }


def server_conf(settings: LakeSettings) -> dict[str, str]:
    """What a JVM has to be started with. Small local work is not cut into 200 pieces."""
    cores = (os.cpu_count() or 2) if settings.spark.cores == "*" else settings.spark.cores
    local = (
        {}
        if settings.spark.mode == "remote"
        else {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(cores),
        }
    )
    return {
        **local,
        "spark.driver.memory": settings.spark.memory,
        "spark.sql.extensions": _EXTENSIONS,
        "spark.log.level": "WARN",
        "spark.ui.enabled": str(settings.spark.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **_own_conf(settings),
    }


def _own_conf(settings: LakeSettings) -> dict[str, str]:
    return {key: value.get_secret_value() for key, value in settings.spark.conf.items()}


def jar_conf(settings: LakeSettings, local: bool = True) -> dict[str, str]:
    """The cached files when they are there, else the names to resolve."""
    wanted = jars.coordinates(settings)
    files = jars.cached(wanted)
    if files is None:
        return {"spark.jars.packages": ",".join(wanted)}
    if local:
        return {"spark.driver.extraClassPath": os.pathsep.join(map(str, files))}
    return {"spark.jars": ",".join(map(str, files))}


def launch(settings: LakeSettings) -> spark_server.Launch:
    """How the shared server is started, and the fingerprint by which a change of that is noticed."""
    conf = server_conf(settings)
    identity = {
        "conf": conf,
        "jars": jars.coordinates(settings),
        "cores": settings.spark.cores,
        "python": sys.executable,
    }
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    return spark_server.Launch(
        master=local_master(settings),
        conf=conf | jar_conf(settings),
        fingerprint=fingerprint,
        java_home=str(find_java()),
        idle_seconds=settings.spark.idle_minutes * 60,
    )


def _catalog_conf(settings: LakeSettings) -> dict[str, str]:
    catalog = settings.catalog
    conf = {"warehouse": settings.warehouse_location, "cache-enabled": "false"}
    if catalog.type == "rest":
        assert catalog.uri is not None
        conf |= {"type": "rest", "uri": catalog.uri.get_secret_value()}
        conf |= {"warehouse": catalog.warehouse or settings.warehouse_location}
        conf |= {"token": catalog.token.get_secret_value()} if catalog.token else {}
        conf |= {"credential": catalog.credential.get_secret_value()} if catalog.credential else {}
    else:
        conf |= {"type": "jdbc", "jdbc.schema-version": "V1", **_jdbc(settings)}
    return conf | _s3_conf(settings)


def _jdbc(settings: LakeSettings) -> dict[str, str]:
    if settings.catalog.type == "sqlite":
        options = f"journal_mode=WAL&busy_timeout={BUSY_SECONDS * 1000}"
        return {"uri": f"jdbc:sqlite:{settings.catalog_file}?{options}"}
    assert settings.catalog.uri is not None
    user, password, place = login(settings.catalog.uri.get_secret_value())
    return {"uri": f"jdbc:postgresql://{place}"} | {
        key: value for key, value in (("jdbc.user", user), ("jdbc.password", password)) if value
    }


def _s3_conf(settings: LakeSettings) -> dict[str, str]:
    if not settings.on_s3:
        return {}
    conf = {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    s3 = settings.s3
    if not s3:
        return conf
    conf |= {"client.region": s3.region, "s3.path-style-access": str(s3.path_style).lower()}
    if s3.endpoint:
        conf["s3.endpoint"] = s3.endpoint
    if s3.access_key_id and s3.secret_access_key:
        conf["s3.access-key-id"] = s3.access_key_id.get_secret_value()
        conf["s3.secret-access-key"] = s3.secret_access_key.get_secret_value()
    return conf
