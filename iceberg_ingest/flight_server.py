"""The Arrow Flight face of the service. Every call is authenticated before its body is read, then authorised.

``DoPut`` to ``FlightDescriptor.for_path(tenant, topic)``: each batch is answered by JSON ``{"seq", "durable_seq",
"duplicate"}`` as soon as it is safe. A batch may carry ``{"batch_id"}`` or ``{"producer", "producer_seq"}`` as JSON in
its application metadata. ``DoGet`` takes JSON ``{"topic", "snapshot" | "timestamp" | "from", "columns"}``; its last
message carries the position to go on from.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import flight

from iceberg_ingest.dedupe import Ids
from iceberg_ingest.flight_errors import guarded, guarded_stream
from iceberg_ingest.logs import log
from iceberg_ingest.service import IngestService
from iceberg_ingest.settings import FlightSettings
from iceberg_ingest.tokens import ANYBODY, Caller, TopicName, authenticate, authorize
from iceberg_manager.errors import InputError

MAX_REQUEST_BYTES = 64 << 10
FLUSH_SECONDS = 60.0
ACTIONS = {
    "health": "is the service up",
    "limits": "what a batch may hold",
    "stats": "figures of a topic",
    "flush": "commit what waits of a topic, and say when it is done: {topic, timeout}",
    "create_topic": "make a topic's table: {topic, schema: Arrow schema in base64}",
    "drop_topic": "remove a topic's table: {topic, confirm: true}; without confirm, only say what would go",
}


class _Authentication(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Ends a call without a good token before anything else of it is looked at."""

    def __init__(self, settings: FlightSettings, service: IngestService) -> None:
        self._settings, self._service = settings, service

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> "_Known":
        if self._settings.insecure:
            return _Known(ANYBODY)
        given = next(iter(headers.get("authorization", [])), None)
        caller = authenticate(self._settings.tokens, given)
        if caller is None:
            self._service.metrics.count("refused_total", reason="unauthenticated")
            raise flight.FlightUnauthenticatedError("A valid token is needed: authorization: Bearer <token>.")
        return _Known(caller)


