"""Reads tables with DuckDB, at the exact metadata file and snapshot that we resolved. No JVM, nothing downloaded.

The extensions come as wheels and are loaded from their packages; DuckDB is told not to fetch or load any other.
"""

from importlib.util import find_spec
from pathlib import Path

import duckdb
from pyiceberg.table import Table

from iceberg_manager.errors import SetupError
from iceberg_manager.history import require_snapshot
from iceberg_manager.settings import LakeSettings


def connect(settings: LakeSettings, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection that can read the lake's tables, in UTC."""
    connection = connection or duckdb.connect()
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    for extension in ("avro", "iceberg", *(["httpfs"] if settings.on_s3 else [])):
        connection.execute(f"LOAD '{_extension(extension)}'")
    if settings.on_s3:
        _make_secret(connection, settings)
    return connection


def scan(table: Table, snapshot_id: int | None = None) -> str:
    """A DuckDB table expression for one snapshot of a table, by default its newest."""
    metadata = _literal(table.metadata_location)
    if snapshot_id is None and table.metadata.current_snapshot_id is None:
        columns = ", ".join(f'NULL AS "{field.name}"' for field in table.schema().fields)
        return f"(SELECT {columns} WHERE false)"
    if snapshot_id is None:
        return f"iceberg_scan({metadata})"
    require_snapshot(table, snapshot_id)
    return f"iceberg_scan({metadata}, snapshot_from_id => {int(snapshot_id)}::UBIGINT)"


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
        options |= {"REGION": _literal(s3.region), "URL_STYLE": _literal("path" if s3.path_style else "vhost")}
        if s3.endpoint:
            scheme, _, host = s3.endpoint.rpartition("://")
            options |= {"ENDPOINT": _literal(host), "USE_SSL": str(scheme != "http").lower()}
        if s3.access_key_id and s3.secret_access_key:
            options |= {"KEY_ID": _literal(s3.access_key_id.get_secret_value())}
            options |= {"SECRET": _literal(s3.secret_access_key.get_secret_value())}
    connection.execute(f"CREATE OR REPLACE SECRET lake ({', '.join(f'{k} {v}' for k, v in options.items())})")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
