"""The fast commit: data files in and out of a table as one snapshot, at a cost that does not grow with its history.

PyIceberg copies all metadata some 18 times a commit. Here a SQL catalog's metadata file is edited as the document it is, and
past snapshots are passed on as text. Other catalogs get the ordinary updates. Order: manifests, manifest list, metadata
file, then one compare-and-swap of the catalog's pointer. A crash before the swap leaves files that nothing names; a swap
that fails for sure removes them. When the outcome is unknown they stay, and the commit door finds out by the stamp.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import MetadataLogEntry, Operation, Snapshot, SnapshotLogEntry
from pyiceberg.utils.properties import property_as_bool

from iceberg_manager import manifests
from iceberg_manager.changes import Changes, StalePlanError
from iceberg_manager.commits import COMMIT_ID, find
from iceberg_manager.errors import InputError
from iceberg_manager.history import main_line, summary
from iceberg_manager.manifests import number
from iceberg_manager.names import TableName
from iceberg_manager.staging import Staged, next_schema_id
from iceberg_manager.storage import remove_files
from iceberg_manager.table_versions import Version, catalog_row, dump, is_sql, load, read, remembered

ANYWHERE: Final = -1  # a change that fits on top of any snapshot: an append
_ATTEMPTS = 5


def commit_changes(
    catalog: Catalog,
    table: Table,
    changes: Changes,
    snapshot_properties: Mapping[str, str],
    operation: Operation,
    planned_on: int | None = ANYWHERE,
    conflicts: BooleanExpression | None = None,
    sync: bool = False,
    guard: Callable[[Table], None] | None = None,
) -> int | None:
    """Commit ``changes`` as one snapshot of main and return its id (without files: only the properties, and no id).

    ``planned_on`` is the snapshot that the plan was made on (None: an empty table). If main moved since, it raises a
    StalePlanError when a removed file is gone, when rows were deleted, or when files came that may hold rows that match
    ``conflicts``. ``sync`` forces every new file, its folder included, to a local disk before the swap.
    ``guard`` is shown the very version that each swap starts from, and raises if it must not happen.
    """
    if table.format_version != 2:
        raise InputError(
            f"{'.'.join(table.name())} has Iceberg format version {table.format_version}; only version 2 is written "
            "here. Write to it through Spark."
        )
    name = TableName.parse(".".join(table.name()))
    for attempt in range(1, _ATTEMPTS + 1):
        base = load(catalog, name)
        if base.metadata_location != table.metadata_location and (landed := _landed(base, snapshot_properties)):
            return landed
        _validate(base, changes, planned_on, conflicts)
        if guard:
            guard(base)
        staged = Staged(base, sync)
        try:
            snapshot = staged.snapshot(changes, snapshot_properties, operation) if changes.has_files else None
            _swap(catalog, name, base, staged, changes, snapshot)
        except CommitFailedException:
            staged.discard()
            if attempt == _ATTEMPTS:
                raise
        except _UnknownOutcomeError as unknown:
            raise unknown.cause from None
        except BaseException:
            staged.discard()
            raise
        else:
            return snapshot.snapshot_id if snapshot else None
    raise AssertionError("the loop either returns or raises")


def commit_on(
    catalog: Catalog, base: Table, changes: Changes, snapshot_properties: Mapping[str, str], sync: bool = False
) -> int:
    """Append ``changes`` as one snapshot on exactly ``base``, or raise a CommitFailedException: one try, no rebase.

    What was validated on ``base`` therefore still holds when the commit lands. Without files the snapshot is empty, but
    main moves all the same, so that whoever started from the same base loses. Added files are never removed here.
    """
    name = TableName.parse(".".join(base.name()))
    staged = Staged(base, sync)
    try:
        snapshot = staged.snapshot(changes, snapshot_properties, Operation.APPEND)
        _swap(catalog, name, base, staged, changes, snapshot)
    except _UnknownOutcomeError as unknown:
        raise unknown.cause from None
    except BaseException:
        staged.discard()
        raise
    return snapshot.snapshot_id


def forget() -> None:
    """Drop what this process remembers of tables, as if it had just started."""
    remembered.clear()
    manifests.forget()


class _UnknownOutcomeError(Exception):
    """The swap was tried and nobody knows whether it worked."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _landed(base: Table, properties: Mapping[str, str]) -> int | None:
    ours = find(base, properties[COMMIT_ID]) if COMMIT_ID in properties else []
    return ours[-1].snapshot_id if ours else None


