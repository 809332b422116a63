"""The fast commit: data files in and out of a table as one snapshot, at a cost that does not grow with its history.

PyIceberg copies all metadata some 18 times a commit. Here a SQL catalog's metadata file is edited as the document it is:
past snapshots are passed on as text, and what was read or written last is remembered by its (immutable) file name. Other
catalogs get the ordinary updates. Order: manifests, manifest list, metadata file, then one compare-and-swap of the
catalog's pointer. A crash before the swap leaves files that nothing names; a swap that fails for sure removes them. When
the outcome is unknown they stay, and the commit door (``commits.py``) finds out by the stamp.
"""

import gzip
import json
import logging
import os
import re
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar, cast

from pyiceberg.avro.codecs import CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import BooleanExpression
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV2
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef
from pyiceberg.table.snapshots import (
    MetadataLogEntry,
    Operation,
    Snapshot,
    SnapshotLogEntry,
    SnapshotSummaryCollector,
    Summary,
)
from pyiceberg.utils.properties import property_as_bool, property_as_int

from iceberg_manager.catalog import load_table
from iceberg_manager.commits import COMMIT_ID, find
from iceberg_manager.errors import InputError, LakeError, first_line
from iceberg_manager.history import main_line, summary
from iceberg_manager.names import TableName

_log = logging.getLogger(__name__)
T = TypeVar("T")
ANYWHERE: Final = -1  # a change that fits on top of any snapshot: an append
_ATTEMPTS = 5
_REMEMBERED_TABLES = 32
_REMEMBERED_BYTES = 32 * 1024 * 1024
_TOTALS = {
    "total-data-files": ("added-data-files", "deleted-data-files"),
    "total-delete-files": ("added-delete-files", "removed-delete-files"),
    "total-records": ("added-records", "deleted-records"),
    "total-files-size": ("added-files-size", "removed-files-size"),
    "total-position-deletes": ("added-position-deletes", "removed-position-deletes"),
    "total-equality-deletes": ("added-equality-deletes", "removed-equality-deletes"),
}


@dataclass(frozen=True)
class Changes:
    """What one commit does to a table: data files that come and go, table properties, and perhaps a newer schema."""

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    removed_properties: frozenset[str] = frozenset()
    schema: Schema | None = None

    @property
    def has_files(self) -> bool:
        return bool(self.added or self.removed)


class StalePlanError(CommitFailedException):
    """The table changed in a way that the plan did not see: it has to be made again."""


def load(catalog: Catalog, name: TableName | str) -> Table:
    """A table as it is now, like ``catalog.load_table`` but parsing only what this process has not seen before."""
    name = TableName.parse(name)
    if not _is_sql(catalog):
        return load_table(catalog, name)
    location = _pointer(catalog, name)
    if location is None:
        return load_table(catalog, name)
    version = _versions.get(catalog, name)
    if version is None or version.location != location:
        version = _read(catalog, location, version)
        _versions.put(catalog, name, version)
    return Table(name.identifier, version.metadata, location, version.io, catalog)


def commit_changes(
    catalog: Catalog,
    table: Table,
    changes: Changes,
    snapshot_properties: Mapping[str, str],
    operation: Operation,
    planned_on: int | None = ANYWHERE,
    conflicts: BooleanExpression | None = None,
    sync: bool = False,
) -> int | None:
    """Commit ``changes`` as one snapshot of main and return its id (without files: only the properties, and no id).

    ``planned_on`` is the snapshot that the plan was made on (None: an empty table). If main moved since, it raises a
    StalePlanError when a removed file is gone, when rows were deleted, or when files came that may hold rows that match
    ``conflicts``. ``sync`` forces every new file, its folder included, to a local disk before the swap.
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
        staged = _Staged(base, sync)
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


def forget() -> None:
    """Drop what this process remembers of tables, as if it had just started."""
    for memory in (_versions, _entries, _lists):
        memory.clear()


def live_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """A manifest's live entries. They are shared: never change one."""
    return _entries.get(manifest.manifest_path, lambda: manifest.fetch_manifest_entry(io, discard_deleted=True))


def manifests_of(io: FileIO, snapshot: Snapshot | None) -> list[ManifestFile]:
    """A snapshot's manifests. They are shared: never change one."""
    return _lists.get(snapshot.manifest_list, lambda: snapshot.manifests(io)) if snapshot else []


