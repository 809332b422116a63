"""Records that no table can take, kept as they were sent, with the reason.

A letter is named by its record's number and written before the commit that passes over it: a crash in between writes the
same file again. It holds a tenant's data: folders and files are private to their owner.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from iceberg_ingest.filesystem import RealFilesystem, write_file
from iceberg_ingest.wal_format import Buffer
from iceberg_manager.names import TableName


@dataclass(frozen=True)
class DeadLetter:
    """One record that was put aside. ``path`` holds its Arrow stream."""

    seq: int
    reason: str
    path: Path


def folder_of(wal: Path, name: TableName) -> Path:
    return wal / "dead_letters" / str(name)


def keep(wal: Path, name: TableName, seq: int, payload: Buffer, reason: str) -> None:
    files, folder = RealFilesystem(), folder_of(wal, name)
    files.make_folder(folder)
    write_file(files, folder / f"{seq:020d}.arrow", [payload])
    write_file(files, folder / f"{seq:020d}.json", [json.dumps({"seq": seq, "reason": reason}).encode()])


def letters(wal: Path, name: TableName) -> list[DeadLetter]:
    """All of a table, oldest first."""
    found = []
    for path in sorted(folder_of(wal, name).glob("*.json")):
        said = json.loads(path.read_text())
        found.append(DeadLetter(said["seq"], said["reason"], path.with_suffix(".arrow")))
    return found
