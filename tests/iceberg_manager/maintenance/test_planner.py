"""The planner's decisions, without Spark: what is worth doing, in which order, what is left and why, and what it learns."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from iceberg_manager.maintenance.costs import GUESSES, KINDS, Costs, Kind, Outcome, learn
from iceberg_manager.maintenance.planner import Budget, Plan, Situation, plan, recipe
from iceberg_manager.maintenance.statistics import PartitionStatistics, ReferenceStatistics, TableStatistics
from iceberg_manager.spec import MaintenancePolicy

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
POLICY = MaintenancePolicy()
MB = 1_000_000
HEALTHY = TableStatistics(
    "shop.orders", files=10, bytes=1300 * MB, snapshots=5, manifests=1, manifest_bytes=8000, partitions=1
)


def part(day: int = 1, files: int = 100, size: int = MB, deletes: int = 0) -> PartitionStatistics:
    return PartitionStatistics(0, {"day": day}, files, files * size, files, files, files * size, deletes)


def ragged(*parts: PartitionStatistics, table: str = "shop.orders", **more: Any) -> TableStatistics:
    """A table of these partitions alone."""
    return TableStatistics(
        table,
        files=sum(one.files for one in parts),
        bytes=sum(one.bytes for one in parts),
        small_files=sum(one.small_files for one in parts),
        excess_files=sum(one.excess(POLICY) for one in parts),
        delete_files=sum(one.delete_files for one in parts),
        partitions=len(parts),
        paying=tuple(one for one in parts if one.pays(POLICY)),
        snapshots=5,
        manifests=1,
        **more,
    )


def decide(found: TableStatistics, policy: MaintenancePolicy = POLICY, **more: Any) -> Plan:
    options = {key: more.pop(key) for key in ("costs", "budget", "kinds", "by_need") if key in more}
    return plan([Situation(found, policy, **more)], NOW, **options)


def failed(
    scope: str = "day=1", files: int = 100, after: int = 100, hours: int = 1, policy: MaintenancePolicy = POLICY
) -> Outcome:
    """A compaction, by default one that left as many files as it read."""
    return Outcome(
        "shop.orders", "compact", NOW - timedelta(hours=hours), 5, files, files * MB, after, scope, recipe(policy)
    )


def test_a_table_in_order_is_left_alone_and_that_is_said():
    decided = decide(HEALTHY)
    assert decided.actions == ()
    assert [(skip.table, skip.kind, skip.reason) for skip in decided.skips] == [("shop.orders", None, "nothing to do")]


@pytest.mark.parametrize(
    ("kind", "changes", "policy", "said"),
    [
        ("rewrite_manifests", {"manifests": 300, "manifest_bytes": 2 * MB}, {}, "300 manifests into 1"),
        (
            "expire",
            {"snapshots": 100, "expirable_snapshots": 80, "expirable_bytes": 500 * MB},
            {},
            "80 of 100 snapshots are past the policy",
        ),
        ("remove_orphans", {"orphan_files": 40, "orphan_bytes": 900 * MB}, {}, "40 files with 900 MB"),
        ("drop_metadata", {"metadata_versions": 90}, {}, "39 metadata files beyond the last 50"),
        (
            "row_ttl",
            {"old_row_files": 3, "old_row_bytes": 300 * MB},
            {"row_ttl_column": "at", "row_ttl": timedelta(days=90)},
            "3 files hold rows whose at is over 90 days old",
        ),
        (
            "drop_refs",
            {"references": (ReferenceStatistics("old", "tag", timedelta(9), timedelta(1)),)},
            {},
            "past their retention: old",
        ),
    ],
)
def test_each_kind_of_work_is_proposed_where_it_gains(
    kind: Kind, changes: dict[str, Any], policy: dict[str, Any], said: str
):
    decided = decide(replace(HEALTHY, **changes), MaintenancePolicy(**policy))
    assert [action.kind for action in decided.actions] == [kind]
    action = decided.actions[0]
    assert said in action.reason
    assert action.cost.seconds > 0
    assert action.gain.health > 0 or action.gain.files > 0 or action.gain.bytes > 0
    assert decide(replace(HEALTHY, **changes), MaintenancePolicy(**policy), kinds=set(KINDS) - {kind}).actions == ()


def test_compaction_takes_only_partitions_that_pay():
    found = ragged(part(1, 100), part(2, 4), part(3, 2, 200 * MB, deletes=1), part(4, 50))
    action = decide(found).actions[0]
    assert [one.name for one in action.partitions] == ["day=1", "day=4", "day=3"]
    assert action.kind == "compact"
    assert action.gain.files == 99 + 49 + 1
    assert action.cost.bytes == (100 + 400 + 50) * MB
    assert action.gain.health > 30


def test_files_that_would_not_become_fewer_are_not_rewritten():
    six_of_ninety = PartitionStatistics(0, {}, 6, 6 * 90 * MB, 6, 6, 6 * 90 * MB, 0)
    assert six_of_ninety.excess(POLICY) == 1
    five_of_hundred = PartitionStatistics(0, {}, 5, 5 * 134 * MB, 5, 5, 5 * 134 * MB, 0)
    assert not five_of_hundred.pays(POLICY)


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        ({"writer_running": "run 42"}, "a writer is running: run 42"),
        ({"maintenance_running": True}, "maintenance of this table is running already"),
        ({"writer_due": NOW + timedelta(minutes=10)}, "a writer is due in 10 minutes"),
        ({"writer_due": NOW + timedelta(seconds=50)}, "a writer is due in 1 minute"),
        ({"writer_due": NOW - timedelta(minutes=3)}, "a writer is due in 0 minutes"),
    ],
)
def test_writers_go_first(around: dict[str, Any], reason: str):
    decided = decide(ragged(part(), expirable_snapshots=3), **around)
    assert decided.actions == ()
    assert [(skip.kind, skip.reason) for skip in decided.skips] == [("compact", reason), ("expire", reason)]


def test_a_writer_due_later_than_the_work_takes_does_not_hinder_it():
    later = NOW + timedelta(minutes=20)
    assert decide(ragged(part()), writer_due=later).actions
    assert not decide(ragged(part(files=200, size=95 * MB)), writer_due=later).actions


def test_by_need_only_tables_below_their_mark_are_looked_after():
    found = ragged(part())
    assert decide(found, by_need=True).actions
    lenient = MaintenancePolicy(health_mark=10)
    decided = decide(found, lenient, by_need=True)
    assert decided.actions == ()
    assert decided.skips[0].reason == "health 41 is not below the mark of 10"
    assert decide(found, lenient).actions


def test_the_best_gain_for_its_cost_comes_first():
    cheap, dear = ragged(part(size=10_000), table="a.cheap"), ragged(part(size=50 * MB), table="a.dear")
    decided = plan([Situation(dear, POLICY), Situation(cheap, POLICY)], NOW)
    assert [action.table for action in decided.actions] == ["a.cheap", "a.dear"]
    assert decided.actions[0].value > decided.actions[1].value
    assert decided.seconds == pytest.approx(sum(action.cost.seconds for action in decided.actions))


def test_within_a_table_work_comes_in_the_order_in_which_it_builds_on_itself():
    found = ragged(
        part(),
        expirable_snapshots=3,
        references=(ReferenceStatistics("old", "tag", timedelta(9), timedelta(1)),),
        orphan_files=2,
        orphan_bytes=MB,
    )
    kinds = [action.kind for action in decide(found).actions]
    assert kinds == ["drop_refs", "compact", "expire", "remove_orphans"]


@pytest.mark.parametrize(
    ("budget", "said"),
    [(Budget(seconds=3), "it needs 4 s, 3 s are left"), (Budget(bytes=90 * MB), "it rewrites 100 MB, 90 MB are left")],
)
def test_what_does_not_fit_the_budget_is_left_with_its_reason(budget: Budget, said: str):
    decided = decide(ragged(part()), budget=budget)
    assert decided.actions == ()
    assert decided.skips[0].reason == f"over budget: {said}"


def test_a_budget_takes_the_partitions_that_fit():
    parts = [part(day) for day in range(10)]
    decided = decide(ragged(*parts), budget=Budget(bytes=350 * MB))
    assert len(decided.actions[0].partitions) == 3
    assert decided.actions[0].gain.files == 3 * 99
    assert decided.skips[0].reason.startswith(
        "over budget: 7 of 10 partitions wait: it rewrites 1.0 GB, 350 MB are left"
    )
    assert decided.bytes <= 350 * MB


def test_a_budget_holds_over_all_tables_and_small_work_still_fits():
    tables = [Situation(ragged(part(), table=f"t.t{n}"), POLICY) for n in range(20)]
    tables.append(Situation(ragged(part(files=10, size=1000), table="t.tiny"), POLICY))
    decided = plan(tables, NOW, budget=Budget(seconds=10))
    assert decided.seconds <= 10
    assert "t.tiny" in {action.table for action in decided.actions}
    assert len(decided.actions) + len(decided.skips) == 21
    assert plan(tables, NOW, budget=Budget(seconds=0)).actions == ()


def test_a_rewrite_that_left_as_many_files_twice_is_stopped_and_said_so():
    decided = decide(ragged(part(1), part(2)), outcomes=[failed(), failed(hours=2)])
    assert [one.name for one in decided.actions[0].partitions] == ["day=2"]
    assert [(skip.kind, skip.reason) for skip in decided.skips] == [
        ("compact", "did not converge twice in day=1: each rewrite left as many files as it read")
    ]


@pytest.mark.parametrize(
    "outcomes",
    [
        [failed()],
        [failed(), failed(hours=2, after=1)],
        [failed(after=1), failed(hours=2), failed(hours=3)],
        [failed(scope="day=7"), failed(scope="day=7")],
        [failed(policy=MaintenancePolicy(target_file_mb=64))] * 2,
        [failed(files=50, after=50), failed(files=50, after=50, hours=2)],
    ],
    ids=["only once", "worked before", "worked since", "elsewhere", "by another recipe", "many more files since"],
)
def test_a_rewrite_is_tried_again_when(outcomes: list[Outcome]):
    assert decide(ragged(part(1)), outcomes=outcomes).actions


def test_a_whole_table_that_does_not_converge_is_stopped():
    decided = decide(ragged(part(1), part(2)), outcomes=[failed(scope="", files=200, after=200)] * 2)
    assert decided.actions == ()
    assert len(decided.skips) == 2


def test_costs_start_as_a_guess_and_are_learned():
    per_byte, per_file, start = 1 / 80e6, 0.004, 0.5
    done = [
        Outcome("t", "compact", NOW, start + size * MB * per_byte + files * per_file, files, size * MB)
        for files, size in ((10, 100), (2000, 150), (500, 1000), (100, 3000), (4000, 400), (50, 900))
    ]
    guessed, learned = learn([]), learn(done, start)
    assert guessed.rates == GUESSES
    truth = start + 800 * MB * per_byte + 1000 * per_file
    assert learned.seconds("compact", 1000, 800 * MB) == pytest.approx(truth, rel=0.05)
    assert guessed.seconds("compact", 1000, 800 * MB) != pytest.approx(truth, rel=0.5)
    assert learned.rates["expire"] == GUESSES["expire"]


@pytest.mark.parametrize("files", [0, 10, 1000])
def test_learned_costs_are_never_negative(files: int):
    odd = [Outcome("t", "compact", NOW, 0.6 + number, files, (9 - number) * MB) for number in range(9)]
    rate = learn(odd).rates["compact"]
    assert rate.per_byte > 0
    assert rate.per_file > 0


def test_where_bytes_seem_to_cost_less_than_nothing_files_alone_explain_the_time():
    seen = ((100, 400, 0.5), (200, 200, 2.0), (400, 100, 5.0))
    done = [Outcome("t", "compact", NOW, 0.5 + seconds, files, size * MB) for files, size, seconds in seen]
    assert learn(done * 50, 0.5).rates["compact"].per_file == pytest.approx(0.0067, rel=0.1)


def test_learned_costs_change_what_fits_the_budget():
    slow = learn([Outcome("t", "compact", NOW, 100, 100, 100 * MB)] * 5)
    budget = Budget(seconds=60)
    assert decide(ragged(part()), budget=budget).actions
    assert not decide(ragged(part()), budget=budget, costs=slow).actions


def test_a_plan_is_a_function_of_what_it_is_given():
    tables = [Situation(ragged(part(), table=f"t.t{n % 7}"), POLICY) for n in range(7)]
    assert plan(tables, NOW, Costs()) == plan(reversed(tables), NOW, Costs())
