"""Maintenance that is killed, or works among writers: no row is lost or doubled, and the next run finishes the job."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog

from iceberg_manager import arrow_writes
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.commits import Stamp
from iceberg_manager.history import data_version
from iceberg_manager.maintenance.costs import Kind
from iceberg_manager.maintenance.upkeep import Upkeep
from iceberg_manager.session import LakeSession
from iceberg_manager.settings import LakeSettings
from iceberg_manager.spec import MaintenancePolicy, TableSpec
from iceberg_manager.tables import ensure_table

POLICY = MaintenancePolicy(expire_after=timedelta(0), keep_snapshots=1)


def fill(catalog: Catalog, settings: LakeSettings, files: int) -> None:
    ensure_table(catalog, settings, TableSpec("demo.t", schema={"id": "long", "n": "long"}, maintenance=POLICY))
    for number in range(files):
        load_table(catalog, "demo.t").append(table_of(range(number * 10, number * 10 + 10)))


def table_of(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "n": pa.array([0] * len(ids), pa.int64())})


def rows(catalog: Catalog) -> list[int]:
    return sorted(load_table(catalog, "demo.t").scan().to_arrow()["id"].to_pylist())


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["compact", "rewrite_manifests", "expire"])
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.3, 1.0])
def test_a_killed_run_changes_no_row_and_the_next_one_finishes(
    settings: LakeSettings, session: LakeSession, kind: Kind, delay: float
) -> None:
    catalog = open_catalog(settings)
    fill(catalog, settings, 20)
    assert session.spark.table("lake.demo.t").count() == 200
    lake = settings.root.parent / "lake.yaml"
    spark = {"server_dir": str(settings.spark.server_dir), "memory": "1g"}
    lake.write_text(yaml.safe_dump({"root": str(settings.root), "spark": spark}))
    before, version = rows(catalog), data_version(load_table(catalog, "demo.t"))
    command = [sys.executable, "-m", "iceberg_manager.cli", "maintain", "--action", kind, "--lake", str(lake)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2.5 + delay)  # the interpreter's start and the survey; then it is somewhere in the action, or done
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert rows(catalog) == before
    for _ in range(2):
        with Upkeep(settings, catalog) as upkeep:
            done = list(upkeep.run(upkeep.plan(upkeep.tables(), [kind]).actions))
        assert [one.error for one in done if one.error] == []
    assert done == [], "a second run after it has nothing left to do"
    assert rows(catalog) == before
    assert data_version(load_table(catalog, "demo.t")) == version


@pytest.mark.spark
def test_appends_deletes_and_merges_beside_compaction_all_land_once(
    settings: LakeSettings, session: LakeSession
) -> None:
    catalog = open_catalog(settings)
    fill(catalog, settings, 20)
    failed: list[BaseException] = []

    def writer(work: Callable[[Catalog, int], object]) -> threading.Thread:
        def run() -> None:
            mine = open_catalog(settings)
            try:
                for number in range(4):
                    work(mine, number)
            except BaseException as error:  # noqa: BLE001 (whatever it is, the test is about it)
                failed.append(error)

        return threading.Thread(target=run)

    def append(mine: Catalog, number: int) -> object:
        return arrow_writes.append(mine, "demo.t", table_of(range(1000 + number, 1001 + number)), Stamp(f"a{number}"))

    def delete(mine: Catalog, number: int) -> object:
        return arrow_writes.delete(mine, "demo.t", f"id = {number * 10}", Stamp(f"d{number}"))

    def merge(mine: Catalog, number: int) -> object:
        fresh = pa.table(
            {"id": pa.array([number * 10 + 1, 2000 + number], pa.int64()), "n": pa.array([7, 7], pa.int64())}
        )
        return arrow_writes.upsert(mine, "demo.t", fresh, "id", Stamp(f"m{number}"))

    threads = [writer(work) for work in (append, delete, merge)]
    for thread in threads:
        thread.start()
    with Upkeep(settings, catalog) as upkeep:
        done = list(upkeep.run(upkeep.plan(upkeep.tables(), ["compact"]).actions))
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(not one.error or "Other writers won" in one.error for one in done)
    expected = set(range(200)) - {0, 10, 20, 30} | set(range(1000, 1004)) | set(range(2000, 2004))
    assert rows(catalog) == sorted(expected)
    assert sorted(row["id"] for row in session.spark.table("lake.demo.t").select("id").collect()) == sorted(expected)
    changed = load_table(catalog, "demo.t").scan("n = 7").to_arrow()["id"].to_pylist()
    assert sorted(changed) == [1, 11, 21, 31, 2000, 2001, 2002, 2003]
