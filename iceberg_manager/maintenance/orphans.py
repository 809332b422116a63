"""Finds files in a table's folder that no snapshot names, and removes them. The dry run is the plan.

Kept: files younger than a day, whatever any snapshot, ref or the metadata log reaches, and all that lies in another table's
location or in a protected folder (landing, write-ahead log, quarantine). The folder is listed before the table is loaded, so
that a file committed in between counts as the table's. `remove` loads the table again and spares what became reachable since
the plan. A crash while removing leaves some orphans, which the next plan finds again; nothing is committed.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyiceberg.table import Table

from iceberg_manager.errors import InputError, LakeError, first_line
from iceberg_manager.maintenance import manifests
from iceberg_manager.maintenance.uris import canonical, is_local, is_within, path_part

if TYPE_CHECKING:
    import duckdb

Load = Callable[[], Table]
AGE_FLOOR = timedelta(hours=24)
LARGE_SHARE = 0.5


@dataclass(frozen=True)
class OrphanFile:
    """A file that nothing names."""

    uri: str
    bytes: int
    modified: datetime


@dataclass(frozen=True)
class OrphanPlan:
    """What would go. ``refused`` says why it should not: then `remove` does nothing but raise.

    ``young`` counts files that nothing names yet either, but that are too young to judge.
    """

    table: str
    location: str
    orphans: tuple[OrphanFile, ...]
    listed: int
    young: int
    older_than: timedelta
    refused: str = ""

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.orphans)


@dataclass(frozen=True)
class Removed:
    """What went, to ``quarantine`` if one was given; ``spared`` became reachable after the plan was made."""

    table: str
    files: int
    bytes: int
    spared: tuple[str, ...]
    failed: tuple[str, ...]
    quarantine: str = ""


def plan(
    load: Load,
    connection: "duckdb.DuckDBPyConnection",
    other_locations: Iterable[str],
    protected: Iterable[str] = (),
    older_than: timedelta = AGE_FLOOR,
    force: bool = False,
    max_share: float = LARGE_SHARE,
    now: datetime | None = None,
) -> OrphanPlan:
    """What no snapshot of the table names. ``other_locations`` are those of all other tables of the catalog.

    Less than a day for ``older_than`` needs ``force``: a writer that has not committed yet looks just like an orphan.
    """
    if older_than < AGE_FLOOR and not force:
        raise InputError(f"Files younger than {AGE_FLOOR} may belong to a running write; ask for force to go below.")
    now = now or datetime.now(UTC)
    _real.cache_clear()
    table = load()
    location = canonical(table.location()).rstrip("/")
    fenced = _fences(table, location, other_locations, protected)
    found = {one.uri: one for one in _list(table, location, fenced)}
    unnamed = _unnamed(load(), connection, found)
    old = tuple(one for one in unnamed.values() if now - one.modified >= older_than)
    old = tuple(sorted(old, key=lambda one: one.uri))
    refused = ""
    if len(old) > max_share * len(found):
        refused = (
            f"{len(old):,} of {len(found):,} files in {location} look orphaned, more than {max_share:.0%}: that is rarely "
            "true. Nothing was removed; look at some of them, then allow a larger share."
        )
    return OrphanPlan(_name(table), location, old, len(found), len(unnamed) - len(old), older_than, refused)


def remove(
    load: Load,
    planned: OrphanPlan,
    connection: "duckdb.DuckDBPyConnection",
    quarantine: str | None = None,
    now: datetime | None = None,
) -> Removed:
    """Carry a plan out: delete, or move to ``quarantine``, a folder outside of the table's."""
    if planned.refused:
        raise InputError(planned.refused)
    _real.cache_clear()
    table = load()
    if canonical(table.location()).rstrip("/") != planned.location:
        raise InputError(f"{planned.table} has moved since the plan was made, so nothing was removed; make a new plan.")
    there = _quarantine_folder(planned, quarantine, now or datetime.now(UTC)) if quarantine else ""
    mine = {one.uri: one for one in planned.orphans}
    still = _unnamed(table, connection, mine)

    def go(one: OrphanFile) -> str:
        try:
            _move(table, one.uri, there + one.uri.removeprefix(planned.location)) if there else _delete(table, one.uri)
        except FileNotFoundError:
            return ""
        except OSError:
            return one.uri
        return ""

    with ThreadPoolExecutor(8) as pool:
        failed = tuple(filter(None, pool.map(go, still.values())))
    gone = [one for one in still.values() if one.uri not in set(failed)]
    spared = tuple(uri for uri in mine if uri not in still)
    return Removed(planned.table, len(gone), sum(one.bytes for one in gone), spared, failed, there)


def _fences(table: Table, location: str, others: Iterable[str], protected: Iterable[str]) -> tuple[str, ...]:
    """Folders below the location that are not to be entered; refuses a location that is not the table's alone."""
    fenced = []
    for kind, folders in (("the location of another table", others), ("a protected folder", protected)):
        for folder in {_real(canonical(one).rstrip("/")) for one in folders}:
            if is_within(_real(location), folder):
                raise InputError(
                    f"{_name(table)} lies in {folder}, {kind}, so no one can tell whose files are orphaned there; "
                    "nothing was removed."
                )
            if is_within(folder, _real(location)):
                fenced.append(folder)
    if is_local(location) and len(Path(location).parts) < 3:
        raise InputError(
            f"{_name(table)} claims {location} as its folder; that is too much to clean up, nothing was removed."
        )
    return tuple(fenced)


