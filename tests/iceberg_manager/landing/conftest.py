"""A lake with one table that takes in files, and ways to drop files and to count rows in two engines."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog

from iceberg_manager import query
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.landing.batches import BatchReport
from iceberg_manager.landing.folder import LocalFolder
from iceberg_manager.landing.passes import Landing
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import TableSpec
from iceberg_manager.tables import ensure_table

SCHEMA = {"id": "long", "name": "string"}


@dataclass
class Dock:
    """The landing folder of ``raw.people`` and its table."""

    settings: LakeSettings
    catalog: Catalog
    folder: Path
    schema: dict[str, str] = field(default_factory=lambda: dict(SCHEMA))

    def landing(
        self,
        reached: Callable[[str], None] = lambda step: None,
        spark: Any = None,
        create: bool = True,
        spec: dict[str, Any] | None = None,
        **policy: Any,
    ) -> Landing:
        how = LandingPolicy(**{"completeness": "rename", **policy})
        made = TableSpec("raw.people", schema=self.schema, landing=how, **(spec or {}))
        if create:
            ensure_table(self.catalog, self.settings, made)
        return Landing(self.settings, self.catalog, made.table, how, made, spark, reached)

    def run(self, **policy: Any) -> list[BatchReport]:
        return self.landing(**policy).run(wait=0)

    def drop(self, name: str, text: str | bytes = "id,name\n1,a\n2,b\n") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    def rows(self, name: str = "raw.people") -> list[dict[str, Any]]:
        """As PyIceberg reads them; DuckDB must say the same."""
        table = load_table(self.catalog, name)
        found = sorted(table.scan().to_arrow().to_pylist(), key=str)
        with query.connect(self.settings) as connection:
            counted = connection.execute(f"SELECT count(*) FROM {query.scan(table)}").fetchone()
        assert counted == (len(found),)
        return found

    def ids(self) -> list[int]:
        return sorted(row["id"] for row in self.rows())

    @property
    def left(self) -> list[str]:
        """What still lies in the folder itself."""
        return sorted(entry.name for entry in LocalFolder(self.folder).entries())

    def quarantined(self) -> dict[str, str]:
        from iceberg_manager.landing.quarantine import refused

        return {one.name: one.reason for one in refused(LocalFolder(self.folder))}


@pytest.fixture
def dock(tmp_path: Path) -> Dock:
    settings = LakeSettings(root=tmp_path / "lake")
    folder = tmp_path / "lake" / "landing" / "raw" / "people"
    folder.mkdir(parents=True)
    return Dock(settings, open_catalog(settings), folder)
