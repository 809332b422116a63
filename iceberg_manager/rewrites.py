"""Copy-on-write: which files a change concerns, and the files that take their place. Nothing is committed here.

Metadata rules files out, files that match as a whole are dropped unread, and of the others only those that really hold a
row to change are written again, small ones together. A plan rests on one snapshot, and says which rows added meanwhile
would contradict it. A crash leaves files that no snapshot names.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestContent, ManifestEntry
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.table.snapshots import IsolationLevel, Operation

from iceberg_manager import arrow_files
from iceberg_manager.changes import Changes
from iceberg_manager.commits import PREFIX
from iceberg_manager.errors import LakeError
from iceberg_manager.manifests import live_entries, manifests_of
from iceberg_manager.metadata_commit import ANYWHERE
from iceberg_manager.pruning import Pruning

SMALL_FILE = 32 * 1024 * 1024


@dataclass(frozen=True)
class Attempt:
    """Files written for one try at a commit, and what they rest on. ``own`` are useless if the try fails."""

    changes: Changes
    operation: Operation
    planned_on: int | None = ANYWHERE
    conflicts: BooleanExpression | None = None
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    own: Sequence[DataFile] = ()

    def counts(self) -> dict[str, str]:
        said = {"inserted": self.inserted, "updated": self.updated, "deleted": self.deleted}
        return {f"{PREFIX}rows-{what}": str(rows) for what, rows in said.items() if rows}


class Rewriting:
    """What becomes of the rows of a file. ``names`` are the columns that tell whether a file is concerned at all."""

    condition: BooleanExpression
    names: Sequence[str]
    deletes = False
    inserted = 0

    def count(self, batch: pa.RecordBatch) -> int:
        """How many of these rows change."""
        raise NotImplementedError

    def apply(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
        """The rows that take their place, and how many changed."""
        raise NotImplementedError

    def concerns(self, file: DataFile) -> bool:
        """Whether the file may hold a row that changes, as far as its statistics tell."""
        return bool(file.record_count)

    def extra(self) -> Iterator[pa.RecordBatch]:
        """Rows to add once every file was seen."""
        return iter(())


@dataclass(frozen=True)
class _Candidate:
    """A file that may hold rows to change; ``whole`` if it goes as it is."""

    file: DataFile
    deletes: frozenset[DataFile]
    whole: bool


def rewrite(table: Table, work: Rewriting) -> Attempt:
    """Plan on the table's head, write what changes, and say what a commit has to do."""
    planned_on = table.metadata.current_snapshot_id
    removed: list[DataFile] = []
    candidates = _plan(table, work)
    dropped = [one.file for one in candidates if one.whole]
    others = [one for one in candidates if not one.whole]
    counted = [sum(file.record_count for file in dropped)]

    def batches() -> Iterator[pa.RecordBatch]:
        for candidate, rows, count in _changed(table, others, work):
            removed.append(candidate.file)
            counted[0] += count
            yield from rows
        yield from work.extra()

    added = arrow_files.write(table, (batch for batch in batches() if batch.num_rows))
    removed += dropped
    strict = table.metadata.isolation_level(Operation.DELETE if work.deletes else Operation.OVERWRITE)
    return Attempt(
        Changes(added, removed),
        Operation.DELETE if removed and not added else Operation.OVERWRITE if removed else Operation.APPEND,
        planned_on,
        work.condition if strict == IsolationLevel.SERIALIZABLE else None,
        inserted=work.inserted,
        updated=0 if work.deletes else counted[0],
        deleted=counted[0] if work.deletes else 0,
        own=added,
    )


def _plan(table: Table, work: Rewriting) -> list[_Candidate]:
    """The data files that may hold matching rows, with the delete files that apply to them."""
    pruning, deletes, data = Pruning(table, table.schema(), work.condition), DeleteFileIndex(), []
    for manifest in manifests_of(table.io, table.current_snapshot()):
        if manifest.content == ManifestContent.DELETES:
            _index_deletes(table, live_entries(table.io, manifest), deletes)
        elif pruning.may_hold(manifest):
            data += [
                entry
                for entry in live_entries(table.io, manifest)
                if pruning.in_partition(entry.data_file, manifest.partition_spec_id)
                and pruning.by_statistics(entry.data_file)
                and work.concerns(entry.data_file)
            ]
    return [
        _Candidate(
            entry.data_file,
            frozenset(deletes.for_data_file(entry.sequence_number or 0, entry.data_file, entry.data_file.partition)),
            work.deletes and pruning.whole(entry.data_file),
        )
        for entry in data
    ]


