"""Carries maintenance out on Spark, one action on one table at a time, and says what each did.

No action changes a row, so no data version moves. Every one is safe to be killed: Iceberg commits a rewrite as a whole (a
compaction in several such steps), and what was written before a kill is found by orphan removal. A writer that commits
meanwhile wins: we back off, and plan afresh from the table as it then is.
"""

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from iceberg_manager.catalog import load_table
from iceberg_manager.commits import may_retry, translate
from iceberg_manager.errors import LakeError
from iceberg_manager.maintenance.sizes import Size, size
from iceberg_manager.names import TableName
from iceberg_manager.spec import MaintenancePolicy

__all__ = ["Outcome", "Runner", "Size", "compaction_options", "size"]
_log = logging.getLogger(__name__)
Strategy = Literal["binpack", "sort", "zorder"]
TRIES = 4
_GROUP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Outcome:
    """What an action did. ``rewritten`` counts the files it read, ``written`` those it made of them."""

    table: str
    action: str
    before: Size
    after: Size
    rewritten: int
    written: int
    bytes_rewritten: int
    seconds: float
    tries: int

    @property
    def converged(self) -> bool:
        """A rewrite that writes as many files as it read would do so again and again."""
        return (
            self.rewritten == 0 or self.written < self.rewritten or self.before.delete_files > self.after.delete_files
        )


class Runner:
    """Runs actions on the tables of one catalog, through one Spark session."""

    def __init__(self, spark: SparkSession, catalog: Catalog, pause: Callable[[float], None] = time.sleep) -> None:
        self._spark, self._catalog, self._pause = spark, catalog, pause

    def compact(
        self,
        name: TableName | str,
        policy: MaintenancePolicy | None = None,
        strategy: Strategy = "binpack",
        columns: tuple[str, ...] = (),
        where: str | None = None,
    ) -> Outcome:
        """Rewrite small files into large ones, and fold delete files in; only the groups that pay.

        ``where`` limits it to matching partitions, ``columns`` are what sort and zorder go by (the table's order if none).
        """
        arguments = {"strategy": _text("binpack" if strategy == "binpack" else "sort")}
        if strategy == "zorder":
            arguments["sort_order"] = _text(f"zorder({', '.join(columns)})")
        elif strategy == "sort" and columns:
            arguments["sort_order"] = _text(", ".join(columns))
        if where:
            arguments["where"] = _text(where)

        def options(table: Table) -> Mapping[str, str]:
            return arguments | {"options": _map(compaction_options(size(table), policy or MaintenancePolicy()))}

        counted = ("rewritten_data_files_count", "added_data_files_count", "rewritten_bytes_count")
        return self._run("compact", "rewrite_data_files", name, options, counted)

    def rewrite_position_deletes(self, name: TableName | str) -> Outcome:
        """Merge position delete files, and drop those whose data files are gone."""
        counted = ("rewritten_delete_files_count", "added_delete_files_count", "rewritten_bytes_count")
        return self._run("rewrite_position_deletes", "rewrite_position_delete_files", name, lambda _: {}, counted)

    def rewrite_manifests(self, name: TableName | str) -> Outcome:
        """Group manifest entries by partition, so that planning opens fewer."""
        counted = ("rewritten_manifests_count", "added_manifests_count", "")
        return self._run("rewrite_manifests", "rewrite_manifests", name, lambda _: {"use_caching": "false"}, counted)

    def _run(
        self,
        action: str,
        procedure: str,
        name: TableName | str,
        arguments: Callable[[Table], Mapping[str, str]],
        counted: tuple[str, str, str],
    ) -> Outcome:
        name = TableName.parse(name)
        started = time.monotonic()
        before = size(load_table(self._catalog, name))
        for attempt in range(1, TRIES + 1):
            try:
                row = self._call(procedure, name, arguments(load_table(self._catalog, name)))
                break
            except PySparkException as error:
                if not may_retry(error) or attempt == TRIES:
                    raise _failed(name, action, error, attempt) from error
                _log.warning("%s of %s met a writer; planning afresh", action, name)
                self._pause(2.0**attempt)
        said = row.asDict() if row else {}
        rewritten, written, moved = (int(said.get(key) or 0) for key in counted)
        after = size(load_table(self._catalog, name))
        return Outcome(str(name), action, before, after, rewritten, written, moved, time.monotonic() - started, attempt)

    def _call(self, procedure: str, name: TableName, arguments: Mapping[str, str]) -> Row | None:
        given = {"table": _text(".".join(f"`{part}`" for part in name.identifier)), **arguments}
        listed = ", ".join(f"{key} => {value}" for key, value in given.items())
        return self._spark.sql(f"CALL `{self._catalog.name}`.system.{procedure}({listed})").first()


def compaction_options(now: Size, policy: MaintenancePolicy, cores: int | None = None) -> dict[str, str]:
    """As many groups at once as there are cores, each one output file: one core alone would write a small table."""
    # More outputs than a compaction needs as input would be compacted again.
    cores = min(cores or os.cpu_count() or 2, policy.min_input_files - 1)
    target = min(policy.target_file_mb * 1024 * 1024, max(_GROUP_BYTES, -(-now.bytes // cores)))
    return {
        "target-file-size-bytes": str(target),
        "max-file-group-size-bytes": str(target),
        "max-concurrent-file-group-rewrites": str(cores),
        "partial-progress.enabled": "true",
        "partial-progress.max-commits": "10",
        "min-input-files": str(policy.min_input_files),
        "delete-file-threshold": "1",
        "remove-dangling-deletes": "true",
    }


def _failed(name: TableName, action: str, error: Exception, tries: int) -> LakeError:
    said = translate(error, tries)
    return type(said)(f"{action} of {name}: {said}")


def _text(value: str) -> str:
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _map(options: Mapping[str, str]) -> str:
    return f"map({', '.join(f'{_text(key)}, {_text(value)}' for key, value in options.items())})"
