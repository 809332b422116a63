"""From a checked batch to an acknowledgement: what the service does, without Flight.

A put: may the caller do this; is there room; is it a resend; into the log; wait until it is safe; answer. A crash
before the log keeps nothing; after it and before the answer leaves a batch that is kept and whose resend, with the
same ids, gets the answer. The ids of the retained log are read at start, before the first put.
"""

import os
import threading
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from iceberg_ingest.admission import Admission, Backlog, read_checkpoints
from iceberg_ingest.batches import BatchCoder
from iceberg_ingest.dedupe import Dedupe, Ids
from iceberg_ingest.flight_tables import TopicTables
from iceberg_ingest.metrics import Metrics
from iceberg_ingest.settings import wal_folder, wal_options
from iceberg_ingest.tokens import Caller, TopicName
from iceberg_ingest.topic_schemas import TopicSchemas
from iceberg_ingest.wal import Wal
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_reader import read_from
from iceberg_manager.errors import UnavailableError
from iceberg_manager.settings import LakeSettings

ANSWER_SECONDS = 60.0
LOOK_SECONDS = 0.5


class PutAck(NamedTuple):
    """The batch's place, how far the log is on disk, and whether the batch had been there before."""

    seq: int
    durable_seq: int
    duplicate: bool = False


class Intake:
    """One stream of batches of one schema for one topic."""

    def __init__(self, service: "IngestService", caller: Caller, name: TopicName, schema: pa.Schema) -> None:
        self._service, self._caller, self._name = service, caller, name
        self._coder = BatchCoder(schema, service.settings.ingest.flight.limits)
        service.schemas.admit(name, schema)

    def put(self, batch: pa.RecordBatch, ids: Ids) -> PutAck:
        """Keep one batch; when this returns it is as safe as the sync mode promises."""
        began = time.perf_counter()
        service, tenant = self._service, self._name.tenant
        service.refuse_when_ending()
        if pause := service.backlog.pause():
            time.sleep(pause)
        payload = self._coder.encode(batch)
        service.admission.rate(self._caller.token, batch.num_rows, len(payload))
        with service.admission.bytes_of(tenant, len(payload)):
            ack = self._keep(payload, ids)
        service.metrics.put(tenant, batch.num_rows, len(payload), time.perf_counter() - began)
        return ack

    def _keep(self, payload: bytes, ids: Ids) -> PutAck:
        service, (tenant, table) = self._service, (self._name.tenant, self._name.topic)
        crc = zlib.crc32(payload) if ids.given else 0
        if (seq := service.dedupe.claim(tenant, table, ids, crc)) is not None:
            service.metrics.count("duplicates_total", tenant=tenant)
            return PutAck(seq, service.wal.durable_seq, True)
        kept = None
        try:
            entry = Entry(tenant, table, payload, *ids, received_ms=int(time.time() * 1000))
            ack = service.wal.append(entry, ANSWER_SECONDS)
            kept = ack.seq
        finally:
            service.dedupe.settle(tenant, table, ids, kept, crc)
        service.backlog.add((tenant, table), kept, len(payload))
        return PutAck(kept, ack.durable_seq)


class IngestService:
    """The log with everything around it; use it as a context manager."""

    def __init__(self, settings: LakeSettings) -> None:
        self.settings = settings
        flight = settings.ingest.flight
        self.folder: Path = wal_folder(settings)
        self.metrics = Metrics()
        self.admission = Admission(flight.limits)
        self.backlog = Backlog(flight.limits)
        self.dedupe = Dedupe(flight.dedupe_window)
        self.tables = TopicTables(settings)
        self.schemas = TopicSchemas(self.tables.arrow_schema)
        self.ending = False
        self.wal = Wal(self.folder, wal_options(settings.ingest.wal))
        self._learn()
        self._expose()
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="checkpoints", daemon=True)
        self._watcher.start()

    def __enter__(self) -> "IngestService":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def intake(self, caller: Caller, name: TopicName, schema: pa.Schema) -> Intake:
        return Intake(self, caller, name, schema)

    def refuse_when_ending(self) -> None:
        if self.ending:
            raise UnavailableError("The service is ending; send this batch again when it is back.")

    def request_flush(self) -> None:
        """Ask the writer to commit what it holds, by a file that it watches."""
        control = self.folder / "control"
        control.mkdir(mode=0o700, exist_ok=True)
        temporary = control / f"flush.{os.getpid()}.{threading.get_ident()}.tmp"
        temporary.write_text(str(self.wal.durable_seq))
        temporary.replace(control / "flush")

    def flush(self, topic: tuple[str, str], timeout: float) -> bool:
        """Ask for a flush and wait until all that the topic had then is committed; False: not in time."""
        self.wal.sync()
        target = self.backlog.last(topic)
        self.request_flush()
        end = time.monotonic() + timeout
        while (behind := read_checkpoints(self.folder).get(topic, 0) < target) and time.monotonic() < end:
            time.sleep(0.02)
        return not behind

    def close(self) -> None:
        self.ending = True
        self._closed.set()
        self._watcher.join()
        self.wal.close()

    def _learn(self) -> None:
        """Ids and backlog from the retained log."""
        committed = read_checkpoints(self.folder)
        for record in read_from(self.folder):
            content = record.content
            if not isinstance(content, Entry):
                continue
            if content.batch_id or content.producer:
                self.dedupe.learn(content, record.seq, zlib.crc32(content.payload))
            if record.seq > committed.get((content.tenant, content.table), 0):
                self.backlog.add((content.tenant, content.table), record.seq, len(content.payload))

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            self.backlog.settle(read_checkpoints(self.folder))

    def _expose(self) -> None:
        gauge = self.metrics.gauge
        gauge("wal_seq", lambda: self.wal.written.seq)
        gauge("wal_durable_seq", lambda: self.wal.durable_seq)
        gauge("wal_syncs", lambda: self.wal.syncs)
        gauge("wal_groups", lambda: self.wal.groups)
        gauge("wal_failed", lambda: float(self.wal.failure is not None))
        gauge("calls", lambda: self.admission.calls)
        gauge("pending_bytes", lambda: self.admission.pending)
        gauge(
            "backlog_bytes",
            lambda: {(("tenant", t), ("topic", n)): float(v) for (t, n), v in self.backlog.by_topic().items()},
        )