class _UnknownOutcomeError(Exception):
    """The swap was tried and nobody knows whether it worked."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True)
class _Version:
    """One metadata file: its document without the snapshots, those as text or as read, and the parsed model."""

    location: str
    document: dict[str, Any]
    snapshots: str | list[dict[str, Any]]
    metadata: TableMetadata
    io: FileIO

    def snapshots_text(self) -> str:
        return self.snapshots if isinstance(self.snapshots, str) else _dump(self.snapshots)[1:-1]


class _Versions:
    """The last version seen of each table, for this process."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, ...], _Version] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def _key(catalog: Catalog, name: TableName) -> tuple[str, ...]:
        return (catalog.name, str(catalog.properties.get("uri")), *name.identifier)

    def get(self, catalog: Catalog, name: TableName) -> _Version | None:
        with self._lock:
            return self._seen.get(self._key(catalog, name))

    def put(self, catalog: Catalog, name: TableName, version: _Version | None) -> None:
        with self._lock:
            self._seen.pop(self._key(catalog, name), None)
            if version is not None and 800 * len(version.metadata.snapshots) < _REMEMBERED_BYTES:
                self._seen[self._key(catalog, name)] = version
            while len(self._seen) > _REMEMBERED_TABLES:
                self._seen.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._seen.clear()


class _Remembered(Generic[T]):
    """What immutable files hold, so that planning and committing read each of them once. Lists are shared: read only."""

    def __init__(self, limit: int) -> None:
        self._limit, self._count = limit, 0
        self._held: OrderedDict[str, list[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, path: str, read: Callable[[], list[T]]) -> list[T]:
        with self._lock:
            if path in self._held:
                self._held.move_to_end(path)
                return self._held[path]
        return self.put(path, read())

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self._count = 0

    def put(self, path: str, items: list[T]) -> list[T]:
        with self._lock:
            if path not in self._held:
                self._held[path] = items
                self._count += len(items)
            while self._count > self._limit:
                self._count -= len(self._held.popitem(last=False)[1])
        return items


_versions = _Versions()
_entries: _Remembered[ManifestEntry] = _Remembered(50_000)
_lists: _Remembered[ManifestFile] = _Remembered(20_000)


def _is_sql(catalog: Catalog) -> bool:
    return any(kind.__name__ == "SqlCatalog" for kind in type(catalog).__mro__)


def _pointer(catalog: Any, name: TableName) -> str | None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    with catalog.engine.connect() as connection:
        found: str | None = connection.scalar(select(IcebergTables.metadata_location).where(*_row(catalog, name)))
    return found


def _row(catalog: Catalog, name: TableName) -> tuple[Any, ...]:
    from pyiceberg.catalog.sql import IcebergTables

    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(name.namespace),
        IcebergTables.table_name == name.table,
    )


def _read(catalog: Catalog, location: str, before: _Version | None) -> _Version:
    """Parse a metadata file; snapshots that ``before`` has already are taken from there."""
    io = before.io if before else load_file_io(catalog.properties, location)
    try:
        with io.new_input(location).open() as stream:
            content = stream.read()
        document = json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        snapshots = document.pop("snapshots", None) or []
        metadata = TableMetadataUtil.parse_obj({**document, "snapshots": []})
        known = {}
        if before and before.metadata.table_uuid == metadata.table_uuid:
            known = {snapshot.snapshot_id: snapshot for snapshot in before.metadata.snapshots}
        parsed = [known.get(item["snapshot-id"]) or _parsed(item) for item in snapshots]
        if not before or before.metadata.properties != metadata.properties:
            io = load_file_io({**catalog.properties, **metadata.properties}, location)
    except Exception as error:
        raise LakeError(
            f"The table's metadata file {location} is missing or damaged ({first_line(error)}); nothing was changed. "
            "Restore the file, or register an earlier metadata file of the table."
        ) from error
    return _Version(location, document, snapshots, metadata.model_copy(update={"snapshots": parsed}), io)


class _Summary(Summary):
    """PyIceberg's, but cheap to look into: the commit door looks into every one of a table's history."""

    def __bool__(self) -> bool:
        return True

    @property
    def additional_properties(self) -> dict[str, str]:
        private: Any = self.__pydantic_private__
        held: dict[str, str] = private["_additional_properties"]
        return held


