"""A Dagster partition becomes the filter for its rows, and is replaced file by file only where that is exact."""

from datetime import datetime, timedelta, timezone

import pytest

from iceberg_manager.errors import SpecError
from iceberg_manager.slices import Values, Window, slice_column
from iceberg_manager.spec import TableSpec

BERLIN = timezone(timedelta(hours=2))
INDIA = timezone(timedelta(hours=5, minutes=30))
UTC = timezone.utc  # noqa: UP017 (beside the other zones)


def _spec(*partition_by: str) -> TableSpec:
    schema = {
        "at": "timestamptz", "local": "timestamp", "day": "date", "region": "string", "n": "long", "ok": "boolean",
        "price": "decimal(9,2)", "weight": "double",
    }  # fmt: skip
    return TableSpec("t", schema, partition_by=partition_by)


def _day(zone: timezone, hour: int = 0, hours: int = 24) -> tuple[datetime, datetime]:
    start = datetime(2026, 5, 1, hour, tzinfo=zone)
    return start, start + timedelta(hours=hours)


SCHEMA = _spec().iceberg_schema


@pytest.mark.parametrize(
    ("column", "zone", "expected"),
    [
        ("at", UTC, "`at` >= TIMESTAMP '2026-05-01 00:00:00+00:00' AND `at` < TIMESTAMP '2026-05-02 00:00:00+00:00'"),
        (
            "at",
            BERLIN,
            "`at` >= TIMESTAMP '2026-04-30 22:00:00+00:00' AND `at` < TIMESTAMP '2026-05-01 22:00:00+00:00'",
        ),
        (
            "local",
            UTC,
            "`local` >= TIMESTAMP_NTZ '2026-05-01 00:00:00' AND `local` < TIMESTAMP_NTZ '2026-05-02 00:00:00'",
        ),
        ("day", UTC, "`day` >= DATE '2026-05-01' AND `day` < DATE '2026-05-02'"),
        ("day", BERLIN, "`day` >= DATE '2026-05-01' AND `day` < DATE '2026-05-02'"),
    ],
)
def test_a_window_is_a_half_open_filter_in_the_columns_type(column: str, zone: timezone, expected: str):
    assert Window(column, *_day(zone)).sql(SCHEMA) == expected


def test_a_date_column_has_no_hours():
    with pytest.raises(SpecError, match="'day' is a date"):
        Window("day", *_day(UTC, 5, 1)).sql(SCHEMA)


@pytest.mark.parametrize(
    ("transform", "window", "aligned"),
    [
        ("day(at)", _day(UTC), True),
        ("day(at)", _day(BERLIN), False),
        ("day(at)", _day(UTC, 5, 1), False),
        ("hour(at)", _day(BERLIN), True),
        ("hour(at)", _day(INDIA), False),
        ("month(at)", _day(UTC), False),
        ("month(at)", (datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)), True),
        ("year(at)", (datetime(2026, 5, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)), False),
        ("year(at)", (datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)), True),
        ("at", _day(BERLIN), True),
        ("bucket(4, at)", _day(UTC), False),
        ("region", _day(UTC), False),
    ],
)
def test_files_are_replaced_whole_only_where_the_window_cuts_none(
    transform: str, window: tuple[datetime, datetime], aligned: bool
):
    spec = _spec(transform)
    assert Window("at", *window).aligned(spec.iceberg_schema, spec.partition_spec) is aligned


def test_days_of_a_date_column_are_whole_in_every_zone():
    spec = _spec("day(day)")
    assert Window("day", *_day(BERLIN)).aligned(spec.iceberg_schema, spec.partition_spec)


@pytest.mark.parametrize(
    ("column", "keys", "expected"),
    [
        ("region", ("eu", "us"), "`region` IN ('eu', 'us')"),
        ("region", ("o'clock\\",), "`region` IN ('o\\'clock\\\\')"),
        ("n", ("-1", "20"), "`n` IN (-1, 20)"),
        ("price", ("1.50",), "`price` IN (1.50)"),
        ("ok", ("true",), "`ok` IN (true)"),
    ],
)
def test_values_are_listed_in_the_columns_type(column: str, keys: tuple[str, ...], expected: str):
    assert Values(column, keys).sql(SCHEMA) == expected


@pytest.mark.parametrize(
    ("column", "key"), [("n", "eu"), ("n", "--1"), ("n", "²"), ("n", ""), ("n", "1)"), ("ok", "yes"), ("weight", "1")]
)
def test_a_key_that_is_no_value_of_the_column_is_refused(column: str, key: str):
    with pytest.raises(SpecError, match=f"is no value of column '{column}'"):
        Values(column, (key,)).sql(SCHEMA)


def test_values_are_replaced_whole_only_where_the_column_is_partitioned_by():
    for transform, aligned in (("region", True), ("truncate(2, region)", False), ("n", False)):
        spec = _spec(transform)
        assert Values("region", ("eu",)).aligned(spec.iceberg_schema, spec.partition_spec) is aligned


def test_a_partition_maps_to_the_first_column_that_fits():
    spec = _spec("bucket(4, n)", "region", "day(at)")
    assert slice_column(spec, by_time=True) == "at"
    assert slice_column(spec, by_time=False) == "region"
    assert slice_column(_spec("day"), by_time=True) == "day"
    for by_time, said in ((True, "day"), (False, "a plain column")):
        with pytest.raises(SpecError, match=said):
            slice_column(_spec("bucket(4, n)"), by_time)
