"""The real services, each started on the loopback address with its data in a folder of its own. Close what you open."""

import os
import shutil
import signal
import subprocess
import tempfile
import urllib.request
from pathlib import Path

import pyspark

from iceberg_manager.java import find_java
from tests.services import programs
from tests.services.processes import Process, answers, free_port

_NOBODY = 65534
PASSWORD = "canary-Pg-4b1d"
S3_KEY, S3_SECRET = "canarykey7f3a", "canary-S3-9c2e77"
CONNECT_TOKEN = "canary-token-51ab"


class Postgres:
    """PostgreSQL with a password, on TCP only. ``stop`` and ``start`` keep its data, so it can fail over to itself."""

    def __init__(self) -> None:
        self._bin = programs.postgres()
        # It refuses to run as root, so its files may have to belong to somebody else.
        self._user = _NOBODY if os.geteuid() == 0 else None
        self.folder = Path(tempfile.mkdtemp(prefix="iceberg-postgres-"))
        self.port = free_port()
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self._user is not None:
            for path in (self.folder, secret):
                os.chown(path, self._user, self._user)
        data = self.folder / "data"
        made = subprocess.run(
            [self._bin / "initdb", "-D", data, "-U", "lake", "-A", "scram-sha-256", f"--pwfile={secret}", "-E", "UTF8"],
            user=self._user, group=self._user, capture_output=True, text=True, cwd=self.folder, check=False,
        )  # fmt: skip
        if made.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise programs.MissingError(f"PostgreSQL: initdb failed: {made.stderr.strip()[-300:]}")
        self.start()

    def start(self) -> None:
        options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-p", str(self.port)]
        command = [self._bin / "postgres", "-D", self.folder / "data", *options, "-c", "max_connections=200"]
        log = self.folder / "server.log"
        self.process = Process(command, log, user=self._user, cwd=self.folder)
        self.process.wait_for(self._ready)

    def _ready(self) -> bool:
        asked = [self._bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(asked, check=False).returncode == 0

    def database(self, name: str) -> str:
        """A new, empty database; its address."""
        import psycopg2

        connection = psycopg2.connect(
            host="127.0.0.1", port=self.port, user="lake", password=PASSWORD, dbname="postgres"
        )
        try:
            connection.autocommit = True
            connection.cursor().execute(f'CREATE DATABASE "{name}"')
        finally:
            connection.close()
        return f"postgresql://lake:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def stop(self) -> None:
        self.process.stop(signal.SIGINT)  # "fast": open transactions are rolled back

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Minio:
    """S3, with one bucket per lake."""

    def __init__(self) -> None:
        program = programs.minio()
        self.folder = Path(tempfile.mkdtemp(prefix="iceberg-minio-"))
        self.port = free_port()
        address = f"127.0.0.1:{self.port}"
        self.endpoint = f"http://{address}"
        command = [program, "server", "--quiet", "--address", address, "--console-address", "127.0.0.1:0"]
        keys = {"MINIO_ROOT_USER": S3_KEY, "MINIO_ROOT_PASSWORD": S3_SECRET, "MINIO_UPDATE": "off"}
        self.process = Process([*command, self.folder / "data"], self.folder / "server.log", keys)
        self.process.wait_for(self._ready)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.endpoint}/minio/health/ready", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False

    def bucket(self, name: str) -> str:
        from pyarrow.fs import S3FileSystem

        S3FileSystem(
            access_key=S3_KEY, secret_key=S3_SECRET, endpoint_override=self.endpoint, region="us-east-1",
            allow_bucket_creation=True,
        ).create_dir(name)  # fmt: skip
        return name

    def close(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class RestCatalog:
    """Apache's REST catalog over a SQLite file, writing metadata to one warehouse."""

    def __init__(self, warehouse: str, minio: Minio) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="iceberg-rest-"))
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        environment = {
            "CATALOG_REST_PORT": str(self.port),
            "CATALOG_WAREHOUSE": warehouse,
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/catalog.db",
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_JDBC_SCHEMA__VERSION": "V1",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": minio.endpoint,
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": S3_KEY,
            "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        }
        java = find_java() / "bin" / "java"
        command = [java, "-Xmx512m", "-cp", programs.rest_jar(), "org.apache.iceberg.rest.RESTCatalogServer"]
        self.process = Process(command, self.folder / "server.log", environment)
        self.process.wait_for(lambda: answers(self.port))

    def close(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class SparkCluster:
    """A standalone cluster: one master and two workers of one core each."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="iceberg-spark-"))
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self._processes = [self._start("master.Master", "--port", str(self.port), "--webui-port", "0")]
        self._processes[0].wait_for(lambda: answers(self.port))
        self.workers = [self.add_worker() for _ in range(2)]

    def add_worker(self) -> Process:
        options = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(self.folder / "work")]
        worker = self._start("worker.Worker", *options, self.master)
        worker.wait_for(lambda: "Successfully registered with master" in worker.log.read_text(errors="replace"))
        self._processes.append(worker)
        return worker

    def _start(self, what: str, *options: str) -> Process:
        command = [_spark_home() / "bin" / "spark-class", f"org.apache.spark.deploy.{what}", "--host", "127.0.0.1"]
        log = self.folder / f"{what}-{free_port()}.log"
        return Process([*command, *options], log, _spark_environment() | {"SPARK_DAEMON_MEMORY": "512m"})

    def close(self) -> None:
        for process in reversed(self._processes):
            process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class ConnectServer:
    """A Spark Connect server that somebody else runs: with a token, and with no knowledge of any lake."""

    def __init__(self, conf: dict[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="iceberg-connect-"))
        self.port, self._conf = free_port(), conf
        self.url = f"sc://localhost:{self.port}/;token={CONNECT_TOKEN}"
        self.start()

    def start(self) -> None:
        own = {"spark.connect.grpc.binding.port": str(self.port), "spark.connect.grpc.binding.address": "127.0.0.1"}
        flags = [part for key, value in (self._conf | own).items() for part in ("--conf", f"{key}={value}")]
        server = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", *flags, "spark-internal"]
        command = [_spark_home() / "bin" / "spark-submit", "--master", "local[2]", *server]
        environment = _spark_environment() | {"SPARK_CONNECT_AUTHENTICATE_TOKEN": CONNECT_TOKEN}
        self.process = Process(command, self.folder / "server.log", environment, cwd=self.folder)
        self.process.wait_for(lambda: answers(self.port), seconds=240)

    def close(self) -> None:
        self.process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _spark_home() -> Path:
    return Path(pyspark.__file__).parent


def _spark_environment() -> dict[str, str]:
    java = str(find_java())
    return {"JAVA_HOME": java, "SPARK_HOME": str(_spark_home()), "SPARK_LOCAL_IP": "127.0.0.1"}
