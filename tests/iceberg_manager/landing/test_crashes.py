"""A pass that dies at any step is finished by the next: every row once, checked in two engines."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iceberg_manager.catalog import load_table
from iceberg_manager.landing import committing
from iceberg_manager.landing.passes import STEPS
from tests.iceberg_manager.landing.conftest import Dock

KILLS = int(os.environ.get("LANDING_KILLS", "200"))
PRODUCERS = 5
PASS = """
import os, signal, sys, random, time
from pathlib import Path
from iceberg_manager.catalog import open_catalog
from iceberg_manager.landing.passes import Landing
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.names import TableName
from iceberg_manager.settings import LakeSettings

root, wanted, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
def reached(step):
    if step == wanted:
        os.kill(os.getpid(), signal.SIGKILL)
settings = LakeSettings(root=root)
policy = LandingPolicy(completeness="rename", how=how, max_files=7)
landing = Landing(settings, open_catalog(settings), TableName.parse("raw.people"), policy, reached=reached)
print("ready", flush=True)
while True:
    landing.run(wait=30)
    if wanted != "loop":
        break
    time.sleep(0.02)
"""


class Crash(BaseException):
    pass


def send(dock: Dock, how: str, number: int) -> None:
    if how == "register":
        pq.write_table(pa.table({"id": [number], "name": ["x"]}), dock.folder / f"{number}.parquet")
    else:
        dock.drop(f"{number}.csv", f"id,name\n{number},x\nbad,{number}\n")


@pytest.mark.parametrize("how", ["copy", "register"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_is_finished_by_the_next_pass(dock: Dock, step: str, how: str) -> None:
    for number in range(3):
        send(dock, how, number)

    def die(reached: str) -> None:
        if reached == step:
            raise Crash

    with pytest.raises(Crash):
        dock.landing(how=how, reached=die).run(wait=0)
    dock.run(how=how)
    assert dock.ids() == [0, 1, 2]
    assert dock.left == []
    assert not list((dock.folder / "_intents").iterdir())
    if how == "copy":
        assert len(dock.rows("raw.people__rejects")) == 3
    assert len(load_table(dock.catalog, "raw.people").metadata.snapshots) == 1


def test_without_the_property_a_committed_batch_that_left_history_would_be_taken_in_again(
    dock: Dock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The summary is not enough: main may have been rolled back. Broken on purpose, the rows come twice."""

    def die(reached: str) -> None:
        if reached == "committed":
            raise Crash

    for broken in (False, True):
        number = int(broken)
        send(dock, "copy", number)
        with pytest.raises(Crash):
            dock.landing(reached=die).run(wait=0)
        if broken:
            monkeypatch.setattr("iceberg_manager.landing.passes.is_committed", lambda table, intent: False)
            monkeypatch.setattr(committing, "is_committed", lambda table, intent: False)
            monkeypatch.setattr("iceberg_manager.landing.passes.find", lambda table, commit_id: [])
            monkeypatch.setattr("iceberg_manager.commits.find", lambda *_: [])
            monkeypatch.setattr("iceberg_manager.metadata_commit.find", lambda *_: [])
        dock.run()
    assert dock.ids() == [0, 1, 1]


def run_pass(dock: Dock, step: str, how: str = "copy") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PASS, str(dock.settings.root), step, how]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])


def end(process: "subprocess.Popen[str]", after: float = 0) -> None:
    """Kill it at some moment after it began to work."""
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(after)
        process.kill()


@pytest.mark.faults
@pytest.mark.parametrize("how", ["copy", "register"])
@pytest.mark.parametrize("step", STEPS)
def test_kill_9_at_any_step_is_finished_by_the_next_pass(dock: Dock, step: str, how: str) -> None:
    dock.landing(how=how)
    for number in range(3):
        send(dock, how, number)
    with run_pass(dock, step, how) as process:
        assert process.wait(60) == -signal.SIGKILL
    dock.run(how=how)
    assert dock.ids() == [0, 1, 2]
    assert dock.left == []


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_random_kills_with_producers_lose_and_repeat_nothing(dock: Dock) -> None:
    dock.landing()
    dice, sent, kills = random.Random(7), 0, 0
    processes = [run_pass(dock, "loop"), run_pass(dock, "loop")]
    try:
        while kills < KILLS:
            for producer in range(PRODUCERS):
                whole = f"id,name\n{sent * 2},{producer}\n{sent * 2 + 1},{producer}\n"
                path = dock.drop(f".{sent}.writing", whole)
                path.rename(dock.folder / f"{producer}-{sent}.csv")
                sent += 1
            end(processes[0], after=dice.uniform(0, 0.6))
            kills += 1
            processes = [processes[1], run_pass(dock, "loop")]
    finally:
        for process in processes:
            end(process)
    for _ in range(2):
        dock.run()
    assert dock.ids() == list(range(sent * 2))
    assert dock.left == []
