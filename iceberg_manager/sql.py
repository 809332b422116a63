"""SQL over the lake's tables by name, with DuckDB. Reads only: whatever the statement says, nothing is written or fetched.

1. The statement is parsed by DuckDB itself. Exactly one query passes. Every table in it must be the lake's, every table
   function one of a short list; files, settings, extensions and DuckDB's own catalog are out of reach.
2. Each table that is named, and no other, is looked up in the catalog and becomes a view on the exact snapshot that is
   meant: ``FROM users AT (VERSION => 123)``, a tag or branch in quotes, or ``AT (TIMESTAMP => …)``.
3. It runs in a DuckDB whose file access is confined to the tables' folders and whose settings are locked.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import count
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, ValidationError
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from iceberg_manager import registry
from iceberg_manager.catalog import list_tables
from iceberg_manager.duckdb_text import identifier, quoted
from iceberg_manager.errors import InputError, LakeError, NotFoundError, first_line
from iceberg_manager.names import DEFAULT_NAMESPACE, TableName, did_you_mean
from iceberg_manager.query import BATCH_ROWS, connect, scan
from iceberg_manager.result import Result
from iceberg_manager.settings import LakeSettings
from iceberg_manager.time_travel import resolve

TABLE_FUNCTIONS = frozenset({"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"})
REFUSED_FUNCTIONS = frozenset(
    {"current_setting", "currval", "getenv", "getvariable", "nextval", "sleep_ms", "which_secret", "write_log"}
)
_OWN_SCHEMAS = frozenset({"main", "memory", "system", "temp", "pg_catalog", "information_schema"})
Node = dict[str, Any]


def run(settings: LakeSettings, catalog: Catalog, query: str) -> Result:
    """The rows of one query. To run several, keep an :class:`SqlEngine`: starting DuckDB takes a quarter of a second."""
    return SqlEngine(settings).run(catalog, query)


def check(query: str) -> None:
    """Raises unless the text is one statement that only reads the lake's tables."""
    with query_errors():
        _Statement(query, duckdb.connect())


class SqlEngine:
    """A confined DuckDB for one lake, ready for any number of queries, one after another or at once."""

    def __init__(self, settings: LakeSettings) -> None:
        self._settings = settings
        self._confined: dict[tuple[str, ...], duckdb.DuckDBPyConnection] = {}
        self._numbers = count(1)

    def run(self, catalog: Catalog, query: str) -> Result:
        """The rows of one query over the catalog's tables."""
        with query_errors():
            return self._run(catalog, query)

    def _run(self, catalog: Catalog, query: str) -> Result:
        home = self._settings.warehouse_location
        statement = _Statement(query, self._open((home,)).cursor())
        tables = {ref.name: table for ref in statement.references if (table := ref.load(catalog))}
        outside = {table.location().rstrip("/") for table in tables.values() if not _inside(table.location(), home)}
        scope = _Scope(self._open((home, *sorted(outside))).cursor(), f"query_{next(self._numbers)}")
        try:
            for view in statement.registry_views:
                scope.show(catalog, view)
            for ref in statement.references:
                if ref.name in tables:
                    scope.attach(ref, tables[ref.name])
            return _stream(scope.cursor, statement.text(), scope.leave)
        except BaseException:
            scope.leave()
            raise

    def _open(self, folders: tuple[str, ...]) -> duckdb.DuckDBPyConnection:
        if folders not in self._confined:
            self._confined[folders] = _confine(connect(self._settings), folders, self._settings)
        return self._confined[folders]


