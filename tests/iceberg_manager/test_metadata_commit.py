"""The fast commit gives what PyIceberg's own would, keeps history cheap, and never overwrites another writer's work."""

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import NestedField, StringType

from iceberg_manager import metadata_commit
from iceberg_manager.arrow_files import arrow_schema, write
from iceberg_manager.catalog import open_catalog
from iceberg_manager.changes import Changes, StalePlanError
from iceberg_manager.commits import COMMIT_ID
from iceberg_manager.errors import InputError, LakeError
from iceberg_manager.manifests import live_entries, manifests_of
from iceberg_manager.metadata_commit import commit_changes
from iceberg_manager.query import connect, scan
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.table_versions import load
from iceberg_manager.tables import ensure_table

COLUMNS = {"id": "long", "kind": "string"}


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    return open_catalog(settings)


@pytest.fixture
def table(catalog: Catalog, settings: LakeSettings) -> Table:
    return ensure_table(catalog, settings, TableSpec("t", COLUMNS, partition_by=["kind"]))


def add(
    catalog: Catalog, table: Table, *ids: int, kind: str = "a", said: Mapping[str, str] | None = None
) -> int | None:
    rows = pa.RecordBatch.from_pylist([{"id": one, "kind": kind} for one in ids], schema=arrow_schema(table.schema()))
    return commit_changes(catalog, table, Changes(write(table, [rows])), said or {}, Operation.APPEND)


def ids(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table("default.t").scan().to_arrow()["id"].to_pylist())


def metadata_files(settings: LakeSettings) -> set[str]:
    return {str(path) for path in Path(settings.warehouse_location).rglob("metadata/*")}


def test_a_commit_reads_back_the_same_everywhere(catalog: Catalog, table: Table, settings: LakeSettings) -> None:
    first = add(catalog, table, 1, 2, said={"who": "me"})
    second = add(catalog, table, 3, kind="b")
    held = catalog.load_table("default.t")
    assert ids(catalog) == [1, 2, 3]
    assert connect(settings).sql(f"select sum(id) from {scan(held)}").fetchall() == [(6,)]
    assert connect(settings).sql(f"select sum(id) from {scan(held, first)}").fetchall() == [(3,)]
    assert [one.snapshot_id for one in held.metadata.snapshot_log] == [first, second]
    assert (held.current_snapshot().parent_snapshot_id, held.metadata.last_sequence_number) == (first, 2)
    assert held.metadata.snapshots[0].summary["who"] == "me"


def test_what_is_remembered_is_what_is_on_disk(catalog: Catalog, table: Table, settings: LakeSettings) -> None:
    for one in range(6):
        add(catalog, table, one, kind="ab"[one % 2])
    fresh, kept = open_catalog(settings).load_table("default.t"), load(catalog, "t")
    assert kept.metadata == fresh.metadata
    on_disk = fresh.current_snapshot().manifests(fresh.io)
    assert [str(one) for one in manifests_of(kept.io, kept.current_snapshot())] == [str(one) for one in on_disk]
    for one in on_disk:
        read = [(e.snapshot_id, e.sequence_number, e.data_file) for e in one.fetch_manifest_entry(fresh.io)]
        assert read == [(e.snapshot_id, e.sequence_number, e.data_file) for e in live_entries(kept.io, one)]


def test_the_summary_is_the_one_pyiceberg_would_write(catalog: Catalog, table: Table) -> None:
    add(catalog, table, 1, 2)
    theirs = catalog.load_table("default.t")
    theirs.append(pa.table({"id": [3], "kind": ["b"]}))
    add(catalog, table, 4, kind="b")
    before, by_them, by_us = (dict(one.summary.additional_properties) for one in theirs.refresh().metadata.snapshots)
    assert set(by_us) == set(by_them)
    sizes = [task.file.file_size_in_bytes for task in theirs.scan().plan_files()]
    assert (by_us["total-records"], by_us["total-data-files"]) == ("4", "3")
    assert int(by_us["total-files-size"]) == sum(sizes)
    assert (before["changed-partition-count"], by_us["changed-partition-count"]) == ("1", "1")


