"""Power loss and kills at any write or sync, on a simulated disk, against a list of what was sent and acknowledged."""

import errno
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iceberg_ingest.simulated_filesystem import Fault, SimulatedFilesystem, SyncedAfterFailureError
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_options import WalOptions
from iceberg_ingest.wal_reader import WalReader
from iceberg_ingest.wal_ticket import Ticket
from iceberg_ingest.wal_tool import dump, repair, verify
from iceberg_manager.errors import DamageError, LakeError, UnavailableError

FOLDER = Path("/wal")
SMALL = WalOptions(segment_bytes=4096, max_record_bytes=2048, min_free_bytes=0)
PERIODIC = WalOptions("periodic", 1e9, segment_bytes=4096, max_record_bytes=2048, min_free_bytes=0)

steps = st.lists(
    st.one_of(
        st.lists(st.integers(0, 900), min_size=1, max_size=4).map(lambda sizes: ("append", sizes)),
        st.just(("reopen", [])),
        st.just(("sync", [])),
        st.just(("collect", [])),
    ),
    min_size=1,
    max_size=12,
)


@dataclass
class Model:
    """What was sent in order, and of that what was acknowledged, with its sequence number."""

    sent: list[bytes] = field(default_factory=list)
    acked: dict[int, bytes] = field(default_factory=dict)
    collected: int = 0

    def payload(self, size: int) -> bytes:
        payload = f"{len(self.sent)}:".encode() + bytes([len(self.sent) % 251 + 1]) * size
        self.sent.append(payload)
        return payload

    def check(self, files: SimulatedFilesystem, prefix_only: bool = False) -> None:
        found = {record.seq: bytes(record.content.payload) for record in dump(FOLDER, files=files)}
        assert sorted(found) == list(range(min(found, default=1), min(found, default=1) + len(found)))
        assert all(payload in self.sent for payload in found.values()), "a row that nobody sent"
        assert len(set(found.values())) == len(found), "a row came back twice"
        order = [self.sent.index(found[seq]) for seq in sorted(found)]
        assert order == sorted(order), "the order changed"
        for seq, payload in self.acked.items():
            if seq > self.collected and not (prefix_only and seq > max(found, default=0)):
                assert found.get(seq) == payload, f"record {seq} was acknowledged"
        self.acked = {**self.acked, **found} if not prefix_only else found


def play(model: Model, files: SimulatedFilesystem, script: list[tuple[str, list[int]]], options: WalOptions) -> None:
    """Carry the script out until the disk fails; what is acknowledged on the way goes into the model."""
    wal = None
    try:
        wal = Wal(FOLDER, options, files=files)
        for what, sizes in script:
            if what == "append":
                batch = [model.payload(size) for size in sizes]
                tickets = wal.submit_all([Entry("t", "x", payload) for payload in batch])
                for ticket, payload in zip(tickets, batch, strict=True):
                    model.acked[ticket.wait(10).seq] = payload
            elif what == "reopen":
                wal.close()
                wal = Wal(FOLDER, options, files=files)
            elif what == "sync":
                wal.sync()
            else:
                model.collected = max(model.collected, wal.durable_seq)
                wal.collect(wal.durable_seq)
    except (UnavailableError, OSError):
        pass
    finally:
        if wal is not None:
            wal.close()


def go_on(model: Model, files: SimulatedFilesystem, options: WalOptions) -> None:
    """On a healthy disk everything is accepted again."""
    before = len(model.acked)
    play(model, files, [("append", [5]), ("reopen", []), ("append", [7])], options)
    assert len(model.acked) >= before
    assert {model.sent[-2], model.sent[-1]} <= set(model.acked.values())


@settings(max_examples=300, deadline=None)
@given(script=steps, second=steps, at=st.integers(1, 120), again=st.integers(1, 40), seed=st.integers(0, 2**32))
def test_whatever_was_acknowledged_survives_two_power_losses_at_any_point(script, second, at, again, seed) -> None:
    model, choice = Model(), random.Random(seed)
    files = SimulatedFilesystem([Fault("any", at, "power")])
    play(model, files, script, SMALL)
    files = files.after_power_loss(choice)
    files.faults = (Fault("any", again, "power"),)
    play(model, files, second, SMALL)
    files = files.after_power_loss(choice)
    go_on(model, files, SMALL)
    model.check(files)


@settings(max_examples=150, deadline=None)
@given(script=steps, at=st.integers(1, 120), sync=st.sampled_from([SMALL, PERIODIC]))
def test_a_killed_process_loses_nothing_acknowledged_in_any_mode(script, at, sync) -> None:
    model = Model()
    files = SimulatedFilesystem([Fault("any", at, "power")])
    play(model, files, script, sync)
    files = files.after_kill()
    go_on(model, files, sync)
    model.check(files)


@settings(max_examples=150, deadline=None)
@given(script=steps, at=st.integers(1, 120), seed=st.integers(0, 2**32))
def test_periodic_loses_only_a_tail_or_says_what_is_missing(script, at, seed) -> None:
    model = Model()
    files = SimulatedFilesystem([Fault("any", at, "power")])
    play(model, files, script, PERIODIC)
    files = files.after_power_loss(random.Random(seed))
    damage = verify(FOLDER, files=files).damage
    if damage is None or damage.torn:
        Wal(FOLDER, PERIODIC, files=files).close()
        model.check(files, prefix_only=True)
        return
    with pytest.raises(DamageError, match="power loss can do this"):
        Wal(FOLDER, PERIODIC, files=files)
    repair(FOLDER, salvage=True, files=files)
    Wal(FOLDER, PERIODIC, files=files).close()


