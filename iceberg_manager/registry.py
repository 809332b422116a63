"""Nine read-only views over the whole catalog, as Arrow tables with fixed columns. Reads metadata, never a data file.

``manifest_lists`` and ``data_files`` describe each table's current snapshot. A table whose metadata is missing or damaged is
a row with its ``error`` in ``iceberg_tables`` (of its manifests: in those two), and does not keep the others from showing.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import IdentityTransform, Transform
from pyiceberg.types import NestedField, PrimitiveType

from iceberg_manager.catalog import list_tables
from iceberg_manager.errors import NotFoundError, first_line
from iceberg_manager.history import main_line, summary
from iceberg_manager.names import TableName, did_you_mean
from iceberg_manager.time_travel import RUN_ID

Row = dict[str, Any]
_TEXT, _LONG, _INT, _FLAG = pa.string(), pa.int64(), pa.int32(), pa.bool_()
_TIME, _COUNTS, _BOUNDS = pa.timestamp("ms", "UTC"), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.string())
_WORKERS = 8


@dataclass(frozen=True)
class _Found:
    """A table of the catalog, or why it could not be loaded."""

    name: TableName
    table: Table | None
    error: str | None = None


def view(catalog: Catalog, name: str, only: Sequence[TableName] | None = None) -> "pa.Table":
    """One of the views; ``only`` restricts it to some tables."""
    if name not in VIEWS:
        raise NotFoundError(f"There is no registry view {name!r}.{did_you_mean(name, sorted(VIEWS))}")
    columns, rows_of = VIEWS[name]
    schema = pa.schema([pa.field("catalog", _TEXT), *[pa.field(column, kind) for column, kind in columns.items()]])
    rows = [{"catalog": catalog.name} | row for row in rows_of(catalog, only)]
    return pa.Table.from_pylist(rows, schema=schema)


def _load_all(catalog: Catalog, only: Sequence[TableName] | None) -> Iterator[_Found]:
    names = list(only) if only is not None else list_tables(catalog)
    with ThreadPoolExecutor(_WORKERS) as pool:
        yield from (found for found in pool.map(lambda name: _load(catalog, name), names) if found)


def _load(catalog: Catalog, name: TableName) -> _Found | None:
    try:
        return _Found(name, catalog.load_table(name.identifier))
    except NoSuchTableError:
        return None
    except Exception as error:  # noqa: BLE001 (damaged metadata fails in as many ways as it can be damaged)
        return _Found(name, None, f"{type(error).__name__}: {first_line(error)}")


def _per_table(
    rows_of: Callable[[Table], Iterator[Row]], says_error: bool = False
) -> Callable[[Catalog, Sequence[TableName] | None], Iterator[Row]]:
    """A view whose rows come from one table at a time."""

    def rows(catalog: Catalog, only: Sequence[TableName] | None) -> Iterator[Row]:
        for found in _load_all(catalog, only):
            named = {"namespace": ".".join(found.name.namespace), "table_name": found.name.table}
            error = found.error
            if found.table is not None:
                try:
                    yield from [named | row for row in rows_of(found.table)]
                except Exception as damage:  # noqa: BLE001 (as above, for manifests)
                    error = f"{type(damage).__name__}: {first_line(damage)}"
            if error and says_error:
                yield named | {"error": error}

    return rows


def _catalogs(catalog: Catalog, _: Sequence[TableName] | None) -> Iterator[Row]:
    tables = list_tables(catalog)
    scheme, _mark, rest = str(catalog.properties.get("uri", "")).partition("://")
    yield {
        "type": type(catalog).__name__.removesuffix("Catalog").lower(),
        "uri": f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}" if rest else scheme,
        "warehouse": catalog.properties.get("warehouse"),
        "namespaces": len(_all_namespaces(catalog)),
        "tables": len(tables),
    }


def _all_namespaces(catalog: Catalog) -> list[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    pending = list(catalog.list_namespaces())
    while pending:
        namespace = pending.pop()
        if namespace not in found:
            found.add(namespace)
            pending += [child for child in catalog.list_namespaces(namespace) if len(child) > len(namespace)]
    return sorted(found)


def _namespaces(catalog: Catalog, _: Sequence[TableName] | None) -> Iterator[Row]:
    for namespace in _all_namespaces(catalog):
        properties = dict(catalog.load_namespace_properties(namespace))
        yield {
            "namespace": ".".join(namespace),
            "tables": len(catalog.list_tables(namespace)),
            "location": properties.get("location"),
            "properties": json.dumps(properties, sort_keys=True),
        }


def _tables(table: Table) -> Iterator[Row]:
    current = table.current_snapshot()
    totals = summary(current) if current else {}
    yield {
        "location": table.location(),
        "metadata_location": table.metadata_location,
        "format_version": table.format_version,
        "table_uuid": str(table.metadata.table_uuid),
        "last_updated": table.metadata.last_updated_ms,
        "current_snapshot_id": current.snapshot_id if current else None,
        "snapshots": len(table.metadata.snapshots),
        "rows": _number(totals, "total-records", 0 if current is None else None),
        "files": _number(totals, "total-data-files", 0 if current is None else None),
        "bytes": _number(totals, "total-files-size", 0 if current is None else None),
        "partition_by": ", ".join(_partition_texts(table.spec(), table.schema())),
        "sort_by": ", ".join(
            f"{table.schema().find_column_name(field.source_id)} {field.direction}"
            for field in table.sort_order().fields
        ),
        "properties": json.dumps(table.properties, sort_keys=True),
    }


def _partition_texts(spec: PartitionSpec, schema: Schema) -> list[str]:
    named = [(str(part.transform), schema.find_column_name(part.source_id)) for part in spec.fields]
    return [str(column) if kind == "identity" else f"{kind}({column})" for kind, column in named]


def _schemas(table: Table) -> Iterator[Row]:
    for schema_id, schema in sorted(table.schemas().items()):
        for position, name in enumerate(schema.column_names):
            field = schema.find_field(name)
            yield {
                "schema_id": schema_id,
                "is_current": schema_id == table.metadata.current_schema_id,
                "position": position,
                "field_id": field.field_id,
                "column_name": name,
                "type": str(field.field_type),
                "required": field.required,
                "is_key": field.field_id in schema.identifier_field_ids,
                "doc": field.doc,
            }


def _snapshots(table: Table) -> Iterator[Row]:
    on_main = {found.snapshot_id for found in main_line(table)}
    refs: dict[int, list[str]] = {}
    for name, ref in table.metadata.refs.items():
        refs.setdefault(ref.snapshot_id, []).append(name)
    for found in sorted(table.metadata.snapshots, key=lambda snapshot: snapshot.timestamp_ms):
        said = summary(found)
        yield {
            "snapshot_id": found.snapshot_id,
            "parent_id": found.parent_snapshot_id,
            "sequence_number": found.sequence_number,
            "committed_at": found.timestamp_ms,
            "operation": found.summary.operation.value if found.summary else None,
            "schema_id": found.schema_id,
            "is_current": found.snapshot_id == table.metadata.current_snapshot_id,
            "on_main": found.snapshot_id in on_main,
            "refs": ", ".join(sorted(refs.get(found.snapshot_id, []))),
            "run_id": said.get(RUN_ID),
            "added_rows": _number(said, "added-records", 0),
            "deleted_rows": _number(said, "deleted-records", 0),
            "total_rows": _number(said, "total-records"),
            "total_files": _number(said, "total-data-files"),
            "total_bytes": _number(said, "total-files-size"),
            "manifest_list": found.manifest_list,
            "summary": json.dumps(dict(said), sort_keys=True),
        }


def _number(said: Any, key: str, missing: int | None = None) -> int | None:
    return int(said[key]) if key in said else missing


def _manifests(table: Table) -> Iterator[Row]:
    current: Snapshot | None = table.current_snapshot()
    for manifest in current.manifests(table.io) if current else []:
        yield {
            "snapshot_id": current.snapshot_id if current else None,
            "manifest_list": current.manifest_list if current else None,
            "manifest_path": manifest.manifest_path,
            "content": manifest.content.name.lower(),
            "length": manifest.manifest_length,
            "spec_id": manifest.partition_spec_id,
            "sequence_number": manifest.sequence_number,
            "added_snapshot_id": manifest.added_snapshot_id,
            "added_files": manifest.added_files_count,
            "existing_files": manifest.existing_files_count,
            "deleted_files": manifest.deleted_files_count,
            "added_rows": manifest.added_rows_count,
            "existing_rows": manifest.existing_rows_count,
            "deleted_rows": manifest.deleted_rows_count,
        }


def _files(table: Table) -> Iterator[Row]:
    current = table.current_snapshot()
    specs = table.specs()
    columns = {field_id: (name, table.schema().find_field(field_id)) for field_id, name in _column_ids(table).items()}
    for manifest in current.manifests(table.io) if current else []:
        for entry in manifest.fetch_manifest_entry(table.io):
            file = entry.data_file
            yield {
                "content": file.content.name.lower(),
                "file_path": file.file_path,
                "file_format": str(file.file_format.value).lower(),
                "spec_id": manifest.partition_spec_id,
                "partition": _partition_path(specs[manifest.partition_spec_id], file, table.schema()),
                "rows": file.record_count,
                "bytes": file.file_size_in_bytes,
                "sort_order_id": file.sort_order_id,
                "sequence_number": entry.sequence_number,
                "snapshot_id": entry.snapshot_id,
            } | _statistics(file, columns)


def _column_ids(table: Table) -> dict[int, str]:
    return {table.schema().find_field(name).field_id: name for name in table.schema().column_names}


def _partition_path(spec: PartitionSpec, file: DataFile, schema: Schema) -> str:
    return spec.partition_to_path(file.partition, schema) if spec.fields else ""


def _statistics(file: DataFile, columns: dict[int, tuple[str, NestedField]]) -> Row:
    def named(counts: dict[int, Any] | None) -> list[tuple[str, Any]]:
        return [(columns[key][0], value) for key, value in sorted((counts or {}).items()) if key in columns]

    def bounds(raw: dict[int, bytes] | None) -> list[tuple[str, str]]:
        known = [(columns[key], value) for key, value in sorted((raw or {}).items()) if key in columns]
        return [(name, _readable(field, value)) for (name, field), value in known]

    return {
        "value_counts": named(file.value_counts),
        "null_counts": named(file.null_value_counts),
        "nan_counts": named(file.nan_value_counts),
        "column_bytes": named(file.column_sizes),
        "lower_bounds": bounds(file.lower_bounds),
        "upper_bounds": bounds(file.upper_bounds),
    }


def _readable(field: NestedField, raw: bytes) -> str:
    """A bound as people write it. One that was written before the column's type was widened has its old length."""
    assert isinstance(field.field_type, PrimitiveType)
    try:
        value = from_bytes(field.field_type, raw)
    except Exception:  # noqa: BLE001 (struct errors, bad UTF-8: a bound that cannot be shown is no reason to fail)
        return raw.hex()
    human: Transform[Any, Any] = IdentityTransform()
    return human.to_human_string(field.field_type, value)


