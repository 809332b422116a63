"""A lake on one machine becomes a team's: from SQLite to Postgres, and from Postgres to REST where the files are on S3."""

from pathlib import Path

import pytest

from iceberg_manager import catalog_migration
from iceberg_manager.manager import IcebergManager
from iceberg_manager.settings import CatalogSettings, SparkSettings
from tests.services.conftest import make_lake


@pytest.mark.parametrize(("kind", "to"), [("sqlite+local", "postgres"), ("postgres+s3", "rest")])
def test_a_lake_moves_and_goes_on(request: pytest.FixtureRequest, tmp_path: Path, kind: str, to: str) -> None:
    settings = make_lake(request, kind, tmp_path, SparkSettings())
    old, name = IcebergManager(settings), f"moved_{to}.users"
    old.create_table(name, {"id": "long"})
    old.insert_data(name, [{"id": 1}])
    uri = request.getfixturevalue("rest").uri if to == "rest" else request.getfixturevalue("postgres").database("moved")
    new = IcebergManager(settings.model_copy(update={"catalog": CatalogSettings(type=to, uri=uri)}))
    assert [move.done for move in catalog_migration.migrate(old.catalog, new.catalog)] == [True]
    new.insert_data(name, [{"id": 2}])
    assert len(new.query_table(name).rows()) == 2
    assert len(old.query_table(name).rows()) == 1
