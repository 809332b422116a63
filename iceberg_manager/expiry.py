"""Expires snapshots and deletes the files that only they needed, without a JVM.

Deciding is apart from doing: `plan` is a pure function of metadata, retention and now. `expire` first notes data versions
that would be forgotten, then commits metadata without the snapshots, then works out, from that very metadata, which files
nothing reaches any more, and deletes those. A crash after the commit leaves files that no snapshot names (orphan removal
finds them), never a snapshot without files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.commits import PREFIX, change
from iceberg_manager.history import floor, main_line, summary

Load = Callable[[], Table]
RUN_ID = f"{PREFIX}run-id"
MIN_SNAPSHOTS = "history.expire.min-snapshots-to-keep"


@dataclass(frozen=True)
class ExpiryPlan:
    """Which snapshots go, which refs are past their retention, and why each of the others stays."""

    table: str
    snapshots: tuple[Snapshot, ...]
    references: tuple[str, ...]
    kept: Mapping[int, str]


@dataclass(frozen=True)
class Unreachable:
    """Files that only expired snapshots name, with the bytes of the data files among them."""

    data_files: frozenset[str]
    manifests: frozenset[str]
    manifest_lists: frozenset[str]
    bytes: int

    def paths(self) -> list[str]:
        return [*self.data_files, *self.manifests, *self.manifest_lists]


@dataclass(frozen=True)
class Report:
    """A dry run: what would go, the bytes that would be freed, what would stop working, and why how many snapshots stay."""

    table: str
    snapshots: tuple[str, ...]
    references: tuple[str, ...]
    data_files: int
    bytes: int
    kept: Mapping[str, int]
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expired:
    """What an expiry did."""

    plan: ExpiryPlan
    files_deleted: int
    bytes_freed: int
    failed: tuple[str, ...]


def plan(
    table: Table,
    older_than: timedelta,
    keep_last: int | None = None,
    needed: Mapping[int, str] | None = None,
    now: datetime | None = None,
) -> ExpiryPlan:
    """What may go: older than the cutoff, beyond the last ``keep_last`` of its branch, and needed by nobody.

    ``needed`` names snapshots that someone still reads, with the reason. Refs honour their own retention.
    """
    now_ms = int((now or datetime.now(UTC)).timestamp() * 1000)
    cutoff = now_ms - int(older_than.total_seconds() * 1000)
    least = keep_last if keep_last is not None else int(table.properties.get(MIN_SNAPSHOTS, "1"))
    kept: dict[int, str] = dict(needed or {})
    gone = []
    known = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    for name, ref in table.metadata.refs.items():
        made = known[ref.snapshot_id].timestamp_ms if ref.snapshot_id in known else now_ms
        if name != "main" and ref.max_ref_age_ms is not None and made < now_ms - ref.max_ref_age_ms:
            gone.append(name)
            continue
        kept.setdefault(ref.snapshot_id, f"the head of {name}" if ref.snapshot_ref_type == "branch" else f"tag {name}")
        if ref.snapshot_ref_type == "branch":
            _keep_line(table, ref.snapshot_id, name, ref.min_snapshots_to_keep or least,
                       now_ms - ref.max_snapshot_age_ms if ref.max_snapshot_age_ms else cutoff, kept)  # fmt: skip
    for snapshot in known.values():
        if snapshot.timestamp_ms >= cutoff:
            kept.setdefault(snapshot.snapshot_id, "younger than the cutoff")
    goes = sorted((one for key, one in known.items() if key not in kept), key=lambda one: one.timestamp_ms)
    return ExpiryPlan(".".join(table.name()), tuple(goes), tuple(gone), kept)


def _keep_line(table: Table, head: int, name: str, least: int, cutoff: int, kept: dict[int, str]) -> None:
    for place, snapshot in enumerate(main_line(table, head)):
        if place < least:
            kept.setdefault(snapshot.snapshot_id, f"one of the last {least} of {name}")
        elif snapshot.timestamp_ms >= cutoff:
            kept.setdefault(snapshot.snapshot_id, "younger than the cutoff")
        else:
            break


def expire(load: Load, planned: ExpiryPlan, progress: Callable[[int, int], None] | None = None) -> Expired:
    """Carry a plan out: metadata first, then the files."""
    if not planned.snapshots and not planned.references:
        return Expired(planned, 0, 0, ())
    wanted = {snapshot.snapshot_id for snapshot in planned.snapshots}

    def apply(table: Table) -> None:
        with table.manage_snapshots() as manage:
            for name in set(planned.references) & table.metadata.refs.keys():
                tag = table.metadata.refs[name].snapshot_ref_type == "tag"
                (manage.remove_tag if tag else manage.remove_branch)(name)
        heads = {ref.snapshot_id for name, ref in table.metadata.refs.items() if name not in planned.references}
        there = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
        if ids := sorted((wanted & there) - heads):
            if (noted := floor(table, set(ids))) and noted.items() - table.properties.items():
                with table.transaction() as transaction:
                    transaction.set_properties(noted)
            table.maintenance.expire_snapshots().by_ids(ids).commit()

    table = change(load, apply)
    remaining = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    files = unreachable(table, [one for one in planned.snapshots if one.snapshot_id not in remaining])
    failed = _delete(table.io, files.paths(), progress)
    return Expired(planned, len(files.paths()) - len(failed), files.bytes, tuple(failed))


def report(table: Table, planned: ExpiryPlan) -> Report:
    """What carrying the plan out would do."""
    files, kept = unreachable(table, planned.snapshots), Counter(planned.kept.values())
    ids = tuple(str(snapshot.snapshot_id) for snapshot in planned.snapshots)
    return Report(
        planned.table,
        ids,
        planned.references,
        len(files.data_files),
        files.bytes,
        dict(sorted(kept.items())),
        tuple(_stops(table, planned)),
    )


def _stops(table: Table, planned: ExpiryPlan) -> Iterator[str]:
    """What nobody can do any more once the plan is carried out."""
    yield from (f"reading branch or tag {name}" for name in planned.references)
    runs = [run for one in planned.snapshots if (run := summary(one).get(RUN_ID))]
    yield from (f"reading what run {run} wrote" for run in dict.fromkeys(runs))
    line, gone = list(main_line(table)), {one.snapshot_id for one in planned.snapshots}
    cut = next((place for place, one in enumerate(line) if one.snapshot_id in gone), 0)
    if cut:
        oldest = datetime.fromtimestamp(line[cut - 1].timestamp_ms / 1000, UTC)
        yield f"time travel on main to before {oldest:%Y-%m-%d %H:%M:%S} UTC"


def unreachable(table: Table, expired: Iterable[Snapshot]) -> Unreachable:
    """What the expired snapshots name and no other snapshot of the table does."""
    expired = list(expired)
    ids = {snapshot.snapshot_id for snapshot in expired}
    remaining = [snapshot for snapshot in table.metadata.snapshots if snapshot.snapshot_id not in ids]
    with ThreadPoolExecutor(4) as pool:
        old = _manifests(pool, table.io, expired)
        live = _manifests(pool, table.io, remaining) if old else {}
        doomed = [manifest for path, manifest in old.items() if path not in live]
        sizes: dict[str, int] = {}
        for found in pool.map(lambda manifest: _files(table.io, manifest), doomed):
            sizes.update(found)
        for found in pool.map(lambda manifest: _files(table.io, manifest), live.values() if sizes else ()):
            for path in found:
                sizes.pop(path, None)
    return Unreachable(
        frozenset(sizes),
        frozenset(manifest.manifest_path for manifest in doomed),
        frozenset(snapshot.manifest_list for snapshot in expired if snapshot.manifest_list),
        sum(sizes.values()),
    )


def _manifests(pool: ThreadPoolExecutor, io: FileIO, snapshots: Iterable[Snapshot]) -> dict[str, ManifestFile]:
    found: dict[str, ManifestFile] = {}
    for manifests in pool.map(lambda snapshot: snapshot.manifests(io), snapshots):
        found.update({manifest.manifest_path: manifest for manifest in manifests})
    return found


def _files(io: FileIO, manifest: ManifestFile) -> dict[str, int]:
    return {
        entry.data_file.file_path: entry.data_file.file_size_in_bytes
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    }


def _delete(io: FileIO, paths: list[str], progress: Callable[[int, int], None] | None) -> list[str]:
    """Deletes in parallel; a file that is gone already is no failure."""

    def remove(path: str) -> str | None:
        try:
            with suppress(FileNotFoundError):
                io.delete(path)
        except OSError:
            return path
        return None

    failed = []
    with ThreadPoolExecutor(8) as pool:
        for number, outcome in enumerate(pool.map(remove, paths), start=1):
            if outcome:
                failed.append(outcome)
            if progress:
                progress(number, len(paths))
    return failed
