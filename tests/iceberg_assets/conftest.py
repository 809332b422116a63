"""A lake of its own for each test, and a way to materialize assets on it as Dagster would."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from pyiceberg.table import Table

from iceberg_manager.catalog import load_table
from iceberg_manager.history import summary
from resources import LakeDuckDBResource, LakeResource, SparkResource


class Lab:
    """A lake, a Dagster instance that remembers, and the resources between them."""

    def __init__(self, folder: Path, server_dir: Path, instance: dg.DagsterInstance) -> None:
        content = {"root": "lake", "spark": {"server_dir": str(server_dir), "memory": "1g"}}
        (folder / "lake.yaml").write_text(yaml.safe_dump(content))
        self.instance = instance
        self.lake = LakeResource(path=str(folder / "lake.yaml"))
        self.resources = {
            "lake": self.lake,
            "spark": SparkResource(lake=self.lake),
            "duckdb": LakeDuckDBResource(lake=self.lake),
        }

    def materialize(self, assets: Sequence[Any], **options: Any) -> dg.ExecuteInProcessResult:
        return dg.materialize(list(assets), resources=self.resources, instance=self.instance, **options)

    def table(self, name: str) -> Table:
        return load_table(self.lake.catalog, name)

    def rows(self, name: str, snapshot: int | None = None) -> list[dict[str, Any]]:
        found = self.table(name).scan(snapshot_id=snapshot).to_arrow().to_pylist()
        return sorted(found, key=lambda row: [str(value) for value in row.values()])

    def stamps(self, name: str) -> list[str | None]:
        """The run id of each snapshot, oldest first."""
        return [summary(snapshot).get("iceberg-assets.run-id") for snapshot in self.table(name).metadata.snapshots]


def metadata_of(result: dg.ExecuteInProcessResult, asset: dg.AssetsDefinition) -> dict[str, Any]:
    events = result.asset_materializations_for_node("__".join(asset.key.path))
    return {key: value.value for key, value in events[0].metadata.items()}


@pytest.fixture
def lab(tmp_path: Path, server_dir: Path) -> Iterator[Lab]:
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        yield Lab(tmp_path, server_dir, instance)
