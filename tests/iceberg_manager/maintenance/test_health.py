"""Health is 100 for a table in order, falls with what is wrong, and says which part costs what and why."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from iceberg_manager.maintenance.health import health
from iceberg_manager.maintenance.statistics import ReferenceStatistics, TableStatistics
from iceberg_manager.spec import MaintenancePolicy

POLICY = MaintenancePolicy()
MB = 1_000_000
GOOD = TableStatistics(
    table="shop.orders",
    snapshot_id=1,
    files=100,
    bytes=100 * 130 * MB,
    rows=1_000_000,
    partitions=10,
    largest_partition_bytes=11 * 130 * MB,
    snapshots=20,
    metadata_bytes=50_000,
    metadata_versions=20,
    manifests=2,
    manifest_bytes=60_000,
    sort_column="id",
    sort_overlap=0.0,
    orphan_files=0,
    orphan_bytes=0,
    detailed=True,
)


def part(found: TableStatistics, name: str) -> Any:
    return next(one for one in health(found, POLICY).parts if one.name == name)


def test_a_table_in_order_has_full_health_and_says_why():
    found = health(GOOD, POLICY)
    assert found.score > 99
    assert {one.name for one in found.parts} == {
        "small_files", "delete_files", "snapshots", "metadata", "manifests", "sort_decay", "partition_skew", "orphans",
        "references",
    }  # fmt: skip
    assert all(one.why.endswith(".") and one.weight > 0 for one in found.parts)


def test_a_table_never_written_to_is_healthy():
    found = health(TableStatistics("t"), POLICY)
    assert (found.score, found.worst) == (100.0, None)


@pytest.mark.parametrize(
    ("name", "changes", "worse", "said"),
    [
        ("small_files", {"excess_files": 50}, {"excess_files": 99}, "50 of 100 files could be saved"),
        ("delete_files", {"delete_files": 10}, {"delete_files": 60}, "10 delete files are applied to 100 files"),
        (
            "snapshots",
            {"expirable_snapshots": 10},
            {"snapshots": 70_000, "expirable_snapshots": 69_900},
            "10 of 20 snapshots are past the policy of 30 days and 20 snapshots",
        ),
        (
            "metadata",
            {"metadata_bytes": 8 * MB},
            {"metadata_bytes": 110 * MB},
            "Every commit writes 8.0 MB of metadata",
        ),
        ("metadata", {"metadata_versions": 60}, {"metadata_versions": 900}, "9 old versions are past the policy"),
        ("manifests", {"manifests": 60}, {"manifests": 600}, "60 manifests of 1.0 kB on average, 1 would do"),
        ("manifests", {"manifest_overlap": 20.0}, {"manifest_overlap": 90.0}, "shares partitions with 20.0 others"),
        ("sort_decay", {"sort_overlap": 2.0}, {"sort_overlap": 9.0}, "shares its range of id with 2.0 others"),
        (
            "sort_decay",
            {"sort_overlap": None, "unsorted_files": 20},
            {"sort_overlap": None, "unsorted_files": 90},
            "20% of the files were written unsorted",
        ),
        (
            "partition_skew",
            {"partitions": 100, "largest_partition_bytes": 1300 * MB},
            {"partitions": 100, "largest_partition_bytes": 9000 * MB},
            "The largest of 100 partitions is 10.0 times the average",
        ),
        (
            "orphans",
            {"orphan_files": 5, "orphan_bytes": 1000 * MB},
            {"orphan_files": 5, "orphan_bytes": 90_000 * MB},
            "5 files with 1.0 GB belong to no snapshot",
        ),
    ],
)
def test_each_part_falls_with_what_it_watches(name: str, changes: dict[str, Any], worse: dict[str, Any], said: str):
    bad, ruin = replace(GOOD, **changes), replace(GOOD, **worse)
    assert part(GOOD, name).score > part(bad, name).score > part(ruin, name).score >= 0
    assert said in part(bad, name).why
    assert health(GOOD, POLICY).score > health(bad, POLICY).score > health(ruin, POLICY).score
    worst = health(ruin, POLICY).worst
    assert worst
    assert worst.name == name


def test_refs_without_retention_or_past_it_cost_health():
    endless = ReferenceStatistics("audit", "branch", timedelta(days=1), None)
    past = ReferenceStatistics("v1", "tag", timedelta(days=9), timedelta(days=2))
    lasting = ReferenceStatistics("v2", "tag", timedelta(days=1), timedelta(days=2))
    scores = [part(replace(GOOD, references=refs), "references").score for refs in ((lasting,), (endless,), (past,))]
    assert scores == [100, 90, 80]
    assert "v1, audit" in part(replace(GOOD, references=(endless, past)), "references").why


def test_one_thing_in_ruins_takes_the_table_below_the_mark():
    assert health(replace(GOOD, excess_files=95), POLICY).score < POLICY.health_mark
    assert health(replace(GOOD, delete_files=100), POLICY).score < POLICY.health_mark


def test_everything_in_ruins_still_is_a_number_from_0_to_100():
    ruin = replace(
        GOOD, excess_files=100, delete_files=10_000, expirable_snapshots=20, metadata_bytes=10**12, manifests=10**6,
        manifest_overlap=10.0**6, sort_overlap=10.0**6, largest_partition_bytes=10**15, orphan_files=1, orphan_bytes=10**15,
        references=tuple(ReferenceStatistics(str(n), "tag", timedelta(9), timedelta(1)) for n in range(50)),
    )  # fmt: skip
    assert 0 <= health(ruin, POLICY).score < 10
    assert all(0 <= one.score <= 100 for one in health(ruin, POLICY).parts)


def test_what_was_not_measured_is_left_out():
    unknown = replace(GOOD, orphan_files=None, orphan_bytes=None, sort_column=None, detailed=False)
    assert not {"orphans", "sort_decay", "partition_skew"} & {one.name for one in health(unknown, POLICY).parts}


def test_every_part_is_a_number_to_plot():
    numbers = health(replace(GOOD, excess_files=50), POLICY).numbers()
    assert numbers["health/small_files"] == 50
    assert numbers["health"] == pytest.approx(70, abs=0.5)
