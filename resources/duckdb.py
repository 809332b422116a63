"""DuckDB on the lake, on dagster-duckdb's resource: connections come with the Iceberg reader loaded."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg
import duckdb
from dagster_duckdb import DuckDBResource
from pydantic import PrivateAttr

from iceberg_manager import query
from iceberg_manager.catalog import load_table
from resources.lake import LakeResource


class LakeDuckDBResource(DuckDBResource):
    """In memory unless ``database`` names a file. ``scan`` gives a table, or one of its snapshots, as a FROM item."""

    database: str = ":memory:"
    lake: dg.ResourceDependency[LakeResource]
    _loaded: duckdb.DuckDBPyConnection | None = PrivateAttr(default=None)

    @contextmanager
    def get_connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """In memory, all connections of a run share one database: loading the extensions takes a third of a second."""
        if self.database != ":memory:":
            with super().get_connection() as connection:
                yield query.connect(self.lake.settings, connection)
            return
        if self._loaded is None:
            self._loaded = query.connect(self.lake.settings)
        with self._loaded.cursor() as connection:
            yield connection

    def teardown_after_execution(self, context: dg.InitResourceContext) -> None:
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def scan(self, table: str, snapshot_id: int | None = None) -> str:
        return query.scan(load_table(self.lake.catalog, table), snapshot_id)
