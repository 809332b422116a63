"""Starts each service once, when the first test asks for it, and ends it with the tests. A missing tool is a skip."""

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from iceberg_manager.session import jar_conf, server_conf
from iceberg_manager.settings import CatalogSettings, LakeSettings, S3Settings, SparkSettings
from tests.services import servers
from tests.services.programs import MissingError

LAKES = ("sqlite+local", "postgres+local", "postgres+s3", "rest+s3")
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.services)


def _opened(start: Callable[[], Any]) -> Any:
    try:
        return closing(start())
    except MissingError as missing:
        pytest.skip(f"missing: {missing}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[servers.Postgres]:
    with _opened(servers.Postgres) as server:
        yield server


@pytest.fixture(scope="session")
def minio() -> Iterator[servers.Minio]:
    with _opened(servers.Minio) as server:
        yield server


@pytest.fixture(scope="session")
def rest(minio: servers.Minio) -> Iterator[servers.RestCatalog]:
    if os.environ.get("SERVICES_REST") != "1":
        pytest.skip("Apache's REST server listens on every address of the machine; SERVICES_REST=1 allows it")
    warehouse = f"s3://{minio.bucket('rest')}/warehouse"
    with _opened(lambda: servers.RestCatalog(warehouse, minio)) as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[servers.SparkCluster]:
    with _opened(servers.SparkCluster) as server:
        yield server


@pytest.fixture(scope="session")
def connect_server() -> Iterator[servers.ConnectServer]:
    """Started with the jars of every kind of lake; which lake it works on, each session says for itself."""
    s3 = LakeSettings(
        warehouse="s3://any/warehouse", catalog=CatalogSettings(type="postgres", uri="postgresql://any/any"),
        spark=SparkSettings(memory="1g"),
    )  # fmt: skip
    with _opened(lambda: servers.ConnectServer(server_conf(s3) | jar_conf(s3))) as server:
        yield server


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path, server_dir: Path) -> LakeSettings:
    """A fresh lake of the kind that the test's parameter names."""
    return make_lake(request, request.param, tmp_path, SparkSettings(server_dir=server_dir, memory="1g"))


def make_lake(request: pytest.FixtureRequest, kind: str, folder: Path, spark: SparkSettings) -> LakeSettings:
    number = next(_numbers)
    content: dict[str, Any] = {"root": folder / "lake", "spark": spark}
    if kind.startswith("postgres"):
        uri = request.getfixturevalue("postgres").database(f"lake{number}")
        content["catalog"] = CatalogSettings(type="postgres", uri=uri)
    if kind.endswith("s3"):
        minio = request.getfixturevalue("minio")
        content["s3"] = S3Settings(
            endpoint=minio.endpoint, access_key_id=servers.S3_KEY, secret_access_key=servers.S3_SECRET, path_style=True
        )
        content["warehouse"] = f"s3://{minio.bucket(f'lake{number}')}/warehouse"
    if kind.startswith("rest"):
        content["catalog"] = CatalogSettings(type="rest", uri=request.getfixturevalue("rest").uri)
        content["warehouse"] = f"s3://rest/warehouse/lake{number}"
    return LakeSettings(**content)