def _parsed(item: Mapping[str, Any]) -> Snapshot:
    said = dict(item.get("summary") or {})
    operation = said.pop("operation", None)
    if operation is None:
        return Snapshot.model_validate(item)
    fields = {key.replace("-", "_"): value for key, value in item.items() if key != "summary"}
    return Snapshot(**fields, summary=_Summary(operation=Operation(operation), **said))


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
    rows = {one.snapshot_id for one in since if not one.summary or one.summary.operation != Operation.REPLACE}
    head = base.current_snapshot()
    manifests = [one for one in manifests_of(base.io, head) if one.added_snapshot_id in new]
    planner = ManifestGroupPlanner(base.metadata, base.io, conflicts)
    return bool(list(planner.plan_files(manifests, lambda entry: entry.snapshot_id in rows)))


class _Staged:
    """The files of one attempt, so that a failed one can be taken back."""

    def __init__(self, base: Table, sync: bool) -> None:
        self.base, self.io, self.sync = base, base.io, sync
        self.provider = base.location_provider()
        self.written: list[str] = []
        self._made: dict[str, list[ManifestEntry]] = {}
        self._uuid = uuid.uuid4()
        codec = base.properties.get(
            TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
        )
        self._codec = cast(Any, CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec))

    def snapshot(self, changes: Changes, properties: Mapping[str, str], operation: Operation) -> Snapshot:
        metadata, parent = self.base.metadata, self.base.current_snapshot()
        snapshot_id, sequence = metadata.new_snapshot_id(), metadata.next_sequence_number()
        before = manifests_of(self.io, parent)
        manifests = self._manifests(changes, before, snapshot_id)
        said = _summary(self.base, changes, parent, before, operation) | dict(properties)
        location = self._new(f"snap-{snapshot_id}-0-{self._uuid}.avro")
        parent_id = parent.snapshot_id if parent else None
        with write_manifest_list(
            2, self.io.new_output(location), snapshot_id, parent_id, sequence, self._codec
        ) as writer:
            writer.add_manifests(manifests)
        if self.sync:
            flush([file.file_path for file in changes.added] + self.written)
        self._remember(location, manifests, sequence)
        return Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=sequence,
            timestamp_ms=max(int(time.time() * 1000), metadata.last_updated_ms),
            manifest_list=location,
            summary=_Summary(operation=operation, **said),
            schema_id=metadata.current_schema_id if changes.schema is None else _next_schema_id(self.base),
        )

    def _remember(self, location: str, manifests: list[ManifestFile], sequence: int) -> None:
        """What a reader would find in the files just written: they inherit this commit's sequence number."""
        for made in manifests:
            if made.manifest_path in self._made:
                made.sequence_number = sequence
                if made.min_sequence_number < 0:
                    made.min_sequence_number = sequence
                for entry in self._made[made.manifest_path]:
                    entry.data_file.spec_id = made.partition_spec_id
                    if entry.sequence_number is None:
                        entry.sequence_number = entry.file_sequence_number = sequence
                _entries.put(made.manifest_path, self._made[made.manifest_path])
        _lists.put(location, manifests)

    def _manifests(self, changes: Changes, before: Sequence[ManifestFile], snapshot_id: int) -> list[ManifestFile]:
        """New manifests for what came, what went, and small manifests worth merging; the others stay as they are."""
        kept = [one for one in before if one.has_added_files() or one.has_existing_files()]
        gone = {file.file_path: file for file in changes.removed}
        specs = {_spec_id(file, self.base) for file in changes.removed}
        rewritten = {
            one.manifest_path
            for one in kept
            if one.content == ManifestContent.DATA
            and one.partition_spec_id in specs
            and any(entry.data_file.file_path in gone for entry in live_entries(self.io, one))
        }
        rewritten |= {one.manifest_path for one in _worth_merging(self.base, kept)}
        groups: dict[int, list[tuple[ManifestEntry, ManifestEntryStatus]]] = {}
        for file in changes.added:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=file
            )
            groups.setdefault(_spec_id(file, self.base), []).append((entry, ManifestEntryStatus.ADDED))
        for one in kept:
            if one.manifest_path in rewritten:
                for entry in live_entries(self.io, one):
                    removed = gone.pop(entry.data_file.file_path, None) is not None
                    status = ManifestEntryStatus.DELETED if removed else ManifestEntryStatus.EXISTING
                    groups.setdefault(one.partition_spec_id, []).append((entry, status))
        if gone:
            raise StalePlanError(f"Cannot commit: {len(gone)} files of the plan are no longer in the table.")
        new = [made for spec_id, entries in groups.items() for made in self._write(spec_id, entries, snapshot_id)]
        return new + [one for one in kept if one.manifest_path not in rewritten]

    def _write(
        self, spec_id: int, entries: Sequence[tuple[ManifestEntry, ManifestEntryStatus]], snapshot_id: int
    ) -> Iterator[ManifestFile]:
        """Write entries of one partition spec, rolling over at the table's manifest size."""
        limit = _number(self.base, TableProperties.MANIFEST_TARGET_SIZE_BYTES, 8 * 1024 * 1024)
        pending = iter(entries)
        last: tuple[ManifestEntry, ManifestEntryStatus] | None = next(pending, None)
        while last is not None:
            location = self._new(f"{self._uuid}-m{len(self.written)}.avro")
            with write_manifest(
                2,
                self.base.specs()[spec_id],
                self.base.schema(),
                self.io.new_output(location),
                snapshot_id,
                self._codec,
            ) as writer:
                made = self._made[location] = []
                while last is not None and writer.tell() < limit:
                    _put(writer, *last)
                    if last[1] != ManifestEntryStatus.DELETED:
                        made.append(last[0])
                    last = next(pending, None)
            yield writer.to_manifest_file()

    def write_metadata(self, document: Mapping[str, Any], snapshots: str) -> str:
        """The next metadata file; past snapshots are passed on as text."""
        number = re.search(r"(\d+)-[^/]*$", self.base.metadata_location)
        zipped = self.base.properties.get("write.metadata.compression-codec") == "gzip"
        version = int(number[1]) + 1 if number else 0
        location = self._new(f"{version:05d}-{uuid.uuid4()}{'.gz' if zipped else ''}.metadata.json")
        content = f'{_dump(document)[:-1]},"snapshots":[{snapshots}]}}'.encode()
        with self.io.new_output(location).create() as stream:
            stream.write(gzip.compress(content) if zipped else content)
        if self.sync:
            flush([location])
        return location

    def _new(self, file_name: str) -> str:
        self.written.append(self.provider.new_metadata_location(file_name))
        return self.written[-1]

    def discard(self) -> None:
        remove_files(self.io, self.written)