def _validate(base: Table, changes: Changes, planned_on: int | None, conflicts: BooleanExpression | None) -> None:
    """Raise if commits since ``planned_on`` contradict the plan."""
    head = base.metadata.current_snapshot_id
    if planned_on in (ANYWHERE, head):
        return
    since: list[Snapshot] = []
    for snapshot in main_line(base):
        if snapshot.snapshot_id == planned_on:
            break
        since.append(snapshot)
    else:
        if planned_on is not None:
            raise StalePlanError("Cannot commit: the snapshot that the change was planned on left main's history.")
    if any(int(summary(snapshot).get("added-delete-files", "0")) for snapshot in since):
        raise StalePlanError("Cannot commit: rows were deleted meanwhile.")
    if conflicts is not None and _may_match(base, conflicts, since):
        raise StalePlanError("Cannot commit: rows that the change may concern were added meanwhile.")


def _may_match(base: Table, conflicts: BooleanExpression, since: Iterable[Snapshot]) -> bool:
    """Whether files that came with these snapshots may hold matching rows; compaction brings no new rows."""
    new = {one.snapshot_id for one in since}
    rows = {one.snapshot_id for one in since if one.summary is None or one.summary.operation != Operation.REPLACE}
    head = base.current_snapshot()
    came = [one for one in manifests.manifests_of(base.io, head) if one.added_snapshot_id in new]
    planner = ManifestGroupPlanner(base.metadata, base.io, conflicts)
    return bool(list(planner.plan_files(came, lambda entry: entry.snapshot_id in rows)))


def _swap(
    catalog: Catalog, name: TableName, base: Table, staged: Staged, changes: Changes, snapshot: Snapshot | None
) -> None:
    if not is_sql(catalog):
        _send(catalog, base, changes, snapshot)
        return
    version = remembered.get(catalog, name)
    if version is None or version.location != base.metadata_location:
        version = read(catalog, base.metadata_location, version)
    document = _edited(version, base, changes, snapshot)
    past = version.snapshots
    text = ",".join(part for part in (past, dump(snapshot.model_dump()) if snapshot else "") if part)
    location = staged.write_metadata(document, text)
    _point(catalog, name, base.metadata_location, location)
    model = _next_model(version.metadata, document, snapshot) if changes.schema is None else None
    remembered.put(catalog, name, Version(location, document, text, model, version.io) if model else None)
    _drop_old_metadata(base, document)


def _edited(version: Version, base: Table, changes: Changes, snapshot: Snapshot | None) -> dict[str, Any]:
    """The next document, without its snapshots; the one it comes from is left alone."""
    document = dict(version.document)
    now = snapshot.timestamp_ms if snapshot else max(int(time.time() * 1000), base.metadata.last_updated_ms)
    properties = {**document.get("properties", {}), **changes.properties}
    document["properties"] = {key: value for key, value in properties.items() if key not in changes.removed_properties}
    keep = number(base, TableProperties.METADATA_PREVIOUS_VERSIONS_MAX, 100)
    entry = {"metadata-file": base.metadata_location, "timestamp-ms": document["last-updated-ms"]}
    document["metadata-log"] = [*document.get("metadata-log", []), entry][-max(1, keep) :]
    document["last-updated-ms"] = now
    if changes.schema is not None:
        _add_schema(document, changes.schema, next_schema_id(base))
    if snapshot:
        main = {**document.get("refs", {}).get(MAIN_BRANCH, {"type": "branch"}), "snapshot-id": snapshot.snapshot_id}
        document["refs"] = {**document.get("refs", {}), MAIN_BRANCH: main}
        document["current-snapshot-id"] = snapshot.snapshot_id
        document["last-sequence-number"] = snapshot.sequence_number
        logged = {"snapshot-id": snapshot.snapshot_id, "timestamp-ms": now}
        document["snapshot-log"] = [*document.get("snapshot-log", []), logged]
    return document


