"""Conditions mean exactly what they say, and never become SQL text."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from iceberg_manager.catalog import open_catalog
from iceberg_manager.conditions import condition, render
from iceberg_manager.errors import InputError, NotFoundError
from iceberg_manager.query import connect, query_table
from iceberg_manager.settings import LakeSettings

SCHEMA = Schema(
    NestedField(1, "id", LongType(), False),
    NestedField(2, "age", IntegerType(), False),
    NestedField(3, "name", StringType(), False),
    NestedField(4, "amount", DecimalType(20, 2), False),
    NestedField(5, "score", DoubleType(), False),
    NestedField(6, "born", DateType(), False),
    NestedField(7, "seen", TimestamptzType(), False),
    NestedField(8, "local", TimestampType(), False),
    NestedField(9, "ok", BooleanType(), False),
    NestedField(10, 'we"ird col', StringType(), False),
    NestedField(11, "home", StructType(NestedField(12, "city", StringType(), False)), False),
)
ROWS = [
    (1, 30, "Ada", "10.10", 1.5, date(2024, 1, 1), datetime(2024, 1, 1, 10, tzinfo=UTC), True, "a", "Rome"),
    (
        2,
        40,
        "O'Neil",
        "10.11",
        float("nan"),
        date(2024, 1, 2),
        datetime(2024, 1, 1, 12, tzinfo=UTC),
        False,
        "b",
        "Oslo",
    ),
    (3, None, "100%", "-5.00", None, None, None, None, None, None),
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> LakeSettings:
    return LakeSettings(root=tmp_path_factory.mktemp("lake"))


@pytest.fixture(scope="module")
def catalog(lake: LakeSettings) -> Catalog:
    catalog = open_catalog(lake)
    catalog.create_namespace("default")
    return catalog


@pytest.fixture(scope="module")
def duck(lake: LakeSettings) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(lake) as connection:
        yield connection


@pytest.fixture(scope="module")
def people(catalog: Catalog, lake: LakeSettings) -> Table:
    table = catalog.create_table("default.people", SCHEMA, location=f"{lake.warehouse_location}/default/people")
    names = [field.name for field in SCHEMA.fields]
    listed = [
        dict(zip(names, (i, a, n, Decimal(m), s, b, t, t and t.replace(tzinfo=None), k, w, {"city": c}), strict=True))
        for i, a, n, m, s, b, t, k, w, c in ROWS
    ]
    table.append(pa.Table.from_pylist(listed, schema=table.schema().as_arrow()))
    return table


def ids(duck: duckdb.DuckDBPyConnection, table: Table, where: str) -> list[int]:
    return sorted(row["id"] for row in query_table(duck, table, where=where, columns=["id"]).rows())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("age > 30", [2]),
        ("AGE >= 30", [1, 2]),
        ("30 < age", [2]),
        ("age > 30.5", [2]),
        ("age = 30.5", []),
        ("age != 30.5", [1, 2]),
        ("age < 99999999999", [1, 2]),
        ("age in (30, 99999999999)", [1]),
        ("age not in (99999999999)", [1, 2]),
        ("age = '30'", [1]),
        ("age is null", [3]),
        ("age is not null", [1, 2]),
        ("not age = 30", [2]),
        ("age between 30 and 40", [1, 2]),
        ("name = 'O''Neil'", [2]),
        ("name like 'O''N%'", [2]),
        ("name not like 'A%'", [2, 3]),
        ("name like '100\\%'", [3]),
        ("name in ('Ada', 'O''Neil')", [1, 2]),
        ("amount = 10.1", [1]),
        ("amount > 10.105", [2]),
        ("amount <= 10.105", [1, 3]),
        ("amount = '10.10'", [1]),
        ("amount < 0", [3]),
        ("amount < '999999999999999999999'", [1, 2, 3]),
        ("score is nan", [2]),
        ("score > 1.4 and score is not nan", [1]),
        ("born >= '2024-01-02'", [2]),
        ("seen = '2024-01-01 10:00:00'", [1]),
        ("seen = '2024-01-01T12:00:00+02:00'", [1]),
        ("seen >= '2024-01-01'", [1, 2]),
        ("local < '2024-01-01 11:00'", [1]),
        ("ok = true", [1]),
        ("home.city = 'Oslo'", [2]),
        ("(age = 30 or age = 40) and name = 'Ada'", [1]),
        ("true", [1, 2, 3]),
        ("false", []),
    ],
)
def test_a_condition_selects_what_it_says(
    duck: duckdb.DuckDBPyConnection, people: Table, where: str, expected: list[int]
):
    assert ids(duck, people, where) == expected


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("agee > 30", "Did you mean 'age'"),
        ("age >", "cannot be read"),
        ("", "between 1 and"),
        ("age > 'old'", "does not fit"),
        ("name = 5", "does not fit"),
        ("born = 'spring'", "does not fit"),
        ("seen > 'noon'", "is not a time"),
        ("age like 'x%'", "only text"),
        ("home = 'x'", "one of the values inside"),
        ("name like '%x%'", "wildcard"),
        ("amount = 1.23456789012345678", "in quotes"),
        ("id = 1; drop table people", "cannot be read"),
        ("id = 1 union select 1", "cannot be read"),
        ("id = (select 1)", "cannot be read"),
        ("1 = 1 -- ", "cannot be read"),
        ("read_text('/etc/passwd') = 'x'", "cannot be read"),
        ("(" * 3000 + "id = 1" + ")" * 3000, "nested too deeply"),
    ],
)
def test_a_condition_that_cannot_work_is_explained(people: Table, where: str, said: str):
    with pytest.raises(InputError, match=said):
        condition(where, people.schema())


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
@hypothesis_settings(max_examples=60, deadline=None)
def test_any_text_is_only_ever_a_value(duck: duckdb.DuckDBPyConnection, people: Table, text: str):
    schema = people.schema()
    shown = render(condition(EqualTo("name", text), schema), schema)
    compared = shown.removeprefix('"name" = ')
    assert duck.execute(f"SELECT $1 = {compared}, {compared}", [text]).fetchone() == (True, text)


def test_a_name_is_only_ever_a_name(duck: duckdb.DuckDBPyConnection, people: Table):
    result = query_table(duck, people, where=EqualTo('we"ird col', "a"), columns=['we"ird col'])
    assert result.rows() == [{'we"ird col': "a"}]


def test_columns_limit_and_an_unknown_column(duck: duckdb.DuckDBPyConnection, people: Table):
    result = query_table(duck, people, columns=["NAME", "home.city"], limit=1)
    assert result.columns == ["name", "home.city"]
    assert len(result) == 1
    assert query_table(duck, people, limit=0).rows() == []
    with pytest.raises(NotFoundError, match="Did you mean 'score'"):
        query_table(duck, people, columns=["scores"])
    with pytest.raises(InputError, match="number of rows"):
        query_table(duck, people, limit=-1)
    with pytest.raises(InputError, match="at least one column"):
        query_table(duck, people, columns=[])


def test_a_table_without_snapshots_has_typed_columns_and_no_rows(
    duck: duckdb.DuckDBPyConnection, catalog: Catalog, lake: LakeSettings
):
    table = catalog.create_table("default.none", SCHEMA, location=f"{lake.warehouse_location}/default/none")
    result = query_table(duck, table, where="age > 3 and home.city = 'x'")
    assert (len(result), str(result.schema.field("amount").type)) == (0, "decimal128(20, 2)")
