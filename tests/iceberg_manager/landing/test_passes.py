"""Files that arrive are in the table once, whatever they are called and however often they come."""

import gzip
import io
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import polars
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem

from iceberg_manager.catalog import load_table
from iceberg_manager.errors import ConflictError, SpecError
from iceberg_manager.history import summary
from iceberg_manager.landing.batches import BATCH_PROPERTY
from iceberg_manager.landing.folder import LocalFolder, ObjectFolder
from iceberg_manager.landing.passes import policy_of
from iceberg_manager.landing.policy import LandingPolicy
from iceberg_manager.names import TableName
from tests.iceberg_manager.landing.conftest import Dock

ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})


def as_bytes(kind: str) -> bytes:
    out = io.BytesIO()
    match kind:
        case "parquet":
            pq.write_table(ROWS, out)
        case "orc":
            orc.write_table(ROWS, out)
        case "avro":
            polars.DataFrame(ROWS.to_pylist()).write_avro(out)
        case "arrow":
            with pa.ipc.new_file(out, ROWS.schema) as writer:
                writer.write_table(ROWS)
        case "csv" | "csv.gz" | "csv.zst":
            text = b"id,name\n1,a\n2,b\n"
            return {"csv": text, "csv.gz": gzip.compress(text), "csv.zst": pa.compress(text, "zstd", asbytes=True)}[
                kind
            ]
        case _:
            out.write(b"".join(json.dumps(row).encode() + b"\n" for row in ROWS.to_pylist()))
    return out.getvalue()


@pytest.mark.parametrize("kind", ["parquet", "orc", "avro", "arrow", "csv", "csv.gz", "csv.zst", "jsonl"])
def test_every_format_is_taken_in(dock: Dock, kind: str) -> None:
    dock.drop(f"people.{kind}", as_bytes(kind))
    (report,) = dock.run()
    assert (report.state, report.rows, report.files, report.rejected) == ("committed", 2, 1, 0), dock.quarantined()
    assert dock.rows() == ROWS.to_pylist()
    assert dock.left == []


def test_a_batch_is_one_commit_with_its_id_in_the_summary_and_as_a_property(dock: Dock) -> None:
    dock.drop("a.csv")
    dock.drop("b.csv", "id,name\n3,c\n")
    (report,) = dock.run()
    table = load_table(dock.catalog, "raw.people")
    (snapshot,) = table.metadata.snapshots
    assert summary(snapshot)["iceberg-assets.batch"] == report.batch
    assert BATCH_PROPERTY + report.batch in table.properties
    assert report.lag_seconds >= 0
    dock.drop("c.csv", "id,name\n4,d\n")
    dock.run()
    held = [key for key in load_table(dock.catalog, "raw.people").properties if key.startswith(BATCH_PROPERTY)]
    assert len(held) == 1, "the property of a finished batch goes with the next commit"


def test_the_same_content_is_committed_once_under_any_name_in_any_pass(dock: Dock) -> None:
    dock.drop("a.csv")
    dock.drop("again.csv")
    assert [(one.files, one.duplicates) for one in dock.run()] == [(1, 1)]
    dock.drop("sub/../third.csv")
    assert [(one.files, one.duplicates, one.state) for one in dock.run()] == [(0, 1, "nothing to commit")]
    assert dock.ids() == [1, 2]
    assert dock.left == []


def test_batches_are_bounded_in_files_and_bytes(dock: Dock) -> None:
    for number in range(5):
        dock.drop(f"{number}.csv", f"id,name\n{number},x\n")
    assert [one.files for one in dock.run(max_files=2)] == [2, 2, 1]
    assert dock.ids() == list(range(5))


@pytest.mark.parametrize(("after", "left"), [("move", []), ("delete", []), ("leave", ["a.csv"])])
def test_what_becomes_of_a_file_is_the_policys_choice(dock: Dock, after: str, left: list[str]) -> None:
    dock.drop("a.csv")
    dock.run(after=after)
    assert dock.run(after=after) == []
    assert (dock.ids(), dock.left) == ([1, 2], left)
    assert (dock.folder / "_committed").exists() == (after == "move")


def test_a_file_that_is_still_settling_waits(dock: Dock) -> None:
    path = dock.drop("a.csv")
    assert dock.run(completeness="settled", settle_seconds=0.3) == []
    os.utime(path, (1, 1))  # a preserved old mtime says nothing: the file was touched just now
    assert dock.run(completeness="settled", settle_seconds=0.3) == []
    time.sleep(0.35)
    assert [one.rows for one in dock.run(completeness="settled", settle_seconds=0.3)] == [2]


def test_a_marker_completes_a_file_or_its_folder(dock: Dock) -> None:
    dock.drop("a.csv")
    dock.drop("job/part-0.csv", "id,name\n3,c\n")
    assert dock.run(completeness="marker") == []
    dock.drop("a.csv.done", "")
    assert [one.rows for one in dock.run(completeness="marker")] == [2]
    dock.drop("job/_SUCCESS", "")
    late = dock.drop("job/part-1.csv", "id,name\n4,d\n")
    os.utime(late, (time.time() + 60,) * 2)
    assert [one.rows for one in dock.run(completeness="marker")] == [1], "what came after the marker is not covered"
    assert dock.left == ["job/part-1.csv"]


