"""Rows that did not fit: kept beside the intent until the batch is committed, then in the table ``<table>__rejects``.

The list on disk is written before the batch's commit, so that a crash right after it loses none. The commit to the rejects
table carries a stamp of its own: done again, it is found and not repeated.
"""

import json
from collections import Counter
from dataclasses import asdict
from datetime import UTC, datetime

import pyarrow as pa
from pyiceberg.catalog import Catalog

from iceberg_manager.arrow_writes import append
from iceberg_manager.commits import Stamp
from iceberg_manager.landing.batches import Intent
from iceberg_manager.landing.folder import Folder
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.landing.readers import BadFileError, Reject
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table


class Rejects:
    """The bad rows of one batch, up to the policy's limit for each file."""

    def __init__(self, policy: LandingPolicy) -> None:
        self._limit = policy.max_rejected_rows
        self._count: Counter[str] = Counter()
        self.rows: list[Reject] = []

    def note(self, row: Reject) -> None:
        self._count[row.file] += 1
        if self._count[row.file] > self._limit:
            raise BadFileError(
                row.file, f"more than {self._limit} rows do not fit; line {row.line}: {row.reason}", line=row.line
            )
        self.rows.append(row)

    def save(self, folder: Folder, intent: Intent) -> None:
        if self.rows:
            folder.write(intent.rejects, "".join(json.dumps(asdict(row)) + "\n" for row in self.rows).encode())
        else:
            folder.delete(intent.rejects)


def rejects_table(table: TableName) -> TableName:
    return TableName(table.namespace, f"{table.table}__rejects")


def commit_rejects(catalog: Catalog, settings: LakeSettings, folder: Folder, intent: Intent, stamp: Stamp) -> int:
    """The batch's bad rows in the rejects table, once. Returns how many there are."""
    try:
        lines = folder.read(intent.rejects).splitlines()
    except FileNotFoundError:
        return 0
    name = rejects_table(TableName.parse(intent.table))
    spec = TableSpec(
        str(name),
        schema={
            "batch": "string",
            "file": "string",
            "line": "long",
            "reason": "string",
            "text": "string",
            "rejected_at": "timestamptz",
        },
        description=f"Rows that did not fit {intent.table}.",
    )
    ensure_table(catalog, settings, spec)
    now = datetime.now(UTC)
    rows = [{"batch": intent.batch, **_clean(json.loads(line)), "rejected_at": now} for line in lines]
    append(
        catalog,
        name,
        pa.Table.from_pylist(rows),
        Stamp(f"{stamp.commit_id}-rejects", stamp.run_id, stamp.asset, batch=intent.batch),
    )
    return len(rows)


def _clean(row: dict[str, object]) -> dict[str, object]:
    """A file's name may hold bytes that are no text."""
    return {
        key: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for key, value in row.items()
    }
