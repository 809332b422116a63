"""Changes to a table without a JVM: each is one snapshot, loses no one's rows, and touches no file without need."""

import datetime as dt
import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.types import LongType

from iceberg_manager import arrow_writes, metadata_commit, rewrites
from iceberg_manager.arrow_writes import append, delete, expr, overwrite, update, upsert
from iceberg_manager.catalog import open_catalog
from iceberg_manager.changes import StalePlanError
from iceberg_manager.commits import Stamp
from iceberg_manager.errors import ConflictError, DataError, InputError, NotFoundError
from iceberg_manager.query import connect, scan
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import Column, TableSpec
from iceberg_manager.tables import ensure_table

COLUMNS = {"id": Column("long", required=True), "name": "string", "age": "int", "score": "double"}


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


@pytest.fixture
def users(catalog: Catalog, settings: LakeSettings) -> Table:
    return ensure_table(catalog, settings, TableSpec("users", COLUMNS))


def stamp() -> Stamp:
    return Stamp(uuid.uuid4().hex)


def people(*ids: int) -> list[dict[str, object]]:
    return [{"id": one, "name": f"n{one}", "age": one * 10, "score": float(one)} for one in ids]


def rows(catalog: Catalog, name: str = "default.users") -> dict[int, tuple[object, ...]]:
    table = catalog.load_table(name).scan().to_arrow().to_pylist()
    return {row["id"]: (row["name"], row["age"], row["score"]) for row in table}


def snapshots(catalog: Catalog) -> int:
    return len(catalog.load_table("default.users").metadata.snapshots)


def data_files(settings: LakeSettings) -> list[Path]:
    return list(Path(settings.warehouse_location).rglob("*.parquet"))


def test_an_append_adds_rows_in_one_snapshot(catalog: Catalog, users: Table) -> None:
    done = append(catalog, "users", people(1, 2), stamp())
    assert (done.inserted, done.commit.rows_added, done.commit.total_rows) == (2, 2, 2)
    assert done.commit.operation == "append"
    assert rows(catalog) == {1: ("n1", 10, 1.0), 2: ("n2", 20, 2.0)}


def test_a_repeated_append_is_found_and_not_repeated(catalog: Catalog, users: Table) -> None:
    same = stamp()
    first = append(catalog, "users", people(1, 2), same)
    again = append(catalog, "users", people(1, 2), same)
    assert again.commit.replayed
    assert (again.commit.snapshot_id, again.inserted) == (first.commit.snapshot_id, 2)
    assert len(rows(catalog)) == 2


def test_an_append_carries_properties_in_the_same_commit(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1), stamp(), properties={"ingest.marker": "7"})
    assert catalog.load_table("default.users").properties["ingest.marker"] == "7"
    append(catalog, "users", people(2), stamp(), removed_properties=frozenset({"ingest.marker"}))
    assert "ingest.marker" not in catalog.load_table("default.users").properties


def test_no_rows_make_no_snapshot(catalog: Catalog, users: Table) -> None:
    done = append(catalog, "users", [], stamp())
    assert (done.commit.changed, done.commit.operation) == (False, "none")
    assert snapshots(catalog) == 0


def test_a_bad_row_leaves_neither_snapshot_nor_files(catalog: Catalog, users: Table, settings: LakeSettings) -> None:
    with pytest.raises(DataError, match="Row 2: column 'age'"):
        append(catalog, "users", [{"id": 1, "age": 1}, {"id": 2, "age": 2**40}], stamp())
    assert (snapshots(catalog), data_files(settings)) == (0, [])


def test_a_delete_removes_exactly_the_matching_rows(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1, 2, 3), stamp())
    done = delete(catalog, "users", "age >= 20", stamp())
    assert (done.deleted, list(rows(catalog)), snapshots(catalog)) == (2, [1], 2)


def test_a_delete_keeps_rows_whose_value_is_unknown(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", [*people(1), {"id": 2, "age": None}], stamp())
    for condition in ("age != 99", "age not in (98, 99)", "age < 50"):
        delete(catalog, "users", f"{condition} and id = 2", stamp())
        assert set(rows(catalog)) == {1, 2}
    delete(catalog, "users", "age != 99", stamp())
    assert set(rows(catalog)) == {2}


def test_a_delete_does_not_take_nan_for_a_match(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", [{"id": 1, "score": 1.0}, {"id": 2, "score": float("nan")}], stamp())
    delete(catalog, "users", "score < 100", stamp())
    assert set(rows(catalog)) == {2}


def test_a_file_that_matches_as_a_whole_is_dropped_unread(
    catalog: Catalog, users: Table, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1, 2), stamp())
    append(catalog, "users", people(5, 6), stamp())
    first = min(data_files(settings), key=lambda file: file.stat().st_mtime)
    hidden = first.rename(first.with_suffix(".hidden"))
    done = delete(catalog, "users", "id <= 2", stamp())
    hidden.rename(first)
    assert (done.deleted, done.commit.files_added, done.commit.operation) == (2, 0, "delete")
    assert set(rows(catalog)) == {5, 6}


def test_files_without_a_matching_row_are_left_alone(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1, 5), stamp())
    append(catalog, "users", people(2, 6), stamp())
    done = delete(catalog, "users", "id = 5", stamp())
    assert (done.commit.files_removed, done.commit.files_added) == (1, 1)


