"""The tables behind topics, as the service sees them: a topic ``tenant/topic`` is the table ``tenant.topic``.

Reads and makes tables through the lake's catalog; rows only ever get in through the log and its writer. The catalog
is opened when it is first needed, so the service accepts rows while it is away.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from iceberg_ingest.tokens import TopicName
from iceberg_manager.errors import DataError, InputError, LakeError, NotFoundError, first_line
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings


class TopicTables:
    """Each thread that asks has a catalog of its own: a SQLite connection may not be shared."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self._local = threading.local()

    def _catalog(self) -> Catalog:
        from iceberg_manager.catalog import open_catalog

        if not hasattr(self._local, "catalog"):
            self._local.catalog = open_catalog(self._settings)
        catalog: Catalog = self._local.catalog
        return catalog

    def load(self, name: TopicName) -> Table:
        from iceberg_manager.catalog import catalog_errors, load_table

        with catalog_errors(self._settings):
            return load_table(self._catalog(), _table_name(name))

    def arrow_schema(self, name: TopicName) -> pa.Schema | None:
        """The table's columns, None if there is no table or the catalog is away: the writer looks again."""
        from iceberg_manager.arrow_files import arrow_schema

        try:
            return arrow_schema(self.load(name).schema())
        except LakeError:
            return None

    def names(self, tenant: str | None) -> list[TopicName]:
        from iceberg_manager.catalog import catalog_errors, list_tables

        with catalog_errors(self._settings):
            found = list_tables(self._catalog())
        topics = [TopicName(*name.identifier) for name in found if len(name.identifier) == 2]
        return [name for name in topics if tenant in (None, name.tenant)]

    def create(self, name: TopicName, schema: pa.Schema) -> bool:
        """Make the topic's table; False if it is there already."""
        from iceberg_manager.catalog import catalog_errors
        from iceberg_manager.schemas import columns
        from iceberg_manager.spec import TableSpec
        from iceberg_manager.tables import create_table

        with catalog_errors(self._settings):
            try:
                self.load(name)
            except NotFoundError:
                spec = TableSpec(name=str(_table_name(name)), schema=columns(schema))
                create_table(self._catalog(), self._settings, spec)
                return True
        return False

    def drop(self, name: TopicName) -> None:
        from iceberg_manager.catalog import catalog_errors
        from iceberg_manager.tables import drop_table

        with catalog_errors(self._settings):
            drop_table(self._catalog(), self.load(name))

    def stats(self, name: TopicName) -> dict[str, Any]:
        table = self.load(name)
        snapshot = table.current_snapshot()
        summary = snapshot.summary if snapshot else None
        totals = summary.additional_properties if summary else {}
        return {
            "rows": int(totals.get("total-records", 0)),
            "bytes": int(totals.get("total-files-size", 0)),
            "snapshot": snapshot.snapshot_id if snapshot else None,
            "table_uuid": str(table.metadata.table_uuid),
        }

    def rows(self, table: Table, request: dict[str, Any]) -> tuple[pa.Schema, Iterator[pa.RecordBatch], int | None]:
        """The rows that a ticket asks for, batch by batch, and the snapshot they end at."""
        from iceberg_manager.time_travel import resolve

        wanted = {key: request[key] for key in ("snapshot", "timestamp") if request.get(key) is not None}
        head = table.current_snapshot()
        if (position := request.get("from")) is not None:
            scan: Any = table.incremental_append_scan(from_snapshot_id_exclusive=_checked(table, position))
        else:
            head = resolve(table, **wanted) if head or wanted else None
            scan = table.scan(snapshot_id=head.snapshot_id if head else None)
        if columns := request.get("columns"):
            scan = scan.select(*columns)
        try:
            reader = scan.to_arrow_batch_reader()
        except ValueError as error:
            raise DataError(f"These rows cannot be read: {first_line(error)}.") from error
        return reader.schema, iter(reader), head.snapshot_id if head else None


def _table_name(name: TopicName) -> TableName:
    return TableName((name.tenant,), name.topic)


def _checked(table: Table, position: Any) -> int:
    """The snapshot behind which to go on, from a position ``{table_uuid, snapshot}`` that is still this table's."""
    if not isinstance(position, dict) or not isinstance(position.get("snapshot"), int):
        raise InputError('A position looks like {"table_uuid": "…", "snapshot": 123}.')
    if str(position.get("table_uuid")) != str(table.metadata.table_uuid):
        raise DataError("The topic's table was replaced since this position; start again from its current rows.")
    return int(position["snapshot"])
