"""Metadata on the local disk without Arrow, whose loading takes longer than all that a change of columns does.

Only for work on metadata: PyIceberg reads and writes data files with Arrow's own file access, which stays the default.
A file is written where it belongs; one that a crash left half-written is named by no catalog entry.
"""

import copy
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlparse

from pyiceberg.catalog import Catalog
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, OutputFile

from iceberg_manager.settings import LakeSettings


def for_metadata(catalog: Catalog, settings: LakeSettings) -> Catalog:
    """The same catalog for work on metadata alone: light where the lake is on this disk, else as it was."""
    if settings.on_s3 or settings.catalog.type == "rest" or PY_IO_IMPL in catalog.properties:
        return catalog
    light = copy.copy(catalog)
    light.properties = catalog.properties | {PY_IO_IMPL: f"{__name__}.LocalFileIO"}
    return light


class LocalInput(InputFile):
    def __len__(self) -> int:
        return _path(self.location).stat().st_size

    def exists(self) -> bool:
        return _path(self.location).exists()

    def open(self, seekable: bool = True) -> BinaryIO:
        return _path(self.location).open("rb")


class LocalOutput(OutputFile):
    def __len__(self) -> int:
        return _path(self.location).stat().st_size

    def exists(self) -> bool:
        return _path(self.location).exists()

    def to_input_file(self) -> LocalInput:
        return LocalInput(self.location)

    def create(self, overwrite: bool = False) -> BinaryIO:
        path = _path(self.location)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb" if overwrite else "xb")


class LocalFileIO(FileIO):
    """PyIceberg's file access, for paths and file: URIs."""

    def new_input(self, location: str) -> LocalInput:
        return LocalInput(location)

    def new_output(self, location: str) -> LocalOutput:
        return LocalOutput(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        _path(location if isinstance(location, str) else location.location).unlink()


def _path(location: str) -> Path:
    parsed = urlparse(location)
    return Path(parsed.path) if parsed.scheme == "file" else Path(location)