def test_a_file_that_grows_while_it_is_read_goes_back_to_waiting(dock: Dock) -> None:
    path = dock.drop("a.csv")
    dock.drop("b.csv", "id,name\n9,z\n")

    def grow(step: str) -> None:
        if step == "read" and path.stat().st_size < 30:
            path.write_text("id,name\n1,a\n2,b\n3,c\n4,longer\n")

    (report,) = dock.landing(reached=grow).run(wait=0)
    assert report.returned == ["a.csv"]
    assert dock.ids() == [9]
    dock.run()
    assert dock.ids() == [1, 2, 3, 4, 9]


def test_a_file_that_vanishes_while_it_is_read_is_nobodys_loss(dock: Dock) -> None:
    path = dock.drop("a.csv")
    dock.drop("b.csv", "id,name\n9,z\n")
    landing = dock.landing(reached=lambda step: path.unlink(missing_ok=True) if step == "planned" else None)
    assert [one.rows for one in landing.run(wait=0)] == [1]
    assert dock.ids() == [9]


def test_one_pass_at_a_time_works_on_a_folder(dock: Dock) -> None:
    dock.drop("a.csv")
    landing = dock.landing()
    with landing.folder.locked(), pytest.raises(ConflictError, match="Another pass"):
        dock.run()
    assert [one.rows for one in dock.run()] == [2]


class Unlocked(LocalFolder):
    """The folder as a bucket would be: nothing keeps two passes apart but the commit."""

    @contextmanager
    def locked(self, wait: float = 0) -> Iterator[None]:
        yield


def test_a_folder_behind_arrows_filesystem_works_like_a_local_one(dock: Dock) -> None:
    dock.drop("a.csv")
    dock.drop("sub/b.parquet", as_bytes("parquet"))
    dock.drop("c.avro", as_bytes("avro"))
    dock.drop("bad.csv", "")
    landing = dock.landing()
    landing.folder = landing.ledger.folder = ObjectFolder(LocalFileSystem(), str(dock.folder), str(dock.folder))
    (report,) = landing.run(wait=0)
    assert (report.files, report.rows, report.quarantined) == (3, 6, ["bad.csv"]), dock.quarantined()
    assert dock.left == []


def test_two_passes_without_a_lock_commit_every_row_once(dock: Dock) -> None:
    for number in range(12):
        dock.drop(f"{number}.csv", f"id,name\n{number},x\n")
    dock.landing()
    together = threading.Barrier(2, timeout=60)

    def meet(step: str) -> None:
        if step == "read" and not together.broken:
            try:
                together.wait(5)
            except threading.BrokenBarrierError:
                return

    def work(max_files: int) -> None:
        landing = dock.landing(reached=meet, create=False, max_files=max_files)
        landing.folder = landing.ledger.folder = Unlocked(dock.folder)
        for _ in range(3):
            landing.run(wait=0)

    threads = [threading.Thread(target=work, args=(size,)) for size in (12, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dock.run()
    assert dock.ids() == list(range(12))
    assert dock.left == []


def test_a_policy_travels_with_its_table(dock: Dock) -> None:
    dock.landing(drift="additive")
    assert policy_of(dock.catalog, TableName.parse("raw.people")) == LandingPolicy(
        completeness="rename", drift="additive"
    )


@pytest.mark.parametrize(
    "wrong", [{"after": "burn"}, {"max_files": 0}, {"how": "register", "after": "leave"}, {"drift": "strct"}]
)
def test_a_policy_is_checked_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="landing"):
        LandingPolicy(**wrong)


def test_a_tick_over_handled_files_costs_nothing(dock: Dock) -> None:
    dock.landing()
    handled = dock.folder / "_committed" / "batch"
    handled.mkdir(parents=True)
    for number in range(3000):
        (handled / f"{number}.csv").touch()
    seen: list[str] = []
    real = os.scandir

    def counted(place: Any) -> Any:
        seen.append(str(place))
        return real(place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "scandir", counted)
        assert dock.landing(create=False).plan() == []
    assert not [place for place in seen if "_committed" in place]


def test_registered_files_are_read_by_every_engine_and_owned_by_the_table(dock: Dock) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": [number], "name": ["x"]}), dock.folder / f"{number}.parquet")
    dock.drop("bad.csv")
    (report,) = dock.run(how="register")
    assert (report.rows, report.engine, report.quarantined) == (3, "register", ["bad.csv"])
    assert dock.ids() == [0, 1, 2]
    assert {row["name"] for row in dock.rows()} == {"x"}, "the name mapping is there"
    paths = load_table(dock.catalog, "raw.people").inspect.files()["file_path"].to_pylist()
    assert all(f"/_registered/{report.batch}/" in path for path in paths)
    pq.write_table(pa.table({"id": [1], "name": ["x"]}), dock.folder / "again.parquet")
    assert [one.duplicates for one in dock.run(how="register")] == [1]
    assert dock.ids() == [0, 1, 2]
