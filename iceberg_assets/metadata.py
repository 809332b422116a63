"""What the Dagster UI shows of a table and of each materialization. Ids are text: the UI rounds large integers."""

from typing import Any

import dagster as dg
from pyiceberg.schema import Schema

from iceberg_manager.commits import CommitResult
from iceberg_manager.spec import TableSpec


def definition_metadata(spec: TableSpec) -> dict[str, Any]:
    """What is known before anything ran."""
    said: dict[str, Any] = {
        "dagster/column_schema": column_schema(spec.iceberg_schema),
        "dagster/table_name": spec.name,
        "iceberg/write_mode": spec.write_mode,
        "iceberg/partition_by": ", ".join(spec.partition_by),
        "iceberg/sort_by": ", ".join(spec.sort_by),
        "iceberg/key": ", ".join(spec.key),
    }
    return {key: value for key, value in said.items() if value}


def commit_metadata(spec: TableSpec, result: CommitResult, schema: Schema, inputs: dict[str, int]) -> dict[str, Any]:
    """What one materialization did, and the command that reads its snapshot again."""
    metadata: dict[str, Any] = {"dagster/row_count": result.total_rows, "dagster/column_schema": column_schema(schema)}
    if result.snapshot_id is not None:
        travel = f"`iceberg-manager query {spec.name} --snapshot {result.snapshot_id}`"
        metadata["iceberg/snapshot_id"] = str(result.snapshot_id)
        metadata["iceberg/time_travel"] = dg.MetadataValue.md(travel)
    if result.parent_id is not None:
        metadata["iceberg/parent_id"] = str(result.parent_id)
    metadata |= {
        "iceberg/operation": result.operation,
        "iceberg/rows_added": result.rows_added,
        "iceberg/rows_removed": result.rows_removed,
        "iceberg/files_added": result.files_added,
        "iceberg/files_removed": result.files_removed,
        "iceberg/bytes_added": result.bytes_added,
        "iceberg/total_bytes": result.total_bytes,
        "iceberg/total_files": result.total_files,
        "iceberg/schema_id": result.schema_id,
        "iceberg/changed": result.changed,
        "iceberg/replayed": result.replayed,
        "iceberg/attempts": result.attempts,
        "iceberg/seconds": round(result.seconds, 3),
    }
    if inputs:
        metadata["iceberg/inputs"] = {table: str(snapshot) for table, snapshot in inputs.items()}
    return metadata


def column_schema(schema: Schema) -> dg.TableSchema:
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                field.name,
                str(field.field_type),
                description=field.doc,
                constraints=dg.TableColumnConstraints(nullable=not field.required),
            )
            for field in schema.fields
        ]
    )
