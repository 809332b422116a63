"""A table's manifests: read once, and written so that their number stays small.

Manifests never change, so what they hold is remembered by their name; what is handed out is shared and must not be changed.
Of a table's manifests only those that name a removed file are written again, and small ones once there are many. What is
written here belongs to nobody until a commit names it.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, cast

from pyiceberg.avro.codecs import CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.utils.properties import property_as_bool, property_as_int

from iceberg_manager.changes import Changes, StalePlanError, spec_id

T = TypeVar("T")


class _Held(Generic[T]):
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


_entries: _Held[ManifestEntry] = _Held(50_000)
_lists: _Held[ManifestFile] = _Held(20_000)


def live_entries(io: FileIO, manifest: ManifestFile) -> list[ManifestEntry]:
    """A manifest's live entries. They are shared: never change one."""
    return _entries.get(manifest.manifest_path, lambda: manifest.fetch_manifest_entry(io, discard_deleted=True))


def manifests_of(io: FileIO, snapshot: Snapshot | None) -> list[ManifestFile]:
    """A snapshot's manifests. They are shared: never change one."""
    return _lists.get(snapshot.manifest_list, lambda: snapshot.manifests(io)) if snapshot else []


def forget() -> None:
    """Drop what this process remembers of manifests."""
    _entries.clear()
    _lists.clear()


class ManifestFiles:
    """The manifests and the manifest list of one attempt at a commit. ``new`` names a file, and notes it as written."""

    def __init__(self, base: Table, new: Callable[[str], str]) -> None:
        self._base, self._io, self._new = base, base.io, new
        self._uuid = uuid.uuid4()
        self._made: dict[str, list[ManifestEntry]] = {}
        codec = base.properties.get(
            TableProperties.WRITE_AVRO_COMPRESSION, TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
        )
        self._codec = cast(Any, CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec, codec))

    def write_list(self, manifests: list[ManifestFile], snapshot_id: int, parent_id: int | None, sequence: int) -> str:
        location = self._new(f"snap-{snapshot_id}-0-{self._uuid}.avro")
        output = self._io.new_output(location)
        with write_manifest_list(2, output, snapshot_id, parent_id, sequence, self._codec) as writer:
            writer.add_manifests(manifests)
        self._remember(location, manifests, sequence)
        return location

    def change(self, changes: Changes, before: Sequence[ManifestFile], snapshot_id: int) -> list[ManifestFile]:
        """New manifests for what came, what went, and small manifests worth merging; the others stay as they are."""
        kept = [one for one in before if one.has_added_files() or one.has_existing_files()]
        gone = {file.file_path: file for file in changes.removed}
        specs = {spec_id(file, self._base) for file in changes.removed}
        rewritten = {
            one.manifest_path
            for one in kept
            if one.content == ManifestContent.DATA
            and one.partition_spec_id in specs
            and any(entry.data_file.file_path in gone for entry in live_entries(self._io, one))
        }
        rewritten |= {one.manifest_path for one in _worth_merging(self._base, kept)}
        groups: dict[int, list[tuple[ManifestEntry, ManifestEntryStatus]]] = {}
        for file in changes.added:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=file
            )
            groups.setdefault(spec_id(file, self._base), []).append((entry, ManifestEntryStatus.ADDED))
        for one in kept:
            if one.manifest_path in rewritten:
                for entry in live_entries(self._io, one):
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
        limit = number(self._base, TableProperties.MANIFEST_TARGET_SIZE_BYTES, 8 * 1024 * 1024)
        pending = iter(entries)
        last: tuple[ManifestEntry, ManifestEntryStatus] | None = next(pending, None)
        while last is not None:
            location = self._new(f"{self._uuid}-m{len(self._made)}.avro")
            with write_manifest(
                2,
                self._base.specs()[spec_id],
                self._base.schema(),
                self._io.new_output(location),
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
    limit = number(base, TableProperties.MANIFEST_TARGET_SIZE_BYTES, 8 * 1024 * 1024)
    count = number(base, TableProperties.MANIFEST_MIN_MERGE_COUNT, 100)
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


def number(base: Table, key: str, default: int) -> int:
    """A number among the table's properties; zero and nonsense mean the default."""
    return property_as_int(base.properties, key, default) or default
