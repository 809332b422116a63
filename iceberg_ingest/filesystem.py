"""The few file operations that the write-ahead log is made of, so that tests can stand in for a disk that fails.

:class:`RealFilesystem` is the operating system; :class:`iceberg_ingest.simulated_filesystem.SimulatedFilesystem`
keeps track of what a power loss would leave. Files are private to their owner. Errors are OSErrors: the log says what
they mean.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from iceberg_ingest.wal_format import Buffer

MAX_BUFFERS = 1024  # what one pwritev takes (IOV_MAX)


class Filesystem(Protocol):
    """Handles are small integers; names are paths. Nothing is durable before its ``sync`` returned."""

    def make_folder(self, folder: Path) -> None: ...
    def list_names(self, folder: Path) -> list[str]: ...
    def open(self, path: Path, *, create: bool = False, write: bool = False) -> int: ...
    def close(self, handle: int) -> None: ...
    def lock(self, handle: int) -> bool: ...
    def size(self, handle: int) -> int: ...
    def read(self, handle: int, size: int, offset: int) -> bytes: ...
    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int: ...
    def allocate(self, handle: int, size: int) -> None: ...
    def truncate(self, handle: int, size: int) -> None: ...
    def sync(self, handle: int) -> None: ...
    def sync_folder(self, folder: Path) -> None: ...
    def rename(self, source: Path, target: Path) -> None: ...
    def remove(self, path: Path) -> None: ...
    def free_bytes(self, folder: Path) -> int: ...


class RealFilesystem:
    """The operating system's files."""

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        self.make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        self.sync_folder(folder.parent)

    def list_names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))  # noqa: PTH208 (names, not paths)

    def open(self, path: Path, *, create: bool = False, write: bool = False) -> int:
        flags = os.O_RDWR if write or create else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def lock(self, handle: int) -> bool:
        """Take the lock for as long as the handle is open; False if another process has it."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def read(self, handle: int, size: int, offset: int) -> bytes:
        """As much as there is, up to ``size``."""
        data = os.pread(handle, size, offset)
        while 0 < len(data) < size and (more := os.pread(handle, size - len(data), offset + len(data))):
            data += more
        return data

    def write(self, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
        """One call's worth: how many bytes went in, which may be fewer than given."""
        return os.pwritev(handle, buffers[:MAX_BUFFERS], offset)

    def allocate(self, handle: int, size: int) -> None:
        """Reserve room, so that a later write does not have to; a filesystem that cannot is no reason to fail."""
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)  # noqa: PTH105 (replaces, whatever was there)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def free_bytes(self, folder: Path) -> int:
        return shutil.disk_usage(folder).free


def write_all(files: Filesystem, handle: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write every byte, whatever each call took; returns the offset behind the last."""
    left = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    first = 0
    while first < len(left):
        taken = files.write(handle, left[first : first + MAX_BUFFERS], offset)
        if taken <= 0:
            raise OSError(errno.EIO, "a write took no bytes")
        offset += taken
        while first < len(left) and taken >= len(left[first]):
            taken -= len(left[first])
            first += 1
        if taken:
            left[first] = left[first][taken:]
    return offset


def write_file(files: Filesystem, path: Path, buffers: Sequence[Buffer]) -> None:
    """Put a whole file in place, durably: temporary name, sync, rename, sync of the folder.

    A crash leaves the old one or the new.
    """
    temporary = path.with_name(path.name + ".tmp")
    handle = files.open(temporary, create=True)
    try:
        files.truncate(handle, 0)
        write_all(files, handle, buffers, 0)
        files.sync(handle)
    finally:
        files.close(handle)
    files.rename(temporary, path)
    files.sync_folder(path.parent)


def read_file(files: Filesystem, path: Path) -> bytes:
    handle = files.open(path)
    try:
        return files.read(handle, files.size(handle), 0)
    finally:
        files.close(handle)
