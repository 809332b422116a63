"""SQL reads the lake's tables by name and time, and nothing else."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from iceberg_manager import sql
from iceberg_manager.catalog import open_catalog
from iceberg_manager.errors import InputError, LakeError, NotFoundError
from iceberg_manager.settings import LakeSettings
from iceberg_manager.sql import SqlEngine

SCHEMA = Schema(NestedField(1, "id", LongType(), False), NestedField(2, "v", StringType(), False))
TABLES = ("default.users", "default.empty", "shop.orders", "a.b.deep", "main.users")


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    settings = LakeSettings(root=tmp_path_factory.mktemp("lake"))
    catalog = open_catalog(settings)
    for name in TABLES:
        *namespace, _ = name.split(".")
        for depth in range(1, len(namespace) + 1):
            catalog.create_namespace_if_not_exists(tuple(namespace[:depth]))
        location = f"{settings.warehouse_location}/{name.replace('.', '/')}"
        table = catalog.create_table(tuple(name.split(".")), SCHEMA, location=location)
        if name != "default.empty":
            table.append(pa.table({"id": [1, 2], "v": [name, name]}))
    table = catalog.load_table("default.users")
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "v1").commit()
    with table.update_schema() as update:
        update.rename_column("v", "w")
    table.append(pa.table({"id": [3], "w": ["new"]}))
    return settings


@pytest.fixture(scope="module")
def catalog(lake: LakeSettings) -> Catalog:
    return open_catalog(lake)


@pytest.fixture(scope="module")
def engine(lake: LakeSettings) -> Iterator[SqlEngine]:
    return SqlEngine(lake)


def first_snapshot(catalog: Catalog) -> int:
    return catalog.load_table("default.users").history()[0].snapshot_id


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT count(*) AS n FROM users", [{"n": 3}]),
        ("SELECT id FROM USERS WHERE w = 'new'", [{"id": 3}]),
        ('SELECT count(*) AS n FROM "default".users', [{"n": 3}]),
        ("SELECT shop.orders.id FROM shop.orders ORDER BY 1", [{"id": 1}, {"id": 2}]),
        ("SELECT DISTINCT v FROM a.b.deep", [{"v": "a.b.deep"}]),
        ('SELECT DISTINCT v FROM "a.b".deep', [{"v": "a.b.deep"}]),
        ('SELECT DISTINCT "shop.orders".v FROM "shop.orders"', [{"v": "shop.orders"}]),
        ("SELECT DISTINCT v FROM main.users", [{"v": "main.users"}]),
        ("SELECT u.id FROM users u JOIN shop.orders o USING (id) WHERE o.id = 2", [{"id": 2}]),
        ("WITH users AS (SELECT id FROM users WHERE id = 3) FROM users", [{"id": 3}]),
        ("WITH q AS (SELECT 7 AS x) FROM q", [{"x": 7}]),
        ("VALUES (1)", [{"col0": 1}]),
        ("SELECT * FROM empty", []),
        ("SELECT id FROM users WHERE id IN (SELECT max(id) FROM users)", [{"id": 3}]),
        ("SELECT 'FROM users AT (VERSION => 1)' AS t -- AT (VERSION => 2)", [{"t": "FROM users AT (VERSION => 1)"}]),
        ("SELECT sum(range) AS n FROM range(4)", [{"n": 6}]),
        ("SELECT count(*) AS n FROM users; ", [{"n": 3}]),
    ],
)
def test_tables_are_read_by_name(engine: SqlEngine, catalog: Catalog, query: str, rows: list):
    assert engine.run(catalog, query).rows() == rows


def test_columns_of_an_empty_table_have_their_types(engine: SqlEngine, catalog: Catalog):
    assert engine.run(catalog, "FROM empty").schema.types == [pa.int64(), pa.string()]


def test_time_travel_by_version_tag_branch_and_time(engine: SqlEngine, catalog: Catalog):
    first = first_snapshot(catalog)
    made = catalog.load_table("default.users").history()[0].timestamp_ms
    then = datetime.fromtimestamp(made / 1000, UTC)
    for at in (
        f"VERSION => {first}",
        "VERSION => 'v1'",
        f"TIMESTAMP => TIMESTAMP '{then:%Y-%m-%d %H:%M:%S.%f}'",
        f"TIMESTAMP => '{then.isoformat()}'",
    ):
        result = engine.run(catalog, f"SELECT users.* FROM users AT ({at}) ORDER BY id")
        assert result.columns == ["id", "v"], at
        assert [row["id"] for row in result.rows()] == [1, 2], at
    assert len(engine.run(catalog, "FROM users AT (VERSION => 'main')")) == 3
    assert len(engine.run(catalog, "FROM users AT (TIMESTAMP => now() + INTERVAL 1 DAY)")) == 3


def test_two_times_of_one_table_can_be_compared(engine: SqlEngine, catalog: Catalog):
    query = f"SELECT now.id FROM users now ANTI JOIN users old AT (VERSION => {first_snapshot(catalog)}) USING (id)"
    assert engine.run(catalog, query).rows() == [{"id": 3}]


@pytest.mark.parametrize(
    ("clause", "said"),
    [
        ("VERSION => 5", "The newest are"),
        ("VERSION => 'v2'", "It has: v1"),
        ("TIMESTAMP => '2001-01-01'", "The oldest is"),
        ("TIMESTAMP => 'noon'", "is not a time"),
        ("VERSION => (SELECT 1)", "fixed value"),
        ("VERSION => 1.5", "cannot be"),
    ],
)
def test_a_time_that_is_not_there_is_explained(engine: SqlEngine, catalog: Catalog, clause: str, said: str):
    with pytest.raises(InputError, match=said):
        engine.run(catalog, f"FROM users AT ({clause})")


@pytest.mark.parametrize(
    "query", ["DESCRIBE users", "SUMMARIZE users", "EXPLAIN FROM users", "explain analyze FROM users"]
)
def test_describing_statements_work(engine: SqlEngine, catalog: Catalog, query: str):
    assert len(engine.run(catalog, query)) > 0


@pytest.mark.parametrize(
    "query",
    [
        "",
        "-- nothing",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE users",
        "COPY users TO '{outside}/x.csv'",
        "COPY (SELECT 1) TO '{warehouse}/x.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{warehouse}/x.csv'",
        "INSERT INTO users VALUES (1, 'x')",
        "DELETE FROM users",
        "UPDATE users SET id = 1",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW users",
        "ATTACH '{outside}/x.db'",
        "DETACH memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        "PRAGMA version",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "CALL pragma_version()",
        "EXPORT DATABASE '{outside}'",
        "USE memory",
        "BEGIN",
        "CHECKPOINT",
        "SHOW TABLES",
        "FROM '{outside}/secret.csv'",
        "FROM '{warehouse}/../outside/secret.csv'",
        "FROM read_csv('{outside}/secret.csv')",
        "FROM read_text('{outside}/secret.csv')",
        "FROM read_blob('{outside}/secret.csv')",
        "FROM read_parquet('{warehouse}/**')",
        "FROM glob('{outside}/*')",
        "FROM sniff_csv('{outside}/secret.csv')",
        "FROM iceberg_scan('{outside}')",
        "FROM query('SELECT 1')",
        "FROM query_table('users')",
        "FROM arrow_scan(1, 2, 3)",
        "FROM json_execute_serialized_sql('{{}}')",
        "FROM duckdb_settings()",
        "FROM duckdb_secrets()",
        "FROM duckdb_settings",
        "FROM information_schema.tables",
        "FROM pg_catalog.pg_class",
        "SELECT getenv('HOME')",
        "SELECT current_setting('temp_directory')",
        "SELECT (SELECT max(content) FROM read_text('{outside}/secret.csv'))",
        "WITH x AS (FROM read_text('{outside}/secret.csv')) FROM x",
        "FROM users, LATERAL (FROM read_text('{outside}/secret.csv'))",
        "SELECT * FROM users AT (VERSION => (SELECT count(*) FROM read_text('{outside}/secret.csv')))",
        "PIVOT users ON w USING count(*)",
        "SELECT $1",
        "SELECT nothing FROM users",
        "SELECT CAST('x' AS INTEGER)",
        "SELEC 1",
    ],
)
def test_whatever_is_no_plain_query_is_refused(
    engine: SqlEngine, catalog: Catalog, lake: LakeSettings, tmp_path: Path, query: str
):
    (tmp_path / "secret.csv").write_text("a\nsecret\n")
    text = query.format(outside=tmp_path, warehouse=lake.warehouse_location)
    with pytest.raises(InputError) as refused:
        engine.run(catalog, text).rows()
    assert "secret\n" not in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_duckdb_itself_is_confined_behind_the_checks(engine: SqlEngine, lake: LakeSettings, tmp_path: Path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    confined = engine._open((lake.warehouse_location,)).cursor()
    for statement in (
        f"FROM read_csv('{tmp_path}/secret.csv')",
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        f"FROM read_text('{lake.warehouse_location}/../catalog.db')",
        f"FROM read_text('{lake.warehouse_location}-other/x')",
        "SET enable_external_access = true",
        "INSTALL httpfs",
    ):
        with pytest.raises(Exception, match=r"disabled by configuration|locked|disabled through"):
            confined.execute(statement)


def test_an_unknown_table_is_answered_with_the_nearest(engine: SqlEngine, catalog: Catalog):
    for given, meant in (("userz", "users"), ("shop.ordres", "shop.orders"), ("iceberg_table", "iceberg_tables")):
        with pytest.raises(NotFoundError, match=f"Did you mean '{meant}'"):
            engine.run(catalog, f"FROM {given}")


def test_only_the_tables_that_are_named_are_looked_up(engine: SqlEngine, lake: LakeSettings, catalog: Catalog):
    broken = catalog.create_table("shop.broken", SCHEMA, location=f"{lake.warehouse_location}/shop/broken")
    Path(broken.metadata_location).write_text("{")
    assert len(engine.run(catalog, "FROM shop.orders")) == 2
    with pytest.raises(LakeError, match=r"metadata of shop\.broken cannot be read"):
        engine.run(catalog, "FROM shop.broken")
    errors = engine.run(catalog, "SELECT table_name FROM iceberg_tables WHERE error IS NOT NULL").rows()
    assert errors == [{"table_name": "broken"}]
    catalog.drop_table("shop.broken")


def test_a_missing_data_file_is_one_sentence(engine: SqlEngine, lake: LakeSettings, catalog: Catalog):
    table = catalog.create_table("shop.holey", SCHEMA, location=f"{lake.warehouse_location}/shop/holey")
    table.append(pa.table({"id": [1], "v": ["x"]}))
    for file in Path(table.location()).glob("data/*.parquet"):
        file.unlink()
    with pytest.raises(LakeError, match="files cannot be read"):
        engine.run(catalog, "FROM shop.holey").rows()
    catalog.drop_table("shop.holey")


def test_a_table_that_lives_outside_the_warehouse_can_be_read(engine: SqlEngine, catalog: Catalog, tmp_path: Path):
    table = catalog.create_table("shop.adopted", SCHEMA, location=str(tmp_path / "elsewhere"))
    table.append(pa.table({"id": [1], "v": ["x"]}))
    assert engine.run(catalog, "SELECT id FROM shop.adopted").rows() == [{"id": 1}]
    catalog.drop_table("shop.adopted")


def test_queries_leave_nothing_behind_and_do_not_meet(engine: SqlEngine, lake: LakeSettings, catalog: Catalog):
    first, second = (engine.run(catalog, f"FROM users AT (VERSION => {version})") for version in ("'v1'", "'main'"))
    assert (len(second), len(first)) == (3, 2)
    engine.run(catalog, "FROM users")
    left = engine._open((lake.warehouse_location,)).execute("SELECT database_name FROM duckdb_databases()").fetchall()
    assert not [name for (name,) in left if name.startswith("query_")]


def test_times_come_in_utc_whatever_the_machine_says(
    lake: LakeSettings, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TZ", "America/New_York")
    result = sql.run(lake, catalog, "SELECT TIMESTAMPTZ '2024-01-01 00:00:00' AS t")
    assert str(result.schema.field("t").type) == "timestamp[us, tz=UTC]"
    assert result.rows()[0]["t"] - datetime(2024, 1, 1, tzinfo=UTC) == timedelta(0)


def test_a_deeply_nested_query_is_refused_not_crashed_on(engine: SqlEngine, catalog: Catalog):
    assert engine.run(catalog, "SELECT " + "(" * 500 + "1" + ")" * 500 + " AS x").rows() == [{"x": 1}]
    with pytest.raises(InputError, match=r"nested too deeply|expression depth"):
        engine.run(catalog, "SELECT " + "+".join(["1"] * 3_000)).rows()