def _confine(
    connection: duckdb.DuckDBPyConnection, folders: tuple[str, ...], settings: LakeSettings
) -> duckdb.DuckDBPyConnection:
    """From here on only these folders can be read, and nothing can loosen that. What exceeds memory spills in the lake."""
    allowed = ", ".join(quoted(folder + "/") for folder in folders)
    for setting in (
        "python_enable_replacements = false",
        f"temp_directory = {quoted(str(settings.root / 'spill'))}",
        f"allowed_directories = [{allowed}]",
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


def _inside(location: str, folder: str) -> bool:
    return location == folder or location.startswith(folder + "/")


@dataclass
class _Reference:
    """A table as the statement names it. ``node`` is its place in the parse tree, changed when it has to be renamed."""

    node: Node
    name: TableName
    at: Node
    may_be_local: bool

    def load(self, catalog: Catalog) -> Table | None:
        """The table; None if there is none and a part of the statement itself has that name."""
        try:
            return _load(catalog, self.name)
        except NotFoundError:
            if self.may_be_local and not self.at:
                return None
            raise


class _Statement:
    """One checked query: which tables it reads, and its text with time travel and nested names taken out."""

    def __init__(self, query: str, parser: duckdb.DuckDBPyConnection) -> None:
        self._parser = parser
        self._prefix, self._body = _split_explain(query)
        self._tree = self._parse(self._body)
        self._before = json.dumps(self._tree)
        nodes = list(_walk(self._tree))
        _refuse(nodes)
        self._common = {name for node in nodes for name in _common_names(node)}
        self.registry_views: set[str] = set()
        tables = [node for node in nodes if node.get("type") == "BASE_TABLE"]
        self.references = [ref for node in tables if (ref := self._reference(node))]

    def text(self) -> str:
        """The statement to run: as it was given, unless a table in it had to be renamed."""
        after = json.dumps(self._tree)
        return self._prefix + (self._body if after == self._before else self._unparse(self._tree))

    def _parse(self, text: str) -> Node:
        with query_errors():
            row = self._parser.execute("SELECT json_serialize_sql(?)", [text]).fetchone()
        assert row is not None
        tree: Node = json.loads(row[0])
        if tree["error"] and tree.get("error_type") == "not implemented":
            raise InputError(
                "sql only reads: give one SELECT, WITH, VALUES, FROM, DESCRIBE, SUMMARIZE or EXPLAIN statement. "
                "(A PIVOT has to list its values: ON column IN (…).)"
            )
        if tree["error"]:
            raise InputError(f"The query cannot be read: {tree['error_message']}.")
        if len(tree["statements"]) != 1:
            raise InputError(f"sql takes exactly one statement; {len(tree['statements'])} were given.")
        return tree

    def _unparse(self, tree: Node) -> str:
        with query_errors():
            row = self._parser.execute("SELECT json_deserialize_sql(?)", [json.dumps(tree)]).fetchone()
        assert row is not None
        return str(row[0])

    def _reference(self, node: Node) -> _Reference | None:
        parts = [part for part in (node["catalog_name"], node["schema_name"], node["table_name"]) if part]
        clause, node["at_clause"] = node.get("at_clause"), None
        at = self._moment(clause) if clause else {}
        bare = parts[0].lower() if len(parts) == 1 else ""
        if bare in registry.VIEWS and bare not in self._common:
            if at:
                raise InputError(f"AT works on tables; {bare} shows the catalog as it is now.")
            self.registry_views.add(bare)
            return None
        try:
            return _Reference(node, TableName.parse(".".join(parts)), at, bare in self._common)
        except InputError:
            raise InputError(
                f"{'.'.join(parts)!r} is no table: sql reads the lake's tables by name, no files."
            ) from None

    def _moment(self, clause: Node) -> dict[str, Any]:
        if any(node.get("class") in ("SUBQUERY", "COLUMN_REF", "PARAMETER") for node in _walk(clause)):
            raise InputError(
                "AT takes a fixed value, such as AT (VERSION => 123) or AT (TIMESTAMP => '2024-01-01 10:00')."
            )
        tree = self._parse("SELECT 1")
        tree["statements"][0]["node"]["select_list"] = [clause["expr"]]
        with query_errors():
            row = self._parser.execute(self._unparse(tree)).fetchone()
        value = row[0] if row else None
        if clause["unit"] == "TIMESTAMP" and isinstance(value, str | date):
            return {"timestamp": value}
        if clause["unit"] == "VERSION" and isinstance(value, int | str) and not isinstance(value, bool):
            return {"version": value}
        raise InputError(f"AT ({clause['unit']} => …) cannot be {value!r}: give a snapshot id, a name or a time.")


class _Scope:
    """The views of one query, in a database of its own that goes when the rows are read."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, name: str) -> None:
        self.cursor, self._name = cursor, name
        self._views: dict[tuple[str, str], tuple[tuple[str, ...], int | None]] = {}
        cursor.execute(f"ATTACH ':memory:' AS {name}; USE {name}")

    def show(self, catalog: Catalog, view: str) -> None:
        """One of the registry's views, computed now."""
        if ("", view) not in self._views:
            self._views["", view] = ((view,), None)
            self.cursor.register(view, registry.view(catalog, view))

    def attach(self, ref: _Reference, table: Table) -> None:
        """A view on the snapshot that is meant, under the name the statement uses where that is possible."""
        snapshot, node = _snapshot(table, ref.at), ref.node
        bare = not node["schema_name"] and "." not in node["table_name"]
        place = ("" if bare else ".".join(table.name()[:-1]), table.name()[-1])
        key, meant = (place[0].lower(), place[1].lower()), (table.name(), snapshot)
        if ref.at or place[0].lower() in _OWN_SCHEMAS or self._views.get(key, meant) != meant:
            place = ("", f"{'.'.join(table.name())} at {snapshot}")
            key = place
        if key not in self._views:
            self._views[key] = meant
            self._create(place, scan(table, snapshot))
        if node["catalog_name"] or (node["schema_name"].lower(), node["table_name"].lower()) != key:
            node["alias"] = node["alias"] or node["table_name"]
            node |= {"catalog_name": "", "schema_name": place[0], "table_name": place[1]}

    def _create(self, place: tuple[str, str], source: str) -> None:
        schema = f"{self._name}.{identifier(place[0] or 'main')}"
        with query_errors():
            self.cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            self.cursor.execute(f"CREATE VIEW {schema}.{identifier(place[1])} AS SELECT * FROM {source}")

    def leave(self) -> None:
        """Take the query's database away; the cursor is of no use afterwards."""
        self.cursor.execute(f"USE memory; DETACH {self._name}")
        self.cursor.close()


def _snapshot(table: Table, at: Node) -> int | None:
    """The snapshot that an AT clause means; None is the newest, with the newest columns."""
    if "timestamp" in at:
        return resolve(table, timestamp=at["timestamp"]).snapshot_id
    version = at.get("version")
    if isinstance(version, int):
        return resolve(table, snapshot=version).snapshot_id
    if version is None:
        return None
    ref = table.metadata.refs.get(version)
    if ref and ref.snapshot_ref_type == SnapshotRefType.BRANCH:
        return resolve(table, branch=version).snapshot_id
    return resolve(table, tag=version).snapshot_id


def _load(catalog: Catalog, name: TableName) -> Table:
    """A table by its name, in any case if that is unambiguous, as SQL has it."""
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        known = list_tables(catalog)
    except (OSError, ValueError, KeyError, ValidationError) as error:
        raise LakeError(f"The metadata of {name} cannot be read: {first_line(error)}") from error
    alike = [other for other in known if str(other).lower() == str(name).lower()]
    if len(alike) == 1 and alike[0] != name:
        return _load(catalog, alike[0])
    shown = str(name).removeprefix(f"{DEFAULT_NAMESPACE}.")
    names = [str(other).removeprefix(f"{DEFAULT_NAMESPACE}.") for other in known] + list(registry.VIEWS)
    raise NotFoundError(f"There is no table {shown!r} in the catalog.{did_you_mean(shown, names)}")


def _split_explain(query: str) -> tuple[str, str]:
    """``EXPLAIN`` and ``EXPLAIN ANALYZE`` apart from the query they explain, which is checked like any other."""
    raw = query.encode()
    with query_errors():
        starts = [start for start, _ in duckdb.tokenize(query)]
    leading = [re.split(rb"\W", raw[start:], maxsplit=1)[0].decode().upper() for start in starts[:2]]
    size = 0 if leading[:1] != ["EXPLAIN"] else 2 if leading[1:] == ["ANALYZE"] else 1
    if not size:
        return "", query
    return " ".join(leading[:size]) + " ", raw[starts[size] :].decode() if len(starts) > size else ""


def _walk(tree: Any) -> Iterator[Node]:
    """Every object of a parse tree, without recursion: statements may nest deeply."""
    pending = [tree]
    while pending:
        at = pending.pop()
        if isinstance(at, dict):
            yield at
            pending += at.values()
        elif isinstance(at, list):
            pending += at


def _common_names(node: Node) -> list[str]:
    return [entry["key"].lower() for entry in (node.get("cte_map") or {}).get("map", [])]


def _refuse(nodes: list[Node]) -> None:
    """Functions that read or change anything but the query's own rows. DuckDB's confinement is the second lock."""
    tables = {id(node["function"]): node["function"] for node in nodes if node.get("type") == "TABLE_FUNCTION"}
    for node in nodes:
        name = str(node.get("function_name", "")).lower()
        if id(node) in tables and name not in TABLE_FUNCTIONS:
            raise InputError(f"{name}() is not allowed: sql reads the lake's tables by name, and nothing else.")
        if name in REFUSED_FUNCTIONS:
            raise InputError(f"{name}() is not allowed: sql sees tables, not the machine or its settings.")
        if node.get("type") == "SHOW_REF" and not node.get("query"):
            raise InputError("SHOW is not allowed: SELECT * FROM iceberg_tables lists the lake's tables.")


def _stream(cursor: duckdb.DuckDBPyConnection, text: str, finish: Callable[[], None]) -> Result:
    with query_errors():
        reader = cursor.execute(text).to_arrow_reader(BATCH_ROWS)
    return Result(pa.RecordBatchReader.from_batches(reader.schema, _batches(reader)), finish)


def _batches(reader: "pa.RecordBatchReader") -> Iterator["pa.RecordBatch"]:
    with query_errors():
        yield from reader


@contextmanager
def query_errors() -> Iterator[None]:
    """What DuckDB says about a query, as one sentence without its picture of the place."""
    try:
        yield
    except (duckdb.IOException, duckdb.PermissionException, duckdb.HTTPException) as error:
        raise LakeError(f"The query's files cannot be read: {first_line(error)}") from error
    except (duckdb.Error, OSError) as error:
        said = " ".join(str(error).partition("\nLINE ")[0].split())
        raise InputError(f"The query cannot run: {said.partition('Error: ')[2] or said}") from error
    except RecursionError as error:
        raise InputError("The query is nested too deeply.") from error