def test_a_delete_that_matches_nothing_makes_no_snapshot(
    catalog: Catalog, users: Table, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1, 3), stamp())
    done = delete(catalog, "users", "id = 2", stamp())
    assert (done.commit.changed, snapshots(catalog), len(data_files(settings))) == (False, 1, 1)


def test_a_delete_puts_many_small_files_together(catalog: Catalog, users: Table) -> None:
    for one in range(12):
        append(catalog, "users", people(one, one + 100), stamp())
    done = delete(catalog, "users", "id >= 100", stamp())
    assert (done.deleted, done.commit.files_removed, done.commit.files_added) == (12, 12, 1)
    assert set(rows(catalog)) == set(range(12))


def test_an_update_sets_values_and_expressions(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1, 2, 3), stamp())
    done = update(catalog, "users", {"age": expr("age + 1"), "name": "x"}, stamp(), where="id > 1")
    assert done.updated == 2
    assert rows(catalog) == {1: ("n1", 10, 1.0), 2: ("x", 21, 2.0), 3: ("x", 31, 3.0)}
    assert catalog.load_table("default.users").scan().to_arrow()["id"].to_pylist() == [1, 2, 3]


def test_an_expression_sees_only_rows_that_match(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", [{"id": 1, "name": "7"}, {"id": 2, "name": "seven"}], stamp())
    update(catalog, "users", {"age": expr("CAST(name AS INTEGER)")}, stamp(), where="id = 1")
    assert rows(catalog)[1][1] == 7


@pytest.mark.parametrize(
    "sql",
    [
        "(SELECT max(age) FROM incoming_rows)",
        "age; DROP TABLE users",
        "1) FROM read_csv('/etc/passwd') --",
        "sum(age)",
        "row_number() OVER ()",
        "random()::int",
        "current_setting('temp_directory')",
        "age, id",
        "*",
        "read_text('/etc/passwd')",
        "unnest([1, 2])",
        "nonsense(age)",
        "",
    ],
)
def test_an_expression_is_a_function_of_the_row_and_nothing_more(catalog: Catalog, users: Table, sql: str) -> None:
    append(catalog, "users", people(1), stamp())
    with pytest.raises(InputError):
        update(catalog, "users", {"age": expr(sql)}, stamp())
    assert rows(catalog) == {1: ("n1", 10, 1.0)}


def test_an_update_that_does_not_fit_changes_nothing(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1), stamp())
    with pytest.raises(NotFoundError, match="Did you mean 'age'"):
        update(catalog, "users", {"agee": 1}, stamp())
    with pytest.raises(DataError, match="'age'"):
        update(catalog, "users", {"age": "old"}, stamp())
    with pytest.raises(DataError, match="required"):
        update(catalog, "users", {"id": None}, stamp())
    with pytest.raises(DataError, match="'age'"):
        update(catalog, "users", {"age": expr("id + 3000000000")}, stamp())
    assert snapshots(catalog) == 1


@pytest.mark.parametrize(
    ("where", "error", "said"),
    [
        ("agge > 1", NotFoundError, "Did you mean 'age'"),
        ("age > 'old'", InputError, "does not fit"),
        ("age > ", InputError, "cannot be read at character"),
        ("1=1; DROP TABLE users", InputError, "cannot be read at character"),
    ],
)
def test_a_bad_condition_is_explained(
    catalog: Catalog, users: Table, where: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        delete(catalog, "users", where, stamp())


def test_an_upsert_updates_inserts_and_leaves_the_rest(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1, 2), stamp())
    append(catalog, "users", people(8, 9), stamp())
    done = upsert(catalog, "users", [{**people(2)[0], "age": 99}, *people(3)], "id", stamp())
    assert (done.updated, done.inserted, snapshots(catalog), done.commit.files_removed) == (1, 1, 3, 1)
    assert rows(catalog)[2] == ("n2", 99, 2.0)
    assert set(rows(catalog)) == {1, 2, 3, 8, 9}


