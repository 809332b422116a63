"""Every nasty file has a defined outcome, loses nothing, and leaves its neighbours alone."""

import gzip
import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from iceberg_manager.catalog import load_table
from iceberg_manager.errors import LakeError
from iceberg_manager.landing import quarantine
from iceberg_manager.landing.folder import LocalFolder
from tests.iceberg_manager.landing.conftest import Dock

GOOD = "id,name\n7,good\n"


def test_a_bad_row_goes_to_the_rejects_table_with_its_text_file_and_line(dock: Dock) -> None:
    dock.drop("a.csv", "id,name\n1,a\nx,b\n3,c,d\n4,e\n")
    (report,) = dock.run()
    assert (report.rows, report.rejected) == (2, 2)
    rows = dock.rows("raw.people__rejects")
    assert [(row["file"], row["line"], row["text"]) for row in rows] == [("a.csv", 3, "x,b"), ("a.csv", 4, "3,c,d")]
    assert "'id'" in rows[0]["reason"]
    assert {row["batch"] for row in rows} == {report.batch}


def test_a_bad_row_of_a_typed_file_is_set_aside_too(dock: Dock) -> None:
    pq.write_table(pa.table({"id": ["1", "two", "3"], "name": ["a", "b", "c"]}), dock.folder / "a.parquet")
    (report,) = dock.run()
    assert (report.rows, report.rejected) == (2, 1)
    (row,) = dock.rows("raw.people__rejects")
    assert (row["line"], json.loads(row["text"])) == (2, {"id": "two", "name": "b"})


def test_too_many_bad_rows_refuse_the_file_and_nothing_of_it_is_taken(dock: Dock) -> None:
    dock.drop("bad.csv", "id,name\n1,a\n" + "x,y\n" * 5)
    dock.drop("good.csv", GOOD)
    (report,) = dock.run(max_rejected_rows=3)
    assert (report.rows, report.rejected, report.quarantined) == (1, 0, ["bad.csv"])
    assert dock.ids() == [7]
    why = json.loads((dock.folder / "_quarantine" / "bad.csv.why.json").read_text())
    assert (why["file"], why["line"]) == ("bad.csv", 6)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.csv", b"", "is empty"),
        ("empty.parquet", b"", "is empty"),
        ("half.parquet", b"PAR1 and then nothing", "parquet"),
        ("parquet.csv", b"PAR1xxxxxxxxxxxxPAR1", "content is parquet"),
        ("text.parquet", b"id,name\n1,a\n", "content is no parquet"),
        ("cut.csv.gz", gzip.compress(b"id,name\n" + b"1,abcdefgh\n" * 50_000)[:-300], "unpacked"),
        ("what.xyz", b"id,name\n1,a\n", "no known format"),
        ("bomb.csv.gz", gzip.compress(b"id,name\n" + b"1,a\n" * 30_000_000), "50 times its size"),
        ("line.csv", b"id,name\n1," + b"x" * 24_000_000 + b"\n", "longer than 1 MB"),
        ("quote.csv", b'id,name\n1,"' + b"open\n" * 3_000_000, "never closed"),
        ("twice.csv", b"id,id\n1,2\n", "twice"),
        ("other.jsonl", b'{"id": 1, "nam": "x"}\n', "no column 'nam'"),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value else "",
)
def test_a_bad_file_is_quarantined_with_the_reason_and_its_neighbour_is_taken_in(
    dock: Dock, name: str, content: bytes, reason: str
) -> None:
    dock.drop(name, content)
    dock.drop("good.csv", GOOD)
    (report,) = dock.run(max_line_mb=1)
    assert dock.ids() == [7]
    assert report.quarantined == [name]
    assert reason in dock.quarantined()[name]
    assert (dock.folder / "_quarantine" / name).read_bytes() == content
    assert dock.left == []


def test_a_file_without_rows_is_taken_in_as_such(dock: Dock) -> None:
    dock.drop("header.csv", "id,name\n")
    (report,) = dock.run()
    assert (report.files, report.rows, report.quarantined) == (1, 0, [])
    assert dock.left == []


NAMES = [
    "with space.csv", "quo'te\".csv", "new\nline.csv", "ünï-☃.csv", "a..b.csv", "glob[*]?.csv", "per%20cent.csv",
    "dir.csv/inner.csv",
]  # fmt: skip


def test_names_of_every_kind_are_taken_in(dock: Dock) -> None:
    for number, name in enumerate(NAMES):
        dock.drop(name, f"id,name\n{number},x\n")
    (report,) = dock.run()
    assert report.files == len(NAMES), dock.quarantined()
    assert dock.ids() == list(range(len(NAMES)))
    assert dock.left == []


def test_links_and_unfinished_files_are_left_alone(dock: Dock, tmp_path: Path) -> None:
    outside = tmp_path / "secret.csv"
    outside.write_text(GOOD)
    (dock.folder / "link.csv").symlink_to(outside)
    (dock.folder / "folder").symlink_to(tmp_path)
    dock.drop("b.csv.tmp")
    dock.drop(".hidden.csv")
    assert dock.run() == []
    assert outside.exists()


