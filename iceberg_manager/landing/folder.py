"""The folder that a table's files land in, local or in a bucket, behind the few operations that landing needs.

Names are relative to the folder. A local write is whole or not there, and durable (temporary file, fsync, rename); an object
is whole by nature. A local folder can be locked for one pass at a time; a bucket cannot, and there the commit decides.
"""

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from iceberg_manager.errors import ConflictError, LakeError
from iceberg_manager.maintenance.uris import canonical
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings

LOCK = "_lock"


@dataclass(frozen=True)
class Entry:
    """A file as a listing shows it. ``changed`` is when anybody last touched it, in seconds."""

    name: str
    size: int
    mtime_ns: int
    changed: float
    link: bool = False


class Folder(Protocol):
    """What landing asks of a folder."""

    address: str
    local: bool

    def entries(self, under: str = "", hidden: bool = False) -> Iterator[Entry]: ...
    def stat(self, name: str) -> Entry | None: ...
    def open(self, name: str) -> BinaryIO: ...
    def read(self, name: str) -> bytes: ...
    def write(self, name: str, content: bytes) -> None: ...
    def mark(self, names: Iterable[str]) -> None: ...
    def move(self, name: str, to: str) -> None: ...
    def delete(self, name: str) -> None: ...
    def locked(self, wait: float = 0) -> Any: ...

    def uri(self, name: str) -> str:
        """The canonical address of a file."""
        return canonical(f"{self.address}/{name}")


def folder_of(settings: LakeSettings, table: TableName) -> Folder:
    """Where this table's files land."""
    address = f"{settings.landing_location}/{table.path}"
    if not address.startswith("s3://"):
        return LocalFolder(Path(address))
    return ObjectFolder(s3_filesystem(settings), address.removeprefix("s3://"), address)


def landing_tables(settings: LakeSettings) -> list[TableName]:
    """Folders that could be a table's by their place. Whether there is such a table, the catalog knows."""
    place = settings.landing_location
    if place.startswith("s3://"):
        from pyarrow.fs import FileSelector, FileType

        files = s3_filesystem(settings)
        root = place.removeprefix("s3://")
        found = files.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        folders = [one.path.removeprefix(root + "/").split("/") for one in found if one.type == FileType.Directory]
        pairs = {(parts[0], parts[1]) for parts in folders if len(parts) >= 2}
    else:
        pairs = {(space.name, table.name) for space in _folders(Path(place)) for table in _folders(space)}
    return sorted(TableName((*space.split("."),), table) for space, table in pairs)


def _folders(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [one for one in place.iterdir() if one.is_dir() and not one.is_symlink() and one.name[:1] not in "._"]


class LocalFolder(Folder):
    """A folder on this machine."""

    local = True

    def __init__(self, path: Path) -> None:
        self.path, self.address = path, str(path)

    def entries(self, under: str = "", hidden: bool = False) -> Iterator[Entry]:
        """Every file below, as it is met. What begins with ``_`` or ``.`` is left out unless it is asked for."""
        pending = [under]
        while pending:
            place = pending.pop()
            try:
                with os.scandir(self.path / place) as found:
                    for one in found:
                        name = f"{place}/{one.name}" if place else one.name
                        if one.name[:1] in "._" and not hidden:
                            continue
                        if one.is_dir(follow_symlinks=False):
                            pending.append(name)
                        elif entry := self._entry(name, one):
                            yield entry
            except FileNotFoundError:
                continue

    @staticmethod
    def _entry(name: str, one: "os.DirEntry[str]") -> Entry | None:
        try:
            seen = one.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        link = one.is_symlink() or not one.is_file(follow_symlinks=False)
        return Entry(name, seen.st_size, seen.st_mtime_ns, max(seen.st_mtime, seen.st_ctime), link)

    def stat(self, name: str) -> Entry | None:
        try:
            seen = (self.path / name).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Entry(name, seen.st_size, seen.st_mtime_ns, max(seen.st_mtime, seen.st_ctime))

    def open(self, name: str) -> BinaryIO:
        handle = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW)
        return os.fdopen(handle, "rb")

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}-{threading.get_ident()}.tmp")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)

    def mark(self, names: Iterable[str]) -> None:
        """Empty files, durable together: each folder is forced to disk once."""
        places = set()
        for path in (self.path / name for name in names):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            places.add(path.parent)
        for place in [*places, *({one.parent for one in places})]:
            _sync_folder(place)

    def move(self, name: str, to: str) -> None:
        """Rename; a file that is gone was moved before."""
        target = self.path / to
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            (self.path / name).rename(target)
        except FileNotFoundError:
            return

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def locked(self, wait: float = 0) -> Iterator[None]:
        """Alone with this folder, or a ConflictError. The kernel lets go of the lock of a process that dies."""
        handle = self._lock_file()
        try:
            _take(handle, wait, self.address)
            yield
        finally:
            os.close(handle)

    def _lock_file(self) -> int:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            probe = self.path / f".{os.getpid()}.probe"  # the lock file may be ours in a folder that is not
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise LakeError(
                f"The landing folder {self.address} cannot be written ({error.strerror}), so a file that was taken in "
                "could not be marked as such. Nothing was taken in. Make it writable for this user."
            ) from error
        return handle