def _index_deletes(table: Table, entries: Iterable[ManifestEntry], deletes: DeleteFileIndex) -> None:
    for entry in entries:
        if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
            raise LakeError(
                f"{'.'.join(table.name())} has equality deletes, which only Spark can apply; nothing was written. Change it "
                "through Spark, or compact it there first."
            )
        deletes.add_delete_file(entry, entry.data_file.partition)


def _changed(
    table: Table, candidates: Sequence[_Candidate], work: Rewriting
) -> Iterator[tuple[_Candidate, Iterable[pa.RecordBatch], int]]:
    """The candidates that hold rows to change, with their new rows; read a few at a time, in order."""

    def examine(candidate: _Candidate) -> tuple[Iterable[pa.RecordBatch], int]:
        if candidate.file.file_size_in_bytes <= SMALL_FILE:
            done = [work.apply(batch) for batch in read_file(table, candidate.file, candidate.deletes)]
            return [batch for batch, _ in done], sum(count for _, count in done)
        names = list(work.names)
        count = sum(work.count(batch) for batch in read_file(table, candidate.file, candidate.deletes, names))
        return (work.apply(batch)[0] for batch in read_file(table, candidate.file, candidate.deletes)), count

    workers = min(8, os.cpu_count() or 2)
    with ThreadPoolExecutor(workers, thread_name_prefix="rewrite") as pool:
        for window in _windows(candidates, workers):
            for candidate, (rows, count) in zip(window, pool.map(examine, window), strict=True):
                if count:
                    yield candidate, rows, count


def _windows(candidates: Sequence[_Candidate], size: int) -> Iterator[Sequence[_Candidate]]:
    for start in range(0, len(candidates), size):
        yield candidates[start : start + size]


def read_file(
    table: Table, file: DataFile, deletes: Iterable[DataFile] = (), names: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """A data file's live rows as the table's columns are now (or only ``names`` of them), matched by field id."""
    schema = table.schema() if names is None else table.schema().select(*names)
    wanted = arrow_files.arrow_schema(schema)
    if not deletes and file.file_format == FileFormat.PARQUET:
        import pyarrow.parquet as pq

        with table.io.new_input(file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream)
            columns = _same_columns(parquet.schema_arrow, wanted)
            if columns is not None:
                for batch in parquet.iter_batches(batch_size=131_072, columns=columns):
                    arrays = [batch.column(name).cast(item.type) for name, item in zip(columns, wanted, strict=True)]
                    yield pa.RecordBatch.from_arrays(arrays, schema=wanted)
                return
    from pyiceberg.io.pyarrow import ArrowScan

    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    for batch in scan.to_record_batches([FileScanTask(file, set(deletes))]):
        arrays = [batch.column(item.name).cast(item.type) for item in wanted]
        yield pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _same_columns(physical: pa.Schema, wanted: pa.Schema) -> list[str] | None:
    """The file's names for the wanted columns, if their types are the same; else the file takes the longer way."""
    by_id = {(item.metadata or {}).get(b"PARQUET:field_id"): item for item in physical}
    names = []
    for item in wanted:
        found = by_id.get(item.metadata[b"PARQUET:field_id"])
        if found is None or "." in found.name or not arrow_files.small(found.type).equals(item.type):
            return None
        names.append(found.name)
    return names


def placed(batch: pa.RecordBatch, rows: Any, new: pa.RecordBatch) -> pa.RecordBatch:
    """``batch`` with its ``rows`` replaced, the order kept."""
    order = np.arange(batch.num_rows)
    order[rows] = batch.num_rows + np.arange(len(rows))
    both = pa.concat_batches([batch, new])
    return both.take(pa.array(order))
