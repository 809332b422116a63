"""DuckDB reads exactly the snapshot that was asked for, in UTC, with nothing fetched from anywhere."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from iceberg_manager.catalog import open_catalog
from iceberg_manager.checks import evaluate, fresh, row_count, unique
from iceberg_manager.errors import NotFoundError
from iceberg_manager.query import connect, scan
from iceberg_manager.settings import LakeSettings, S3Settings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
SPEC = TableSpec("t", {"id": "long", "seen": "timestamptz", 'the "odd" one': "map<string, list<int>>"})


@pytest.fixture
def connection(settings: LakeSettings) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(settings) as connection:
        yield connection


@pytest.fixture
def table(settings: LakeSettings) -> Table:
    return ensure_table(open_catalog(settings), settings, SPEC)


def _append(table: Table, *ids: int) -> int:
    table.append(pa.table({"id": list(ids), "seen": pa.array([NOON] * len(ids), pa.timestamp("us", "UTC"))}))
    assert table.metadata.current_snapshot_id
    return table.metadata.current_snapshot_id


def _ids(connection: duckdb.DuckDBPyConnection, source: str) -> list[int]:
    return [row[0] for row in connection.execute(f"SELECT id FROM {source} ORDER BY id").fetchall()]


def test_the_newest_and_every_past_snapshot_can_be_read(connection: duckdb.DuckDBPyConnection, table: Table):
    first, second = _append(table, 1, 2), _append(table, 3)
    assert _ids(connection, scan(table)) == [1, 2, 3]
    assert _ids(connection, scan(table, second)) == [1, 2, 3]
    assert _ids(connection, scan(table, first)) == [1, 2]


def test_a_table_never_written_to_is_empty_and_has_its_columns(connection: duckdb.DuckDBPyConnection, table: Table):
    described = connection.execute(f"DESCRIBE SELECT * FROM {scan(table)}").fetchall()
    assert [(row[0], row[1]) for row in described] == [
        ("id", "BIGINT"), ("seen", "TIMESTAMP WITH TIME ZONE"), ('the "odd" one', "MAP(VARCHAR, INTEGER[])"),
    ]  # fmt: skip
    assert _ids(connection, scan(table)) == []
    rules = [unique("id"), unique("id", "seen"), row_count(0), fresh("seen", timedelta(days=1))]
    assert [outcome.passed for outcome in evaluate(connection, scan(table), rules)] == [True, True, True, False]


def test_a_snapshot_that_is_gone_is_an_error_that_names_others(table: Table):
    newest = _append(table, 1)
    with pytest.raises(NotFoundError, match=f"Snapshot 42 is not in default.t: .*{newest}"):
        scan(table, 42)


@pytest.mark.parametrize("folder", ["it's", 'a "b"', "per%20cent", "ünï"])
def test_a_lakes_folder_may_have_an_odd_name(tmp_path: Path, folder: str):
    lake = LakeSettings(root=tmp_path / folder)
    table = ensure_table(open_catalog(lake), lake, SPEC)
    first = _append(table, 7)
    with connect(lake) as connection:
        assert _ids(connection, scan(table)) == _ids(connection, scan(table, first)) == [7]


def test_times_are_in_utc_wherever_the_machine_is(settings: LakeSettings, table: Table):
    _append(table, 1)
    with duckdb.connect() as elsewhere:
        elsewhere.execute("SET TimeZone = 'America/New_York'")
        connection = connect(settings, elsewhere)
        for reader in (connection, connection.cursor()):
            told = reader.execute(f"SELECT seen::VARCHAR, hour(seen) FROM {scan(table)}").fetchone()
            assert told == ("2026-05-01 12:00:00+00", 12)


def test_nothing_is_installed_or_loaded_by_itself(connection: duckdb.DuckDBPyConnection):
    for statement in ("INSTALL spatial", "INSTALL h3 FROM community", "FORCE INSTALL httpfs", "LOAD spatial"):
        with pytest.raises(duckdb.Error, match="/dev/null"):
            connection.execute(statement)
    with pytest.raises(duckdb.Error, match=r"(?i)httpfs|spatial|extension"):
        connection.execute("SELECT * FROM 'https://127.0.0.1:1/x.parquet'")
    with pytest.raises(duckdb.Error):
        connection.execute("SELECT ST_Point(1, 2)")
    loaded = connection.execute("SELECT extension_name FROM duckdb_extensions() WHERE loaded").fetchall()
    assert {name for (name,) in loaded} == {"avro", "core_functions", "iceberg", "icu", "json", "parquet"}


def test_a_connection_of_ones_own_can_be_made_ready(settings: LakeSettings, table: Table):
    _append(table, 1)
    with duckdb.connect() as own:
        own.execute("CREATE TABLE mine AS SELECT 1 AS id")
        assert connect(settings, own) is own
        assert connect(settings, own) is own
        assert own.execute(f"SELECT count(*) FROM {scan(table)} JOIN mine USING (id)").fetchone() == (1,)


def test_the_object_stores_keys_become_a_secret_that_does_not_print():
    keys = S3Settings(
        endpoint="http://localhost:9000",
        region="eu",
        access_key_id="key's",
        secret_access_key="hunter2",
        path_style=True,
    )
    with connect(LakeSettings(warehouse="s3://bucket/w", s3=keys)) as connection:
        (shown,) = connection.execute("SELECT secret_string FROM duckdb_secrets() WHERE name = 'lake'").fetchone() or (
            "",
        )
    for part in ("endpoint=localhost:9000", "region=eu", "use_ssl=false", "url_style=path", "key_id=key's"):
        assert part in shown
    assert "hunter2" not in shown
