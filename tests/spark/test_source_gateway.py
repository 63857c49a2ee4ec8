"""The source over a gateway: rights, credit, connections that break. No JVM, no engine.

That it reads what a read of the files gives: `test_source.py`, which runs both ways.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import datasource as sql
from tests.conftest import Eventually
from tests.support.log_gateways import TOKEN, key, open_log_gateway
from tests.support.ports import free_port
from tests.support.spark_logs import Record, append, records

from tidecast.client.remote import log_frames
from tidecast.client.remote.frames import BadFrame, encode
from tidecast.client.remote.log import LogClient
from tidecast.errors import AuthError, ConfigError, ConnectionLost, EngineNotRunning, NotFound
from tidecast.gateway.server import Gateway
from tidecast.layout.counters import GatewayCounter
from tidecast_spark.source import TidecastDataSource

KEYS = {
    "reads-orders": key(("orders", "read_payloads")),
    "subscribes": key(("orders", "subscribe"), (">", "publish")),
}


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    append(tmp_path, "orders", 0, records(1000))
    append(tmp_path, "secret", 0, records(10))
    made = open_log_gateway(tmp_path, dict(KEYS))
    yield made
    made.stop()


def source(gateway: Gateway, **options: str) -> TidecastDataSource:
    return TidecastDataSource({"servers": gateway.url, "token": TOKEN, "topic": "orders"} | options)


def reader_of(one: TidecastDataSource) -> Any:
    return one.reader(one.schema())


def values(reader: Any, parts: Any = None) -> list[bytes]:
    found = reader.partitions() if parts is None else parts
    return [v for p in found for b in reader.read(p) for v in b.column(1).to_pylist()]


def everything(gateway: Gateway, topic: str = "orders", end: int = 1000) -> log_frames.Range:
    del gateway
    return log_frames.Range(topic=topic, queue=0, start=0, end=end)


def test_a_key_reads_what_its_scopes_allow_and_the_driver_says_so(gateway: Gateway) -> None:
    assert len(values(reader_of(source(gateway, token="reads-orders")))) == 1000
    for token, topic in (("subscribes", "orders"), ("reads-orders", "secret")):
        with pytest.raises(NotFound, match=r"option topic: .*may read \(right read_payloads\)"):
            reader_of(source(gateway, token=token, topic=topic))
    with pytest.raises(NotFound, match="option topicPattern: 's"):
        reader_of(
            TidecastDataSource(
                {"servers": gateway.url, "token": "reads-orders", "topicPattern": "s*"}
            )
        )
    with LogClient(gateway.url, "subscribes") as client:
        assert client.topics() == []
        for ask in (
            lambda: client.bounds("orders"),
            lambda: client.at_time("orders", 0, 0),
            lambda: list(client.read(everything(gateway), lambda *_: None)),
        ):
            with pytest.raises(AuthError, match="key job lacks the right read_payloads on orders"):
                ask()
    assert gateway.counts["denied"] == 3


def test_what_is_wrong_with_the_gateway_is_said_by_the_driver(gateway: Gateway) -> None:
    with pytest.raises(AuthError, match=r"option token: .*refuses the token"):
        reader_of(source(gateway, token="wrong"))
    with pytest.raises(ConfigError, match="either servers or dataDir"):
        reader_of(source(gateway, dataDir="/tmp"))
    with pytest.raises(ConfigError, match="option servers: 'db1': allowed"):
        reader_of(source(gateway, servers="db1"))
    with pytest.raises(ConfigError, match="option token: it is for a gateway"):
        reader_of(TidecastDataSource({"token": "x", "topic": "orders"}))
    free = f"tidecast://127.0.0.1:{free_port()}"
    with pytest.raises(EngineNotRunning, match=f"option servers: {free}: no gateway answers"):
        reader_of(source(gateway, servers=free))


def test_a_reader_that_travels_to_tasks_takes_no_connection_along(gateway: Gateway) -> None:
    one = source(gateway, startingOffsets="earliest")
    reader: Any = one.streamReader(one.schema())
    end = reader.reportLatestOffset()
    there = pickle.loads(pickle.dumps(reader))
    assert len(values(there, reader.partitions(reader.initialOffset(), end))) == 1000
    assert TOKEN not in repr(reader._settings)


def test_filters_spare_the_network(gateway: Gateway, tmp_path: Path) -> None:
    rare = [Record(b"x" * 500, b"rare" if i == 4321 else b"often") for i in range(8000)]
    append(tmp_path, "wide", 0, rare, segment_bytes=1 << 22)
    before = gateway.counts["bytes_out"]
    reader = reader_of(source(gateway, topic="wide", pushFilters="true"))
    assert reader.pushFilters([sql.EqualTo(("key",), b"rare")]) == []
    assert values(reader) == [b"x" * 500]
    assert 500 < gateway.counts["bytes_out"] - before < 50 * 600


def test_no_more_is_under_way_than_the_reader_takes(
    gateway: Gateway, tmp_path: Path, eventually: Eventually
) -> None:
    append(tmp_path, "large", 0, (Record(bytes(10_000)) for _ in range(1000)))
    asked = everything(gateway, "large")
    with LogClient(gateway.url, TOKEN) as client:
        blocks = client.read(asked, lambda *_: None)
        got = next(blocks).nbytes
        eventually(
            lambda: gateway.counts["bytes_out"] >= log_frames.CREDIT_BYTES, "all of the credit"
        )
        assert gateway.counts["bytes_out"] < log_frames.CREDIT_BYTES + log_frames.PIECE_BYTES_MAX
        got += sum(block.nbytes for block in blocks)
    assert got > 10_000_000


def test_a_message_longer_than_a_frame(gateway: Gateway, tmp_path: Path) -> None:
    some = [Record(b"a"), Record(bytes(range(256)) * 20_000), Record(b"b")]
    append(tmp_path, "long", 0, some, per_batch=1, segment_bytes=1 << 24)
    reader = reader_of(source(gateway, topic="long"))
    assert values(reader) == [one.value for one in some]


def test_a_read_goes_on_when_the_gateway_was_away(gateway: Gateway, tmp_path: Path) -> None:
    append(tmp_path, "large", 0, (Record(b"%05d" % i + bytes(5000)) for i in range(3000)))
    reader = reader_of(source(gateway, topic="large", minPartitions="1"))
    [part] = reader.partitions()
    found: list[bytes] = []
    again = None
    for table in reader.read(part):
        found += [v[:5] for v in table.column(1).to_pylist()]
        if again is None:
            gateway.stop()
            again = open_log_gateway(tmp_path, port=gateway.port)
    assert again is not None
    again.stop()
    assert found == [b"%05d" % i for i in range(3000)]


def test_a_gateway_that_stays_away_and_a_key_that_is_revoked_end_a_read(
    gateway: Gateway, tmp_path: Path, eventually: Eventually
) -> None:
    append(tmp_path, "orders", 1, (Record(bytes(10_000)) for _ in range(2000)))
    asked = log_frames.Range(topic="orders", queue=1, start=0, end=2000)
    keys = {"mine": KEYS["reads-orders"]}
    brief = open_log_gateway(tmp_path, keys)
    with LogClient(brief.url, "mine") as client:
        blocks = client.read(asked, lambda *_: None)
        next(blocks)
        keys.clear()
        eventually(lambda: brief.counts["keys_ended"] == 1, "the key to be noticed")
        with pytest.raises(AuthError, match="refuses the token"):
            for _ in blocks:
                pass
    brief.stop()
    with LogClient(gateway.url, TOKEN, retry_s=0.1) as client:
        blocks = client.read(asked, lambda *_: None)
        next(blocks)
        gateway.stop()
        with pytest.raises(ConnectionLost):
            list(blocks)


def test_paths_and_queues_that_are_none_are_refused(gateway: Gateway) -> None:
    with LogClient(gateway.url, TOKEN) as client:
        for topic in ("../orders", "", "orders/00000", "nope"):
            with pytest.raises(NotFound):
                client.bounds(topic)
        with pytest.raises(NotFound, match="orders/7: no such queue"):
            client.cuts("orders", 7, 0, 10, 2, 1)


def test_a_frame_that_breaks_the_protocol_ends_the_connection(gateway: Gateway) -> None:
    with LogClient(gateway.url, TOKEN) as client:
        client.topics()
        assert client._socket is not None
        client._socket.send(b"\x00\x00\x00\x00")
        with pytest.raises(ConnectionLost, match="no frame of a reader"):
            client._receive()
    assert gateway.counters[GatewayCounter.BAD_FRAMES] == 1


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_refused(data: bytes) -> None:
    whole = encode(log_frames.Topics(id=1))
    for raw in (data, whole[: len(data)], whole[:4] + data):
        for read in (log_frames.from_reader, log_frames.from_log):
            try:
                read(raw)
            except BadFrame:
                continue