def _partition_specs(table: Table) -> Iterator[Row]:
    for spec_id, spec in sorted(table.specs().items()):
        for position, part in enumerate(spec.fields):
            yield {
                "spec_id": spec_id,
                "is_current": spec_id == table.metadata.default_spec_id,
                "position": position,
                "field_id": part.field_id,
                "name": part.name,
                "source_id": part.source_id,
                "source_column": table.schema().find_column_name(part.source_id),
                "transform": str(part.transform),
            }


def _sort_orders(table: Table) -> Iterator[Row]:
    for order_id, order in sorted(table.sort_orders().items()):
        for position, field in enumerate(order.fields):
            yield {
                "order_id": order_id,
                "is_current": order_id == table.metadata.default_sort_order_id,
                "position": position,
                "source_id": field.source_id,
                "source_column": table.schema().find_column_name(field.source_id),
                "transform": str(field.transform),
                "direction": field.direction.value,
                "null_order": field.null_order.value,
            }


_NAMED = {"namespace": _TEXT, "table_name": _TEXT}
VIEWS: dict[str, tuple[dict[str, Any], Callable[[Catalog, Sequence[TableName] | None], Iterator[Row]]]] = {
    "iceberg_catalogs": (
        {"type": _TEXT, "uri": _TEXT, "warehouse": _TEXT, "namespaces": _LONG, "tables": _LONG},
        _catalogs,
    ),
    "iceberg_namespaces": (
        {"namespace": _TEXT, "tables": _LONG, "location": _TEXT, "properties": _TEXT},
        _namespaces,
    ),
    "iceberg_tables": (
        _NAMED
        | {"location": _TEXT, "metadata_location": _TEXT, "format_version": _INT, "table_uuid": _TEXT}
        | {"last_updated": _TIME, "current_snapshot_id": _LONG, "snapshots": _LONG, "rows": _LONG, "files": _LONG}
        | {"bytes": _LONG, "partition_by": _TEXT, "sort_by": _TEXT, "properties": _TEXT, "error": _TEXT},
        _per_table(_tables, says_error=True),
    ),
    "table_schemas": (
        _NAMED
        | {"schema_id": _INT, "is_current": _FLAG, "position": _INT, "field_id": _INT, "column_name": _TEXT}
        | {"type": _TEXT, "required": _FLAG, "is_key": _FLAG, "doc": _TEXT},
        _per_table(_schemas),
    ),
    "table_snapshots": (
        _NAMED
        | {"snapshot_id": _LONG, "parent_id": _LONG, "sequence_number": _LONG, "committed_at": _TIME}
        | {"operation": _TEXT, "schema_id": _INT, "is_current": _FLAG, "on_main": _FLAG, "refs": _TEXT}
        | {"run_id": _TEXT, "added_rows": _LONG, "deleted_rows": _LONG, "total_rows": _LONG, "total_files": _LONG}
        | {"total_bytes": _LONG, "manifest_list": _TEXT, "summary": _TEXT},
        _per_table(_snapshots),
    ),
    "manifest_lists": (
        _NAMED
        | {"snapshot_id": _LONG, "manifest_list": _TEXT, "manifest_path": _TEXT, "content": _TEXT, "length": _LONG}
        | {"spec_id": _INT, "sequence_number": _LONG, "added_snapshot_id": _LONG, "added_files": _LONG}
        | {"existing_files": _LONG, "deleted_files": _LONG, "added_rows": _LONG, "existing_rows": _LONG}
        | {"deleted_rows": _LONG, "error": _TEXT},
        _per_table(_manifests, says_error=True),
    ),
    "data_files": (
        _NAMED
        | {"content": _TEXT, "file_path": _TEXT, "file_format": _TEXT, "spec_id": _INT, "partition": _TEXT}
        | {"rows": _LONG, "bytes": _LONG, "sort_order_id": _INT, "sequence_number": _LONG, "snapshot_id": _LONG}
        | {"value_counts": _COUNTS, "null_counts": _COUNTS, "nan_counts": _COUNTS, "column_bytes": _COUNTS}
        | {"lower_bounds": _BOUNDS, "upper_bounds": _BOUNDS, "error": _TEXT},
        _per_table(_files, says_error=True),
    ),
    "partition_specs": (
        _NAMED
        | {"spec_id": _INT, "is_current": _FLAG, "position": _INT, "field_id": _INT, "name": _TEXT}
        | {"source_id": _INT, "source_column": _TEXT, "transform": _TEXT},
        _per_table(_partition_specs),
    ),
    "sort_orders": (
        _NAMED
        | {"order_id": _INT, "is_current": _FLAG, "position": _INT, "source_id": _INT, "source_column": _TEXT}
        | {"transform": _TEXT, "direction": _TEXT, "null_order": _TEXT},
        _per_table(_sort_orders),
    ),
}