@pytest.mark.parametrize("nth", range(1, 30))
@pytest.mark.parametrize("lasting", [False, True])
def test_after_a_failed_sync_nothing_is_acknowledged_and_the_file_is_not_synced_again(nth: int, lasting: bool) -> None:
    model, files = Model(), SimulatedFilesystem()
    with Wal(FOLDER, SMALL, files=files) as wal:
        files.faults = (Fault("sync", files.calls["sync"] + nth, lasting=lasting),)
        failed = False
        for size in [300] * 40:
            payload = model.payload(size)
            try:
                model.acked[wal.append(Entry("t", "x", payload), 10).seq] = payload
                assert not (failed and wal.failure), "acknowledged after a failure"
            except UnavailableError:
                failed = True
    assert failed
    files.faults = ()
    files = files.after_power_loss(random.Random(nth))
    Wal(FOLDER, SMALL, files=files).close()
    model.check(files)


def test_every_waiter_of_a_group_whose_sync_failed_is_told() -> None:
    files = SimulatedFilesystem()
    with Wal(FOLDER, SMALL, files=files) as wal:
        files.faults = (Fault("sync", files.calls["sync"] + 1),)
        tickets = wal.submit_all([Entry("t", "x", b"a"), Entry("t", "x", b"b"), Entry("t", "x", b"c")])
        for ticket in tickets:
            with pytest.raises(UnavailableError, match="a sync failed"):
                ticket.wait(10)
        with pytest.raises(UnavailableError, match="has failed"):
            wal.append(Entry("t", "x", b"d"))


@pytest.mark.parametrize("nth", range(1, 50))
@pytest.mark.parametrize("effect", [("error", errno.ENOSPC), ("error", errno.EIO), ("short", 0)])
def test_a_write_that_fails_is_undone_and_the_log_goes_on(nth: int, effect: tuple[str, int]) -> None:
    model, files = Model(), SimulatedFilesystem()
    refused = 0
    with Wal(FOLDER, SMALL, files=files) as wal:
        files.faults = (Fault("write", files.calls["write"] + nth, effect[0], effect[1]),)
        for size in [10, 700, 300] * 10:
            payload = model.payload(size)
            try:
                model.acked[wal.append(Entry("t", "x", payload), 10).seq] = payload
            except UnavailableError:
                refused += 1
                if wal.failure:
                    break
    assert refused <= 1
    assert effect[0] == "error" or not refused
    files.faults = ()
    Wal(FOLDER, SMALL, files=files).close()
    model.check(files)


def test_a_full_disk_refuses_and_service_resumes_when_there_is_room() -> None:
    files = SimulatedFilesystem(capacity=20_000)
    with Wal(FOLDER, SMALL, files=files) as wal:
        accepted = sum(was_accepted(wal.submit(Entry("t", "x", b"z" * 900))) for _ in range(100))
        assert 0 < accepted < 100
        files.capacity = 100_000
        assert wal.append(Entry("t", "x", b"again"), 10).seq == accepted + 1
        assert wal.failure is None


def was_accepted(ticket: Ticket) -> bool:
    try:
        return ticket.wait(10).seq > 0
    except UnavailableError:
        return False


@pytest.mark.parametrize("nth", range(1, 25))
def test_a_crash_at_any_step_of_the_recovery_is_recovered_from(nth: int) -> None:
    model, files = Model(), SimulatedFilesystem([Fault("any", 40, "power")])
    play(model, files, [("append", [300, 200]), ("append", [100])] * 8, SMALL)
    choice = random.Random(nth)
    files = files.after_power_loss(choice)
    files.faults = (Fault("any", nth, "power"),)
    play(model, files, [], SMALL)
    files = files.after_power_loss(choice)
    Wal(FOLDER, SMALL, files=files).close()
    model.check(files)


def test_a_completed_segment_is_on_disk_in_every_mode() -> None:
    files = SimulatedFilesystem()
    with Wal(FOLDER, PERIODIC, files=files) as wal:
        while files.calls["rename"] < 4:
            wal.append(Entry("t", "x", b"z" * 900), 10)
        complete = wal.durable_seq
        lost = [files.after_power_loss(random.Random(seed)) for seed in range(20)]
    assert complete > 0
    for survivor in lost:
        assert verify(FOLDER, files=survivor).last.seq >= complete


def test_a_reader_never_sees_what_is_not_on_disk_yet() -> None:
    files = SimulatedFilesystem()
    with Wal(FOLDER, PERIODIC, files=files) as wal:
        reader = WalReader(FOLDER, files=files)
        wal.append(Entry("t", "x", b"one"), 10)
        assert reader.read() == []
        wal.sync()
        wal.append(Entry("t", "x", b"two"), 10)
        assert [record.seq for record in reader.read()] == [1]


def test_the_simulated_disk_refuses_a_second_sync_after_a_failed_one() -> None:
    files = SimulatedFilesystem([Fault("sync", 1)])
    handle = files.open(FOLDER / "x", create=True)
    with pytest.raises(OSError, match="error"):
        files.sync(handle)
    with pytest.raises(SyncedAfterFailureError):
        files.sync(handle)


def test_an_error_in_the_committer_reaches_those_who_wait() -> None:
    files = SimulatedFilesystem()
    with Wal(FOLDER, SMALL, files=files) as wal:
        files.sync = lambda handle: 1 / 0  # type: ignore[assignment,method-assign,return-value]
        with pytest.raises(LakeError, match="the committer stopped"):
            wal.append(Entry("t", "x", b"a"), 10)