class _Known(flight.ServerMiddleware):  # type: ignore[misc]
    def __init__(self, caller: Caller) -> None:
        self.caller = caller


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves one :class:`IngestService`; made by :func:`listen`."""

    def __init__(self, service: IngestService, settings: FlightSettings, **options: Any) -> None:
        scheme = "grpc+tls" if settings.tls_certificate else "grpc"
        super().__init__(
            f"{scheme}://{settings.host}:{settings.port}",
            middleware={"who": _Authentication(settings, service)},
            **options,
        )
        self._service, self._settings = service, settings

    @guarded
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        service = self._service
        caller = _caller(context)
        name = authorize(caller, "put", _path(descriptor))
        with service.admission.call():
            intake = service.intake(caller, name, reader.schema)
            rows = size = 0
            began, last = time.monotonic(), 0
            for batch, metadata in _batches(reader):
                ack = intake.put(batch, _ids(metadata))
                rows, size, last = rows + batch.num_rows, size + batch.nbytes, ack.seq
                writer.write(_ack(*ack))
        log("put", tenant=name.tenant, topic=name.topic, rows=rows, bytes=size, seq=last, peer=context.peer(),
            seconds=round(time.monotonic() - began, 3))  # fmt: skip

    @guarded
    def do_get(self, context: Any, ticket: Any) -> Any:
        service = self._service
        request = _request(ticket.ticket, "topic")
        name = authorize(_caller(context), "get", [request["topic"]])
        with service.admission.call():
            table = service.tables.load(name)
            schema, batches, snapshot = service.tables.rows(table, request)
        position = json.dumps({"table_uuid": str(table.metadata.table_uuid), "snapshot": snapshot}).encode()
        return flight.GeneratorStream(schema, guarded_stream(_with_position(schema, batches, position)))

    @guarded
    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        return self._info(authorize(_caller(context), "get", _path(descriptor)))

    @guarded
    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        return flight.SchemaResult(self._info(authorize(_caller(context), "get", _path(descriptor))).schema)

    @guarded
    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        caller = _caller(context)
        names = [name for name in self._service.tables.names(caller.tenant) if _may_get(caller, name)]
        return guarded_stream(self._info(name) for name in names)

    @guarded
    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        _caller(context)
        return list(ACTIONS.items())

    @guarded
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        _caller(context)
        raise InputError("DoExchange is not offered: use DoPut and DoGet.")

    @guarded
    def do_action(self, context: Any, action: Any) -> list[bytes]:
        if action.type not in ACTIONS:
            raise InputError(f"There is no such action; there are {', '.join(ACTIONS)}.")
        body = bytes(action.body) if action.body is not None else b""
        answer = getattr(self, f"_{action.type}")(_caller(context), body)
        return [json.dumps(answer).encode()]

    def _health(self, _: Caller, __: bytes) -> dict[str, Any]:
        wal = self._service.wal
        good = wal.failure is None and not self._service.ending
        return {"ok": good, "seq": wal.written.seq, "durable_seq": wal.durable_seq}

    def _limits(self, _: Caller, __: bytes) -> dict[str, Any]:
        return self._settings.limits.model_dump(include={"max_batch_bytes", "max_batch_rows", "max_columns"})

    def _stats(self, caller: Caller, body: bytes) -> dict[str, Any]:
        name = authorize(caller, "get", [_request(body, "topic")["topic"]])
        waiting = self._service.backlog.by_topic().get((name.tenant, name.topic), 0)
        return {**self._service.tables.stats(name), "backlog_bytes": waiting}

    def _flush(self, caller: Caller, body: bytes) -> dict[str, Any]:
        request = _request(body, "topic")
        name = authorize(caller, "put", [request["topic"]])
        seconds = request.get("timeout", FLUSH_SECONDS)
        if not isinstance(seconds, int | float) or not 0 <= seconds <= FLUSH_SECONDS:
            raise InputError(f"timeout is a number of seconds up to {FLUSH_SECONDS:.0f}.")
        return {"committed": self._service.flush((name.tenant, name.topic), seconds)}

    def _create_topic(self, caller: Caller, body: bytes) -> dict[str, Any]:
        import base64

        request = _request(body, "topic", "schema")
        name = authorize(caller, "manage", [request["topic"]])
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(request["schema"], validate=True)))
        self._service.intake(caller, name, schema)
        return {"created": self._service.tables.create(name, schema)}

    def _drop_topic(self, caller: Caller, body: bytes) -> dict[str, Any]:
        request = _request(body, "topic")
        name = authorize(caller, "manage", [request["topic"]])
        stats = self._service.tables.stats(name)
        if request.get("confirm") is not True:
            return {"dropped": False, **stats}
        if self._service.backlog.by_topic().get((name.tenant, name.topic)):
            raise InputError(f"{name} has rows that are not committed yet; nothing was dropped. Flush first.")
        self._service.tables.drop(name)
        self._service.schemas.forget(name)
        return {"dropped": True, **stats}

    def _info(self, name: TopicName) -> flight.FlightInfo:
        from iceberg_manager.arrow_files import arrow_schema

        table, stats = self._service.tables.load(name), self._service.tables.stats(name)
        request: dict[str, Any] = {"topic": str(name)}
        if stats["snapshot"] is not None:
            request["snapshot"] = stats["snapshot"]
        endpoint = flight.FlightEndpoint(json.dumps(request).encode(), [])
        descriptor = flight.FlightDescriptor.for_path(name.tenant, name.topic)
        return flight.FlightInfo(
            arrow_schema(table.schema()), descriptor, [endpoint], stats["rows"], stats["bytes"]
        )  # fmt: skip


def listen(service: IngestService) -> FlightServer:
    """Start to listen; ``port`` says where."""
    settings = service.settings.ingest.flight
    if not (settings.insecure or settings.tokens):
        raise InputError("The service needs tokens (`iceberg-ingest token`), or --insecure on the loopback address.")
    options: dict[str, Any] = {}
    if settings.tls_certificate and settings.tls_key:
        options["tls_certificates"] = [(settings.tls_certificate.read_bytes(), settings.tls_key.read_bytes())]
    if settings.tls_client_ca:
        options |= {"verify_client": True, "root_certificates": settings.tls_client_ca.read_bytes()}
    return FlightServer(service, settings, **options)


def _caller(context: Any) -> Caller:
    caller: Caller = context.get_middleware("who").caller
    return caller


def _may_get(caller: Caller, name: TopicName) -> bool:
    try:
        authorize(caller, "get", [name.tenant, name.topic])
    except InputError:
        return False
    return True


def _path(descriptor: Any) -> list[str]:
    return [part.decode(errors="replace") if isinstance(part, bytes) else part for part in descriptor.path or []]


def _batches(reader: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
    while True:
        try:
            chunk = reader.read_chunk()
        except StopIteration:
            return
        if chunk.data is None:
            raise InputError("A message without rows; send record batches.")
        yield chunk.data, chunk.app_metadata


def _ids(metadata: Any) -> Ids:
    if metadata is None or not metadata.size:
        return Ids()
    given = _request(metadata)
    batch_id, producer, number = given.get("batch_id", ""), given.get("producer", ""), given.get("producer_seq", 0)
    texts = all(isinstance(text, str) and len(text) <= 200 for text in (batch_id, producer))
    if not texts or type(number) is not int or not 0 <= number < 1 << 63 or bool(producer) != (number > 0):
        raise InputError("A batch's ids are {batch_id} or {producer, producer_seq}: texts, and a number from 1 on.")
    return Ids(batch_id, producer, number)


def _request(data: Any, *needed: str) -> dict[str, Any]:
    """JSON from outside: an object, not too large, with the texts it needs. A bare text is a topic."""
    raw = bytes(data)
    if len(raw) > MAX_REQUEST_BYTES:
        raise InputError("The request is too long.")
    try:
        text = raw.decode()
        given = json.loads(text) if text[:1] == "{" else {"topic": text}
    except (ValueError, RecursionError) as error:
        raise InputError("The request is not JSON.") from error
    if missing := [key for key in needed if not isinstance(given.get(key), str)]:
        raise InputError(f"The request needs the text {missing[0]!r}.")
    return dict(given)


def _ack(seq: int, durable_seq: int, duplicate: bool) -> bytes:
    return b'{"seq": %d, "durable_seq": %d, "duplicate": %s}' % (seq, durable_seq, b"true" if duplicate else b"false")


def _with_position(schema: pa.Schema, batches: Iterator[pa.RecordBatch], position: bytes) -> Iterator[Any]:
    yield from batches
    yield pa.RecordBatch.from_pylist([], schema), position
