"""Expiry: what is kept stays readable to the last row, what goes is really gone, and the plan says why."""

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from iceberg_manager import cursors, expiry, references
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.history import data_version, main_line
from iceberg_manager.needs import needed_snapshots
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table

NOTHING = timedelta(0)
SOON = timedelta(minutes=1)


def make(settings: LakeSettings, keep: int = 1) -> Catalog:
    catalog = open_catalog(settings)
    policy = MaintenancePolicy(keep_snapshots=keep)
    ensure_table(catalog, settings, TableSpec("demo.t", schema={"id": "long"}, maintenance=policy))
    return catalog


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def ids(table: Table, snapshot: int | None = None) -> list[int]:
    return sorted(table.scan(snapshot_id=snapshot).to_arrow()["id"].to_pylist())


def later() -> datetime:
    return datetime.now(UTC) + SOON


def physical(table: Table) -> set[str]:
    folder = Path(table.location())
    return {str(path) for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".metadata.json")}


def reachable(table: Table) -> set[str]:
    found = set()
    for snapshot in table.metadata.snapshots:
        found.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            found.add(manifest.manifest_path)
            found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io)}
    return found


def test_old_snapshots_go_with_the_files_that_only_they_needed(settings: LakeSettings) -> None:
    catalog = make(settings)
    load = partial(load_table, catalog, "demo.t")
    load().append(rows(1))
    load().overwrite(rows(2))
    load().append(rows(3))
    before = physical(load())

    planned = expiry.plan(load(), NOTHING, now=later())
    promised = expiry.report(load(), planned)
    done = expiry.expire(load, planned)

    table = load()
    assert len(table.metadata.snapshots) == 1
    assert ids(table) == [2, 3]
    assert physical(table) == reachable(table)
    assert promised.data_files == 1, "the file with row 1"
    assert done.files_deleted == len(before - physical(table))
    assert done.bytes_freed == promised.bytes > 0


def test_the_age_and_the_count_of_the_policy_are_both_honoured(settings: LakeSettings) -> None:
    load = partial(load_table, make(settings, keep=2), "demo.t")
    for number in range(4):
        load().append(rows(number))
    assert not expiry.plan(load(), timedelta(days=1)).snapshots, "all are younger"
    planned = expiry.plan(load(), NOTHING, now=later())
    assert len(planned.snapshots) == 2
    assert "one of the last 2 of main" in planned.kept.values()
    assert len(expiry.plan(load(), NOTHING, keep_last=1, now=later()).snapshots) == 3


def test_tags_branches_and_named_needs_keep_their_snapshots(settings: LakeSettings) -> None:
    load = partial(load_table, make(settings), "demo.t")
    made = []
    for number in range(5):
        load().append(rows(number))
        made.append(load().metadata.current_snapshot_id)
    references.tag(load, "t", made[0])
    references.branch(load, "b", made[1])
    planned = expiry.plan(load(), NOTHING, needed={made[2]: "a reader's cursor"}, now=later())
    assert [one.snapshot_id for one in planned.snapshots] == [made[3]]
    assert planned.kept[made[0]] == "tag t"
    assert planned.kept[made[1]] == "the head of b"
    assert planned.kept[made[2]] == "a reader's cursor"
    expiry.expire(load, planned)
    assert ids(load(), made[0]) == [0]


def test_a_reference_past_its_retention_goes_and_main_never_does(settings: LakeSettings) -> None:
    load = partial(load_table, make(settings), "demo.t")
    load().append(rows(1))
    first = load().metadata.current_snapshot_id
    load().append(rows(2))
    references.tag(load, "old", first, timedelta(seconds=1))
    planned = expiry.plan(load(), NOTHING, now=later())
    assert planned.references == ("old",)
    expiry.expire(load, planned)
    assert list(load().metadata.refs) == ["main"]
    assert ids(load()) == [1, 2]


def test_an_empty_plan_changes_nothing(settings: LakeSettings) -> None:
    load = partial(load_table, make(settings), "demo.t")
    load().append(rows(1))
    location = load().metadata_location
    done = expiry.expire(load, expiry.plan(load(), NOTHING, now=later()))
    assert done.files_deleted == 0
    assert load().metadata_location == location


def test_a_tag_made_after_the_plan_keeps_its_snapshot(settings: LakeSettings) -> None:
    load = partial(load_table, make(settings), "demo.t")
    load().append(rows(1))
    first = load().metadata.current_snapshot_id
    load().overwrite(rows(2))
    planned = expiry.plan(load(), NOTHING, now=later())
    references.tag(load, "late", first)
    expiry.expire(load, planned)
    assert ids(load(), first) == [1]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 99)),
        st.tuples(st.just("overwrite"), st.integers(0, 99)),
        st.tuples(st.just("delete"), st.integers(0, 99)),
        st.tuples(st.sampled_from(["tag", "branch", "rollback", "cursor"]), st.integers(0, 99)),
    ),
    min_size=2,
    max_size=8,
)


@pytest.mark.slow
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=STEPS, keep=st.integers(1, 3))
def test_whatever_happened_nothing_reachable_is_lost_and_nothing_else_stays(
    steps: list[tuple[str, int]], keep: int
) -> None:
    with TemporaryDirectory() as folder:
        load = partial(load_table, make(LakeSettings(root=Path(folder)), keep), "demo.t")
        load().append(rows(1000))
        for number, (step, value) in enumerate(steps):
            _do(load, step, value, number)
        table = load()
        model = {snapshot.snapshot_id: ids(table, snapshot.snapshot_id) for snapshot in table.metadata.snapshots}
        line = [snapshot.snapshot_id for snapshot in main_line(table)]
        heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
        orphans = physical(table) - reachable(table)

        needed = needed_snapshots(table)
        unread = {one for one in needed if one in model}
        version = data_version(table)

        expiry.expire(load, expiry.plan(table, NOTHING, needed=needed, now=later()))

        table = load()
        assert data_version(table) == version
        kept = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        assert kept >= heads | set(line[:keep]) | unread
        for cursor in cursors.cursors(table):
            assert cursor.snapshot_id not in line or kept >= set(line[: line.index(cursor.snapshot_id) + 1])
        assert {one: ids(table, one) for one in kept} == {one: model[one] for one in kept}
        assert reachable(table) <= physical(table)
        assert physical(table) - reachable(table) == orphans, "orphans of before, and no new ones"


def _do(load: partial[Table], step: str, value: int, number: int) -> None:
    table = load()
    known = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    chosen = known[value % len(known)]
    if step == "append":
        table.append(rows(value))
    elif step == "overwrite":
        table.overwrite(rows(value, value + 1))
    elif step == "delete":
        table.delete(f"id = {value}")
    elif step == "cursor":
        cursors.move(load, f"reader{value % 3}", chosen)
    elif step == "tag":
        references.tag(load, f"tag{number}", chosen)
    elif step == "branch":
        references.branch(load, f"branch{number}", chosen)
    elif chosen != table.metadata.current_snapshot_id:
        references.rollback(load, references.plan_rollback(table, table.snapshot_by_id(chosen)))
