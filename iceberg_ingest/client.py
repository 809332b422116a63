"""A client of a few lines: ``with IngestClient("grpc://127.0.0.1:8815") as client: client.put("acme/orders", rows)``.

When ``put`` returns, the rows are as safe as the service promises. Large tables are split; each piece has a number of
this client's own, so that a resend after a lost answer is kept once. Trouble that may pass is tried again with a
growing, random pause over a new connection; anything else is raised. One client belongs to one thread.
"""

import json
import random
import time
import uuid
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import flight

from iceberg_manager.errors import DataError, InputError, UnavailableError, first_line

DEFAULT_BATCH_BYTES = 4 << 20
DEFAULT_BATCH_ROWS = 100_000
_RETRIED = (flight.FlightUnavailableError, flight.FlightTimedOutError, flight.FlightCancelledError)


class Ack(NamedTuple):
    """The place of the last piece, how far the log is on disk, and how many pieces had been there before."""

    seq: int
    durable_seq: int
    duplicates: int


class _Stream(NamedTuple):
    writer: Any
    answers: Any
    schema: pa.Schema


class IngestClient:
    """A connection that mends itself. ``producer`` names this sender; give one of your own only with ``first_number``."""

    def __init__(
        self, location: str, token: str | None = None, *, producer: str | None = None, first_number: int = 1,
        attempts: int = 8, tls_root_certs: bytes | None = None, cert_chain: bytes | None = None,
        private_key: bytes | None = None, batch_bytes: int = DEFAULT_BATCH_BYTES, batch_rows: int = DEFAULT_BATCH_ROWS,
    ) -> None:  # fmt: skip
        self.producer = producer or str(uuid.uuid4())
        self._number = first_number
        self._attempts = attempts
        self._location = location
        tls = {"tls_root_certs": tls_root_certs, "cert_chain": cert_chain, "private_key": private_key}
        self._tls = {key: value for key, value in tls.items() if value}
        headers = [(b"authorization", f"Bearer {token}".encode())] if token else []
        self._options = flight.FlightCallOptions(headers=headers)
        self._batch_bytes, self._batch_rows = batch_bytes, batch_rows
        self._client: flight.FlightClient | None = None
        self._streams: dict[str, _Stream] = {}

    def __enter__(self) -> "IngestClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def put(self, topic: str, rows: Any) -> Ack:
        """Send rows (a record batch, a table, or a list of dicts) and wait until all of them are safe."""
        seq = durable = duplicates = 0
        for batch in self._pieces(rows):
            answer = self._put(topic, batch, self._number)
            self._number += 1
            seq, durable = answer["seq"], answer["durable_seq"]
            duplicates += bool(answer["duplicate"])
        return Ack(seq, durable, duplicates)

    def action(self, name: str, **request: Any) -> dict[str, Any]:
        """One of the service's actions: health, limits, stats, flush, create_topic, drop_topic."""
        body = json.dumps(request).encode() if request else b""
        try:
            (result,) = self._connected().do_action((name, body), self._options)
        except flight.FlightError as error:
            raise _as_ours(error) from error
        answer: dict[str, Any] = json.loads(result.body.to_pybytes())
        return answer

    def close(self) -> None:
        """Let go of the connection. Every put was answered already."""
        for stream in self._streams.values():
            try:
                stream.writer.close()
            except (flight.FlightError, pa.ArrowException):
                continue  # a stream that broke has nothing left to say
        self._streams.clear()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _pieces(self, rows: Any) -> Iterator[pa.RecordBatch]:
        if isinstance(rows, list):
            rows = pa.Table.from_pylist(rows)
        batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.combine_chunks().to_batches()
        for batch in batches:
            size = max(1, min(self._batch_rows, batch.num_rows * self._batch_bytes // max(1, batch.nbytes)))
            for start in range(0, batch.num_rows, size):
                yield batch.slice(start, size)

    def _put(self, topic: str, batch: pa.RecordBatch, number: int) -> dict[str, Any]:
        for attempt in range(1, self._attempts + 1):
            try:
                return self._try(topic, batch, number)
            except (flight.FlightError, pa.ArrowException, OSError, EOFError) as error:
                self.close()
                if not _may_pass(error) or attempt == self._attempts:
                    raise _as_ours(error) from error
                time.sleep(random.uniform(0.5, 1) * min(5.0, 0.05 * 2**attempt))
        raise AssertionError("unreachable")

    def _try(self, topic: str, batch: pa.RecordBatch, number: int) -> dict[str, Any]:
        stream = self._stream(topic, batch.schema)
        ids = json.dumps({"producer": self.producer, "producer_seq": number}).encode()
        stream.writer.write_with_metadata(batch, ids)
        answer = stream.answers.read()
        if answer is None:
            stream.writer.close()  # raises what the service had to say
            raise flight.FlightUnavailableError("The service closed the stream.")
        found: dict[str, Any] = json.loads(answer.to_pybytes())
        return found

    def _stream(self, topic: str, schema: pa.Schema) -> _Stream:
        stream = self._streams.get(topic)
        if stream is not None and stream.schema == schema:
            return stream
        if stream is not None:
            stream.writer.close()
        descriptor = flight.FlightDescriptor.for_path(*topic.split("/"))
        writer, answers = self._connected().do_put(descriptor, schema, self._options)
        self._streams[topic] = _Stream(writer, answers, schema)
        return self._streams[topic]

    def _connected(self) -> flight.FlightClient:
        if self._client is None:
            self._client = flight.connect(self._location, **self._tls)
        return self._client


def _code(error: BaseException) -> str:
    try:
        return str(json.loads(getattr(error, "extra_info", b"") or b"{}").get("code", ""))
    except ValueError:
        return ""


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, flight.FlightError):
        return isinstance(error, _RETRIED)
    return not isinstance(error, pa.ArrowInvalid | pa.ArrowTypeError | pa.ArrowKeyError)


def _as_ours(error: BaseException) -> Exception:
    text = first_line(error).partition(". Detail: ")[0].removesuffix(".") + "."
    if _may_pass(error):
        return UnavailableError(f"{text} The last batch may or may not have been kept; sending it again is harmless.")
    return DataError(text) if _code(error) in ("invalid", "exists") else InputError(text)
