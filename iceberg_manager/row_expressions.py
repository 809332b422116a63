"""SQL over single rows, in a DuckDB that can reach nothing but the rows it is handed: no file, no setting, no other table.

A condition comes rendered, with its names and values quoted; an expression that a user wrote is parsed first, and refused
unless it is a plain function of a row's values.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from iceberg_manager.errors import InputError, LakeError, first_line
from iceberg_manager.fitting import require_columns

_HARMLESS = {"CONSTANT", "COLUMN_REF", "FUNCTION", "COMPARISON", "CONJUNCTION", "CAST", "CASE", "OPERATOR", "BETWEEN"}


@dataclass(frozen=True)
class Expr:
    """A SQL expression over a row's columns, as the new value of an update; anything else is a plain value."""

    sql: str


class Condition:
    """Which rows a rendered condition is true for; unknown is not true."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._rows = _Rows()

    def mask(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        import duckdb

        try:
            result = self._rows.select(self._sql, rows)
        except duckdb.Error as error:
            raise LakeError(f"The condition cannot be computed; nothing was written. {first_line(error)}") from error
        return pc.fill_null(_one(result.column(0)), False)


class Expressions:
    """SQL expressions that a user gave: each is parsed and checked before any is run."""

    def __init__(self, expressions: Mapping[str, str], columns: Sequence[str]) -> None:
        self._rows = _Rows()
        for sql in expressions.values():
            self._check(sql, columns)
        self._columns = list(expressions)
        self._listed = ", ".join(f'({sql}\n) AS "{number}"' for number, sql in enumerate(expressions.values()))

    def evaluate(self, rows: pa.RecordBatch) -> dict[str, pa.Array]:
        import duckdb

        try:
            result = self._rows.select(self._listed, rows)
        except duckdb.Error as error:
            raise InputError(f"The expression cannot be computed; nothing was written. {first_line(error)}") from error
        return {name: _one(result.column(number)) for number, name in enumerate(self._columns)}

    def _check(self, sql: str, columns: Sequence[str]) -> None:
        asked = self._rows.connection.execute("SELECT json_serialize_sql(?)", [f"SELECT ({sql}\n)"]).fetchone()
        tree = json.loads(asked[0]) if asked else {}
        if tree.get("error"):
            raise InputError(f"{sql!r} is not an expression: {tree.get('error_message', 'it does not parse')}.")
        nodes = [statement["node"] for statement in tree["statements"]]
        plain = len(nodes) == 1 and nodes[0]["type"] == "SELECT_NODE" and len(nodes[0]["select_list"]) == 1
        bare = plain and nodes[0]["from_table"]["type"] == "EMPTY" and not nodes[0].get("modifiers")
        if not bare or nodes[0].get("where_clause") or nodes[0].get("cte_map", {}).get("map"):
            raise InputError(f"{sql!r} must be a single expression over the row's columns, such as age + 1.")
        self._walk(nodes[0]["select_list"][0], sql, columns)

    def _walk(self, node: Any, sql: str, columns: Sequence[str]) -> None:
        if isinstance(node, list):
            for inner in node:
                self._walk(inner, sql, columns)
        elif isinstance(node, dict):
            kind = node.get("class")
            if kind is not None and kind not in _HARMLESS:
                raise InputError(f"{sql!r} uses {kind.lower().replace('_', ' ')}, which an update may not.")
            if kind == "COLUMN_REF":
                require_columns(node["column_names"][:1], columns, "The table")
            if kind == "FUNCTION":
                self._check_function(node, sql)
            for inner in node.values():
                self._walk(inner, sql, columns)

    def _check_function(self, node: Mapping[str, Any], sql: str) -> None:
        name = node["function_name"].lower()
        kinds = self._rows.connection.execute(
            "SELECT DISTINCT function_type, coalesce(stability, '') FROM duckdb_functions() WHERE function_name = ?",
            [name],
        ).fetchall()
        pure = bool(kinds) and all(kind == "scalar" and stable != "VOLATILE" for kind, stable in kinds)
        if not pure or name in ("current_setting", "getenv", "getvariable"):
            raise InputError(f"{sql!r} calls {name}, which is not a plain function of a row's values.")


class _Rows:
    """The locked-down DuckDB."""

    def __init__(self) -> None:
        import duckdb

        config: dict[str, Any] = {"enable_external_access": False, "threads": 1}
        config |= {"autoload_known_extensions": False, "autoinstall_known_extensions": False}
        self.connection = duckdb.connect(":memory:", config=config)
        self.connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
        self.connection.execute("SET lock_configuration = true")

    def select(self, listed: str, rows: pa.RecordBatch) -> pa.Table:
        """Expressions over each row, in the rows' order."""
        with self.connection.cursor() as cursor:
            cursor.register("incoming_rows", pa.Table.from_batches([rows]))
            return cursor.execute(f"SELECT {listed} FROM incoming_rows").to_arrow_table()


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
