"""A table that is loaded from what is remembered is the table that the catalog has, whoever wrote it and however."""

import gzip
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from iceberg_manager import metadata_commit
from iceberg_manager.arrow_writes import append
from iceberg_manager.catalog import open_catalog
from iceberg_manager.commits import Stamp
from iceberg_manager.errors import LakeError
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.table_versions import load
from iceberg_manager.tables import ensure_table

ROW = pa.table({"id": pa.array([1], pa.int64())})


@pytest.fixture
def catalog(settings: LakeSettings) -> Catalog:
    catalog = open_catalog(settings)
    ensure_table(catalog, settings, TableSpec("t", {"id": "long"}, properties={"note": '"snapshots":[{"odd"'}))
    return catalog


def agrees(catalog: Catalog) -> Table:
    """What we load is what PyIceberg reads, and stays so when we write on top of it."""
    for _ in range(2):
        fresh, ours = catalog.load_table("default.t"), load(catalog, "t")
        assert (ours.metadata, ours.metadata_location) == (fresh.metadata, fresh.metadata_location)
        append(catalog, "t", ROW, Stamp(uuid.uuid4().hex))
    assert len(load(catalog, "t").metadata.snapshots) == len(fresh.metadata.snapshots) + 1
    return load(catalog, "t")


def test_commits_of_others_are_seen_among_our_own(catalog: Catalog) -> None:
    for number in range(4):
        catalog.load_table("default.t").append(ROW, snapshot_properties={"n": str(number)})
        agrees(catalog)
    assert len(agrees(catalog).scan().to_arrow()) == 14


def test_snapshots_that_others_expired_are_gone(catalog: Catalog) -> None:
    agrees(catalog)
    table = catalog.load_table("default.t")
    table.maintenance.expire_snapshots().by_id(table.metadata.snapshots[0].snapshot_id).commit()
    assert len(agrees(catalog).metadata.snapshots) == 3


@pytest.mark.parametrize(
    "spelled",
    [
        lambda document: json.dumps(document, indent=2),
        lambda document: json.dumps(dict(sorted(document.items(), reverse=True))),
        lambda document: json.dumps({**document, "snapshots": document["snapshots"][::-1]}),
        lambda document: json.dumps({"other": {"snapshots": [1]}, **document}),
    ],
    ids=["indented", "other order of keys", "newest first", "a key of this name elsewhere"],
)
def test_a_metadata_file_may_be_written_in_any_way(catalog: Catalog, spelled: Callable[[dict[str, Any]], str]) -> None:
    agrees(catalog)
    file = Path(catalog.load_table("default.t").metadata_location)
    file.write_text(spelled(json.loads(file.read_text())))
    metadata_commit.forget()
    agrees(catalog)


def test_a_damaged_metadata_file_is_one_sentence(catalog: Catalog) -> None:
    agrees(catalog)
    file = Path(catalog.load_table("default.t").metadata_location)
    whole = file.read_text()
    for damaged in (whole[: len(whole) // 2].encode(), b"", gzip.compress(whole.encode())[:50], whole[:-3].encode()):
        file.write_bytes(damaged)
        metadata_commit.forget()
        with pytest.raises(LakeError, match="missing or damaged"):
            load(catalog, "t")