def _take(handle: int, wait: float, address: str) -> None:
    deadline = time.monotonic() + wait
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES) or time.monotonic() >= deadline:
                raise ConflictError(
                    f"Another pass is at work in {address}; this one did nothing. It goes on by itself."
                ) from error
            time.sleep(0.05)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class ObjectFolder(Folder):
    """A prefix in a bucket, through any filesystem of Arrow. A move is a copy on the server, then a delete."""

    local = False

    def __init__(self, files: Any, root: str, address: str) -> None:
        self.files, self.root, self.address = files, root.rstrip("/"), address.rstrip("/")

    def entries(self, under: str = "", hidden: bool = False) -> Iterator[Entry]:
        from pyarrow.fs import FileSelector, FileType

        pending = [under]
        while pending:
            place = pending.pop()
            base = f"{self.root}/{place}".rstrip("/")
            for one in self.files.get_file_info(FileSelector(base, recursive=False, allow_not_found=True)):
                name = f"{place}/{one.base_name}" if place else one.base_name
                if one.base_name[:1] in "._" and not hidden:
                    continue
                if one.type == FileType.Directory:
                    pending.append(name)
                elif one.type == FileType.File:
                    yield self._entry(name, one)

    @staticmethod
    def _entry(name: str, one: Any) -> Entry:
        return Entry(name, one.size, one.mtime_ns or 0, (one.mtime_ns or 0) / 1e9)

    def stat(self, name: str) -> Entry | None:
        from pyarrow.fs import FileType

        one = self.files.get_file_info(f"{self.root}/{name}")
        return self._entry(name, one) if one.type == FileType.File else None

    def open(self, name: str) -> BinaryIO:
        return cast(BinaryIO, self.files.open_input_file(f"{self.root}/{name}"))

    def read(self, name: str) -> bytes:
        with self.files.open_input_stream(f"{self.root}/{name}") as stream:
            return bytes(stream.read())

    def write(self, name: str, content: bytes) -> None:
        self._make_room(name)
        with self.files.open_output_stream(f"{self.root}/{name}") as stream:
            stream.write(content)

    def mark(self, names: Iterable[str]) -> None:
        for name in names:
            self.write(name, b"")

    def move(self, name: str, to: str) -> None:
        self._make_room(to)
        try:
            self.files.copy_file(f"{self.root}/{name}", f"{self.root}/{to}")
            self.files.delete_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return

    def delete(self, name: str) -> None:
        try:
            self.files.delete_file(f"{self.root}/{name}")
        except FileNotFoundError:
            return

    def _make_room(self, name: str) -> None:
        if getattr(self.files, "type_name", "") != "s3":
            self.files.create_dir(f"{self.root}/{name}".rpartition("/")[0], recursive=True)

    @contextmanager
    def locked(self, wait: float = 0) -> Iterator[None]:
        yield


def s3_filesystem(settings: LakeSettings) -> Any:
    from pyarrow.fs import S3FileSystem

    s3 = settings.s3
    if s3 is None:
        return S3FileSystem()
    keys = {}
    if s3.access_key_id and s3.secret_access_key:
        keys = {
            "access_key": s3.access_key_id.get_secret_value(),
            "secret_key": s3.secret_access_key.get_secret_value(),
        }
    endpoint = {"endpoint_override": s3.endpoint} if s3.endpoint else {}
    return S3FileSystem(region=s3.region, force_virtual_addressing=False, **keys, **endpoint)
