"""Reads a table's inputs as DataFrames, each pinned to the snapshot that Dagster recorded for it.

So a run computes from exactly what its provenance says, even if someone commits to an input meanwhile. An input that
Dagster never saw materialized, or whose recorded snapshot has expired, is read as it is now; both are logged.
"""

from collections.abc import Sequence

import dagster as dg
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

from iceberg_assets.partitions import slice_of
from iceberg_manager.catalog import load_table
from iceberg_manager.names import TableName
from iceberg_manager.spec import TableSpec
from resources.lake import LakeResource


class Source:
    """A table that another one reads: one of ours, with its spec, or any table of the catalog by name."""

    def __init__(self, name: TableName, spec: TableSpec | None, partitions: dg.PartitionsDefinition | None) -> None:
        self.name, self.spec, self.partitions = name, spec, partitions

    @property
    def key(self) -> dg.AssetKey:
        return dg.AssetKey(list(self.name.identifier))

    def pin(self, context: dg.AssetExecutionContext, lake: LakeResource, keys: Sequence[str]) -> int | None:
        """The snapshot to read; None for a table that holds nothing yet."""
        table = load_table(lake.catalog, self.name)
        recorded = self._recorded(context, keys)
        if recorded is not None and table.metadata.snapshot_by_id(recorded):
            return recorded
        current = table.metadata.current_snapshot_id
        why = "was never recorded here" if recorded is None else f"was recorded at {recorded}, which has expired"
        context.log.info("%s %s: reading its current snapshot %s", self.name, why, current)
        return current

    def read(self, spark: SparkSession, lake: LakeResource, snapshot: int | None, keys: Sequence[str]) -> DataFrame:
        """Its rows at that snapshot; only the given partitions, if any are."""
        table = self.name.quoted(lake.catalog.name)
        rows = spark.table(table) if snapshot is None else spark.read.option("versionAsOf", snapshot).table(table)
        if keys and self.spec and self.partitions:
            schema = _schema_at(load_table(lake.catalog, self.name), snapshot)
            rows = rows.where(slice_of(self.spec, self.partitions, keys).sql(schema))
        return rows

    def partition_keys(self, context: dg.AssetExecutionContext, argument: str, partitioned: bool) -> Sequence[str]:
        """The input's partitions that this run depends on; none means the whole table."""
        if self.partitions is None or not partitioned:
            return ()
        keys = list(context.asset_partition_keys_for_input(argument))
        everything = len(keys) == len(self.partitions.get_partition_keys())
        return () if everything else keys

    def _recorded(self, context: dg.AssetExecutionContext, keys: Sequence[str]) -> int | None:
        if len(keys) == 1:
            fetched = context.instance.fetch_materializations(
                dg.AssetRecordsFilter(asset_key=self.key, asset_partitions=[keys[0]]), limit=1
            ).records
            event = fetched[0].event_log_entry if fetched else None
        else:
            event = context.instance.get_latest_materialization_event(self.key)
        said = (
            event.asset_materialization.metadata.get("iceberg/snapshot_id")
            if event and event.asset_materialization
            else None
        )
        return int(str(said.value)) if said else None


def _schema_at(table: Table, snapshot: int | None) -> Schema:
    found = table.metadata.snapshot_by_id(snapshot) if snapshot is not None else None
    schema_id = found.schema_id if found else None
    return table.schemas()[schema_id] if schema_id is not None else table.schema()
