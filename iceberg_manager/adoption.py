"""Tables that nobody declared: what is in the catalog, described once and kept in ``<root>/adopted.json``.

Reading that file touches neither catalog nor network, and never fails: what is wrong with it is said beside an empty list.
It appears under its name only when it is whole; a crash leaves the one before it.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings, TablesSettings

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from iceberg_manager.maintenance.planner import Action, Plan
    from iceberg_manager.maintenance.statistics import TableStatistics
    from iceberg_manager.spec import MaintenancePolicy

FILE_NAME = "adopted.json"
_VERSION = 1


@dataclass(frozen=True)
class AdoptedColumn:
    """A column as the UI shows it."""

    name: str
    type: str
    doc: str = ""
    required: bool = False


@dataclass(frozen=True)
class AdoptedTable:
    """What an asset is made of. ``problem`` says why a table could not be read; ``health`` is None if not measured."""

    namespace: tuple[str, ...]
    table: str
    description: str = ""
    location: str = ""
    columns: tuple[AdoptedColumn, ...] = ()
    partition_by: str = ""
    health: float | None = None
    problem: str = ""

    @property
    def name(self) -> TableName:
        return TableName(self.namespace, self.table)


@dataclass(frozen=True)
class Adopted:
    """The cache's content; ``problem`` is why there is none."""

    tables: tuple[AdoptedTable, ...] = ()
    refreshed: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Found:
    """One table in a plan of adoption: its health, what costs it most, and what maintenance would do."""

    table: str
    adopted: bool
    health: float | None = None
    files: int = 0
    bytes: int = 0
    snapshots: int = 0
    worst: str = ""
    maintenance: tuple[str, ...] = ()
    problem: str = ""


def cache_file(settings: LakeSettings) -> Path:
    return settings.root / FILE_NAME


def wanted(name: TableName, patterns: TablesSettings) -> bool:
    """Whether the patterns of lake.yaml take this table in; they are compared with ``namespace.table``."""
    text = str(name)
    taken = any(fnmatchcase(text, pattern) for pattern in patterns.include)
    return taken and not any(fnmatchcase(text, pattern) for pattern in patterns.exclude)


def read_cache(settings: LakeSettings) -> Adopted:
    """All tables that were found last time. Never raises for what the file is like."""
    file = cache_file(settings)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["version"] != _VERSION:
            return Adopted(problem=f"{file} is of another version; `iceberg-manager adopt` writes it anew")
        return Adopted(tuple(_parsed(one) for one in content["tables"]), str(content["refreshed"]))
    except FileNotFoundError:
        return Adopted(
            problem=f"there is no {file} yet; `iceberg-manager adopt` or the sensor foreign_commits writes it"
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        said = f"{file} cannot be read ({type(error).__name__}: {error})"
        return Adopted(problem=f"{said}; `iceberg-manager adopt` writes it anew")


def write_cache(settings: LakeSettings, tables: Iterable[AdoptedTable], now: datetime | None = None) -> None:
    """Replace the cache by these tables, as one step."""
    file = cache_file(settings)
    ordered = sorted(tables, key=lambda one: one.name)
    moment = (now or datetime.now(UTC)).isoformat(timespec="seconds")
    content = {"version": _VERSION, "refreshed": moment, "tables": [asdict(one) for one in ordered]}
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f".{file.name}.{uuid4().hex}")
    try:
        with fresh.open("w", encoding="utf-8") as stream:
            json.dump(content, stream, ensure_ascii=False)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


def _parsed(said: Mapping[str, Any]) -> AdoptedTable:
    columns = tuple(AdoptedColumn(**column) for column in said["columns"])
    namespace = tuple(str(part) for part in said["namespace"])
    if not namespace or not all((*namespace, said["table"])):
        raise ValueError("a table without a name")
    return AdoptedTable(**{**said, "namespace": namespace, "columns": columns})


