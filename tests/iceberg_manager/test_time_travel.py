"""Every snapshot reads back exactly as it was, and whatever names it finds it."""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

from iceberg_manager.catalog import open_catalog
from iceberg_manager.errors import InputError, NotFoundError
from iceberg_manager.query import connect, query_table
from iceberg_manager.settings import LakeSettings
from iceberg_manager.time_travel import RUN_ID, at_time, parse_moment, resolve, schema_at, show_time

SCHEMA = Schema(
    NestedField(1, "id", LongType(), False),
    NestedField(2, "name", StringType(), False),
    NestedField(3, "n", IntegerType(), False),
)


def make_table(catalog: Catalog, settings: LakeSettings) -> Table:
    catalog.create_namespace_if_not_exists("default")
    return catalog.create_table("default.users", SCHEMA, location=f"{settings.warehouse_location}/default/users")


def append(table: Table, *ids: int, run: str = "") -> int:
    rows = pa.table({"id": list(ids), "name": [f"n{number}" for number in ids], "n": pa.array(ids, pa.int32())})
    table.append(rows, snapshot_properties={RUN_ID: run} if run else {})
    snapshot = table.current_snapshot()
    assert snapshot is not None
    time.sleep(0.002)  # two snapshots of one millisecond cannot be told apart by time
    return snapshot.snapshot_id


@pytest.fixture
def table(settings: LakeSettings) -> Table:
    return make_table(open_catalog(settings), settings)


@pytest.fixture(scope="module")
def duck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    with connect(LakeSettings(root=tmp_path_factory.mktemp("lake"))) as connection:
        yield connection


def moment(table: Table, snapshot_id: int) -> datetime:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC)


def test_with_nothing_given_the_head_of_main_is_meant(table: Table):
    with pytest.raises(NotFoundError, match="nothing was ever written"):
        resolve(table)
    assert resolve(table, snapshot=append(table, 1)).snapshot_id == resolve(table).snapshot_id


def test_only_one_way_of_naming_a_snapshot_is_allowed(table: Table):
    with pytest.raises(InputError, match="tag, run"):
        resolve(table, tag="a", run="b")


def test_an_id_may_be_text_and_an_unknown_one_names_the_newest(table: Table):
    first, second = append(table, 1), append(table, 2)
    assert resolve(table, snapshot=str(first)).snapshot_id == first
    with pytest.raises(NotFoundError, match=f"The newest are {second} .*{first}"):
        resolve(table, snapshot=5)
    with pytest.raises(InputError, match="whole numbers"):
        resolve(table, snapshot="yesterday")


def test_an_expired_snapshot_is_answered_with_those_nearest_in_time(table: Table):
    first, second = append(table, 1), append(table, 2)
    before = moment(table, first)
    table.maintenance.expire_snapshots().by_id(first).commit()
    with pytest.raises(NotFoundError, match=f"expired.*{second}"):
        resolve(table, snapshot=first)
    with pytest.raises(NotFoundError, match=str(second)):
        resolve(table, timestamp=before)


def test_a_time_means_what_main_pointed_at_then(table: Table):
    first, second = append(table, 1), append(table, 2)
    assert resolve(table, timestamp=moment(table, second)).snapshot_id == second
    assert resolve(table, timestamp=moment(table, second) - timedelta(milliseconds=1)).snapshot_id == first
    assert resolve(table, timestamp=datetime.now(UTC) + timedelta(days=1)).snapshot_id == second


def test_a_time_after_a_rollback_means_what_was_rolled_back_to(table: Table):
    first, second = append(table, 1), append(table, 2)
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert resolve(table, timestamp=datetime.now(UTC) + timedelta(seconds=1)).snapshot_id == first
    assert resolve(table, timestamp=moment(table, second)).snapshot_id == second


def test_a_time_before_the_first_snapshot_names_the_oldest(table: Table):
    first = append(table, 1)
    with pytest.raises(NotFoundError, match=f"The oldest is {first} of {date.today():%Y}"):  # noqa: DTZ011
        resolve(table, timestamp="2001-01-01")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2024-01-01 10:00:00", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01T10:00:00+02:00", datetime(2024, 1, 1, 8, tzinfo=UTC)),
        ("2024-01-01T10:00:00Z", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01 10:00 UTC", datetime(2024, 1, 1, 10, tzinfo=UTC)),
        ("2024-01-01", datetime(2024, 1, 1, tzinfo=UTC)),
        (date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (datetime(2024, 1, 1, 10), datetime(2024, 1, 1, 10, tzinfo=UTC)),  # noqa: DTZ001
    ],
)
def test_times_are_utc_unless_they_carry_a_zone(text: str | date, meant: datetime):
    assert parse_moment(text) == meant


@pytest.mark.parametrize("text", ["noon", "", "2024-13-01", "0001-01-01T00:00:00+10:00"])
def test_what_is_no_time_is_refused(text: str):
    with pytest.raises(InputError):
        parse_moment(text)


def test_a_shown_time_reads_back_as_itself(table: Table):
    first = append(table, 1)
    snapshot = table.metadata.snapshot_by_id(first)
    assert snapshot is not None
    assert at_time(table, show_time(snapshot.timestamp_ms)).snapshot_id == first


