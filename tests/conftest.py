"""Real parts for every test: a lake in a temporary folder, and one warm Spark server that all of them share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from iceberg_manager import spark_server
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings, SparkSettings


@pytest.fixture(scope="session")
def server_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the tests' shared Spark server, which ends with the tests."""
    folder = tmp_path_factory.mktemp("spark")
    yield folder
    spark_server.stop(folder, force=True)


@pytest.fixture
def settings(tmp_path: Path, server_dir: Path) -> LakeSettings:
    """A fresh lake."""
    return LakeSettings(root=tmp_path / "lake", spark=SparkSettings(server_dir=server_dir, memory="1g"))


@pytest.fixture
def session(settings: LakeSettings) -> Iterator[LakeSession]:
    """A Spark session on the fresh lake."""
    with LakeSession(settings) as session:
        yield session
