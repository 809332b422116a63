"""What the project defines, pinned: a lost asset, job or schedule shows in the diff of ``definitions.txt``."""

import subprocess
import sys
import time
from pathlib import Path

import dagster as dg
import pytest

from iceberg_assets.definitions import defs
from iceberg_assets.table import table_spec
from iceberg_assets.tables import marts, raw, shop
from iceberg_manager.spec import WriteMode

PINNED = Path(__file__).with_name("definitions.txt")


def described() -> str:
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    lines = []
    for key in sorted(graph.get_all_asset_keys()):
        node = graph.get(key)
        parents = ", ".join(sorted(parent.to_user_string() for parent in node.parent_keys))
        checks = ", ".join(sorted(check.name for check in node.check_keys))
        partitions = "daily" if node.partitions_def else "whole"
        lines.append(f"asset {key.to_user_string()} [{node.group_name}, {partitions}] <- {parents or 'nothing'}")
        lines += [f"  checks {checks}"] if checks else []
    jobs = sorted(name for name in repository.job_names if not name.startswith("__"))
    lines += [f"job {name}" for name in jobs]
    lines += [f"schedule {one.name} {one.cron_schedule}" for one in sorted(repository.schedule_defs, key=_name)]
    lines += [f"sensor {one.name}" for one in sorted(repository.sensor_defs, key=_name)]
    return "\n".join(lines) + "\n"


def _name(one: dg.ScheduleDefinition | dg.SensorDefinition) -> str:
    return one.name


def test_the_definitions_are_the_pinned_ones() -> None:
    assert described() == PINNED.read_text(), "if the change is meant: python -m tests.iceberg_assets.test_definitions"


def test_every_table_shows_kinds_an_owner_a_description_and_its_own_pool() -> None:
    graph = defs.get_repository_def().asset_graph
    for module in (raw, shop, marts):
        for asset in vars(module).values():
            if isinstance(asset, dg.AssetsDefinition) and table_spec(asset):
                node = graph.get(asset.key)
                assert node.kinds == {"iceberg", "pyspark"}
                assert node.owners
                assert node.description
                assert node.pools == {"__".join(asset.key.path)}


def test_the_demo_has_one_of_each_write_mode_and_three_layers() -> None:
    specs = [
        spec
        for module in (raw, shop, marts)
        for asset in vars(module).values()
        if isinstance(asset, dg.AssetsDefinition) and (spec := table_spec(asset))
    ]
    assert {spec.write_mode for spec in specs} == set(WriteMode.__args__)  # type: ignore[attr-defined]
    assert {spec.table.namespace for spec in specs} == {("raw",), ("shop",), ("marts",)}
    assert len(specs) >= 8


def test_loading_them_starts_no_jvm_reads_no_settings_and_is_quick(tmp_path: Path) -> None:
    """In an empty folder with a broken lake.yaml: whatever touched the lake would fail."""
    (tmp_path / "lake.yaml").write_text("catalog: {type: nonsense}")
    probe = (
        "import time, sys; import dagster; t = time.process_time(); import iceberg_assets.definitions as d; "
        "d.defs.get_repository_def(); print(time.process_time() - t, 'py4j.java_gateway' in sys.modules)"
    )
    took = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=True)
        seconds, _ = done.stdout.split()
        took.append(float(seconds))
        if min(took) < 2:
            break
        time.sleep(1)
    assert min(took) < 2
    assert [path.name for path in tmp_path.iterdir()] == ["lake.yaml"]


@pytest.mark.parametrize("name", ["raw__materialize", "shop__materialize", "marts__materialize", "materialize_lake"])
def test_each_job_is_partitioned_by_day(name: str) -> None:
    assert defs.resolve_job_def(name).partitions_def is not None


if __name__ == "__main__":
    PINNED.write_text(described())
