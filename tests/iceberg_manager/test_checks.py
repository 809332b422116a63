"""Each check counts the rows that break it, and all are answered by one query."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from iceberg_manager.checks import (
    Check,
    accepted_values,
    evaluate,
    fresh,
    in_range,
    not_null,
    row_count,
    unique,
)
from iceberg_manager.errors import LakeError, SpecError


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'America/New_York'")
        yield connection


def _found(connection: duckdb.DuckDBPyConnection, rows: str, check: Check) -> tuple[bool, float | None]:
    (outcome,) = evaluate(connection, f"(VALUES {rows}) AS t(id, name)", [check])
    assert outcome.check is check
    return outcome.passed, outcome.measured


@pytest.mark.parametrize(
    ("check", "good", "bad", "broken"),
    [
        (unique("id"), "(1, 'a'), (2, 'a'), (NULL, 'a')", "(1, 'a'), (1, 'b'), (NULL, 'a'), (NULL, 'b')", 2),
        (unique("id", "name"), "(1, 'a'), (1, 'b'), (1, NULL)", "(1, 'a'), (1, 'a'), (1, NULL), (1, NULL)", 2),
        (not_null("id"), "(1, 'a'), (2, NULL)", "(1, 'a'), (NULL, 'b')", 1),
        (in_range("id", 0, 10), "(0, 'a'), (10, 'b'), (NULL, 'c')", "(-1, 'a'), (11, 'b'), (5, 'c')", 2),
        (in_range("id", low=0.5), "(1, 'a')", "(0, 'a')", 1),
        (in_range("id", high=-2), "(-2, 'a')", "(-1, 'a')", 1),
        (accepted_values("name", ["a", "it's"]), "(1, 'a'), (2, 'it''s'), (3, NULL)", "(1, 'b')", 1),
        (row_count(2, 3), "(1, 'a'), (2, 'b')", "(1, 'a')", 1),
        (row_count(0, 1), "(1, 'a')", "(1, 'a'), (2, 'b')", 2),
        (Check("even", "Ids are even.", "count(*) FILTER (id % 2 = 1)"), "(2, 'a')", "(3, 'a')", 1),
    ],
    ids=lambda value: value.name if isinstance(value, Check) else None,
)
def test_a_check_holds_or_counts_what_breaks_it(
    connection: duckdb.DuckDBPyConnection, check: Check, good: str, bad: str, broken: int
):
    assert _found(connection, good, check)[0]
    assert _found(connection, bad, check) == (False, broken)


def _three_hours_ago(kind: str) -> datetime:
    then = datetime.now(UTC) - timedelta(hours=3)
    return then if kind == "TIMESTAMPTZ" else then.replace(tzinfo=None)


@pytest.mark.parametrize("kind", ["TIMESTAMPTZ", "TIMESTAMP", "DATE"])
def test_freshness_is_measured_in_utc_whatever_the_column(connection: duckdb.DuckDBPyConnection, kind: str):
    connection.execute(f"CREATE TABLE t (seen {kind})")
    connection.execute("INSERT INTO t VALUES (?), (NULL), ('2001-01-01')", [_three_hours_ago(kind)])
    new, old = evaluate(connection, "t", [fresh("seen", timedelta(hours=28)), fresh("seen", timedelta(hours=2.9))])
    assert new.passed
    assert not (old.passed and kind != "DATE")
    assert new.measured == pytest.approx(3 * 3600, abs=60 if kind != "DATE" else 86_400)


def test_an_empty_table_breaks_no_rule_but_has_too_few_rows_and_nothing_fresh(connection: duckdb.DuckDBPyConnection):
    rules = [unique("id"), unique("id", "seen"), not_null("id"), in_range("id", 0), accepted_values("id", ["1"])]
    connection.execute("CREATE TABLE t (id INT, seen TIMESTAMP)")
    outcomes = evaluate(connection, "t", [*rules, row_count(0), row_count(1), fresh("seen", timedelta(days=1))])
    assert [outcome.passed for outcome in outcomes] == [True] * 6 + [False, False]
    assert outcomes[-1].measured is None


def test_odd_column_names_are_quoted_and_make_plain_check_names(connection: duckdb.DuckDBPyConnection):
    name = 'the "odd" one\'s'
    connection.execute('CREATE TABLE t AS SELECT 1 AS "the ""odd"" one\'s"')
    rules = [unique(name), unique(name, name), not_null(name), in_range(name, 0, 2), accepted_values(name, ["1"])]
    assert all(outcome.passed for outcome in evaluate(connection, "t", rules))
    assert [rule.name for rule in rules[2:4]] == ["not_null_the__odd__one_s", "range_the__odd__one_s"]


def test_all_checks_are_one_pass(connection: duckdb.DuckDBPyConnection):
    connection.execute("CREATE SEQUENCE passes")
    evaluate(
        connection, "(SELECT * FROM (VALUES (1)) t(id) WHERE nextval('passes') > 0)", [unique("id"), not_null("id")] * 5
    )
    assert connection.execute("SELECT nextval('passes')").fetchone() == (2,)
    assert evaluate(connection, "a table that does not exist", []) == []


def test_a_measure_that_does_not_compute_is_a_sentence(connection: duckdb.DuckDBPyConnection):
    rules = [Check("wrong", "Never works.", "sum(nowhere)"), not_null("id")]
    with pytest.raises(LakeError, match=r"The checks wrong, not_null_id could not be computed: .*nowhere"):
        evaluate(connection, "(VALUES (1)) t(id)", rules)


def test_a_set_of_accepted_values_is_not_empty():
    with pytest.raises(SpecError, match="at least one value"):
        accepted_values("name", [])