def _list(table: Table, location: str, fenced: tuple[str, ...]) -> Iterator[OrphanFile]:
    """Every file below the location but hidden ones, which are engines' own. Links are neither followed nor listed."""
    try:
        yield from _walk(location, fenced) if is_local(location) else _list_remote(table, location, fenced)
    except FileNotFoundError:
        return
    except OSError as error:
        raise LakeError(f"{location} cannot be listed: {first_line(error)}. Nothing was removed.") from error


def _walk(folder: str, fenced: tuple[str, ...]) -> Iterator[OrphanFile]:
    if fenced and _real(folder) in fenced:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _is_hidden(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path, fenced)
            elif entry.is_file(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                yield OrphanFile(entry.path, about.st_size, datetime.fromtimestamp(about.st_mtime, UTC))


def _list_remote(table: Table, location: str, fenced: tuple[str, ...]) -> Iterator[OrphanFile]:
    from pyarrow.fs import FileSelector, FileType

    scheme = location.partition("://")[0]
    for info in _file_system(table, location).get_file_info(
        FileSelector(location.partition("://")[2], recursive=True, allow_not_found=True)
    ):
        uri = f"{scheme}://{info.path}"
        hidden = any(map(_is_hidden, uri.removeprefix(location).split("/")))
        if info.type == FileType.File and not hidden and not any(is_within(uri, folder) for folder in fenced):
            yield OrphanFile(uri, info.size, info.mtime)


def _is_hidden(name: str) -> bool:
    """As Spark has it; a partition's folder is none, whatever its column is called."""
    return name.startswith((".", "_")) and "=" not in name


def _unnamed(
    table: Table, connection: "duckdb.DuckDBPyConnection", found: dict[str, OrphanFile]
) -> dict[str, OrphanFile]:
    """Those of the files that the table does not name."""
    left = {_real_file(uri): one for uri, one in found.items()}
    paths = {path_part(uri): uri for uri in found}
    for named in _named(table, connection):
        uri = canonical(named)
        if left.pop(_real_file(uri), None) is None and uri not in found and (like := paths.get(path_part(uri))):
            raise InputError(
                f"{_name(table)} names {named}, and there is {like}: whether these are the same file cannot be told, so "
                "nothing is called an orphan."
            )
    return {one.uri: one for one in left.values()}


def _named(table: Table, connection: "duckdb.DuckDBPyConnection") -> Iterator[str]:
    """Every file that the table's metadata, its log and all its snapshots reach; each manifest is read once."""
    metadata = table.metadata
    yield table.metadata_location
    yield from (entry.metadata_file for entry in metadata.metadata_log)
    yield from (one.statistics_path for one in metadata.statistics)
    yield from (one.statistics_path for one in metadata.partition_statistics)
    yield f"{table.location()}/metadata/version-hint.text"
    seen: dict[str, manifests.ManifestRow] = {}
    for snapshot in metadata.snapshots:
        yield snapshot.manifest_list
        seen.update({one.path: one for one in manifests.read_list(connection, table, snapshot)})
    yield from seen
    for group in manifests.entries(connection, table, list(seen.values())):
        yield from group.paths()


def _quarantine_folder(planned: OrphanPlan, quarantine: str, now: datetime) -> str:
    folder = canonical(quarantine).rstrip("/")
    if is_within(_real(folder), _real(planned.location)):
        raise InputError(
            f"The quarantine {folder} lies inside the table's own location; choose a folder outside of it."
        )
    if is_local(folder) != is_local(planned.location):
        raise InputError(f"The quarantine {folder} must be where the table is: on this disk, or in the same store.")
    return f"{folder}/{planned.table}/{now:%Y%m%dT%H%M%SZ}"


def _delete(table: Table, uri: str) -> None:
    if is_local(uri):
        Path(uri).unlink()
        _checksum(uri).unlink(missing_ok=True)
    else:
        _file_system(table, uri).delete_file(uri.partition("://")[2])


def _move(table: Table, uri: str, target: str) -> None:
    if is_local(uri):
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(uri, target)
        _checksum(uri).unlink(missing_ok=True)
    else:
        _file_system(table, uri).move(uri.partition("://")[2], target.partition("://")[2])


def _checksum(path: str) -> Path:
    """What Hadoop puts beside a file on a local disk."""
    return Path(path).with_name(f".{Path(path).name}.crc")


def _file_system(table: Table, uri: str) -> Any:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, _, rest = uri.partition("://")
    return PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, rest.partition("/")[0])


def _real_file(uri: str) -> str:
    """A local path with the links in its folders followed: the same file may be reached by two paths."""
    if not is_local(uri):
        return uri
    folder, _, name = uri.rpartition("/")
    return f"{_real(folder)}/{name}"


@lru_cache(maxsize=100_000)
def _real(folder: str) -> str:
    return os.path.realpath(folder) if is_local(folder) else folder


def _name(table: Table) -> str:
    return ".".join(table.name())
