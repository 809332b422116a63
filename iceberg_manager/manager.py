"""``IcebergManager``: one object with which a person creates, fills, changes, reads, compares and rolls back tables.

A thin facade: each method names a table, makes one call into the library and returns what it says. No JVM is started
except by ``sql(…, engine="spark")``. Modules are loaded when first used, so that small commands answer at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from iceberg_manager import parts
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings, load_settings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from iceberg_manager.arrow_writes import Written
    from iceberg_manager.incoming import OnError
    from iceberg_manager.result import Result
    from iceberg_manager.snapshots import SnapshotInfo, TableInfo


class IcebergManager:
    """The tables of one lake. ``lake`` is a lake.yaml, a lake's folder, or settings; without it the usual search applies."""

    def __init__(self, lake: str | Path | LakeSettings | None = None) -> None:
        self.settings = lake if isinstance(lake, LakeSettings) else load_settings(lake)

    @cached_property
    def catalog(self) -> Catalog:
        return parts.catalog.open_catalog(self.settings)

    @cached_property
    def _metadata(self) -> Catalog:
        return parts.local_files.for_metadata(self.catalog, self.settings)

    @cached_property
    def _duckdb(self) -> Any:
        return parts.query.connect(self.settings)

    @cached_property
    def _sql(self) -> parts.sql.SqlEngine:
        return parts.sql.SqlEngine(self.settings)

    def table(self, name: str) -> Table:
        """The PyIceberg table, as it is now."""
        return parts.catalog.load_table(self.catalog, name)

    def _facts(self, name: str) -> Table:
        """The same table for whoever only looks at or changes metadata: quicker to have."""
        return parts.catalog.load_table(self._metadata, name)

    def list_namespaces(self) -> list[str]:
        return [".".join(parts) for parts in parts.catalog.list_namespaces(self.catalog)]

    def list_tables(self, namespace: str | None = None) -> list[str]:
        found = parts.catalog.list_tables(self.catalog)
        return [str(name) for name in found if namespace in (None, ".".join(name.namespace))]

    def describe(self, table: str) -> TableInfo:
        return parts.snapshots.describe(self._facts(table))

    def table_overview(self, namespace: str | None = None) -> list[dict[str, Any]]:
        """One line a table; one that cannot be read says why."""
        return parts.snapshots.table_overview(
            self._metadata, [TableName.parse(name) for name in self.list_tables(namespace)]
        )

    def snapshot_overview(self, table: str) -> list[dict[str, Any]]:
        return parts.snapshots.snapshot_overview(self._facts(table))

    def check_column(self, table: str, name: str) -> None:
        """Raises, with the nearest name, if there is no such column."""
        parts.evolution.require_column(self._facts(table), name)

    def registry(self, view: str) -> Result:
        """One of the nine views over the whole catalog, such as ``table_snapshots``."""
        return parts.result.Result(parts.registry.view(self.catalog, view))

    def spark_status(self) -> dict[str, Any]:
        return parts.spark_server.status(self.settings.spark_server_dir)

    def spark_stop(self, force: bool = False) -> bool:
        return parts.spark_server.stop(self.settings.spark_server_dir, force)

    def infer_schema(self, path: str | Path) -> dict[str, Any]:
        """The columns that a data file seems to have."""
        return dict(parts.schemas.columns(parts.incoming.inferred_schema(path)))

    def create_table(self, name: str, schema: Any, **options: Any) -> TableInfo:
        """``schema`` as in `schemas`; options are those of TableSpec: partition_by, sort_by, key, properties …"""
        columns = parts.schemas.with_key(parts.schemas.columns(schema), options.get("key", ()))
        declared = parts.spec.TableSpec(str(TableName.parse(name)), schema=columns, **options)
        with parts.catalog.catalog_errors(self.settings):
            return parts.snapshots.describe(parts.tables.create_table(self._metadata, self.settings, declared))

    def drop_table(self, table: str, purge: bool = False) -> None:
        """Forget the table; with ``purge``, delete its files too. Without it they stay where they are."""
        with parts.catalog.catalog_errors(self.settings):
            parts.tables.drop_table(self.catalog, self.table(table), purge)

    def insert_data(self, table: str, data: Any, on_error: OnError = "fail", form: str | None = None) -> Written:
        """``data``: a pandas or Polars frame, Arrow, a Spark DataFrame, dicts, a DuckDB relation, a path or a stream."""
        return parts.arrow_writes.append(self.catalog, table, data, _stamp(), on_error, form)

    def update_data(self, table: str, updates: Mapping[str, Any], where: str | None = None) -> Written:
        """Values are literals; ``expr("age + 1")`` is an SQL expression over the row."""
        return parts.arrow_writes.update(self.catalog, table, updates, _stamp(), where)

    def delete_data(self, table: str, condition: str) -> Written:
        return parts.arrow_writes.delete(self.catalog, table, condition, _stamp())

    def upsert_data(
        self, table: str, data: Any, key: str | Sequence[str], on_error: OnError = "fail", form: str | None = None
    ) -> Written:
        return parts.arrow_writes.upsert(self.catalog, table, data, key, _stamp(), on_error, form)

    def update_expressions(self, table: str, assignments: Sequence[str], where: str | None = None) -> Written:
        """Updates as the command line spells them: ``age=age+1``."""
        return self.update_data(table, parts.arrow_writes.parse_assignments(assignments), where)

    def generate(
        self, kind: str, rows: int, seed: int = 0, to: str | Path | None = None, into: str | None = None
    ) -> str:
        """Made-up rows into a Parquet file or a table, which is created if need be; says what was made."""
        if to is not None:
            written = parts.generate.write_parquet_batch(to, rows, kind, seed)
            return f"wrote {written.rows:,} rows ({written.bytes:,} bytes) to {written.path}"
        made, name = parts.generate.rows(kind, rows, seed), str(TableName.parse(str(into)))
        if name not in self.list_tables():
            self.create_table(name, made.schema)
        return f"inserted {self.insert_data(name, made).inserted:,} rows into {name}"

    def query_table(
        self, table: str, where: str | None = None, columns: Sequence[str] | None = None, limit: int | None = None,
        **at: Any,
    ) -> Result:  # fmt: skip
        """Rows now, or at one of ``snapshot``, ``timestamp``, ``tag``, ``branch``, ``run``."""
        found = self._facts(table)
        chosen = parts.time_travel.resolve(found, **at) if any(value is not None for value in at.values()) else None
        return parts.query.query_table(self._duckdb, found, where=where, columns=columns, limit=limit, snapshot=chosen)

    def query_snapshot(self, table: str, snapshot_id: int, **options: Any) -> Result:
        return self.query_table(table, snapshot=snapshot_id, **options)

    def query_as_of(self, table: str, timestamp: str | date, **options: Any) -> Result:
        return self.query_table(table, timestamp=timestamp, **options)

    def sql(self, statement: str, engine: str = "duckdb") -> Result:
        """One read-only statement over every table by name."""
        if engine == "spark":
            return parts.spark_sql.run(self.settings, statement)
        return self._sql.run(self.catalog, statement)

    def explain(self, table: str, where: str | None = None, **at: Any) -> parts.explain.Explanation:
        found = self._facts(table)
        chosen = parts.time_travel.resolve(found, **at) if any(value is not None for value in at.values()) else None
        return parts.explain.explain(found, where, chosen)

    def list_snapshots(self, table: str) -> list[SnapshotInfo]:
        return parts.snapshots.list_snapshots(self._facts(table))

    def get_current_snapshot(self, table: str) -> SnapshotInfo:
        return self.get_snapshot(table)

    def get_snapshot(self, table: str, snapshot_id: int | None = None, **at: Any) -> SnapshotInfo:
        found = self._facts(table)
        return parts.snapshots.snapshot_info(found, parts.time_travel.resolve(found, snapshot=snapshot_id, **at))

    def get_snapshot_at_time(self, table: str, timestamp: str | date) -> SnapshotInfo:
        return self.get_snapshot(table, timestamp=timestamp)

    def diff_snapshots(
        self, table: str, a: int, b: int | None = None, key: str | Sequence[str] | None = None, limit: int | None = None
    ) -> parts.diff.Diff:
        """From ``a`` to ``b``, which is the newest by default."""
        found, keys = self.table(table), [key] if isinstance(key, str) else key
        return parts.diff.diff(self._duckdb, found, a, parts.time_travel.resolve(found, snapshot=b), keys, limit)

    def plan_rollback(self, table: str, snapshot_id: int) -> parts.references.Rollback:
        found = self._facts(table)
        return parts.references.plan_rollback(found, parts.time_travel.by_id(found, snapshot_id))

    def rollback(self, table: str, snapshot_id: int) -> parts.references.Rollback:
        """Move main to a snapshot. What that undoes is returned, and can be had before from ``plan_rollback``."""
        planned = self.plan_rollback(table, snapshot_id)
        parts.references.rollback(partial(self._facts, table), planned)
        return planned

    def plan_expiry(
        self, table: str, older_than_days: float = 30, keep_last: int | None = None
    ) -> parts.expiry.ExpiryPlan:
        found = self._facts(table)
        return parts.expiry.plan(found, timedelta(days=older_than_days), keep_last, parts.needs.needed_snapshots(found))

    def expiry_report(
        self, table: str, older_than_days: float = 30, keep_last: int | None = None
    ) -> parts.expiry.Report:
        """A dry run: what would go, what it would free, and why the rest stays."""
        return parts.expiry.report(self._facts(table), self.plan_expiry(table, older_than_days, keep_last))

    def expire_snapshots(
        self, table: str, older_than_days: float = 30, keep_last: int | None = None, progress: Any = None
    ) -> parts.expiry.Expired:
        """Remove old snapshots and the files that only they needed; branches, tags and the last ones stay."""
        return parts.expiry.expire(
            partial(self._facts, table), self.plan_expiry(table, older_than_days, keep_last), progress
        )

    def tag(self, table: str, name: str, snapshot_id: int | None = None, keep_days: float | None = 90) -> None:
        self._name(parts.references.tag, table, name, snapshot_id, keep_days)

    def branch(self, table: str, name: str, snapshot_id: int | None = None, keep_days: float | None = 90) -> None:
        self._name(parts.references.branch, table, name, snapshot_id, keep_days)

    def drop_reference(self, table: str, name: str) -> None:
        parts.references.drop(partial(self._facts, table), name)

    def _name(self, make: Any, table: str, name: str, snapshot_id: int | None, keep_days: float | None) -> None:
        chosen = parts.time_travel.resolve(self._facts(table), snapshot=snapshot_id).snapshot_id
        keep = timedelta(days=keep_days) if keep_days is not None else None
        make(partial(self._facts, table), name, chosen, keep)

    def evolve_schema(self, table: str, changes: Mapping[str, Any]) -> TableInfo:
        """``{"add": {name: type}, "rename": {old: new}, "alter": {name: type}, "drop": [name]}``, as one change."""
        return parts.snapshots.describe(parts.evolution.evolve(partial(self._facts, table), changes))

    def add_column(self, table: str, name: str, type: str) -> TableInfo:  # noqa: A002 (the documented name)
        return self.evolve_schema(table, {"add": {name: type}})

    def rename_column(self, table: str, name: str, new_name: str) -> TableInfo:
        return self.evolve_schema(table, {"rename": {name: new_name}})

    def drop_column(self, table: str, name: str) -> TableInfo:
        return self.evolve_schema(table, {"drop": [name]})

    def alter_column(self, table: str, name: str, type: str) -> TableInfo:  # noqa: A002 (the documented name)
        return self.evolve_schema(table, {"alter": {name: type}})

    def schema_history(self, table: str) -> list[parts.evolution.SchemaVersion]:
        return parts.evolution.versions(self._facts(table))

    def update_partitioning(self, table: str, partition_by: Sequence[str]) -> TableInfo:
        return parts.snapshots.describe(parts.evolution.repartition(partial(self._facts, table), partition_by))

    def set_sort_order(self, table: str, sort_by: Sequence[str]) -> TableInfo:
        return parts.snapshots.describe(parts.evolution.sort(partial(self._facts, table), sort_by))

    def files_for_snapshot(self, table: str, snapshot_id: int | None = None, partition: str | None = None) -> Result:
        found = self._facts(table)
        return parts.result.Result(parts.snapshots.files(found, self._snapshot(found, snapshot_id), partition))

    def files_for_partition(self, table: str, partition: str, snapshot_id: int | None = None) -> Result:
        """``partition`` as `partitions` shows it: ``ts_day=2026-01-01``."""
        return self.files_for_snapshot(table, snapshot_id, partition)

    def partitions(self, table: str, snapshot_id: int | None = None) -> Result:
        found = self._facts(table)
        return parts.result.Result(parts.snapshots.partitions(found, self._snapshot(found, snapshot_id)))

    @staticmethod
    def _snapshot(table: Table, snapshot_id: int | None) -> Any:
        return parts.time_travel.by_id(table, snapshot_id) if snapshot_id is not None else table.current_snapshot()


def _stamp() -> parts.commits.Stamp:
    return parts.commits.Stamp(uuid4().hex)
