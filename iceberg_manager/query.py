"""Reads tables with DuckDB, at the exact metadata file and snapshot that we resolved. No JVM, nothing downloaded.

The extensions come as wheels and are loaded from their packages; DuckDB is told not to fetch or load any other.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import duckdb
import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from iceberg_manager.conditions import condition, find_column, render
from iceberg_manager.duckdb_text import column_path, identifier, quoted, sql_type
from iceberg_manager.errors import InputError, LakeError, SetupError, first_line
from iceberg_manager.history import require_snapshot
from iceberg_manager.result import Result
from iceberg_manager.settings import LakeSettings
from iceberg_manager.time_travel import schema_at

BATCH_ROWS = 100_000
_NO_FOLDER = "/dev/null/extensions"  # nothing can be installed there, by no statement


def connect(settings: LakeSettings, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that can read the lake's tables, in UTC."""
    if connection is None:
        connection = duckdb.connect()
        connection.execute("SET allow_persistent_secrets = false")  # refused once a secret was made, so it comes first
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    connection.execute(
        f"SET GLOBAL TimeZone = 'UTC'; SET TimeZone = 'UTC'; SET GLOBAL extension_directory = {quoted(_NO_FOLDER)}"
    )
    for extension in ("avro", "iceberg", *(["httpfs"] if settings.on_s3 else [])):
        connection.execute(f"LOAD {quoted(str(_extension(extension)))}")
    if settings.on_s3:
        _make_secret(connection, settings)
    return connection


def load_avro(connection: duckdb.DuckDBPyConnection) -> None:
    """Let a connection read Avro files, and nothing more."""
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    connection.execute(f"SET TimeZone = 'UTC'; LOAD {quoted(str(_extension('avro')))}")


def scan(table: Table, snapshot_id: int | None = None) -> str:
    """A DuckDB table expression for one snapshot of a table, by default its newest."""
    metadata = quoted(table.metadata_location)
    if snapshot_id is None and table.metadata.current_snapshot_id is None:
        fields = table.schema().fields
        columns = ", ".join(
            f"CAST(NULL AS {sql_type(field.field_type)}) AS {identifier(field.name)}" for field in fields
        )
        return f"(SELECT {columns} WHERE false)"
    if snapshot_id is None:
        return f"iceberg_scan({metadata})"
    require_snapshot(table, snapshot_id)
    return f"iceberg_scan({metadata}, snapshot_from_id => {int(snapshot_id)}::UBIGINT)"


def query_table(
    connection: duckdb.DuckDBPyConnection,
    table: Table,
    *,
    where: str | BooleanExpression | None = None,
    columns: Sequence[str] | None = None,
    limit: int | None = None,
    snapshot: Snapshot | None = None,
) -> Result:
    """Rows of one table, in no particular order, by default of its newest snapshot and with its newest columns."""
    schema = schema_at(table, snapshot) if snapshot else table.schema()
    fields = [find_column(schema, name) for name in columns] if columns is not None else schema.fields
    if not fields:
        raise InputError("Name at least one column, or leave columns out to read them all.")
    named = [(column_path(schema, field), str(schema.find_column_name(field.field_id))) for field in fields]
    listed = ", ".join(f"{path} AS {identifier(name)}" for path, name in named)
    statement = f"SELECT {listed} FROM {scan(table, snapshot.snapshot_id if snapshot else None)}"
    if where is not None:
        statement += f" WHERE {render(condition(where, schema), schema)}"
    if limit is not None:
        if limit < 0:
            raise InputError(f"limit is a number of rows, not {limit}.")
        statement += f" LIMIT {int(limit)}"
    return stream(connection.cursor(), statement, ".".join(table.name()))


def stream(cursor: duckdb.DuckDBPyConnection, statement: str, about: str) -> Result:
    """A statement's rows as they come; the cursor is closed at their end."""
    with read_errors(about):
        reader = cursor.execute(statement).to_arrow_reader(BATCH_ROWS)
    return Result(pa.RecordBatchReader.from_batches(reader.schema, _batches(reader, about)), cursor.close)


def _batches(reader: "pa.RecordBatchReader", about: str) -> Iterator["pa.RecordBatch"]:
    with read_errors(about):
        yield from reader


@contextmanager
def read_errors(about: str) -> Iterator[None]:
    """Turns what DuckDB says about files and values into one sentence."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError) as error:
        raise LakeError(f"{about} cannot be read: {first_line(error)}") from error


def _extension(name: str) -> Path:
    package = find_spec(f"duckdb_extension_{name}")
    if not package or not package.submodule_search_locations:
        raise SetupError(f"The package duckdb-extension-{name} is missing: run `make setup`.")
    folder = Path(package.submodule_search_locations[0])
    found = next(folder.glob(f"extensions/v{duckdb.__version__}/{name}.duckdb_extension"), None)
    if not found:
        raise SetupError(
            f"duckdb-extension-{name} is of another version than duckdb {duckdb.__version__}: run `make setup`."
        )
    return found


def _make_secret(connection: duckdb.DuckDBPyConnection, settings: LakeSettings) -> None:
    s3 = settings.s3
    options = {"TYPE": "s3"}
    if s3:
        options |= {"REGION": quoted(s3.region), "URL_STYLE": quoted("path" if s3.path_style else "vhost")}
        if s3.endpoint:
            scheme, _, host = s3.endpoint.rpartition("://")
            options |= {"ENDPOINT": quoted(host), "USE_SSL": str(scheme != "http").lower()}
        if s3.access_key_id and s3.secret_access_key:
            options |= {"KEY_ID": quoted(s3.access_key_id.get_secret_value())}
            options |= {"SECRET": quoted(s3.secret_access_key.get_secret_value())}
    connection.execute(f"CREATE OR REPLACE SECRET lake ({', '.join(f'{k} {v}' for k, v in options.items())})")