def _put(writer: ManifestWriter, entry: ManifestEntry, status: ManifestEntryStatus) -> None:
    {
        ManifestEntryStatus.ADDED: writer.add,
        ManifestEntryStatus.EXISTING: writer.existing,
        ManifestEntryStatus.DELETED: writer.delete,
    }[status](entry)


def _worth_merging(base: Table, manifests: Sequence[ManifestFile]) -> list[ManifestFile]:
    """The smallest manifests once there are many: half of the limit, and more while none outweighs the rest.

    So each entry is rewritten a logarithmic number of times, and the manifest list stays short.
    """
    if not property_as_bool(base.properties, TableProperties.MANIFEST_MERGE_ENABLED, True):
        return []
    limit = _number(base, TableProperties.MANIFEST_TARGET_SIZE_BYTES, 8 * 1024 * 1024)
    count = _number(base, TableProperties.MANIFEST_MIN_MERGE_COUNT, 100)
    small = [
        one
        for one in manifests
        if one.content == ManifestContent.DATA
        and one.partition_spec_id == base.metadata.default_spec_id
        and one.manifest_length < limit
    ]
    if len(small) + 1 < count:
        return []
    group: list[ManifestFile] = []
    total = 0
    for one in sorted(small, key=lambda manifest: manifest.manifest_length):
        if total + one.manifest_length > limit or (len(group) >= max(2, count // 2) and one.manifest_length > total):
            break
        group.append(one)
        total += one.manifest_length
    return group if len(group) > 1 else []


def _summary(
    base: Table, changes: Changes, parent: Snapshot | None, before: Sequence[ManifestFile], operation: Operation
) -> dict[str, str]:
    """Exact counts of this change, and totals carried on from the parent (counted anew if it has none)."""
    collector = SnapshotSummaryCollector(_number(base, TableProperties.WRITE_PARTITION_SUMMARY_LIMIT, 0))
    schema, specs = base.schema(), base.specs()
    for file in changes.added:
        collector.add_file(file, schema, specs[_spec_id(file, base)])
    for file in changes.removed:
        collector.remove_file(file, schema, specs[_spec_id(file, base)])
    said = {"changed-partition-count": "1"} | collector.build()
    past = summary(parent) if parent else {}
    if parent and not all(past.get(total, "").isdigit() for total in _TOTALS):
        past = _count(base, before)
    for total, (more, less) in _TOTALS.items():
        said[total] = str(int(past.get(total, "0")) + int(said.get(more, "0")) - int(said.get(less, "0")))
    return said


def _count(base: Table, manifests: Sequence[ManifestFile]) -> dict[str, str]:
    collector = SnapshotSummaryCollector()
    for manifest in manifests:
        for entry in live_entries(base.io, manifest):
            collector.metrics.add_file(entry.data_file)
    counted = collector.build()
    return {total: counted.get(more, "0") for total, (more, _) in _TOTALS.items()}


def _swap(
    catalog: Catalog, name: TableName, base: Table, staged: _Staged, changes: Changes, snapshot: Snapshot | None
) -> None:
    if not _is_sql(catalog):
        _send(catalog, base, changes, snapshot)
        return
    version = _versions.get(catalog, name)
    if version is None or version.location != base.metadata_location:
        version = _read(catalog, base.metadata_location, version)
    document = _edited(version, base, changes, snapshot)
    past = version.snapshots_text()
    text = ",".join(part for part in (past, _dump(snapshot.model_dump()) if snapshot else "") if part)
    location = staged.write_metadata(document, text)
    _point(catalog, name, base.metadata_location, location)
    model = _next_model(version.metadata, document, snapshot) if changes.schema is None else None
    _versions.put(catalog, name, _Version(location, document, text, model, version.io) if model else None)
    _drop_old_metadata(base, document)


def _edited(version: _Version, base: Table, changes: Changes, snapshot: Snapshot | None) -> dict[str, Any]:
    """The next document, without its snapshots; the one it comes from is left alone."""
    document = dict(version.document)
    now = snapshot.timestamp_ms if snapshot else max(int(time.time() * 1000), base.metadata.last_updated_ms)
    properties = {**document.get("properties", {}), **changes.properties}
    document["properties"] = {key: value for key, value in properties.items() if key not in changes.removed_properties}
    keep = _number(base, TableProperties.METADATA_PREVIOUS_VERSIONS_MAX, 100)
    entry = {"metadata-file": base.metadata_location, "timestamp-ms": document["last-updated-ms"]}
    document["metadata-log"] = [*document.get("metadata-log", []), entry][-max(1, keep) :]
    document["last-updated-ms"] = now
    if changes.schema is not None:
        _add_schema(document, changes.schema, _next_schema_id(base))
    if snapshot:
        main = {**document.get("refs", {}).get(MAIN_BRANCH, {"type": "branch"}), "snapshot-id": snapshot.snapshot_id}
        document["refs"] = {**document.get("refs", {}), MAIN_BRANCH: main}
        document["current-snapshot-id"] = snapshot.snapshot_id
        document["last-sequence-number"] = snapshot.sequence_number
        logged = {"snapshot-id": snapshot.snapshot_id, "timestamp-ms": now}
        document["snapshot-log"] = [*document.get("snapshot-log", []), logged]
    return document


def _next_schema_id(base: Table) -> int:
    return max(schema.schema_id for schema in base.metadata.schemas) + 1


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
        .where(*_row(catalog, name), IcebergTables.metadata_location == old)
        .values(metadata_location=new, previous_metadata_location=old)
    )
    try:
        with catalog.engine.begin() as connection:
            changed = connection.execute(statement).rowcount
    except Exception as error:
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


def remove_files(io: FileIO, locations: Iterable[str]) -> None:
    """Remove files that nothing names; what cannot be removed now is left to orphan removal."""
    for location in locations:
        try:
            io.delete(location)
        except FileNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001 (a file too many is no reason to fail)
            _log.warning("cannot remove %s: %s", location, first_line(error))


def flush(locations: Iterable[str]) -> None:
    """Force local files, and the folders that list them, to disk; other places are durable once written."""
    files = [Path(location.removeprefix("file://")) for location in locations if "://" not in location[1:8]]
    for path in [*files, *dict.fromkeys(file.parent for file in files)]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _spec_id(file: DataFile, base: Table) -> int:
    """PyIceberg leaves the spec out of files that it has just written with the table's own."""
    found: int = getattr(file, "_spec_id", base.metadata.default_spec_id)
    return found


def _number(base: Table, key: str, default: int) -> int:
    return property_as_int(base.properties, key, default) or default


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
