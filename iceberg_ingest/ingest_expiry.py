"""Keeps a topic's history short enough that commits stay fast: every now and then the oldest snapshots go.

Spared are the last ``KEPT_SNAPSHOTS``, what registered readers have still to read, and every branch and tag. Failing is no
reason to stop the writer: the next commit tries again.
"""

import logging
from datetime import timedelta

from pyiceberg.catalog import Catalog

from iceberg_ingest.topic_tables import KEPT_SNAPSHOTS
from iceberg_manager import cursors, expiry
from iceberg_manager.errors import LakeError
from iceberg_manager.names import TableName
from iceberg_manager.table_versions import load

_log = logging.getLogger(__name__)


def expire_some(catalog: Catalog, name: TableName, kept: int = KEPT_SNAPSHOTS) -> int:
    """Once there are twice as many as are kept, remove the rest; returns how many went."""
    table = load(catalog, name)
    if len(table.metadata.snapshots) < 2 * kept:
        return 0
    try:
        planned = expiry.plan(table, timedelta(0), kept, cursors.needed(table))
        if len(planned.snapshots) < kept // 2:
            return 0  # readers hold them: not worth a commit each time
        return len(expiry.expire(lambda: load(catalog, name), planned).plan.snapshots)
    except LakeError as error:
        _log.warning("%s: old snapshots stay for now: %s", name, error)
        return 0