def test_a_rename_race_takes_the_file_in_once_under_its_last_name(dock: Dock) -> None:
    path = dock.drop("a.csv")
    landing = dock.landing(
        reached=lambda step: path.rename(dock.folder / "b.csv") if step == "planned" and path.exists() else None
    )
    landing.run(wait=0)
    dock.run()
    assert dock.ids() == [1, 2]
    assert dock.left == []


def test_mixed_schemas_in_one_batch_by_policy(dock: Dock) -> None:
    def send() -> None:
        dock.drop("a.csv", "id,name\n1,a\n")
        dock.drop("b.csv", "id,name,age\n2,b,30\n")
        pq.write_table(pa.table({"id": [3], "age": [4]}), dock.folder / "c.parquet")

    send()
    (strict,) = dock.run()
    assert sorted(strict.quarantined) == ["b.csv", "c.parquet"]
    assert quarantine.retry(LocalFolder(dock.folder), []) == ["b.csv", "c.parquet"]
    (ignored,) = dock.run(drift="ignore", after="leave")
    assert (ignored.rows, ignored.dropped_columns) == (2, ["age"])
    assert dock.rows()[1] == {"id": 2, "name": "b"}


def test_additive_drift_adds_columns_and_widens_types(dock: Dock) -> None:
    dock.schema["small"] = "int"
    dock.landing()
    pq.write_table(pa.table({"id": [1], "small": pa.array([2**40]), "extra": [1.5]}), dock.folder / "a.parquet")
    dock.drop("b.jsonl", '{"id": 2, "extra": 2.5}\n')
    (report,) = dock.landing(drift="additive", create=False).run(wait=0)
    assert (report.rows, report.added_columns) == (2, ["extra"])
    types = {item.name: str(item.field_type) for item in load_table(dock.catalog, "raw.people").schema().fields}
    assert (types["small"], types["extra"]) == ("long", "double")
    assert {row["extra"] for row in dock.rows()} == {1.5, 2.5}


def test_a_type_conflict_refuses_the_file_in_every_policy(dock: Dock) -> None:
    for policy in ("strict", "additive", "ignore"):
        pq.write_table(pa.table({"id": [[1, 2]], "name": ["x"]}), dock.folder / f"{policy}.parquet")
        (report,) = dock.run(drift=policy)
        assert report.quarantined == [f"{policy}.parquet"]


def test_a_missing_table_is_created_from_the_first_batch_if_the_policy_says_so(dock: Dock) -> None:
    dock.drop("a.csv", "id,name,at\n1,a,2026-01-01T00:00:00Z\n")
    landing = dock.landing(create=False, create_from_first_batch=True)
    (report,) = landing.run(wait=0)
    assert report.rows == 1, report.error
    assert [item.name for item in load_table(dock.catalog, "raw.people").schema().fields] == ["id", "name", "at"]


def test_a_missing_table_without_a_spec_keeps_the_files(dock: Dock) -> None:
    dock.drop("a.csv")
    landing = dock.landing(create=False)
    landing.spec = None
    (report,) = landing.run(wait=0)
    assert report.state == "failed"
    assert "no table" in report.error
    assert dock.left == ["a.csv"]


def test_discard_deletes_for_good_and_its_dry_run_does_not(dock: Dock) -> None:
    dock.drop("empty.csv", "")
    dock.run()
    folder = LocalFolder(dock.folder)
    assert [one.name for one in quarantine.discard(folder, [], dry_run=True)] == ["empty.csv"]
    assert dock.quarantined()
    quarantine.discard(folder, ["empty.csv"])
    assert dock.quarantined() == {}


def test_a_read_only_landing_folder_is_an_error_and_nothing_is_taken_in(dock: Dock) -> None:
    dock.drop("a.csv")
    dock.landing()
    probe = (
        "import os, sys; from pathlib import Path\n"
        "from iceberg_manager.landing.folder import LocalFolder\n"
        "from iceberg_manager.errors import LakeError\n"
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "try:\n    LocalFolder(Path(sys.argv[1])).locked().__enter__()\n"
        "except LakeError as error:\n    print(error)\n"
    )
    for place in dock.folder.parents:
        if "pytest" in str(place) and place.owner() == dock.folder.owner():
            place.chmod(0o755)
    dock.folder.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", probe, str(dock.folder)], capture_output=True, text=True, check=False)
    dock.folder.chmod(0o755)
    assert "cannot be written" in done.stdout, done.stderr[-500:]
    assert dock.left == ["a.csv"]


def test_a_full_disk_fails_the_batch_and_the_next_pass_takes_it_in(dock: Dock) -> None:
    """No file may grow beyond a limit of this process, which a write meets as it meets a full disk."""
    dock.drop("a.csv", "id,name\n" + "".join(f"{number},{number * 7919 % 100_003}\n" for number in range(60_000)))
    landing = dock.landing()
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        (report,) = landing.run(wait=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert report.state == "failed"
    assert dock.quarantined() == {}
    assert dock.left == ["a.csv"]
    (report,) = dock.run()
    assert report.rows == 60_000


def test_a_retry_of_an_unknown_file_names_the_nearest(dock: Dock) -> None:
    dock.drop("empty.csv", "")
    dock.run()
    with pytest.raises(LakeError, match=r"empty\.csv"):
        quarantine.retry(LocalFolder(dock.folder), ["emtpy.csv"])