def pointers(catalog: "Catalog") -> dict[TableName, str | None]:
    """Every table with the place of its metadata file, by one query; None where the catalog does not tell."""
    from iceberg_manager.catalog import list_tables
    from iceberg_manager.table_versions import is_sql

    if not is_sql(catalog):
        return dict.fromkeys(list_tables(catalog))
    return dict(_sql_pointers(catalog))


def _sql_pointers(catalog: Any) -> Iterator[tuple[TableName, str | None]]:
    from pyiceberg.catalog.sql import IcebergTables
    from sqlalchemy import select

    columns = (IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location)
    statement = select(*columns).where(IcebergTables.catalog_name == catalog.name)
    if (only_tables := catalog._iceberg_type_filter()) is not None:
        statement = statement.where(only_tables)
    with catalog.engine.connect() as connection:
        for namespace, table, location in connection.execute(statement):
            yield TableName(tuple(namespace.split(".")), table), location


def describe(name: TableName, table: "Table") -> AdoptedTable:
    """A table as the cache keeps it."""
    from iceberg_manager.schemas import type_text

    schema = table.schema()
    parts = [(str(part.transform), schema.find_column_name(part.source_id)) for part in table.spec().fields]
    return AdoptedTable(
        namespace=name.namespace,
        table=name.table,
        description=table.properties.get("comment", ""),
        location=table.location(),
        columns=tuple(
            AdoptedColumn(field.name, type_text(field.field_type), field.doc or "", field.required)
            for field in schema.fields
        ),
        partition_by=", ".join(str(column) if kind == "identity" else f"{kind}({column})" for kind, column in parts),
    )


def unreadable(name: TableName, error: Exception) -> AdoptedTable:
    """A table whose metadata cannot be read is still an asset: it is there, and somebody has to know."""
    from iceberg_manager.errors import first_line

    return AdoptedTable(name.namespace, name.table, problem=first_line(error))


def survey(catalog: "Catalog", settings: LakeSettings) -> tuple[list[AdoptedTable], list[Found]]:
    """Every table of the catalog as the cache keeps it, and as a plan shows it. Nothing is written, no Spark started."""
    from iceberg_manager.catalog import load_table
    from iceberg_manager.maintenance import statistics
    from iceberg_manager.spec import MaintenancePolicy

    names = sorted(pointers(catalog))
    tables: list[AdoptedTable] = []
    found: list[Found] = []
    measured = statistics.survey(catalog, settings, names)
    for name, one in zip(names, measured, strict=True):
        policy = MaintenancePolicy()
        try:
            table = load_table(catalog, name)
            described, policy = describe(name, table), MaintenancePolicy.of_properties(table.properties)
        except Exception as error:  # noqa: BLE001 (damaged metadata raises anything; it concerns this table alone)
            described = unreadable(name, error)
        taken = wanted(name, settings.tables)
        if isinstance(one, statistics.Unreadable):
            tables.append(replace(described, problem=described.problem or one.error))
            found.append(Found(str(name), taken, problem=one.error))
        else:
            judged = _judged(name, taken, one, described, policy)
            tables.append(replace(described, health=judged.health))
            found.append(judged)
    return tables, found


def _judged(
    name: TableName, taken: bool, one: "TableStatistics", described: AdoptedTable, policy: "MaintenancePolicy"
) -> Found:
    from iceberg_manager.maintenance.health import health
    from iceberg_manager.maintenance.planner import Situation, plan

    judged = health(one, policy)
    planned = plan([Situation(one, policy)], datetime.now(UTC))
    return Found(
        str(name),
        taken,
        judged.score,
        one.files,
        one.bytes,
        one.snapshots,
        judged.worst.why if judged.worst else "",
        _said(planned),
        described.problem,
    )


def _said(planned: "Plan") -> tuple[str, ...]:
    def words(action: "Action") -> str:
        return f"{action.kind}: {action.reason}"

    return tuple(words(action) for action in planned.actions)


def difference(before: Sequence[AdoptedTable], after: Sequence[AdoptedTable]) -> tuple[list[str], list[str]]:
    """Names of tables that came and that went."""
    old, new = ({str(one.name) for one in tables} for tables in (before, after))
    return sorted(new - old), sorted(old - new)