def test_removed_files_leave_their_manifest_and_the_totals(catalog: Catalog, table: Table) -> None:
    add(catalog, table, 1, 2)
    head = add(catalog, table, 3)
    held = load(catalog, "t")
    gone = [task.file for task in held.scan(row_filter="id = 3").plan_files()]
    commit_changes(catalog, held, Changes((), gone), {}, Operation.DELETE, planned_on=head)
    said = catalog.load_table("default.t").current_snapshot().summary
    assert ids(catalog) == [1, 2]
    assert (said["deleted-data-files"], said["deleted-records"], said["total-records"]) == ("1", "1", "2")
    assert said["removed-files-size"] == str(gone[0].file_size_in_bytes)


def test_totals_are_counted_anew_when_a_writer_left_them_out(
    catalog: Catalog, table: Table, settings: LakeSettings
) -> None:
    add(catalog, table, 1, 2)
    location = Path(catalog.load_table("default.t").metadata_location)
    document = json.loads(location.read_text())
    document["snapshots"][0]["summary"] = {"operation": "append"}
    location.write_text(json.dumps(document))
    metadata_commit.forget()
    add(catalog, table, 3)
    assert catalog.load_table("default.t").current_snapshot().summary["total-records"] == "3"


def test_manifests_are_merged_before_there_are_many(catalog: Catalog, settings: LakeSettings) -> None:
    table = ensure_table(
        catalog, settings, TableSpec("t", COLUMNS, properties={"commit.manifest.min-count-to-merge": "6"})
    )
    most = 0
    for one in range(40):
        add(catalog, table, one)
        most = max(most, len(manifests_of(table.io, load(catalog, "t").current_snapshot())))
    assert most <= 8
    assert ids(catalog) == list(range(40))


def test_merging_can_be_switched_off(catalog: Catalog, settings: LakeSettings) -> None:
    properties = {"commit.manifest.min-count-to-merge": "3", "commit.manifest-merge.enabled": "false"}
    table = ensure_table(catalog, settings, TableSpec("t", COLUMNS, properties=properties))
    for one in range(6):
        add(catalog, table, one)
    assert len(manifests_of(table.io, load(catalog, "t").current_snapshot())) == 6


def test_old_metadata_files_go_as_the_table_says(catalog: Catalog, settings: LakeSettings) -> None:
    table = ensure_table(catalog, settings, TableSpec("t", COLUMNS, maintenance=MaintenancePolicy(metadata_versions=3)))
    for one in range(6):
        add(catalog, table, one)
    held = catalog.load_table("default.t")
    left = {path for path in metadata_files(settings) if path.endswith(".metadata.json")}
    assert left == {held.metadata_location, *(entry.metadata_file for entry in held.metadata.metadata_log)}
    assert len(left) == 4


