"""A clock that steps back must not make the table unreadable for Java, which PyIceberg alone would not notice."""

import time
from types import SimpleNamespace

import pytest

from iceberg_ingest.wal import Wal
from iceberg_manager import metadata_commit, staging
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings
from tests.iceberg_ingest.test_writer import drain, send


@pytest.mark.spark
def test_java_loads_a_table_that_was_written_with_a_clock_two_hours_back(
    settings: LakeSettings, session: LakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata_commit.forget()
    with Wal(settings.wal_folder) as wal:
        send(wal, 0)
        drain(settings)
        monkeypatch.setattr(staging, "time", SimpleNamespace(time=lambda: time.time() - 7200))
        send(wal, 10)
        drain(settings)
    name = f"{settings.catalog.name}.acme.events"
    assert session.spark.sql(f"select count(*) from {name}").collect()[0][0] == 20
