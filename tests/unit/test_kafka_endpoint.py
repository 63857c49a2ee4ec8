"""The Kafka endpoint over a socket: what each request is answered, limits, hostile clients."""

from __future__ import annotations

import asyncio
import gzip
import io
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import rich.console
from kafka.record import MemoryRecords
from tests.conftest import Eventually
from tests.support.kafka import (
    Bare,
    Served,
    administration_of,
    batch,
    batch_of,
    fetch_body,
    produce_body,
    record,
)

import tidecast.sync
from tidecast.cli import top
from tidecast.config.kafka import KafkaConfig, address_of
from tidecast.config.topology import topology_from
from tidecast.errors import ConfigError
from tidecast.events import KafkaClientRefused, KafkaGroupExpired
from tidecast.kafka import compression, connection, produce, server
from tidecast.kafka.codes import Code
from tidecast.kafka.groups import service
from tidecast.kafka.schemas import tables
from tidecast.kafka.server import KafkaEndpoint, make_kafka
from tidecast.kafka.serving import Budget
from tidecast.node.durable.placed import new_placed_producer

TOPICS: list[dict[str, Any]] = [
    *({"name": f"t{i}", "mode": "durable", "queues": 2, "fsync_interval_ms": 2} for i in range(20)),
    {"name": "unsynced", "mode": "durable", "fsync": "none"},
    {"name": "slow", "mode": "durable", "fsync_interval_ms": 60_000},
    {"name": "elsewhere", "mode": "durable", "owner": "another", "queues": 3},
    {"name": "live"},
]
_names = iter(range(20))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("node"), TOPICS)
    yield made
    made.close()


@pytest.fixture
def bare(served: Served) -> Iterator[Bare]:
    made = served.bare()
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_names)}"


def values(records: Any) -> list[bytes]:
    return [r.value for each in MemoryRecords(bytes(records)) for r in each]


def test_versions_are_those_of_the_table(bare: Bare) -> None:
    for version in range(4):
        answer = bare.ask(tables.API_VERSIONS, version, {"client_software_name": "bare"})
        assert answer["error_code"] == 0
        rows = {
            row["api_key"]: (row["min_version"], row["max_version"]) for row in answer["api_keys"]
        }
        assert rows == {key: (api.first, api.last) for key, api in tables.APIS.items()}


def test_newer_clients_are_told_the_versions(bare: Bare) -> None:
    body = struct.pack(">hhih", tables.API_VERSIONS, 4, 77, 4) + b"next" + b"\0\5soft\2\0"
    bare.socket.sendall(struct.pack(">i", len(body)) + body)
    correlation, answer = bare.answer(tables.API_VERSIONS, 0)
    assert (correlation, answer["error_code"]) == (77, Code.UNSUPPORTED_VERSION)
    assert len(answer["api_keys"]) == len(tables.APIS)
    assert bare.ask(tables.API_VERSIONS, 3, {})["error_code"] == 0  # the connection continues


def test_metadata(served: Served, bare: Bare) -> None:
    answer = bare.ask(tables.METADATA, 8, {"topics": None})
    assert [(b["host"], b["port"]) for b in answer["brokers"]] == [
        ("127.0.0.1", served.endpoint.port)
    ]
    me = answer["brokers"][0]["node_id"]
    assert answer["controller_id"] == me == served.link.node.id
    topics = {row["name"]: row for row in answer["topics"]}
    assert set(topics) == {each["name"] for each in TOPICS if each["name"] != "live"}
    assert [p["leader_id"] for p in topics["t0"]["partitions"]] == [me, me]
    assert [(p["error_code"], p["leader_id"]) for p in topics["elsewhere"]["partitions"]] == [
        (Code.LEADER_NOT_AVAILABLE, -1)
    ] * 3