def test_a_lost_race_is_run_again_on_top_of_the_winner(
    catalog: Catalog, table: Table, settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, other = metadata_commit._point, [open_catalog(settings)]

    def raced(*args: object) -> None:
        if other:
            other.pop().load_table("default.t").append(pa.table({"id": [9], "kind": ["z"]}))
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(metadata_commit, "_point", raced)
    add(catalog, table, 1)
    held = catalog.load_table("default.t")
    assert ids(catalog) == [1, 9]
    named = {held.metadata_location} | {entry.metadata_file for entry in held.metadata.metadata_log}
    named |= {one.manifest_list for one in held.metadata.snapshots}
    named |= {one.manifest_path for each in held.metadata.snapshots for one in each.manifests(held.io)}
    assert metadata_files(settings) == named


def test_a_swap_that_fails_for_an_unknown_reason_keeps_its_files(
    catalog: Catalog, table: Table, settings: LakeSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata_commit._point

    def answered_by_silence(*args: object) -> None:
        real(*args)  # type: ignore[arg-type]
        raise metadata_commit._UnknownOutcomeError(ConnectionError("the line went dead"))

    monkeypatch.setattr(metadata_commit, "_point", answered_by_silence)
    with pytest.raises(ConnectionError):
        add(catalog, table, 1)
    assert ids(catalog) == [1]


def test_a_commit_that_landed_meanwhile_is_not_repeated(catalog: Catalog, table: Table) -> None:
    stale, said = load(catalog, "t"), {COMMIT_ID: uuid.uuid4().hex}
    first = add(catalog, stale, 1, said=said)
    assert add(catalog, stale, 1, said=said) == first
    assert ids(catalog) == [1]


def test_a_stale_plan_is_refused(catalog: Catalog, table: Table, settings: LakeSettings) -> None:
    head = add(catalog, table, 1)
    held = load(catalog, "t")
    (file,) = [task.file for task in held.scan().plan_files()]
    open_catalog(settings).load_table("default.t").overwrite(pa.table({"id": [2], "kind": ["a"]}))
    before = metadata_files(settings)
    with pytest.raises(StalePlanError, match="no longer in the table"):
        commit_changes(catalog, held, Changes((), [file]), {}, Operation.DELETE, planned_on=head)
    assert (metadata_files(settings), ids(catalog)) == (before, [2])


def test_a_plan_on_a_snapshot_that_was_rolled_back_is_refused(catalog: Catalog, table: Table) -> None:
    first = add(catalog, table, 1)
    second = add(catalog, table, 2)
    held = load(catalog, "t")
    catalog.load_table("default.t").manage_snapshots().set_current_snapshot(first).commit()
    with pytest.raises(CommitFailedException, match="left main's history"):
        commit_changes(catalog, held, Changes((), []), {}, Operation.DELETE, planned_on=second)


def test_properties_alone_make_no_snapshot(catalog: Catalog, table: Table) -> None:
    made = commit_changes(catalog, table, Changes(properties={"a": "1"}), {}, Operation.APPEND)
    held = catalog.load_table("default.t")
    assert (made, held.properties["a"], held.metadata.snapshots) == (None, "1", [])


def test_a_schema_can_come_with_the_rows(catalog: Catalog, settings: LakeSettings) -> None:
    table = ensure_table(catalog, settings, TableSpec("t", COLUMNS))
    add(catalog, table, 1)
    wider = Schema(*table.schema().fields, NestedField(3, "note", StringType(), False))
    rows = pa.RecordBatch.from_pylist([{"id": 2, "note": "n"}], schema=arrow_schema(wider))
    commit_changes(
        catalog, table, Changes(write(table, [rows], wider), schema=wider), {}, Operation.APPEND
    )  # fmt: skip
    held = catalog.load_table("default.t")
    assert held.scan().to_arrow().sort_by("id")["note"].to_pylist() == [None, "n"]
    assert (held.current_snapshot().schema_id, held.metadata.last_column_id) == (1, 3)
    assert load(catalog, "t").metadata == held.metadata


def test_other_refs_and_foreign_keys_survive(catalog: Catalog, table: Table) -> None:
    first = add(catalog, table, 1)
    catalog.load_table("default.t").manage_snapshots().create_tag(first, "kept").commit()
    add(catalog, table, 2)
    held = catalog.load_table("default.t")
    assert held.refs()["kept"].snapshot_id == first
    assert held.scan(snapshot_id=first).to_arrow().num_rows == 1


def test_compressed_metadata_is_read_and_written(catalog: Catalog, settings: LakeSettings) -> None:
    table = ensure_table(
        catalog, settings, TableSpec("t", COLUMNS, properties={"write.metadata.compression-codec": "gzip"})
    )
    add(catalog, table, 1)
    metadata_commit.forget()
    add(catalog, table, 2)
    assert catalog.load_table("default.t").metadata_location.endswith(".gz.metadata.json")
    assert ids(catalog) == [1, 2]


def test_sync_forces_each_new_file_and_folder_to_disk(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[str] = set()
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (synced.add(str(Path(f"/proc/self/fd/{handle}").readlink())), real(handle))
    )
    rows = pa.RecordBatch.from_pylist([{"id": 1, "kind": "a"}], schema=arrow_schema(table.schema()))
    (file,) = write(table, [rows])
    commit_changes(catalog, table, Changes([file]), {}, Operation.APPEND, sync=True)
    held = catalog.load_table("default.t")
    wanted = {file.file_path, held.metadata_location, held.current_snapshot().manifest_list}
    wanted |= {str(Path(one).parent) for one in wanted}
    assert wanted <= synced


def test_version_3_is_left_to_spark(catalog: Catalog, table: Table) -> None:
    table.metadata = table.metadata.model_copy(update={"format_version": 3})
    with pytest.raises(InputError, match="through Spark"):
        commit_changes(catalog, table, Changes(properties={"a": "1"}), {}, Operation.APPEND)


def test_a_damaged_metadata_file_is_named(catalog: Catalog, table: Table) -> None:
    Path(table.metadata_location).write_text("{")
    metadata_commit.forget()
    with pytest.raises(LakeError, match="missing or damaged"):
        load(catalog, "t")
