"""A table as it is now, at the cost of what changed since this process last looked.

A metadata file never changes, so what was read or written last is remembered by its name: snapshots that are known are not
parsed again. Only a SQL catalog tells where the file is; other catalogs send the whole table.
"""

import gzip
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from iceberg_manager.catalog import damaged, load_table
from iceberg_manager.errors import LakeError, first_line
from iceberg_manager.names import TableName

_REMEMBERED_TABLES = 32
_REMEMBERED_BYTES = 32 * 1024 * 1024
_SNAPSHOTS = re.compile(r'"snapshots"\s*:\s*(?=\[)')
_DECODER = json.JSONDecoder()


def load(catalog: Catalog, name: TableName | str) -> Table:
    """A table as it is now, like ``catalog.load_table`` but parsing only what this process has not seen before."""
    name = TableName.parse(name)
    if not is_sql(catalog):
        return load_table(catalog, name)
    location = _pointer(catalog, name)
    if location is None:
        return load_table(catalog, name)
    version = remembered.get(catalog, name)
    if version is None or version.location != location:
        try:
            version = read(catalog, location, version)
        except (ValueError, ValidationError) as error:
            raise damaged(name, error) from error
        remembered.put(catalog, name, version)
    return Table(name.identifier, version.metadata, location, version.io, catalog)


@dataclass(frozen=True)
class Version:
    """One metadata file: its document without the snapshots, those as they are written, and the parsed model."""

    location: str
    document: dict[str, Any]
    snapshots: str
    metadata: TableMetadata
    io: FileIO


class _Seen:
    """The last version seen of each table, for this process."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, ...], Version] = OrderedDict()
        self._lock = threading.Lock()

    @staticmethod
    def _key(catalog: Catalog, name: TableName) -> tuple[str, ...]:
        return (catalog.name, str(catalog.properties.get("uri")), *name.identifier)

    def get(self, catalog: Catalog, name: TableName) -> Version | None:
        with self._lock:
            return self._seen.get(self._key(catalog, name))

    def put(self, catalog: Catalog, name: TableName, version: Version | None) -> None:
        with self._lock:
            self._seen.pop(self._key(catalog, name), None)
            if version is not None and 800 * len(version.metadata.snapshots) < _REMEMBERED_BYTES:
                self._seen[self._key(catalog, name)] = version
            while len(self._seen) > _REMEMBERED_TABLES:
                self._seen.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._seen.clear()


remembered = _Seen()


def is_sql(catalog: Catalog) -> bool:
    """Whether the catalog is a database that holds a pointer to each table's metadata file."""
    return any(kind.__name__ == "SqlCatalog" for kind in type(catalog).__mro__)


def _pointer(catalog: Any, name: TableName) -> str | None:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    with catalog.engine.connect() as connection:
        found: str | None = connection.scalar(
            select(IcebergTables.metadata_location).where(*catalog_row(catalog, name))
        )
    return found


def catalog_row(catalog: Catalog, name: TableName) -> tuple[Any, ...]:
    """What selects a table's row in a SQL catalog."""
    from pyiceberg.catalog.sql import IcebergTables

    return (
        IcebergTables.catalog_name == catalog.name,
        IcebergTables.table_namespace == ".".join(name.namespace),
        IcebergTables.table_name == name.table,
    )


def read(catalog: Catalog, location: str, before: Version | None) -> Version:
    """Parse a metadata file; snapshots that ``before`` has already are taken from there."""
    io = before.io if before else load_file_io(catalog.properties, location)
    try:
        with io.new_input(location).open() as stream:
            content = stream.read()
        text = (gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content).decode()
        document, snapshots, parsed = _split(text, before)
        metadata = TableMetadataUtil.parse_obj({**document, "snapshots": []})
        if not before or before.metadata.properties != metadata.properties:
            io = load_file_io({**catalog.properties, **metadata.properties}, location)
    except Exception as error:
        raise LakeError(
            f"The table's metadata file {location} is missing or damaged ({first_line(error)}); nothing was changed. "
            "Restore the file, or register an earlier metadata file of the table."
        ) from error
    return Version(location, document, snapshots, metadata.model_copy(update={"snapshots": parsed}), io)


def _split(text: str, before: Version | None) -> tuple[dict[str, Any], str, list[Snapshot]]:
    """A metadata file's document without its snapshots; those as they are written; and those parsed."""
    found = [match.end() for match in _SNAPSHOTS.finditer(text)]
    if len(found) == 1:
        snapshots, end = _tail(text, found[0], before) or _whole(text, found[0])
        document = json.loads(f"{text[: found[0]]}[]{text[end:]}")
        if document.pop("snapshots", None) == []:
            return document, text[found[0] + 1 : end - 1].strip(), snapshots
    document = json.loads(text)
    listed = document.pop("snapshots", None) or []
    return document, dump(listed)[1:-1], [_parsed(item) for item in listed]


def _whole(text: str, start: int) -> tuple[list[Snapshot], int]:
    listed, end = _DECODER.raw_decode(text, start)
    return [_parsed(item) for item in listed], end


def _tail(text: str, start: int, before: Version | None) -> tuple[list[Snapshot], int] | None:
    """The snapshots and where their list ends, if it begins with exactly the known ones: then only the rest is parsed."""
    if before is None or not before.snapshots or not text.startswith(before.snapshots, start + 1):
        return None
    at, snapshots = start + 1 + len(before.snapshots), list(before.metadata.snapshots)
    while text[at] == ",":
        item, at = _DECODER.raw_decode(text, at + 1)
        snapshots.append(_parsed(item))
    return (snapshots, at + 1) if text[at] == "]" else None


class LightSummary(Summary):
    """PyIceberg's, but cheap to make and to look into: the commit door looks into every one of a table's history."""

    @classmethod
    def of(cls, operation: Operation, said: dict[str, str]) -> "LightSummary":
        """What the constructor makes, without validating it: what a metadata file says is text."""
        made = cls.__new__(cls)
        object.__setattr__(made, "__dict__", {"operation": operation})
        object.__setattr__(made, "__pydantic_fields_set__", {"operation"})
        object.__setattr__(made, "__pydantic_extra__", None)
        object.__setattr__(made, "__pydantic_private__", {"_additional_properties": said})
        return made

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
    return Snapshot.model_validate({**item, "summary": LightSummary.of(Operation(operation), said)})


def dump(value: Any) -> str:
    """JSON without white space."""
    return json.dumps(value, separators=(",", ":"))