def test_metadata_of_topics_that_are_not_here(bare: Bare) -> None:
    names = [{"name": "live"}, {"name": "missing"}, {"name": "no topic/name"}, {"name": "missing"}]
    answer = bare.ask(tables.METADATA, 4, {"topics": names, "allow_auto_topic_creation": True})
    assert [(row["name"], row["error_code"]) for row in answer["topics"]] == [
        ("live", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("missing", Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("no topic/name", Code.INVALID_TOPIC_EXCEPTION),
    ]


def test_coordinator_and_producers(served: Served, bare: Bare) -> None:
    answer = bare.ask(tables.FIND_COORDINATOR, 2, {"key": "group", "key_type": 0})
    assert (answer["error_code"], answer["port"]) == (0, served.endpoint.port)
    answer = bare.ask(tables.FIND_COORDINATOR, 2, {"key": "transaction", "key_type": 1})
    assert answer["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer = bare.ask(tables.INIT_PRODUCER_ID, 1, {"transactional_id": "t"})
    assert answer["error_code"] == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    first, second = (bare.ask(tables.INIT_PRODUCER_ID, 1, {}) for _ in range(2))
    assert first["producer_id"] != second["producer_id"] > 0 == first["producer_epoch"]


def test_what_is_produced_is_fetched(bare: Bare, topic: str) -> None:
    row = bare.produce(topic, 1, batch_of(b"a", b"b"))
    assert (row["error_code"], row["base_offset"]) == (0, 0)
    assert bare.produce(topic, 1, batch_of(b"c"), acks=1)["base_offset"] == 2
    found = bare.fetch(topic, 1, 0, max_wait_ms=10_000, min_bytes=140)
    assert found["error_code"] == 0
    assert values(found["records"]) == [b"a", b"b", b"c"]
    assert (found["high_watermark"], found["log_start_offset"]) == (3, 0)
    assert values(bare.fetch(topic, 1, 2)["records"]) == [b"c"]
    assert values(bare.fetch(topic, 0, 0)["records"]) == []


def test_an_acknowledged_batch_is_synced_and_only_that_is_shown(served: Served, bare: Bare) -> None:
    log = served.link.node.durable.topics["slow"].logs[0]
    assert bare.produce("slow", 0, batch_of(b"a"), acks=1)["error_code"] == 0
    assert log.next_token == 1
    assert log.durable_token == 0
    found = bare.fetch("slow", 0, 0)
    assert (found["error_code"], found["high_watermark"], bytes(found["records"])) == (0, 0, b"")
    row = bare.produce("slow", 0, batch_of(b"b"), timeout_ms=30)
    assert row["error_code"] == Code.REQUEST_TIMED_OUT


def test_requests_under_way_are_answered_in_order(bare: Bare, topic: str) -> None:
    asked = [
        bare.send(tables.PRODUCE, 7, produce_body(topic, 0, batch_of(b"%d" % i))) for i in range(50)
    ]
    answers = [bare.answer(tables.PRODUCE, 7) for _ in asked]
    assert [correlation for correlation, _ in answers] == asked
    offsets = [body["responses"][0]["partition_responses"][0]["base_offset"] for _, body in answers]
    assert offsets == list(range(50))


def test_without_acks_there_is_no_answer(bare: Bare, topic: str) -> None:
    bare.send(tables.PRODUCE, 7, produce_body(topic, 0, batch_of(b"a"), acks=0))
    found = bare.fetch(topic, 0, 0, max_wait_ms=10_000)
    assert values(found["records"]) == [b"a"]
    bare.send(tables.PRODUCE, 7, produce_body("missing", 0, batch_of(b"a"), acks=0))
    assert bare.raw_answer() == b""  # only so the client learns of it


def test_what_cannot_be_produced(bare: Bare, topic: str) -> None:
    sound = batch_of(b"a")
    cases: list[tuple[str, int, bytes | None, dict[str, Any], Code]] = [
        ("missing", 0, sound, {}, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("live", 0, sound, {}, Code.UNKNOWN_TOPIC_OR_PARTITION),
        ("elsewhere", 0, sound, {}, Code.NOT_LEADER_OR_FOLLOWER),
        (topic, 2, sound, {}, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, -1, sound, {}, Code.UNKNOWN_TOPIC_OR_PARTITION),
        (topic, 0, None, {}, Code.INVALID_RECORD),
        (topic, 0, b"", {}, Code.CORRUPT_MESSAGE),
        (topic, 0, batch_of(b"a", crc=5), {}, Code.CORRUPT_MESSAGE),
        (topic, 0, sound, {"acks": 2}, Code.INVALID_REQUIRED_ACKS),
        (topic, 0, sound, {"transactional_id": "t"}, Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        (topic, 0, batch_of(b"a", producer=5, epoch=0, sequence=0), {}, Code.UNKNOWN_PRODUCER_ID),
    ]
    for name, partition, records, body, code in cases:
        row = bare.produce(name, partition, records, **body)
        assert (row["error_code"], row["base_offset"]) == (code, -1), (name, partition)
    assert bare.produce(topic, 0, sound)["base_offset"] == 0


def test_idempotent_producers(bare: Bare, topic: str) -> None:
    producer = bare.ask(tables.INIT_PRODUCER_ID, 1, {})["producer_id"]

    def produce(sequence: int, *given: bytes, epoch: int = 0) -> tuple[int, int]:
        raw = batch_of(*given, producer=producer, epoch=epoch, sequence=sequence)
        row = bare.produce(topic, 0, raw)
        return row["error_code"], row["base_offset"]

    assert produce(0, b"a", b"b") == (0, 0)
    assert produce(2, b"c") == (0, 2)
    assert produce(0, b"a", b"b") == (0, 0)
    assert produce(4, b"e")[0] == Code.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(0, b"d", epoch=1) == (0, 3)
    assert produce(3, b"d")[0] == Code.INVALID_PRODUCER_EPOCH
    assert values(bare.fetch(topic, 0, 0)["records"]) == [b"a", b"b", b"c", b"d"]


def test_an_answer_that_was_lost_is_a_duplicate(served: Served, topic: str) -> None:
    producer = new_placed_producer(time.time(), 99)
    raw = batch_of(b"a", b"b", producer=producer, epoch=0, sequence=0)
    lost = served.bare()
    lost.send(tables.PRODUCE, 7, produce_body(topic, 0, raw))
    lost.socket.shutdown(socket.SHUT_WR)
    lost.close()
    again = served.bare()
    assert again.produce(topic, 0, raw)["base_offset"] == 0
    assert values(again.fetch(topic, 0, 0)["records"]) == [b"a", b"b"]
    again.close()


def test_offsets(bare: Bare, topic: str) -> None:
    for i in range(5):
        bare.produce(topic, 0, batch_of(b"x", b"y", time_ms=1_000_000 + 1000 * i))

    def at(timestamp: int, name: str = topic, partition: int = 0) -> tuple[int, int, int]:
        asked = [{"partition_index": partition, "timestamp": timestamp}]
        answer = bare.ask(tables.LIST_OFFSETS, 3, {"topics": [{"name": name, "partitions": asked}]})
        row = answer["topics"][0]["partitions"][0]
        return row["error_code"], row["offset"], row["timestamp"]

    assert at(-2) == (0, 0, -1)
    assert at(-1) == (0, 10, -1)
    assert at(0) == (0, 0, 1_000_000)
    assert at(1_001_500) == (0, 4, 1_002_000)
    assert at(1_004_000) == (0, 8, 1_004_000)
    assert at(1_004_001) == (0, -1, -1)
    assert at((1 << 63) - 1) == (0, -1, -1)
    assert at(-7)[0] == Code.INVALID_REQUEST
    assert at(-1, "missing")[0] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert at(-1, partition=9)[0] == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_what_cannot_be_fetched(bare: Bare, topic: str) -> None:
    assert bare.fetch(topic, 0, 1)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    assert bare.fetch(topic, 0, -1)["error_code"] == Code.OFFSET_OUT_OF_RANGE
    assert bare.fetch(topic, 7, 0)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert bare.fetch("missing", 0, 0)["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert bare.fetch("elsewhere", 0, 0)["error_code"] == Code.NOT_LEADER_OR_FOLLOWER
    assert bare.fetch(topic, 0, 0, epoch=5)["error_code"] == Code.UNKNOWN_LEADER_EPOCH
    assert bare.fetch(topic, 0, 0, epoch=0)["error_code"] == 0


def test_limits_of_a_fetch(bare: Bare, topic: str) -> None:
    for _ in range(4):
        bare.produce(topic, 0, batch_of(bytes(1000)))
        bare.produce(topic, 1, batch_of(bytes(1000)))
    assert len(values(bare.fetch(topic, 0, 0, bytes_max=1)["records"])) == 1
    assert len(values(bare.fetch(topic, 0, 0, bytes_max=2000)["records"])) == 2
    body = fetch_body(topic, 0, 0, max_bytes=1500)
    body["topics"][0]["partitions"].append(
        {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    )
    first, second = bare.ask(tables.FETCH, 4, body)["responses"][0]["partitions"]
    assert len(values(first["records"])) == 2
    assert bytes(second["records"]) == b""


@pytest.mark.parametrize("name", ["unsynced", ""])
def test_a_fetch_waits_for_records(served: Served, topic: str, name: str) -> None:
    reader, writer = served.bare(), served.bare()
    reader.send(tables.FETCH, 11, fetch_body(name or topic, 0, 0, max_wait_ms=20_000))
    assert writer.produce(name or topic, 0, batch_of(b"late"))["error_code"] == 0
    _, answer = reader.answer(tables.FETCH, 11)
    assert values(answer["responses"][0]["partitions"][0]["records"]) == [b"late"]
    reader.close()
    writer.close()


@pytest.mark.parametrize("name", ["unsynced", ""])
def test_a_fetch_hears_of_native_publishers(
    served: Served,
    bare: Bare,
    topic: str,
    name: str,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = name or topic
    end = bare.fetch(wanted, 0, 0)["high_watermark"]
    looks: list[float] = []
    once = served.endpoint.fetching._once

    async def counted(*given: Any) -> Any:
        looks.append(time.monotonic())
        return await once(*given)

    monkeypatch.setattr(served.endpoint.fetching, "_once", counted)
    bare.send(tables.FETCH, 11, fetch_body(wanted, 0, end, max_wait_ms=20_000))
    eventually(lambda: wanted in served.endpoint._watching, "a fetch that waits")
    link: Any = type(served.link)(served.link.node, "near", owns_node=False)
    with tidecast.sync.connect(link=link) as client, client.publisher(wanted) as publisher:
        eventually(lambda: len(looks) == 1, "its first look")
        publisher.publish_batch([b"native"] * 600, ack="durable").check()
    _, answer = bare.answer(tables.FETCH, 11)
    assert set(values(answer["responses"][0]["partitions"][0]["records"])) == {b"native"}
    assert len(looks) < 5  # it waits for the event, and does not look again and again


BAD_FRAMES = {
    "a negative length": b"\xff\xff\xff\xff",
    "a huge length": struct.pack(">i", KafkaConfig().request_bytes_max + 1),
    "too short": struct.pack(">i", 4) + bytes(4),
    "an unknown API": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "an old version": struct.pack(">ihhih", 10, tables.PRODUCE, 0, 1, -1),
    "no body": struct.pack(">ihhih", 10, tables.METADATA, 1, 1, -1),
    "too much body": struct.pack(">ihhih", 13, tables.API_VERSIONS, 0, 1, -1) + b"xyz",
}


@pytest.mark.parametrize("name", BAD_FRAMES)
def test_what_is_no_request_ends_the_connection(served: Served, name: str) -> None:
    before = served.endpoint.counters.of("bad_requests")
    bare = served.bare()
    bare.socket.sendall(BAD_FRAMES[name])
    assert bare.raw_answer() == b""
    assert served.endpoint.counters.of("bad_requests") == before + 1
    bare.close()


def test_a_client_that_goes_amid_a_wait_leaves_nothing(
    served: Served, topic: str, eventually: Eventually
) -> None:
    bare = served.bare()
    bare.send(tables.FETCH, 11, fetch_body(topic, 0, 0, max_wait_ms=60_000))
    eventually(lambda: topic in served.endpoint._watching, "the fetch to wait")
    bare.close()
    eventually(lambda: topic not in served.endpoint._watching, "the fetch to end")
    assert served.endpoint.counters.of("faults") == 0


def test_too_many_connections_are_refused(short_dir: Path) -> None:
    from tidecast.embedded import EmbeddedLink

    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": []}
    link = EmbeddedLink.open(topology_from(settings), data_dir=short_dir)
    endpoint = KafkaEndpoint(
        link.node, administration_of(link.node), KafkaConfig(listen=":0", connections_max=1)
    )
    endpoint.start()
    first, second = Bare(endpoint.port), Bare(endpoint.port)
    assert first.ask(tables.API_VERSIONS, 0, {})["error_code"] == 0
    assert second.raw_answer() == b""
    assert endpoint.counters.of("connections_refused") == 1
    with pytest.raises(ConfigError, match=f"{endpoint.port}.*--kafka"):
        KafkaEndpoint(
            link.node, administration_of(link.node), KafkaConfig(listen=f":{endpoint.port}")
        ).start()
    endpoint.stop()
    assert first.raw_answer() == b""
    endpoint.stop()
    link.close()


def test_answers_that_nobody_reads_hold_no_more_than_their_share(
    served: Served, topic: str, eventually: Eventually
) -> None:
    bare = served.bare()
    for _ in range(4):
        bare.produce(topic, 0, batch_of(bytes(1 << 20)))
    bare.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    for _ in range(connection.REQUESTS_MAX):
        bare.send(tables.FETCH, 11, fetch_body(topic, 0, 0, bytes_max=1 << 24))
    eventually(lambda: 0 < served.endpoint.answers.used <= 5 << 20, "an answer that waits")
    bare.close()
    eventually(lambda: served.endpoint.answers.used == 0, "its room to be free")


def test_budget() -> None:
    async def main() -> None:
        waits: list[int] = []
        budget = Budget(10, lambda: waits.append(budget.used))
        await budget.take(4)
        await budget.take(6)
        third = asyncio.ensure_future(budget.take(1))
        await asyncio.sleep(0)
        assert (budget.used, third.done(), waits) == (10, False, [10])
        budget.give(4)
        await third
        assert budget.used == 7
        budget.give(7)
        await budget.take(99)  # alone it may be more than all
        assert budget.used == 99
        long, gone, short = (asyncio.ensure_future(budget.take(n)) for n in (11, 5, 1))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        budget.give(98)
        await asyncio.sleep(0)
        assert not short.done()  # it came later than the long one
        budget.give(1)
        await long
        long = asyncio.ensure_future(budget.take(3))
        await asyncio.sleep(0)
        budget.give(11)  # both are granted, and the last is cancelled before it hears of it
        long.cancel()
        await short
        await asyncio.sleep(0)
        assert budget.used == 1

    asyncio.run(main())


@pytest.mark.parametrize("where", ["0.0.0.0:9092", "10.0.0.1:9092", "[::]:0"])
def test_it_listens_on_loopback_alone(served: Served, where: str) -> None:
    with pytest.raises(ConfigError, match=r"other hosts.*127\.0\.0\.1"):
        make_kafka(served.link.node, administration_of(served.link.node), KafkaConfig(listen=where))


def test_addresses() -> None:
    assert address_of(":9092") == ("127.0.0.1", 9092)
    assert address_of("[::1]:0") == ("::1", 0)
    for wrong in ("", "9092", "host:", "host:99999", "host:x"):
        with pytest.raises(ConfigError, match="HOST:PORT"):
            address_of(wrong)


def test_clients_in_many_threads(served: Served, topic: str) -> None:
    def work(n: int) -> None:
        bare = served.bare()
        for i in range(20):
            assert bare.produce(topic, n % 2, batch_of(b"%d %d" % (n, i)))["error_code"] == 0
        bare.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bare = served.bare()
    got = [value for q in (0, 1) for value in values(bare.fetch(topic, q, 0)["records"])]
    assert sorted(got) == sorted(b"%d %d" % (n, i) for n in range(6) for i in range(20))
    for n in range(6):
        mine = [value for value in got if value.startswith(b"%d " % n)]
        assert mine == [b"%d %d" % (n, i) for i in range(20)]
    bare.close()


def test_counters(served: Served, bare: Bare, topic: str) -> None:
    def rows() -> dict[str, dict[str, Any]]:
        found = served.link.node.stats()
        return {each["name"]: each for kind in ("kafka", "kafka_api") for each in found[kind]}

    bare.produce(topic, 0, batch_of(b"warm"))
    before = rows()
    assert bare.produce(topic, 0, batch_of(b"a", b"b"))["error_code"] == 0
    assert bare.produce(topic, 5, batch_of(b"a", b"b"))["error_code"] != 0
    after = rows()

    def grown(name: str, counter: str) -> int:
        return int(after[name].get(counter, 0) - before[name].get(counter, 0))

    assert grown("kafka", "records_in") == 2
    assert grown("kafka", "batches_refused") == 1
    assert (grown("Produce", "requests"), grown("Produce", "errors")) == (2, 1)
    assert grown("Produce", "bytes_in") == grown("kafka", "bytes_in") > 100
    assert grown("Produce", "bytes_out") == grown("kafka", "bytes_out") > 100
    assert after["kafka"]["open"] >= 1
    assert "SyncGroup" not in after  # a row only for what was asked


def test_top_shows_the_endpoint_and_its_requests(served: Served, bare: Bare, topic: str) -> None:
    bare.produce(topic, 0, batch_of(b"a"))
    rows = list(served.link.node.counters.rows())
    shown = top.view(top.snapshot(rows, 1.0), [], "host")
    (endpoint,) = shown["kafka"]
    assert (endpoint["listens"], endpoint["open"] >= 1) == (":0", True)
    assert endpoint["records_in"] >= 1
    assert {each["name"] for each in shown["kafka_api"]} >= {"Produce"}
    out = rich.console.Console(width=200, record=True, file=io.StringIO())
    out.print(top.render(shown))
    text = out.export_text()
    assert "Kafka clients" in text
    assert re.search(r"Produce\s+\d", text)


def test_what_the_endpoint_does_to_clients_is_reported(
    short_dir: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "WARN_S", 0.0)
    monkeypatch.setattr(service, "SWEEP_S", 0.0)
    served = Served(short_dir, TOPICS[:1], connections_per_host_max=1, idle_s=1)
    link: Any = type(served.link)(served.link.node, "near", owns_node=False)
    with tidecast.sync.connect(link=link) as client:
        told: list[Any] = []

        def reasons() -> list[str]:
            told.extend(client.events())
            return [each.reason for each in told if isinstance(each, KafkaClientRefused)]

        first, second = served.bare(), served.bare()
        assert second.raw_answer() == b""
        eventually(lambda: reasons() == ["connections"], "the second connection")
        assert "connections_per_host_max" in told[-1].detail
        first.socket.sendall(BAD_FRAMES["an unknown API"])
        assert first.raw_answer() == b""
        eventually(lambda: reasons()[1:] == ["protocol"], "the bytes")
        assert (told[-1].client, told[-1].detail) == ("kafka 127.0.0.1", "API 999 is not served")
        silent = served.bare()
        assert silent.raw_answer() == b""
        eventually(lambda: reasons()[2:] == ["silent"], "the silent one")
        assert served.endpoint.counters.of("connections_silent") == 1

        bare = served.bare()
        rows = [{"partition_index": i, "committed_offset": 0} for i in range(2)]
        topics = [{"name": "t0", "partitions": rows}]
        body = {"group_id": "old", "generation_id": -1, "topics": topics}
        bare.ask(tables.OFFSET_COMMIT, 7, body)
        monkeypatch.setattr(served.endpoint.groups, "_retention_s", -1.0)
        bare.ask(
            tables.JOIN_GROUP,
            5,
            {
                "group_id": "awake",
                "session_timeout_ms": 1000,
                "protocol_type": "consumer",
                "protocols": [{"name": "range"}],
            },
        )
        eventually(lambda: reasons() and "old" not in served.endpoint.groups.offsets.groups, "it")
        told.extend(client.events())
        (expired,) = [each for each in told if isinstance(each, KafkaGroupExpired)]
        assert (expired.group, expired.offsets) == ("old", 2)
        bare.close()
    served.close()


def test_long_batches_are_decompressed_in_a_thread(
    bare: Bare, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    before = compression.decompress

    def decompress(codec: int, data: memoryview, bytes_max: int) -> bytes:
        seen.append((threading.current_thread().name, bytes_max))
        return before(codec, data, bytes_max)

    monkeypatch.setattr(compression, "decompress", decompress)
    for n in (100, produce.AT_ONCE_BYTES_MAX):
        packed = gzip.compress(record(0, None, bytes(n)))
        row = bare.produce(topic, 0, batch(packed, 1, attributes=compression.GZIP))
        assert row["error_code"] == 0
    assert [name.partition("_")[0] for name, _ in seen] == [
        "tidecast-kafka",
        "tidecast-kafka",
        "kafka-decode",
    ]
    assert [most for _, most in seen] == [
        produce.AT_ONCE_BYTES_MAX,
        produce.AT_ONCE_BYTES_MAX,
        compression.BYTES_MAX,
    ]
    assert [len(v) for v in values(bare.fetch(topic, 0, 0)["records"])] == [100, 1 << 20]


def test_connections_of_one_host_are_limited(short_dir: Path) -> None:
    served = Served(short_dir, TOPICS[:1], connections_per_host_max=2)
    clients = [served.bare() for _ in range(3)]
    assert clients[0].ask(tables.API_VERSIONS, 0, {})["error_code"] == 0
    assert clients[1].ask(tables.API_VERSIONS, 0, {})["error_code"] == 0
    assert clients[2].raw_answer() == b""
    assert served.endpoint.counters.of("connections_refused") == 1
    for client in clients:
        client.close()
    served.close()


@pytest.mark.parametrize("sent", ["part of a length", "part of a request"])
def test_half_a_request_does_not_hold_a_connection(short_dir: Path, sent: str) -> None:
    served = Served(short_dir, TOPICS[:1], frame_s=1, idle_s=3600)
    bare = served.bare()
    bare.socket.sendall(b"\0\0" if sent == "part of a length" else b"\0\0\1\0abc")
    assert bare.raw_answer() == b""
    bare.close()
    served.close()


def test_longer_requests_than_the_setting_allows(short_dir: Path) -> None:
    served = Served(short_dir, TOPICS[:1], request_bytes_max=1 << 20)
    bare = served.bare()
    assert bare.produce("t0", 0, batch_of(bytes(1 << 19)))["error_code"] == 0
    bare.socket.sendall(struct.pack(">i", (1 << 20) + 1))
    assert bare.raw_answer() == b""
    assert served.endpoint.counters.of("bad_requests") == 1
    bare.close()
    served.close()
