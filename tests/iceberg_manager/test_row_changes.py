"""A condition has one meaning: what a query shows is what a delete removes, nulls and NaNs included."""

import itertools
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import duckdb
import pytest
from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog

from iceberg_manager.arrow_writes import append, delete, update
from iceberg_manager.catalog import open_catalog
from iceberg_manager.commits import Stamp
from iceberg_manager.query import connect, query_table
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import Column, TableSpec
from iceberg_manager.tables import create_table

NAN = float("nan")
COLUMNS = {
    "id": Column("long", required=True),
    "n": "int",
    "x": "double",
    "f": "float",
    "s": "string",
    "on": "date",
    "m": "decimal(9, 2)",
    "b": "boolean",
}
VALUES: dict[str, list[Any]] = {
    "n": [None, 1, 2, 3],
    "x": [None, NAN, 0.0, -0.0, 1.5, float("inf")],
    "f": [None, NAN, 0.1, -0.0, 2.5],
    "s": [None, "", "a", "ab", "b'"],
    "on": [None, date(2024, 1, 1), date(2024, 1, 2)],
    "m": [None, "1.10", "-2.00"],
    "b": [None, True, False],
}
LITERALS = {
    "n": ["1", "2", "99999999999"],
    "x": ["0.0", "1.5", "-1.0", "1000000.0"],
    "f": ["0.1", "0.0", "2.0"],
    "s": ["''", "'a'", "'b'''"],
    "on": ["'2024-01-01'", "'2024-01-02'"],
    "m": ["1.1", "1.105", "-2.0"],
    "b": ["true", "false"],
}


@dataclass
class Lake:
    settings: LakeSettings
    catalog: Catalog
    duck: duckdb.DuckDBPyConnection
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def table(self, files: list[list[dict[str, Any]]], partition_by: list[str]) -> str:
        name = f"t{next(self.numbers)}"
        create_table(self.catalog, self.settings, TableSpec(name, COLUMNS, partition_by=partition_by))
        numbers = itertools.count()
        for rows in files:
            append(self.catalog, name, [{"id": next(numbers), **row} for row in rows], stamp())
        return f"default.{name}"

    def ids(self, name: str, where: str | None = None) -> set[int]:
        found = query_table(self.duck, self.catalog.load_table(name), where=where, columns=["id"])
        return {row["id"] for row in found.rows()}


def stamp() -> Stamp:
    return Stamp(uuid.uuid4().hex)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    settings = LakeSettings(root=tmp_path_factory.mktemp("lake"))
    with connect(settings) as duck:
        yield Lake(settings, open_catalog(settings), duck)


def comparisons(column: str) -> st.SearchStrategy[str]:
    value = st.sampled_from(LITERALS[column])
    orders = ["=", "!="] if column == "b" else ["=", "!=", "<", "<=", ">", ">="]
    forms = [
        st.tuples(st.sampled_from(orders), value).map(lambda parts: f"{column} {parts[0]} {parts[1]}"),
        st.sampled_from([f"{column} is null", f"{column} is not null"]),
    ]
    if column != "b":
        listed = st.lists(value, min_size=1, max_size=3).map(", ".join)
        forms.append(st.tuples(st.sampled_from(["in", "not in"]), listed).map(lambda p: f"{column} {p[0]} ({p[1]})"))
    if column in ("x", "f"):
        forms.append(st.sampled_from([f"{column} is nan", f"{column} is not nan"]))
    if column == "s":
        forms.append(st.sampled_from(["s like 'a%'", "s not like 'a%'"]))
    return st.one_of(forms)


CONDITIONS: st.SearchStrategy[str] = st.recursive(
    st.sampled_from(sorted(VALUES)).flatmap(comparisons),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda p: f"({p[0]}) {p[1]} ({p[2]})"),
        inner.map(lambda one: f"not ({one})"),
    ),
    max_leaves=4,
)
ROWS = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in VALUES.items()})
FILES = st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=3)


@example(files=[[{"f": None}, {"f": 0.1}]], layout=[], where="f = 0.1")
@given(files=FILES, layout=st.sampled_from([[], ["n"], ["truncate(1, s)"], ["day(on)"]]), where=CONDITIONS)
@hypothesis_settings(max_examples=40, deadline=None)
def test_a_query_shows_exactly_the_rows_that_a_delete_removes(
    lake: Lake, files: list[list[dict[str, Any]]], layout: list[str], where: str
) -> None:
    name = lake.table(files, layout)
    everything, shown = lake.ids(name), lake.ids(name, where)
    done = delete(lake.catalog, name, where, stamp())
    assert lake.ids(name) == everything - shown
    assert done.deleted == len(shown)
    assert not lake.ids(name, where)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("x > 1", {1}),
        ("x < 1", {0}),
        ("x = 0", {0}),
        ("x != 0", {1}),
        ("x not in (0.0, 7.0)", {1}),
        ("not (x > 1)", {0}),
        ("not (x = 0 or x = 7)", {1}),
        ("x < 1000000", {0, 1}),
        ("x is nan", {2}),
        ("x is not nan", {0, 1}),
        ("not (x is nan)", {0, 1}),
        ("x is null", {3}),
        ("x is not null", {0, 1, 2}),
        ("x > 1 or x is nan or x is null", {1, 2, 3}),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_neither_null_nor_nan_matches_a_comparison_or_its_negation(
    lake: Lake, where: str, expected: set[int], together: bool
) -> None:
    rows = [{"x": value} for value in (0.0, 1.5, NAN, None)]
    name = lake.table([rows] if together else [[row] for row in rows], [])
    assert lake.ids(name, where) == expected
    assert update(lake.catalog, name, {"s": "found"}, stamp(), where).updated == len(expected)
    assert lake.ids(name, "s = 'found'") == expected
    delete(lake.catalog, name, where, stamp())
    assert lake.ids(name) == {0, 1, 2, 3} - expected
