"""The cache of adopted tables: what it holds, what patterns leave out, and that nothing about it stops the loading."""

import time
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from iceberg_assets.adoption import adopted_assets
from iceberg_manager import adoption
from iceberg_manager.catalog import open_catalog
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings, TablesSettings
from resources import LakeResource
from tests.iceberg_manager.test_cli import command

ROWS = pa.table({"id": pa.array([1], pa.int64()), "name": ["a"]})


def lake(tmp_path: Path, text: str = "root: lake") -> LakeResource:
    (tmp_path / "lake.yaml").write_text(text)
    return LakeResource(path=str(tmp_path / "lake.yaml"))


def fill(folder: Path) -> None:
    catalog = open_catalog(LakeSettings(root=folder))
    for namespace in (("shop",), ("shop", "eu")):
        catalog.create_namespace(namespace)
    for name in ("shop.orders", "shop.eu.users", "shop.odd näme-1"):
        catalog.create_table(name, ROWS.schema).append(ROWS)


def test_adopt_finds_nested_and_oddly_named_tables_and_they_become_assets(tmp_path: Path) -> None:
    fill(tmp_path / "lake")
    planned = command(tmp_path / "lake", "adopt", "--plan", "-o", "json")
    assert planned.code == 0, planned.err
    assert {one["table"]: one["health"] for one in planned.json} == dict.fromkeys(
        ("shop.eu.users", "shop.odd näme-1", "shop.orders"), 100.0
    )
    assert not (tmp_path / "lake" / adoption.FILE_NAME).exists(), "a plan writes nothing"
    assert command(tmp_path / "lake", "adopt").code == 0
    specs = adopted_assets(lake(tmp_path), [dg.AssetKey(["shop", "orders"])])
    assert [spec.key.path for spec in specs] == [["shop", "odd näme-1"], ["shop", "eu", "users"]]
    assert [spec.group_name for spec in specs] == ["shop", "shop_eu"]
    assert [column.name for column in specs[0].metadata["dagster/column_schema"].columns] == ["id", "name"]
    assert dg.Definitions(assets=specs).get_repository_def()


@pytest.mark.parametrize(
    ("name", "taken"), [("shop.orders", True), ("shop.eu.users", True), ("shop.tmp_1", False), ("raw.x", False)]
)
def test_patterns_include_and_exclude(name: str, taken: bool) -> None:
    patterns = TablesSettings(include=("shop.*",), exclude=("*.tmp_*",))
    assert adoption.wanted(TableName.parse(name), patterns) is taken


@pytest.mark.parametrize(
    "content", [None, "", "{", "[]", '{"version": 99}', '{"version": 1, "refreshed": "", "tables": [1]}']
)
def test_a_missing_or_damaged_cache_or_settings_adopt_nothing(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "lake").mkdir()
    if content is not None:
        (tmp_path / "lake" / adoption.FILE_NAME).write_text(content)
    found = adoption.read_cache(LakeSettings(root=tmp_path / "lake"))
    assert found.problem
    assert adopted_assets(lake(tmp_path), []) == []
    assert adopted_assets(lake(tmp_path, "catalog: {type: nonsense}"), []) == []


def test_a_thousand_tables_load_in_five_seconds_while_the_catalog_is_down(tmp_path: Path) -> None:
    columns = tuple(adoption.AdoptedColumn(f"c{number}", "long") for number in range(20))
    tables = [adoption.AdoptedTable((f"n{one % 20}",), f"t{one}", columns=columns) for one in range(1000)]
    adoption.write_cache(LakeSettings(root=tmp_path / "lake"), tables)
    down = lake(tmp_path, "root: lake\ncatalog: {type: postgres, uri: 'postgresql://u:p@127.0.0.1:1/x'}")
    started = time.process_time()
    specs = adopted_assets(down, [])
    dg.Definitions(assets=specs).get_repository_def()
    assert len(specs) == 1000
    assert time.process_time() - started < 5
