"""Plain Parquet files beside (or in place of) a topic's table, while consumers move over to Iceberg.

A file is named by the records it holds and put in place whole (temporary name, sync, rename), so the names in the folder
say how far it has come: a replay adds only what is behind them. ``compare`` checks that folder and table hold the same rows.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from iceberg_ingest.filesystem import RealFilesystem
from iceberg_ingest.wal_segments import Position
from iceberg_manager.storage import flush


@dataclass(frozen=True)
class Comparison:
    """Rows on both sides, and how many are on one side only."""

    parquet_rows: int
    table_rows: int
    only_in_parquet: int
    only_in_table: int

    @property
    def same(self) -> bool:
        return not (self.only_in_parquet or self.only_in_table)


class ParquetFolder:
    """The Parquet files of one topic."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def committed(self) -> Position:
        """The last record that is in; its chain value is in the name too."""
        names = [path.stem.split("-") for path in self.folder.glob("*-*-*.parquet")]
        return max((Position(int(last), int(chain, 16)) for _, last, chain in names), default=Position(0, 0))

    def add(self, batches: Sequence[tuple[Position, pa.RecordBatch]], upto: Position) -> None:
        done = self.committed
        new = [(position, batch) for position, batch in batches if position.seq > done.seq]
        if not new:
            return
        RealFilesystem().make_folder(self.folder)
        path = self.folder / f"{new[0][0].seq:020d}-{upto.seq:020d}-{upto.chain:016x}.parquet"
        temporary = path.with_suffix(".tmp")
        pq.write_table(pa.Table.from_batches([batch for _, batch in new]), temporary, compression="zstd")
        flush([str(temporary)])
        os.replace(temporary, path)  # noqa: PTH105
        flush([str(path)])

    def compare(self, rows: pa.Table) -> Comparison:
        """Against the table's rows: every row as often on one side as on the other."""
        import duckdb

        files = sorted(self.folder.glob("*.parquet"))
        held = pa.concat_tables([pq.read_table(path) for path in files], promote_options="default") if files else None
        if held is None:
            return Comparison(0, rows.num_rows, 0, rows.num_rows)
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        for name in set(rows.column_names) - set(held.column_names):
            held = held.append_column(name, pa.nulls(held.num_rows, rows.schema.field(name).type))
        with duckdb.connect() as connection:
            connection.register("held", held.select(rows.column_names))
            connection.register("kept", rows)
            only = [
                _count(
                    connection.execute(
                        f"select count(*) from (select {names} from {a} except all select {names} from {b})"
                    )
                )
                for a, b in (("held", "kept"), ("kept", "held"))
            ]
        return Comparison(held.num_rows, rows.num_rows, *only)


def _count(answer: object) -> int:
    found = answer.fetchone()  # type: ignore[attr-defined]
    return int(found[0])
