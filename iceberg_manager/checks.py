"""What must hold for a table's rows, and how all of it is asked in a single pass over one snapshot.

Each check is one aggregate expression that counts the rows that break it; DuckDB computes them together.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from iceberg_manager.errors import LakeError, SpecError, first_line

if TYPE_CHECKING:
    import duckdb

Severity = Literal["error", "warn"]


@dataclass(frozen=True)
class Check:
    """One rule. ``measure`` is a DuckDB aggregate; the rule holds when its value lies in [at_least, at_most]."""

    name: str
    description: str
    measure: str
    columns: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = 0
    severity: Severity = "error"


@dataclass(frozen=True)
class CheckOutcome:
    """What a check found."""

    check: Check
    passed: bool
    measured: float | None
    detail: str = ""


def unique(*columns: str, severity: Severity = "error") -> Check:
    """No two rows share these columns."""
    key = ", ".join(_name(column) for column in columns)
    measure = f"count(*) - count(DISTINCT row({key}))"
    return Check(
        f"unique_{_word('_'.join(columns))}",
        f"No two rows share {', '.join(columns)}.",
        measure,
        columns,
        severity=severity,
    )


def not_null(column: str, severity: Severity = "error") -> Check:
    """Every row has a value."""
    measure = f"count(*) FILTER ({_name(column)} IS NULL)"
    return Check(f"not_null_{_word(column)}", f"Every row has a {column}.", measure, (column,), severity=severity)


def in_range(column: str, low: float | None = None, high: float | None = None, severity: Severity = "error") -> Check:
    """Values lie between the bounds, both included; an open bound is None. Nulls pass."""
    outside = [f"{_name(column)} < {low}"] * (low is not None) + [f"{_name(column)} > {high}"] * (high is not None)
    measure = f"count(*) FILTER ({' OR '.join(outside) or 'false'})"
    said = f"{column} is between {'-∞' if low is None else low} and {'∞' if high is None else high}."
    return Check(f"range_{_word(column)}", said, measure, (column,), severity=severity)


def accepted_values(column: str, values: Sequence[str], severity: Severity = "error") -> Check:
    """Values come from a known set. Nulls pass."""
    if not values:
        raise SpecError(f"accepted_values({column!r}) needs at least one value.")
    listed = ", ".join("'" + value.replace("'", "''") + "'" for value in values)
    measure = f"count(*) FILTER ({_name(column)} NOT IN ({listed}))"
    return Check(
        f"accepted_{_word(column)}", f"{column} is one of {', '.join(values)}.", measure, (column,), severity=severity
    )


def row_count(at_least: int = 1, at_most: int | None = None, severity: Severity = "error") -> Check:
    """The table has so many rows."""
    said = f"At least {at_least:,} rows" + (f" and at most {at_most:,}." if at_most is not None else ".")
    return Check("row_count", said, "count(*)", (), at_least, at_most, severity)


def fresh(column: str, within: timedelta, severity: Severity = "warn") -> Check:
    """The newest value of a time column is no older than ``within``."""
    measure = f"$now::DOUBLE - epoch(max({_name(column)}))"
    said = f"The newest {column} is at most {within} old."
    return Check(f"fresh_{_word(column)}", said, measure, (column,), None, within.total_seconds(), severity)


def evaluate(connection: "duckdb.DuckDBPyConnection", source: str, checks: Sequence[Check]) -> list[CheckOutcome]:
    """All checks over ``source`` (a DuckDB table expression) in one query."""
    import duckdb

    if not checks:
        return []
    wanted = ", ".join(f"({check.measure})::DOUBLE" for check in checks)
    now = {"now": time.time()} if "$now" in wanted else {}
    try:
        row = connection.execute(f"SELECT {wanted} FROM {source}", now).fetchone() or ()
    except duckdb.Error as error:
        names = ", ".join(check.name for check in checks)
        raise LakeError(f"The checks {names} could not be computed: {first_line(error)}.") from error
    return [CheckOutcome(check, _holds(check, value), value) for check, value in zip(checks, row, strict=True)]


def _holds(check: Check, value: float | None) -> bool:
    if value is None:
        return False
    return (check.at_least is None or value >= check.at_least) and (check.at_most is None or value <= check.at_most)


def _word(text: str) -> str:
    """As part of a check's name, which is letters, digits and underscores."""
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
