"""Tables that nobody declared, as external assets, from the cache that ``iceberg_manager.adoption`` keeps.

Loading reads lake.yaml and the cache file, nothing else. Whatever is wrong with either means no adopted assets and a
warning: the code location loads all the same.
"""

import logging
import re
from collections.abc import Collection

import dagster as dg

from iceberg_manager.adoption import AdoptedTable, read_cache, wanted
from iceberg_manager.errors import LakeError
from resources.lake import LakeResource

_log = logging.getLogger(__name__)


def adopted_assets(lake: LakeResource, declared: Collection[dg.AssetKey]) -> list[dg.AssetSpec]:
    """One spec for each table in the cache that is wanted and not declared."""
    try:
        settings = lake.settings
    except LakeError as error:
        _log.warning("no tables are adopted: %s", error)
        return []
    found, known = read_cache(settings), set(declared)
    if found.problem:
        _log.info("no tables are adopted: %s", found.problem)
    chosen = (one for one in found.tables if wanted(one.name, settings.tables))
    return [_spec(one) for one in chosen if dg.AssetKey(list(one.name.identifier)) not in known]


def _spec(one: AdoptedTable) -> dg.AssetSpec:
    columns = [
        dg.TableColumn(
            column.name,
            column.type,
            description=column.doc or None,
            constraints=dg.TableColumnConstraints(nullable=not column.required),
        )
        for column in one.columns
    ]
    metadata = {
        "dagster/table_name": str(one.name),
        "iceberg/location": one.location,
        "iceberg/partition_by": one.partition_by,
        "iceberg/health": one.health,
        "iceberg/problem": one.problem,
    }
    said = {key: value for key, value in metadata.items() if value not in ("", None)}
    if columns:
        said["dagster/column_schema"] = dg.TableSchema(columns=columns)
    return dg.AssetSpec(
        dg.AssetKey(list(one.name.identifier)),
        description=one.description or f"Adopted: the table {one.name} is written by others.",
        group_name=re.sub(r"\W", "_", "_".join(one.namespace), flags=re.ASCII),
        kinds={"iceberg"},
        metadata=said,
    )
