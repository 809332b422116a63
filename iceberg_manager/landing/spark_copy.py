"""Copy-in by PySpark: large batches become sorted, sized data files, which the caller commits.

An append by Spark can set no table property and retries by itself, so it goes to a second catalog entry, registered on the
table's present metadata: same ids, layout and folder. Its data files are handed back, the entry is dropped, its
metadata files removed. A crash leaves the entry ``<table>__landing_<batch>``, which the next attempt drops, and orphans.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import reduce

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from iceberg_manager.catalog import load_table
from iceberg_manager.commits import translate
from iceberg_manager.manifests import live_entries, manifests_of
from iceberg_manager.names import TableName
from iceberg_manager.spark_writes import spark_type
from iceberg_manager.storage import remove_files

FORMATS = ("parquet", "orc")


def copied(
    spark: SparkSession, catalog: Catalog, table: Table, batch: str, files: Mapping[str, tuple[str, pa.Schema]]
) -> list[DataFile]:
    """``files`` maps an address to its format and columns. The data files belong to nobody until they are committed."""
    name = TableName.parse(".".join(table.name()))
    with _entry(catalog, table, TableName(name.namespace, f"{name.table}__landing_{batch[:12]}")) as entry:
        try:
            _rows(spark, table, files).writeTo(entry.quoted(catalog.name)).append()
        except Exception as error:
            raise translate(error, 1) from error
        written = load_table(catalog, entry)
        head = written.current_snapshot()
        new = [one for one in manifests_of(table.io, head) if head and one.added_snapshot_id == head.snapshot_id]
        return [item.data_file for one in new for item in live_entries(table.io, one)]


@contextmanager
def _entry(catalog: Catalog, table: Table, name: TableName) -> Iterator[TableName]:
    _drop(catalog, table, name)
    catalog.register_table(name.identifier, table.metadata_location)
    try:
        yield name
    finally:
        _drop(catalog, table, name)


def _drop(catalog: Catalog, table: Table, name: TableName) -> None:
    """Forget the entry, and the metadata that only it names."""
    if not catalog.table_exists(name.identifier):
        return
    entry = catalog.load_table(name.identifier)
    catalog.drop_table(name.identifier)
    known = {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    own = [snapshot for snapshot in entry.metadata.snapshots if snapshot.snapshot_id not in known]
    gone = [
        one.manifest_path
        for new in own
        for one in manifests_of(table.io, new)
        if one.added_snapshot_id == new.snapshot_id
    ]
    gone += [new.manifest_list for new in own]
    logged = {one.metadata_file for one in table.metadata.metadata_log} | {table.metadata_location}
    if own and entry.metadata_location not in logged:
        gone.append(entry.metadata_location)
    remove_files(table.io, gone)


def _rows(spark: SparkSession, table: Table, files: Mapping[str, tuple[str, pa.Schema]]) -> DataFrame:
    """All files as one frame with the table's columns; files of the same shape are read together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for address, (form, schema) in files.items():
        groups.setdefault((form, str(schema.remove_metadata())), []).append(address)
    shapes = {key: files[addresses[0]][1] for key, addresses in groups.items()}
    frames = [_frame(spark, table, form, groups[form, text], shapes[form, text].names) for form, text in groups]
    return reduce(lambda one, other: one.unionAll(other), frames)


def _frame(spark: SparkSession, table: Table, form: str, addresses: Sequence[str], names: Sequence[str]) -> DataFrame:
    rows = spark.read.format(form).load(list(addresses))
    return rows.select(
        [
            (F.col(f"`{item.name}`") if item.name in names else F.lit(None))
            .cast(spark_type(item.field_type))
            .alias(item.name)
            for item in table.schema().fields
        ]
    )
