"""From the log into Iceberg: rows a second, commit time over many commits, reader cost by table size, recovery of a log.

``python -m benchmarks.ingest_pipeline [--seconds 60] [--commits 2000] [--recover-mib 1024]``; prints one JSON object.
"""

import argparse
import json
import resource
import statistics
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from iceberg_ingest.reader import TableReader, position_at
from iceberg_ingest.topic_tables import topic_name
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.writer import Writer
from iceberg_manager.catalog import load_table, open_catalog
from iceberg_manager.settings import LakeSettings

NAME = topic_name("bench", "events")


def payload(rows: int) -> bytes:
    batch = pa.RecordBatch.from_pydict({"n": list(range(rows)), "text": [f"row {n % 100}" for n in range(rows)]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def sustained(lake: LakeSettings, seconds: float) -> dict[str, float]:
    """One sender as fast as the log takes it, at most 1 GiB ahead of the writer; the clock stops when all is committed."""
    body, sent, most = payload(10_000), 0, 0
    with Wal(lake.wal_folder) as wal, Writer(lake) as writer:
        thread = threading.Thread(target=writer.run)
        thread.start()
        started = time.monotonic()
        while time.monotonic() < started + seconds:
            behind = wal.durable_seq - (writer._reader.position.seq)
            most = max(most, behind)
            if behind * len(body) > 1 << 30:
                time.sleep(0.01)
                continue
            wal.append(Entry(NAME.namespace[0], NAME.table, body))
            sent += 10_000
        writer.stop()
        thread.join()
        took = time.monotonic() - started
    held = int(load_table(open_catalog(lake), NAME).scan().count())
    assert held == sent, (held, sent)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"rows_per_second": sent / took, "seconds": took, "peak_rss_mib": peak, "most_records_behind": most}


def commits(lake: LakeSettings, count: int) -> dict[str, float]:
    took, body = [], payload(100)
    with Wal(lake.wal_folder) as wal, Writer(lake) as writer:
        writer.on_commit = lambda done: took.append(done.seconds)
        for _ in range(count):
            wal.append(Entry(NAME.namespace[0], NAME.table, body))
            writer.drain()
    few = max(1, min(100, count // 2))
    first, last = statistics.median(took[:few]), statistics.median(took[-few:])
    return {"first_p50_ms": first * 1000, "last_p50_ms": last * 1000, "ratio": last / first}


def reading(lake: LakeSettings) -> float:
    """Seconds to read one new snapshot."""
    catalog = open_catalog(lake)
    took = []
    for _ in range(5):
        table = load_table(catalog, NAME)
        before = position_at(table)
        table.append(pa.table({"n": [1], "text": ["x"]}))
        reader = TableReader(catalog, NAME, before)
        started = time.monotonic()
        assert sum(new.rows.num_rows for new in reader.read()) == 1
        took.append(time.monotonic() - started)
    return statistics.median(took)


def recovery(folder: Path, mib: int) -> float:
    body = payload(100_000)
    with Wal(folder) as wal:
        for _ in range(mib * 1024 * 1024 // len(body)):
            wal.append(Entry("bench", "events", body))
    started = time.monotonic()
    with Wal(folder) as wal:
        wal.append(Entry("bench", "events", payload(1)))
        return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--recover-mib", type=int, default=1024)
    given = parser.parse_args()
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as place:
        found["sustained"] = sustained(LakeSettings(root=Path(place) / "a"), given.seconds)
        small, large = LakeSettings(root=Path(place) / "b"), LakeSettings(root=Path(place) / "c")
        commits(small, max(2, given.commits // 10))
        found["commits"] = commits(large, given.commits)
        one, ten = reading(small), reading(large)
        found["reader"] = {"small_ms": one * 1000, "ten_times_ms": ten * 1000, "ratio": ten / one}
        found["recovery_seconds"] = recovery(Path(place) / "wal", given.recover_mib)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
