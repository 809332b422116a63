"""Files of a table in its storage, beneath any commit: made durable, or removed when nothing names them."""

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from pyiceberg.io import FileIO

from iceberg_manager.errors import first_line

_log = logging.getLogger(__name__)


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