def test_tags_and_branches_are_found_and_told_apart(table: Table):
    first = append(table, 1)
    table.manage_snapshots().create_tag(first, "release").commit()
    table.manage_snapshots().create_branch(first, "audit").commit()
    append(table, 2)
    assert resolve(table, tag="release").snapshot_id == resolve(table, branch="audit").snapshot_id == first
    with pytest.raises(NotFoundError, match="is a branch"):
        resolve(table, tag="audit")
    with pytest.raises(NotFoundError, match="Did you mean 'release'"):
        resolve(table, tag="relase")


def test_a_run_means_the_last_snapshot_it_left_on_main(table: Table):
    append(table, 1, run="aaaaaaaa-1")
    last = append(table, 2, run="aaaaaaaa-1")
    other = append(table, 3, run="aaaaaaaa-2")
    assert resolve(table, run="aaaaaaaa-1").snapshot_id == last
    assert resolve(table, run="aaaaaaaa-2").snapshot_id == other
    with pytest.raises(InputError, match="several run ids"):
        resolve(table, run="aaaaaaaa")
    with pytest.raises(InputError, match="too short"):
        resolve(table, run="aaaa")
    with pytest.raises(NotFoundError, match="The last runs on main: aaaaaaaa-2"):
        resolve(table, run="bbbbbbbb")


def test_a_snapshot_keeps_the_schema_it_had(table: Table, duck: duckdb.DuckDBPyConnection):
    first = append(table, 1)
    with table.update_schema() as update:
        update.rename_column("name", "full_name")
        update.update_column("n", LongType())
        update.add_column("email", StringType())
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("n")
    old = resolve(table, snapshot=first)
    assert schema_at(table, old).column_names == schema_at(table, first).column_names == ["id", "name", "n"]
    assert query_table(duck, table, snapshot=old).rows() == [{"id": 1, "name": "n1", "n": 1}]
    assert query_table(duck, table).rows() == [{"id": 1, "full_name": "n1", "email": None}]
    assert query_table(duck, table, where="name = 'n1' and n = 1", snapshot=old).rows()[0]["n"] == 1


@dataclass
class Model:
    """What a table should say, kept in plain lists: its columns by field id, and its rows by field id."""

    columns: dict[int, str] = field(default_factory=lambda: {1: "id", 2: "name", 3: "n"})
    rows: list[dict[int, Any]] = field(default_factory=list)
    next_field: int = 4

    def state(self) -> list[dict[str, Any]]:
        return [{name: row.get(key) for key, name in self.columns.items()} for row in self.rows]


values = st.one_of(st.none(), st.text("abc'\"%é", max_size=3))
steps = st.one_of(
    st.tuples(st.just("append"), st.lists(st.tuples(st.integers(0, 9), values), min_size=1, max_size=4)),
    st.tuples(st.just("delete"), st.integers(0, 9)),
    st.tuples(st.sampled_from(["add", "rename", "drop", "rollback"]), st.integers(0, 9)),
)


def take_step(table: Table, model: Model, states: dict[int, Any], action: str, given: Any) -> None:
    if action == "append":
        added = [
            {key: number if key == 1 else text if key != 3 else number for key in model.columns}
            for number, text in given
        ]
        named = [{name: row[key] for key, name in model.columns.items()} for row in added]
        table.append(pa.Table.from_pylist(named, schema=table.schema().as_arrow()))
        model.rows += added
    elif action == "delete" and any(row[1] == given for row in model.rows):
        table.delete(f"id = {given}")
        model.rows = [row for row in model.rows if row[1] != given]
    elif action == "add":
        with table.update_schema() as update:
            update.add_column(f"c{model.next_field}", StringType())
        model.columns[model.next_field] = f"c{model.next_field}"
        model.next_field += 1
    elif action in ("rename", "drop"):
        choices = [key for key in model.columns if key not in (1, 3)]
        if choices:
            chosen = choices[given % len(choices)]
            with table.update_schema() as update:
                if action == "drop":
                    update.delete_column(model.columns.pop(chosen))
                else:
                    update.rename_column(model.columns[chosen], f"r{len(states)}_{chosen}_{given}")
                    model.columns[chosen] = f"r{len(states)}_{chosen}_{given}"
    elif action == "rollback" and states:
        chosen = list(states)[given % len(states)]
        if any(entry.snapshot_id == chosen for entry in table.metadata.snapshot_log):
            table.manage_snapshots().set_current_snapshot(snapshot_id=chosen).commit()
            model.rows = [dict(row) for row in states[chosen][1]]


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


@given(st.lists(steps, min_size=1, max_size=8))
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_snapshot_of_a_random_history_reads_back_exactly(duck: duckdb.DuckDBPyConnection, history: list[Any]):
    with tempfile.TemporaryDirectory() as folder:
        settings = LakeSettings(root=Path(folder))
        table, model = make_table(open_catalog(settings), settings), Model()
        states: dict[int, tuple[list[dict[str, Any]], list[dict[int, Any]]]] = {}
        for action, given_value in history:
            known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
            take_step(table, model, states, action, given_value)
            current = table.current_snapshot()
            if current and current.snapshot_id not in known:
                states[current.snapshot_id] = (model.state(), [dict(row) for row in model.rows])
        assert in_order(query_table(duck, table).rows()) == in_order(model.state())
        for snapshot_id, (expected, _) in states.items():
            found = query_table(duck, table, snapshot=resolve(table, snapshot=snapshot_id))
            assert found.columns == list(schema_at(table, snapshot_id).column_names)
            assert in_order(found.rows()) == in_order(expected)
