"""The Flight service: acks, resends, limits, tokens, tenants, errors without tracebacks; real server, real client."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import flight

from iceberg_ingest.admission import Backlog
from iceberg_ingest.batches import decode
from iceberg_ingest.client import IngestClient
from iceberg_ingest.flight_server import FlightServer, listen
from iceberg_ingest.metrics import MetricsServer
from iceberg_ingest.service import IngestService
from iceberg_ingest.settings import LimitSettings
from iceberg_ingest.tokens import topic_name
from iceberg_ingest.wal_format import Entry
from iceberg_ingest.wal_options import WalOptions
from iceberg_ingest.wal_reader import read_from
from iceberg_ingest.wal_retention import collect
from iceberg_manager.errors import DataError, InputError, UnavailableError
from iceberg_manager.settings import LakeSettings

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "name": ["a", "b", None]})
TENANTS = ("ant", "bee", "cat", "dog", "eel")


def lake(root: Path, **options: Any) -> LakeSettings:
    return LakeSettings.model_validate(
        {"root": root, "ingest": {"flight": {"port": 0, **({"insecure": True} | options)}}}
    )


@contextmanager
def running(settings: LakeSettings) -> Iterator[tuple[IngestService, FlightServer, str]]:
    with IngestService(settings) as service:
        server = listen(service)
        try:
            yield service, server, f"grpc://127.0.0.1:{server.port}"
        finally:
            server.shutdown()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[IngestService, str]]:
    with running(lake(tmp_path)) as (service, _, address):
        yield service, address


def entries(service: IngestService) -> list[Entry]:
    return [record.content for record in read_from(service.folder) if isinstance(record.content, Entry)]


def tokens(**more: Any) -> dict[str, Any]:
    known = [{"sha256": hashlib.sha256(name.encode()).hexdigest(), "tenant": name, **more} for name in TENANTS]
    return {"insecure": False, "tokens": known}


def test_a_plain_flight_client_gets_an_answer_for_each_batch(place: tuple[IngestService, str]) -> None:
    service, address = place
    with flight.connect(address) as client:
        writer, answers = client.do_put(flight.FlightDescriptor.for_path("acme", "orders"), ROWS.schema)
        for seq in (1, 2):
            writer.write_batch(ROWS)
            answer = json.loads(answers.read().to_pybytes())
            assert answer == {"seq": seq, "durable_seq": seq, "duplicate": False}
        writer.close()
    assert [decode(entry.payload).to_pylist() for entry in entries(service)] == [ROWS.to_pylist()] * 2


def test_a_large_table_is_split_and_arrives_whole(place: tuple[IngestService, str]) -> None:
    service, address = place
    table = pa.table({"n": range(10_000)})
    with IngestClient(address, batch_bytes=8192) as client:
        client.put("acme/orders", table)
    kept = [decode(entry.payload) for entry in entries(service)]
    assert len(kept) > 5
    assert pa.concat_tables(kept).column("n").to_pylist() == list(range(10_000))


def test_dictionaries_are_kept_with_their_values(place: tuple[IngestService, str]) -> None:
    service, address = place
    with IngestClient(address) as client:
        client.put("acme/orders", pa.table({"c": pa.array(["x", "y", "x"]).dictionary_encode()}))
    assert decode(entries(service)[0].payload).column("c").to_pylist() == ["x", "y", "x"]


def test_a_resend_is_kept_once_also_after_a_restart(tmp_path: Path) -> None:
    for again in (False, True):
        with running(lake(tmp_path)) as (service, _, address), IngestClient(address, producer="p") as client:
            ack = client.put("acme/orders", ROWS)
            assert (ack.seq, ack.duplicates, len(entries(service))) == (1, int(again), 1)


def test_the_same_id_for_other_rows_is_refused(place: tuple[IngestService, str]) -> None:
    _, address = place
    for rows in (ROWS, ROWS.slice(1)):
        with IngestClient(address, producer="p") as client:
            if rows is ROWS:
                client.put("acme/orders", rows)
            else:
                with pytest.raises(DataError, match="used before, for other rows"):
                    client.put("acme/orders", rows)


def test_a_number_that_left_the_window_is_refused_and_not_doubled(tmp_path: Path) -> None:
    with running(lake(tmp_path, dedupe_window=3)) as (_, _, address):
        with IngestClient(address, producer="p") as client:
            for _ in range(5):
                client.put("acme/orders", ROWS)
        with IngestClient(address, producer="p") as client, pytest.raises(InputError, match="older than"):
            client.put("acme/orders", ROWS)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pa.table({"id": ["text"]}), "is int64, not string"),
        (pa.table({"x": pa.nulls(3)}), "no table can hold"),
        (pa.table({"x": pa.array([1], pa.uint64())}), "no table can hold"),
        (pa.table({"x": [1], "X": [2]}), "name of its own"),
        (pa.table({f"c{i}": [1] for i in range(30)}), "30 columns"),
        (pa.table({"x": [[[[[1]]]]]}), "nested deeper"),
    ],
)
def test_rows_that_do_not_fit_are_refused_before_they_are_kept(tmp_path: Path, rows: pa.Table, said: str) -> None:
    limits = {"max_columns": 20, "max_nesting": 3}
    with running(lake(tmp_path, limits=limits)) as (service, _, address), IngestClient(address) as client:
        client.put("acme/orders", ROWS)
        with pytest.raises(DataError, match=said):
            client.put("acme/orders", rows)
        assert len(entries(service)) == 1


def corrupt() -> pa.RecordBatch:
    """Offsets that point far outside: touching the second value would crash a process."""
    offsets = pa.array([0, 1 << 30, 3], pa.int32()).buffers()[1]
    text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"abc"))
    return pa.RecordBatch.from_arrays([text], ["t"])


def compressed_bomb() -> tuple[pa.RecordBatch, flight.FlightCallOptions]:
    rows = pa.RecordBatch.from_arrays([pa.array(bytes(64 << 20) for _ in range(1))], ["b"])
    return rows, flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression="zstd"))


def many_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([0] * 2000, pa.int8())], ["n"])


@pytest.mark.parametrize("make", [corrupt, compressed_bomb, many_rows])
def test_hostile_batches_are_refused_and_the_service_goes_on(tmp_path: Path, make: Callable[[], Any]) -> None:
    made = make()
    rows, options = made if isinstance(made, tuple) else (made, None)
    with running(lake(tmp_path, limits={"max_batch_rows": 1000})) as (service, _, address):
        with flight.connect(address) as client:
            writer, answers = client.do_put(flight.FlightDescriptor.for_path("a", "b"), rows.schema, options)
            with pytest.raises(flight.FlightError) as caught:  # noqa: PT012 (the answer may come at any of the three)
                writer.write_batch(rows)
                answers.read()
                writer.close()
        assert "Traceback" not in str(caught.value)
        assert entries(service) == []
        with IngestClient(address) as client:
            client.put("acme/orders", ROWS)


CALLS: dict[str, Callable[[flight.FlightClient, Any], Any]] = {
    "handshake": lambda client, options: client.authenticate_basic_token("u", "p"),
    "list_flights": lambda client, options: list(client.list_flights(b"", options)),
    "get_flight_info": lambda client, options: client.get_flight_info(flight.FlightDescriptor.for_path("ant", "t"), options),
    "get_schema": lambda client, options: client.get_schema(flight.FlightDescriptor.for_path("ant", "t"), options),
    "do_get": lambda client, options: client.do_get(flight.Ticket(b"ant/t"), options).read_all(),
    "do_put": lambda client, options: put_once(client, "ant", "t", options),
    "do_exchange": lambda client, options: client.do_exchange(
        flight.FlightDescriptor.for_path("ant", "t"), options
    )[1].read_chunk(),
    "do_action": lambda client, options: list(client.do_action(("health", b""), options)),
    "list_actions": lambda client, options: client.list_actions(options),
}  # fmt: skip


def put_once(client: flight.FlightClient, tenant: str, topic: str, options: Any) -> None:
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(tenant, topic), ROWS.schema, options)
    try:
        writer.write_batch(ROWS)
        answers.read()
    finally:
        writer.close()


def bearer(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


@pytest.mark.parametrize("token", [None, "wrong"])
@pytest.mark.parametrize("call", CALLS)
def test_no_method_answers_without_a_good_token(tmp_path: Path, call: str, token: str | None) -> None:
    with running(lake(tmp_path, **tokens())) as (service, _, address), flight.connect(address) as client:
        options = bearer(token) if token else flight.FlightCallOptions()
        # pyarrow gives the refusal of GetSchema as an OSError; a handshake is not offered at all
        with pytest.raises((flight.FlightUnauthenticatedError, OSError, pa.ArrowNotImplementedError)) as caught:
            CALLS[call](client, options)
        assert "Unauthenticated" in str(caught.value) or call == "handshake"
        assert service.wal.written.seq == 0


def test_a_token_reaches_its_own_tenant_and_no_other(tmp_path: Path) -> None:
    actions = ["put", "get", "manage"]
    with running(lake(tmp_path, **tokens(actions=actions))) as (service, _, address), flight.connect(address) as client:
        for mine in TENANTS:
            for other in TENANTS:
                for call in (
                    lambda tenant, options: put_once(client, tenant, "t", options),
                    lambda tenant, options: client.do_get(flight.Ticket(f"{tenant}/t".encode()), options).read_all(),
                    lambda tenant, options: list(client.do_action(("drop_topic", f"{tenant}/t".encode()), options)),
                    lambda tenant, options: list(client.do_action(("stats", f"{tenant}/t".encode()), options)),
                    lambda tenant, options: list(client.do_action(("flush", f"{tenant}/t".encode()), options)),
                ):
                    if mine != other:
                        with pytest.raises(flight.FlightUnauthorizedError):
                            call(other, bearer(mine))
            put_once(client, mine, "t", bearer(mine))
        assert {entry.tenant for entry in entries(service)} == set(TENANTS)


def test_patterns_actions_and_expiry_of_a_token_hold(tmp_path: Path) -> None:
    limited = tokens(topics=["order*"], actions=["put"])
    with running(lake(tmp_path / "a", **limited)) as (_, _, address), IngestClient(address, "ant") as client:
        assert client.put("ant/orders", ROWS).seq == 1
        with pytest.raises(InputError, match="may not put ant/secrets"):
            client.put("ant/secrets", ROWS)
        with pytest.raises(InputError, match="may not get"):
            client.action("stats", topic="ant/orders")
    old = tokens(expires="2020-01-01T00:00:00Z")
    with (
        running(lake(tmp_path / "b", **old)) as (_, _, address),
        IngestClient(address, "ant") as client,
        pytest.raises(InputError, match="valid token"),
    ):
        client.put("ant/orders", ROWS)


@given(st.text(max_size=70), st.text(max_size=70))
def test_an_accepted_name_is_plain_whatever_is_sent(tenant: str, topic: str) -> None:
    try:
        name = topic_name([tenant, topic], None)
    except InputError:
        return
    assert str(name).isascii()
    assert all(part.isidentifier() and part == part.lower() and len(part) <= 63 for part in (name.tenant, name.topic))


BAD_PATHS: list[list[str]] = [
    ["a", "../b"],
    ["a", ""],
    ["a", "b\n"],
    ["A", "b"],
    ["a", "b", "c"],
    ["a"],
    ["a", "_b"],
    [],
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_names_that_could_lead_elsewhere_are_refused(path: list[str]) -> None:
    with pytest.raises(InputError, match="named tenant/topic"):
        topic_name(path, None)


def test_an_unexpected_error_reaches_the_client_without_a_traceback(
    place: tuple[IngestService, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, address = place

    def broken(*_: Any) -> None:
        raise RuntimeError("secret-detail")

    monkeypatch.setattr(service.dedupe, "claim", broken)
    with flight.connect(address) as client, pytest.raises(flight.FlightInternalError) as caught:
        put_once(client, "acme", "orders", flight.FlightCallOptions())
    assert "secret-detail" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_full_backlog_refuses_and_takes_again_when_the_writer_has_caught_up() -> None:
    limits = LimitSettings(slow_backlog_bytes=1 << 20, max_backlog_bytes=2 << 20)
    backlog = Backlog(limits)
    backlog.add(("a", "b"), 1, 1 << 20)
    assert backlog.pause() == 0
    backlog.add(("a", "b"), 2, 1 << 19)
    assert 0 < backlog.pause() < 0.5
    backlog.add(("a", "b"), 3, 1 << 20)
    with pytest.raises(UnavailableError, match="wait to be committed"):
        backlog.pause()
    backlog.settle({("a", "b"): 3})
    assert (backlog.pause(), backlog.bytes) == (0, 0)


def test_rows_come_back_by_get(tmp_path: Path) -> None:
    from iceberg_ingest.tokens import TopicName

    with running(lake(tmp_path)) as (service, _, address), flight.connect(address) as client:
        name = TopicName("acme", "orders")
        assert service.tables.create(name, ROWS.schema)
        table = service.tables.load(name)
        table.append(pa.Table.from_batches([ROWS]).cast(pa.schema(table.schema().as_arrow())))
        (info,) = client.list_flights()
        found = client.do_get(info.endpoints[0].ticket).read_all()
        assert found.num_rows == info.total_records == 3
        position = None
        for chunk in client.do_get(flight.Ticket(b"acme/orders")):
            position = chunk.app_metadata.to_pybytes() if chunk.app_metadata else position
        assert position is not None
        service.tables.load(name).append(pa.Table.from_batches([ROWS.slice(1)]))
        ticket = json.dumps({"topic": "acme/orders", "from": json.loads(position)}).encode()
        assert client.do_get(flight.Ticket(ticket)).read_all().num_rows == 2
        with IngestClient(address) as ours:
            assert ours.action("drop_topic", topic="acme/orders")["dropped"] is False
            assert ours.action("drop_topic", topic="acme/orders", confirm=True)["dropped"] is True
        assert list(client.list_flights()) == []


def test_metrics_are_prometheus_text_on_loopback(place: tuple[IngestService, str]) -> None:
    service, address = place
    with IngestClient(address) as client:
        client.put("acme/orders", ROWS)
    server = MetricsServer(service.metrics, 0)
    try:
        text = urlopen(f"http://127.0.0.1:{server.port}/metrics").read().decode()
    finally:
        server.close()
    assert 'iceberg_ingest_rows_total{tenant="acme"} 3' in text
    assert "iceberg_ingest_wal_durable_seq 1" in text


def test_committed_segments_go_and_others_stay(tmp_path: Path) -> None:
    settings = lake(tmp_path)
    for _ in range(3):
        with running(settings) as (service, _, address), IngestClient(address) as client:
            client.put("acme/orders", ROWS)
            client.put("acme/bills", ROWS)
    options = WalOptions(retention_seconds=0)
    later = 1 << 45
    assert collect(service.folder, {("acme", "orders"): 6}, options, now_ms=later) == []
    kept = {("acme", "orders"): 3, ("acme", "bills"): 4}
    assert len(collect(service.folder, kept, options, now_ms=later, dry_run=True)) == 2
    assert len(collect(service.folder, kept, options, now_ms=later)) == 2
    assert [record.seq for record in read_from(service.folder)] == [5, 6]