def test_an_upsert_of_what_is_there_writes_nothing(catalog: Catalog, users: Table, settings: LakeSettings) -> None:
    append(catalog, "users", [*people(1, 2), {"id": 3, "score": float("nan")}], stamp())
    done = upsert(catalog, "users", [*people(1), {"id": 3, "name": None, "score": float("nan")}], ["id"], stamp())
    assert (done.commit.changed, snapshots(catalog), len(data_files(settings))) == (False, 1, 1)


def test_an_upsert_keeps_columns_that_are_not_given(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1), stamp())
    upsert(catalog, "users", [{"id": 1, "age": 5}, {"id": 2, "age": 6}], "id", stamp())
    assert rows(catalog) == {1: ("n1", 5, 1.0), 2: (None, 6, None)}


def test_an_upsert_by_several_columns_matches_all_of_them(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1, 2), stamp())
    done = upsert(
        catalog,
        "users",
        [{"id": 1, "name": "n1", "age": 0}, {"id": 1, "name": "n2", "age": 1}],
        ["id", "name"],
        stamp(),
    )
    assert (done.updated, done.inserted) == (1, 1)
    held = catalog.load_table("default.users").scan().to_arrow().select(["id", "name", "age"]).to_pylist()
    assert sorted(tuple(row.values()) for row in held) == [(1, "n1", 0), (1, "n2", 1), (2, "n2", 20)]


def test_bad_keys_are_refused(catalog: Catalog, users: Table) -> None:
    with pytest.raises(DataError, match="more than once, such as id 1"):
        upsert(catalog, "users", people(1, 1), "id", stamp())
    with pytest.raises(DataError, match="Row 1 has no value in key column 'name'"):
        upsert(catalog, "users", [{"id": 1, "name": None}], ["id", "name"], stamp())
    with pytest.raises(NotFoundError, match="no column 'nmae'"):
        upsert(catalog, "users", people(1), "nmae", stamp())
    assert snapshots(catalog) == 0


def test_an_overwrite_is_never_seen_half_done(catalog: Catalog, users: Table) -> None:
    append(catalog, "users", people(1, 2, 3), stamp())
    done = overwrite(catalog, "users", people(7), stamp(), where="id < 3")
    assert (set(rows(catalog)), snapshots(catalog)) == ({3, 7}, 2)
    assert (done.deleted, done.inserted, done.commit.operation) == (2, 1, "overwrite")
    overwrite(catalog, "users", people(4), stamp())
    assert (set(rows(catalog)), snapshots(catalog)) == ({4}, 3)


def meanwhile(monkeypatch: pytest.MonkeyPatch, happen: Callable[[], object]) -> None:
    """Let something happen once, after a plan was made and its files were written, before they are committed."""
    real, waiting = metadata_commit.commit_changes, [happen]

    def interrupted(*args: object, **options: object) -> int | None:
        if waiting:
            waiting.pop()()
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(arrow_writes, "commit_changes", interrupted)


def test_an_append_survives_any_other_writer(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1), stamp())
    other = open_catalog(settings).load_table("default.users")
    meanwhile(monkeypatch, lambda: other.delete("id = 1"))
    append(catalog, "users", people(2), stamp())
    assert set(rows(catalog)) == {2}


def test_a_delete_sees_rows_that_came_after_it_was_planned(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1, 2), stamp())
    meanwhile(monkeypatch, lambda: append(catalog, "users", people(1, 3), stamp()))
    done = delete(catalog, "users", "id = 1", stamp())
    assert (done.deleted, done.commit.attempts, set(rows(catalog))) == (2, 2, {2, 3})
    named = {file.file_path for file in (task.file for task in users.refresh().scan().plan_files())}
    assert len(named) == 1


