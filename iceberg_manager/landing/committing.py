"""The one commit of a batch: its files, its batch id in the summary and its contents as a table property, or nothing.

Each attempt is shown the very version of the table that its swap starts from. A content that another unfinished batch has
committed, or a file that is no longer in place as it was listed, stops it: a StaleBatchError says which, and the
batch is looked at again. A crash before the swap leaves data files that nothing names; after it, a property that tells.
"""

import json
from collections.abc import Callable, Mapping, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

from iceberg_manager.changes import Changes
from iceberg_manager.commits import CommitResult, Stamp, commit
from iceberg_manager.errors import LakeError
from iceberg_manager.landing.batches import BATCH_PROPERTY, Claimed, Intent, Ledger
from iceberg_manager.landing.folder import Entry
from iceberg_manager.metadata_commit import commit_changes
from iceberg_manager.storage import remove_files
from iceberg_manager.table_versions import load


class StaleBatchError(LakeError):
    """The batch is not what it was when it was read: files changed, or another batch brought their content."""


def is_committed(table: Table, intent: Intent) -> bool:
    return BATCH_PROPERTY + intent.batch in table.properties


def taken_by_others(table: Table, intent: Intent) -> set[str]:
    """The contents (their first half) that other batches committed and have not finished with."""
    others = [
        value
        for key, value in table.properties.items()
        if key.startswith(BATCH_PROPERTY) and key != BATCH_PROPERTY + intent.batch
    ]
    return {content for value in others for content in json.loads(value)}


def commit_batch(
    catalog: Catalog,
    intent: Intent,
    files: Sequence[DataFile],
    ledger: Ledger,
    stamp: Stamp,
    seen: Callable[[Claimed], Entry | None],
    properties: Mapping[str, str],
) -> CommitResult:
    """``seen`` looks at a file where it lies now; ``properties`` are set in the same commit."""
    table = load(catalog, intent.table)
    ours = {**properties, BATCH_PROPERTY + intent.batch: json.dumps(intent.contents)}
    changes = Changes(files, (), ours, _finished(table, ledger))

    def guard(base: Table) -> None:
        if is_committed(base, intent):
            raise StaleBatchError("The batch was committed meanwhile.")
        if twice := taken_by_others(base, intent) & set(intent.contents):
            raise StaleBatchError(f"Another batch committed {len(twice)} of these files meanwhile.")
        if changed := [file.name for file in intent.files if not file.same_as(seen(file))]:
            raise StaleBatchError(f"{changed[0]} changed while it was read.")

    def write(summary: Mapping[str, str]) -> None:
        commit_changes(catalog, load(catalog, intent.table), changes, summary, Operation.APPEND, sync=True, guard=guard)

    return commit(lambda: load(catalog, intent.table), stamp, write)


def discard(table: Table, files: Sequence[DataFile]) -> None:
    """Remove data files that were written for a commit that did not happen."""
    remove_files(table.io, [file.file_path for file in files])


def _finished(table: Table, ledger: Ledger) -> frozenset[str]:
    """Properties of batches that have no intent any more: everything about them is done."""
    batches = [key for key in table.properties if key.startswith(BATCH_PROPERTY)]
    return frozenset(key for key in batches if ledger.load(key.removeprefix(BATCH_PROPERTY)) is None)
