"""What a durable append costs, as a ratio to the bare loop of write + fdatasync in the same folder, in one run.

``python -m benchmarks.wal [--folder DIR] [--seconds S] [--rounds N]``. Records of 3 kB, 1 and 8 threads, each sync
mode. Floor and log take turns, and the medians of the rounds are shown, since a shared disk drifts. Recovery of a
large log comes last.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_options import SyncMode, WalOptions

RECORD = os.urandom(3000)
Figures = tuple[float, float, float]


def percentiles(times: list[float], elapsed: float) -> Figures:
    """p50 and p99 in microseconds, and how many there were per second."""
    ordered = sorted(times)
    return ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6, len(ordered) / elapsed


def timed(act: Callable[[], object], seconds: float, threads: int = 1) -> Figures:
    times: list[list[float]] = [[] for _ in range(threads)]
    end = time.perf_counter() + seconds

    def work(mine: list[float]) -> None:
        while (start := time.perf_counter()) < end:
            act()
            mine.append(time.perf_counter() - start)

    workers = [threading.Thread(target=work, args=(mine,)) for mine in times]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return percentiles([moment for mine in times for moment in mine], time.perf_counter() - began)


def floor(folder: Path, seconds: float, sync: bool = True) -> Figures:
    """Append 3 kB to a file and, if told so, sync it: what any log has to do at least."""
    handle = os.open(folder / "floor", os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)

    def act() -> None:
        os.write(handle, RECORD)
        if sync:
            os.fdatasync(handle)

    try:
        return timed(act, seconds)
    finally:
        os.close(handle)
        (folder / "floor").unlink()


def log(folder: Path, seconds: float, mode: SyncMode, threads: int) -> tuple[Figures, float]:
    """The same through the log, and how many syncs there were for each record."""
    place = folder / f"{mode}-{threads}"
    with Wal(place, WalOptions(mode, allow_data_loss=True)) as wal:
        figures = timed(lambda: wal.append(Entry("acme", "orders", RECORD)), seconds, threads)
        syncs = wal.syncs / max(1, wal.written.seq)
    shutil.rmtree(place)
    return figures, syncs


def recovery(folder: Path, megabytes: int) -> float:
    """Seconds from the start of a process to a log of so many megabytes that takes appends."""
    place = folder / "large"
    with Wal(place, WalOptions("none", allow_data_loss=True)) as wal:
        tickets = [wal.submit(Entry("acme", "orders", RECORD)) for _ in range(megabytes * 1_000_000 // len(RECORD))]
        tickets[-1].wait()
    began = time.perf_counter()
    Wal(place).close()
    taken = time.perf_counter() - began
    shutil.rmtree(place)
    return taken


def middle(rounds: list[Figures]) -> Figures:
    p50, p99, rate = (statistics.median(column) for column in zip(*rounds, strict=True))
    return p50, p99, rate


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=256)
    args = parser.parse_args(arguments or [])
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        compare(Path(name), args.seconds, args.rounds)
        taken = recovery(Path(name), args.megabytes)
    print(f"\nrecovery of {args.megabytes} MB: {taken:.2f} s")


def compare(folder: Path, seconds: float, rounds: int) -> None:
    modes: list[SyncMode] = ["always", "periodic", "none"]
    cases = [(mode, threads) for mode in modes for threads in (1, 8)]
    floors: dict[bool, list[Figures]] = {True: [], False: []}
    found: dict[tuple[SyncMode, int], list[Figures]] = {case: [] for case in cases}
    shared: dict[tuple[SyncMode, int], float] = {}
    for _ in range(rounds):
        for case in cases:
            floors[case[0] == "always"].append(floor(folder, seconds / 2, case[0] == "always"))
            figures, shared[case] = log(folder, seconds, *case)
            found[case].append(figures)
    print("| mode | threads | p50 µs | p99 µs | records/s | p50 ÷ floor | p99 ÷ floor | rate ÷ floor | syncs/record |")
    print("|---|---|---|---|---|---|---|---|---|")
    for sync, name in ((True, "write + fdatasync"), (False, "write")):
        p50, p99, rate = middle(floors[sync])
        print(f"| {name} | 1 | {p50:.0f} | {p99:.0f} | {rate:,.0f} | 1 | 1 | 1 | {int(sync)} |")
    for case in cases:
        show(case, middle(found[case]), middle(floors[True]), shared[case])


def show(case: tuple[SyncMode, int], ours: Figures, bare: Figures, syncs: float) -> None:
    """Against the durable floor in every mode: how much of a sync's price a mode saves is what one asks."""
    ratios = " | ".join(f"{mine / theirs:.2f}" for mine, theirs in zip(ours, bare, strict=True))
    print(f"| {case[0]} | {case[1]} | {ours[0]:.0f} | {ours[1]:.0f} | {ours[2]:,.0f} | {ratios} | {syncs:.2f} |")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