def test_a_delete_keeps_rows_that_others_rewrote(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(catalog, "users", people(1, 2, 3), stamp())
    meanwhile(monkeypatch, lambda: update(catalog, "users", {"age": 77}, stamp(), where="id = 2"))
    delete(catalog, "users", "id = 1", stamp())
    assert rows(catalog) == {2: ("n2", 77, 2.0), 3: ("n3", 30, 3.0)}


def test_a_change_elsewhere_does_not_make_a_delete_plan_again(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(catalog, "users", people(1, 2), stamp())
    meanwhile(monkeypatch, lambda: append(catalog, "users", people(50), stamp()))
    done = delete(catalog, "users", "id = 1", stamp())
    assert (done.commit.attempts, set(rows(catalog))) == (1, {2, 50})


def test_two_upserts_of_one_new_key_make_one_row(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(catalog, "users", people(1), stamp())
    meanwhile(monkeypatch, lambda: upsert(catalog, "users", people(2), "id", stamp()))
    done = upsert(catalog, "users", [{**people(2)[0], "age": 5}], "id", stamp())
    assert (done.updated, done.inserted) == (1, 0)
    assert sorted(catalog.load_table("default.users").scan().to_arrow()["age"].to_pylist()) == [5, 10]


def test_a_commit_that_keeps_losing_leaves_no_files(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1, 2), stamp())
    real = metadata_commit.commit_changes

    def losing(*args: object, **options: object) -> int | None:
        raise StalePlanError("Cannot commit")

    monkeypatch.setattr(arrow_writes, "commit_changes", losing)
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr("iceberg_manager.commits.commit.__defaults__", (2, lambda _: None))
    for work in (
        lambda: append(catalog, "users", people(9), stamp()),
        lambda: delete(catalog, "users", "id = 1", stamp()),
    ):
        with pytest.raises(ConflictError):
            work()
    monkeypatch.setattr(arrow_writes, "commit_changes", real)
    assert len(data_files(settings)) == 1


def test_files_of_an_older_schema_and_layout_are_read_by_field_id(
    catalog: Catalog, users: Table, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1, 2), stamp())
    table = catalog.load_table("default.users")
    with table.update_schema() as change:
        change.rename_column("name", "full_name").add_column("email", table.schema().find_type("name"))
        change.update_column("age", LongType())
    with table.update_spec() as spec:
        spec.add_field("id", "bucket[2]")
    update(catalog, "users", {"email": expr("full_name || '@x'"), "age": expr("age + 5000000000")}, stamp(), "id = 2")
    held = catalog.load_table("default.users").scan().to_arrow().sort_by("id").to_pylist()
    assert [(row["full_name"], row["email"], row["age"]) for row in held] == [
        ("n1", None, 10),
        ("n2", "n2@x", 5000000020),
    ]


def test_partitioned_rows_move_when_their_partition_column_changes(catalog: Catalog, settings: LakeSettings) -> None:
    columns = {"id": "long", "at": "timestamptz", "kind": "string"}
    ensure_table(catalog, settings, TableSpec("events", columns, partition_by=["day(at)", "kind"]))
    days = [dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3)]
    append(catalog, "events", [{"id": day.day, "at": day, "kind": "a"} for day in days], stamp())
    update(catalog, "events", {"kind": "b"}, stamp(), where="id = 2")
    done = delete(catalog, "events", "at < '2024-01-02T00:00:00+00:00'", stamp())
    assert (done.commit.files_removed, done.commit.files_added) == (1, 0)
    table = catalog.load_table("default.events")
    assert sorted(str(task.file.partition) for task in table.scan().plan_files()) == [
        "Record[19724, b]",
        "Record[19725, a]",
    ]
    assert connect(settings).sql(f"select id, kind from {scan(table)} order by id").fetchall() == [(2, "b"), (3, "a")]


def test_large_files_are_rewritten_in_two_passes(
    catalog: Catalog, users: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewrites, "SMALL_FILE", 0)
    append(catalog, "users", people(*range(50)), stamp())
    append(catalog, "users", people(*range(50, 60)), stamp())
    assert delete(catalog, "users", "id = 7", stamp()).deleted == 1
    assert upsert(catalog, "users", [{"id": 8, "age": 1}, {"id": 99, "age": 2}], "id", stamp()).inserted == 1
    assert update(catalog, "users", {"age": expr("age * 2")}, stamp(), "id = 8").updated == 1
    assert len(rows(catalog)) == 60
    assert rows(catalog)[8] == ("n8", 2, 8.0)


@pytest.mark.spark
def test_deletes_that_spark_left_beside_the_data_are_applied(
    catalog: Catalog, users: Table, session: object, settings: LakeSettings
) -> None:
    append(catalog, "users", people(1, 2, 3), stamp())
    spark = session.spark  # type: ignore[attr-defined]
    spark.sql("ALTER TABLE lake.default.users SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    spark.sql("DELETE FROM lake.default.users WHERE id = 1")
    update(catalog, "users", {"age": 0}, stamp(), where="id = 2")
    append(catalog, "users", pa.table({"id": [9]}), stamp())
    seen = spark.sql("SELECT id, age FROM lake.default.users ORDER BY id").collect()
    assert [(row.id, row.age) for row in seen] == [(2, 0), (3, 30), (9, None)]
    assert set(rows(catalog)) == {2, 3, 9}