def _add_schema(document: dict[str, Any], schema: Schema, number: int) -> None:
    document["schemas"] = [*document["schemas"], {**schema.model_dump(), "schema-id": number}]
    document["current-schema-id"] = number
    document["last-column-id"] = max(document["last-column-id"], schema.highest_field_id)


def _next_model(before: TableMetadata, document: Mapping[str, Any], snapshot: Snapshot | None) -> TableMetadata:
    """The parsed form of ``document``, made from the one before it without parsing again."""
    update: dict[str, Any] = {
        "properties": document["properties"],
        "last_updated_ms": document["last-updated-ms"],
        "metadata_log": [
            *before.metadata_log,
            MetadataLogEntry.model_validate(document["metadata-log"][-1]),
        ][-len(document["metadata-log"]) :],
    }
    if snapshot:
        main = SnapshotRef.model_validate(document["refs"][MAIN_BRANCH])
        logged = SnapshotLogEntry(snapshot_id=snapshot.snapshot_id, timestamp_ms=snapshot.timestamp_ms)
        update |= {
            "snapshots": [*before.snapshots, snapshot],
            "snapshot_log": [*before.snapshot_log, logged],
            "refs": {**before.refs, MAIN_BRANCH: main},
            "current_snapshot_id": snapshot.snapshot_id,
            "last_sequence_number": snapshot.sequence_number,
        }
    assert isinstance(before, TableMetadataV2)
    return before.model_copy(update=update)


def _point(catalog: Any, name: TableName, old: str, new: str) -> None:
    """The compare-and-swap: this table's row, only if it still names the file that we started from."""
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import update

    statement = (
        update(IcebergTables)
        .where(*catalog_row(catalog, name), IcebergTables.metadata_location == old)
        .values(metadata_location=new, previous_metadata_location=old)
    )
    try:
        with catalog.engine.begin() as connection:
            changed = connection.execute(statement).rowcount
    except Exception as error:
        if "database is locked" in str(error):
            raise CommitFailedException(f"Cannot commit: the catalog is busy, {name} was not changed.") from error
        raise _UnknownOutcomeError(error) from error
    if changed < 1:
        raise CommitFailedException(f"Cannot commit: another writer changed {name} first.")


def _send(catalog: Catalog, base: Table, changes: Changes, snapshot: Snapshot | None) -> None:
    """The ordinary updates, for catalogs that write the metadata themselves."""
    from pydantic import TypeAdapter
    from pyiceberg.table import update as updates

    sent: list[dict[str, Any]] = []
    if changes.schema is not None:
        sent.append({"action": "add-schema", "schema": changes.schema})
        sent.append({"action": "set-current-schema", "schema-id": -1})
    if changes.properties:
        sent.append({"action": "set-properties", "updates": dict(changes.properties)})
    if changes.removed_properties:
        sent.append({"action": "remove-properties", "removals": sorted(changes.removed_properties)})
    if snapshot:
        sent.append({"action": "add-snapshot", "snapshot": snapshot})
        ref = {"ref-name": MAIN_BRANCH, "type": "branch", "snapshot-id": snapshot.snapshot_id}
        sent.append({"action": "set-snapshot-ref", **ref})
    required = (
        updates.AssertTableUUID(uuid=base.metadata.table_uuid),
        updates.AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=base.metadata.current_snapshot_id),
    )
    try:
        catalog.commit_table(base, required, TypeAdapter(tuple[updates.TableUpdate, ...]).validate_python(sent))
    except CommitFailedException:
        raise
    except Exception as error:
        raise _UnknownOutcomeError(error) from error


def _drop_old_metadata(base: Table, document: Mapping[str, Any]) -> None:
    if not property_as_bool(document["properties"], TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, False):
        return
    named = {entry["metadata-file"] for entry in document["metadata-log"]}
    remove_files(
        base.io, [entry.metadata_file for entry in base.metadata.metadata_log if entry.metadata_file not in named]
    )
