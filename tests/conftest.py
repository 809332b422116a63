"""Real parts for every test: a lake in a temporary folder, and one warm Spark server that all processes of a run share."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from iceberg_manager import spark_server
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings, SparkSettings

_SERVER = "ICEBERG_TESTS_SERVER"


def pytest_configure(config: pytest.Config) -> None:
    """The process that hands out the tests chooses the server's folder; those that run them inherit it."""
    if not hasattr(config, "workerinput"):
        os.environ[_SERVER] = tempfile.mkdtemp(prefix="iceberg-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        folder = Path(os.environ.pop(_SERVER))
        spark_server.stop(folder, force=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server_dir() -> Path:
    """The folder of the tests' shared Spark server, which ends with the tests."""
    return Path(os.environ[_SERVER])


@pytest.fixture
def settings(tmp_path: Path, server_dir: Path) -> LakeSettings:
    """A fresh lake."""
    return LakeSettings(root=tmp_path / "lake", spark=SparkSettings(server_dir=server_dir, memory="1g"))


@pytest.fixture
def session(settings: LakeSettings) -> Iterator[LakeSession]:
    """A Spark session on the fresh lake."""
    with LakeSession(settings) as session:
        yield session
