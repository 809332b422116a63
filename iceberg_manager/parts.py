"""The parts of this package, each loaded when it is first used: ``parts.evolution.evolve(…)``. Small commands stay small."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from iceberg_manager import (
        arrow_writes,
        catalog,
        commits,
        diff,
        evolution,
        expiry,
        explain,
        generate,
        incoming,
        local_files,
        needs,
        query,
        references,
        registry,
        result,
        schemas,
        snapshots,
        spark_server,
        spark_sql,
        spec,
        sql,
        tables,
        time_travel,
    )

__all__ = [
    "arrow_writes",
    "catalog",
    "commits",
    "diff",
    "evolution",
    "expiry",
    "explain",
    "generate",
    "incoming",
    "local_files",
    "needs",
    "query",
    "references",
    "registry",
    "result",
    "schemas",
    "snapshots",
    "spark_server",
    "spark_sql",
    "spec",
    "sql",
    "tables",
    "time_travel",
]


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(name)
    return import_module(f"{__package__}.{name}")
