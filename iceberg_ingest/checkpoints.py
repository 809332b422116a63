"""Small files beside the log that say how far each table has come: hints, never the authority.

They let retention know what may go, and the writer see a table that went back or was replaced. A crash leaves the old
file or the new one (temporary name, sync, rename, sync of the folder).
"""

import json
from dataclasses import dataclass
from pathlib import Path

from iceberg_ingest.filesystem import RealFilesystem, write_file
from iceberg_ingest.wal_segments import Position
from iceberg_manager.names import TableName

SCANNED = "scanned.json"


@dataclass(frozen=True)
class Checkpoint:
    """The table that was written to, and the place in the log up to which it holds everything."""

    table_uuid: str
    position: Position


def folder_of(wal: Path) -> Path:
    return wal / "checkpoints"


def save(wal: Path, name: TableName, checkpoint: Checkpoint) -> None:
    said = {**_said(checkpoint.position), "table_uuid": checkpoint.table_uuid}
    _write(folder_of(wal) / f"{name}.json", said)


def load(wal: Path, name: TableName) -> Checkpoint | None:
    """None if there is none, or if it cannot be read: a hint is no reason to stop."""
    return _read(folder_of(wal) / f"{name}.json")


def tables(wal: Path) -> list[TableName]:
    """Every table that has a checkpoint."""
    files = sorted(folder_of(wal).glob("*.json")) if folder_of(wal).is_dir() else []
    return [TableName.parse(file.stem) for file in files if file.name != SCANNED]


def save_scanned(wal: Path, position: Position) -> None:
    """Up to here every table holds everything that is meant for it."""
    _write(folder_of(wal) / SCANNED, {**_said(position), "table_uuid": ""})


def scanned(wal: Path) -> Position | None:
    found = _read(folder_of(wal) / SCANNED)
    return found.position if found else None


def _said(position: Position) -> dict[str, str | int]:
    return {"seq": position.seq, "chain": str(position.chain)}


def _write(path: Path, said: dict[str, str | int]) -> None:
    files = RealFilesystem()
    files.make_folder(path.parent)
    write_file(files, path, [json.dumps(said).encode()])


def _read(path: Path) -> Checkpoint | None:
    try:
        said = json.loads(path.read_text())
        return Checkpoint(said["table_uuid"], Position(int(said["seq"]), int(said["chain"])))
    except (OSError, ValueError, KeyError, TypeError):
        return None
