"""The Kafka endpoint: bytes of requests that all share, what is refused clearly, ends of epochs."""

from __future__ import annotations

import asyncio
import struct
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import Eventually
from tests.support.kafka import TIMEOUT_S, Bare, Served, batch_of, fetch_body, produce_body
from tests.unit.test_kafka_keys import KEY, SECRET

from tidecast.config.kafka import MIB
from tidecast.events import KafkaClientRefused, KafkaThrottled
from tidecast.kafka import connection, fetch, produce
from tidecast.kafka.answers.sending import Sending
from tidecast.kafka.codes import Code
from tidecast.kafka.schemas import tables
from tidecast.kafka.serving import Budget
from tidecast.kafka.wire import ITEMS_MAX
from tidecast.layout import segment as seg

TOPICS: list[dict[str, Any]] = [
    {"name": "mine", "mode": "durable", "queues": 2, "fsync_interval_ms": 2},
    {"name": "epochs", "mode": "durable", "fsync_interval_ms": 2},
]
ALL_BYTES = 17 * MIB
LONG = 10 * MIB


@pytest.fixture
def served(short_dir: Path) -> Iterator[Served]:
    made = Served(short_dir, TOPICS, all_requests_bytes_max=ALL_BYTES, request_bytes_max=ALL_BYTES)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    made.close()


@pytest.fixture
def told(served: Served, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(served.link.node, "notify_all", found.append)
    return found


def begin(bare: Bare, n: int) -> None:
    """The first bytes of a request of ``n`` bytes."""
    bare.socket.sendall(struct.pack(">i", n) + b"12345678")


def test_requests_of_all_connections_have_a_budget(
    served: Served, told: list[Any], eventually: Eventually
) -> None:
    slow, other, short = served.bare(), served.bare(), served.bare()
    requests = served.endpoint.requests
    begin(slow, LONG)
    eventually(lambda: requests.used == LONG, "the first request's bytes")
    body = produce_body("mine", 0, batch_of(bytes(LONG)))
    sending = ThreadPoolExecutor(1)
    number = sending.submit(other.send, tables.PRODUCE, 7, body)
    eventually(lambda: served.endpoint.counters.of("throttled") == 1, "the second to wait")
    assert requests.used == LONG
    eventually(lambda: KafkaThrottled("requests") in told, "the event")
    assert short.produce("mine", 1, batch_of(b"short"))["error_code"] == 0  # it takes no share
    slow.close()
    found, answer = other.answer(tables.PRODUCE, 7)
    assert found == number.result()
    sending.shutdown()
    assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0
    eventually(lambda: requests.used == 0, "all bytes to be given back")
    short.close()
    other.close()


def test_a_client_that_goes_while_it_waits_takes_nothing(
    served: Served, eventually: Eventually
) -> None:
    slow, gone, last = served.bare(), served.bare(), served.bare()
    requests = served.endpoint.requests
    begin(slow, LONG)
    eventually(lambda: requests.used == LONG, "the first request's bytes")
    begin(gone, LONG)
    eventually(lambda: served.endpoint.counters.of("throttled") == 1, "the second to wait")
    begin(last, LONG)
    eventually(lambda: served.endpoint.counters.of("throttled") == 2, "the third to wait")
    served.endpoint.stop()
    assert requests.used == 0
    for each in (slow, gone, last):
        assert each.raw_answer() == b""
        each.close()


def test_short_requests_under_way_have_their_share_too(
    served: Served, eventually: Eventually
) -> None:
    bare = served.bare()
    requests = served.endpoint.requests
    body = fetch_body("mine", 0, 0, max_wait_ms=60_000)
    for _ in range(2):
        bare.send(tables.FETCH, 11, body)
    eventually(lambda: requests.used > 0, "the second to take room")
    one = requests.used
    for _ in range(connection.REQUESTS_MAX - 2):
        bare.send(tables.FETCH, 11, body)
    eventually(lambda: requests.used == one * (connection.REQUESTS_MAX - 1), "their bytes")
    bare.close()
    eventually(lambda: requests.used == 0, "their bytes to be given back")


def test_who_reads_nothing_goes_when_others_wait(
    served: Served, told: list[Any], eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONTESTED_S", 0.3)
    served.endpoint.answers = Budget(LONG, lambda: served.endpoint.throttled("answers"))
    slow, other = served.bare(), served.bare()
    assert slow.produce("mine", 0, batch_of(bytes(LONG)))["error_code"] == 0
    slow.send(tables.FETCH, 11, fetch_body("mine", 0, 0, bytes_max=1))
    eventually(lambda: served.endpoint.answers.used > LONG, "an answer that nobody reads")
    found = other.fetch("mine", 0, 0, bytes_max=1)
    assert len(found["records"]) > LONG
    silent = next(each for each in told if isinstance(each, KafkaClientRefused))
    assert (silent.reason, "reads no answer" in silent.detail) == ("silent", True)
    assert served.endpoint.counters.of("connections_silent") == 1
    eventually(lambda: served.endpoint.answers.used == 0, "the room to be given back")
    slow.close()
    other.close()


def test_a_long_first_batch_waits_for_room_without_its_bytes(
    served: Served, eventually: Eventually
) -> None:
    bare, answers = served.bare(), served.endpoint.answers
    assert bare.produce("mine", 0, batch_of(bytes(LONG)))["error_code"] == 0
    answers.force(60 * MIB)
    bare.send(tables.FETCH, 11, fetch_body("mine", 0, 0, bytes_max=1, max_wait_ms=0))
    eventually(lambda: answers.contested, "an answer that waits")
    assert answers.used == 60 * MIB
    answers.give(60 * MIB)
    _, answer = bare.answer(tables.FETCH, 11)
    assert len(answer["responses"][0]["partitions"][0]["records"]) > LONG
    bare.close()


def test_a_long_answer_is_made_again_when_there_is_room(
    served: Served, eventually: Eventually
) -> None:
    bare, answers = served.bare(), served.endpoint.answers
    answers.force(64 * MIB)
    names = [{"name": f"t{i}"} for i in range(6000)]
    number = bare.send(tables.METADATA, 5, {"topics": names})
    eventually(lambda: answers.contested, "an answer that waits")
    assert answers.used == 64 * MIB
    answers.give(64 * MIB)
    found, answer = bare.answer(tables.METADATA, 5)
    assert (found, len(answer["topics"])) == (number, 6000)
    eventually(lambda: answers.used == 0 == served.endpoint.items.used, "nothing to be held")
    bare.close()


def test_requests_of_many_items_share(served: Served, eventually: Eventually) -> None:
    bare, other, items = served.bare(), served.bare(), served.endpoint.items
    rows = [{"index": 9, "records": None}] * 600
    many = produce_body("mine", 0, None) | {"topics": [{"name": "mine", "partitions": rows}]}
    items.force(2 * ITEMS_MAX)
    for _ in range(3):
        bare.send(tables.PRODUCE, 7, many)
    bare.send(tables.METADATA, 5, {"topics": [{"name": f"t{i}"} for i in range(600)]})
    eventually(lambda: items.contested, "a request that waits")
    assert other.produce("mine", 1, batch_of(b"short"))["error_code"] == 0
    items.give(2 * ITEMS_MAX)
    for _ in range(3):
        assert len(bare.answer(tables.PRODUCE, 7)[1]["responses"][0]["partition_responses"]) == 600
    assert len(bare.answer(tables.METADATA, 5)[1]["topics"]) == 600
    eventually(lambda: items.used == 0, "nothing to be held")
    bare.close()
    other.close()


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """Requests and answers to Produce that are in memory."""
    found: weakref.WeakSet[Any] = weakref.WeakSet()
    read_bytes, make_answer = asyncio.StreamReader.readexactly, produce._Answer.__init__

    class Frame(bytearray):
        __hash__ = object.__hash__  # type: ignore[assignment]

    async def read(reader: asyncio.StreamReader, n: int) -> Frame:
        frame = Frame(await read_bytes(reader, n))
        found.add(frame)
        return frame

    def make(answer: Any, call: Any) -> None:
        make_answer(answer, call)
        found.add(answer)

    monkeypatch.setattr(asyncio.StreamReader, "readexactly", read)
    monkeypatch.setattr(produce._Answer, "__init__", make)
    return found


@pytest.mark.parametrize("n", [1, 600])
def test_a_request_is_gone_while_its_answer_is_sent(
    served: Served,
    kept: weakref.WeakSet[Any],
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    n: int,
) -> None:
    bare, begun, read = served.bare(), threading.Event(), asyncio.Event()
    send = Sending.send

    async def slow(sending: Any, pieces: Any) -> None:
        begun.set()
        await read.wait()
        await send(sending, pieces)

    monkeypatch.setattr(Sending, "send", slow)
    rows = [{"index": 0, "records": batch_of(bytes(1000)) if n == 1 else None}] * n
    asked = produce_body("mine", 0, None) | {"topics": [{"name": "mine", "partitions": rows}]}
    bare.send(tables.PRODUCE, 7, asked)
    assert begun.wait(TIMEOUT_S)
    eventually(lambda: not len(kept), "nothing of it to be kept while its answer is sent")
    served.endpoint._server.call(read.set)
    assert len(bare.answer(tables.PRODUCE, 7)[1]["responses"][0]["partition_responses"]) == n
    bare.close()


def test_nothing_is_described_twice(served: Served) -> None:
    bare = served.bare()
    asked = {"resource_type": 2, "resource_name": "mine", "configuration_keys": None}
    body = {"resources": [asked, asked], "include_synonyms": False}
    rows = bare.ask(tables.DESCRIBE_CONFIGS, 1, body)["results"]
    assert [each["error_code"] for each in rows] == [Code.INVALID_REQUEST] * 2
    groups = bare.ask(tables.DESCRIBE_GROUPS, 0, {"groups": ["g", "g"]})["groups"]
    assert [each["group_id"] for each in groups] == ["g"]
    places = [
        {"name": "mine", "partition_indexes": [0, 0]},
        {"name": "mine", "partition_indexes": [1]},
    ]
    found = bare.ask(tables.OFFSET_FETCH, 5, {"group_id": "g", "topics": places})["topics"]
    assert [[row["partition_index"] for row in each["partitions"]] for each in found] == [[0, 1]]
    bare.close()


def test_before_the_login_a_client_has_one_request_under_way(
    short_dir: Path, eventually: Eventually
) -> None:
    served = Served(short_dir, TOPICS, keys=[KEY])
    bare = served.bare()
    numbers = [bare.send(tables.API_VERSIONS, 3, {}) for _ in range(50)]
    assert [bare.answer(tables.API_VERSIONS, 3)[0] for _ in numbers] == numbers
    assert served.endpoint.requests.used == 0
    assert bare.log_in(KEY.name, SECRET) == 0
    bare.close()
    served.close()


def test_scram_is_refused_and_reported(served: Served, told: list[Any]) -> None:
    bare = served.bare()
    before = served.endpoint.counters.of("logins_refused")
    answer = bare.ask(tables.SASL_HANDSHAKE, 1, {"mechanism": "SCRAM-SHA-512"})
    assert answer == {"error_code": Code.UNSUPPORTED_SASL_MECHANISM, "mechanisms": ["PLAIN"]}
    assert served.endpoint.counters.of("logins_refused") == before + 1
    answer = bare.ask(tables.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
    assert answer == {"error_code": Code.UNSUPPORTED_VERSION, "mechanisms": ["PLAIN"]}
    event = next(each for each in told if isinstance(each, KafkaClientRefused))
    assert event.reason == "mechanism"
    assert "SCRAM-SHA-512: allowed is PLAIN" in event.detail
    bare.close()


def test_transactions_are_refused_and_reported(served: Served, told: list[Any]) -> None:
    bare = served.bare()
    refused = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    answer = bare.ask(tables.FIND_COORDINATOR, 2, {"key": "t", "key_type": 1})
    assert answer["error_code"] == refused
    assert "enable.idempotence" in answer["error_message"]
    body = {"transactional_id": "t", "transaction_timeout_ms": 1}
    assert bare.ask(tables.INIT_PRODUCER_ID, 1, body)["error_code"] == refused
    row = bare.produce("mine", 0, batch_of(b"a"), transactional_id="t")
    assert row["error_code"] == refused
    assert next(x for x in told if isinstance(x, KafkaClientRefused)).reason == "transactions"
    bare.close()


def epoch_end(bare: Bare, partition: int, epoch: int, known: int = -1) -> tuple[int, int, int]:
    """(error, epoch, end) of topic ``epochs``."""
    asked = {"partition": partition, "leader_epoch": epoch, "current_leader_epoch": known}
    body = {"replica_id": -1, "topics": [{"topic": "epochs", "partitions": [asked]}]}
    found = bare.ask(tables.OFFSET_FOR_LEADER_EPOCH, 4, body)["topics"][0]["partitions"][0]
    assert found["partition"] == partition
    return found["error_code"], found["leader_epoch"], found["end_offset"]


def test_an_epoch_ends_at_the_high_watermark(served: Served) -> None:
    bare = served.bare()
    assert epoch_end(bare, 0, 0) == (0, 0, 0)
    assert bare.produce("epochs", 0, batch_of(b"a", b"b"))["error_code"] == 0
    assert epoch_end(bare, 0, 0, known=0) == (0, 0, 2)
    assert epoch_end(bare, 0, 1) == epoch_end(bare, 0, -1) == (0, -1, -1)
    assert epoch_end(bare, 0, 0, known=9) == (Code.UNKNOWN_LEADER_EPOCH, -1, -1)
    assert epoch_end(bare, 9, 0) == (Code.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert fetch._epoch_problem({"current_leader_epoch": 2}, 3) is Code.FENCED_LEADER_EPOCH
    bare.close()


class Owned:
    """A log whose batches have the given owners: (owner, records) each."""

    def __init__(self, first: int, batches: list[tuple[int, int]]) -> None:
        self.batches, self.earliest_token = [], first
        for owner, n in batches:
            self.batches.append((first, n, owner))
            first += n
        self.durable_token = first
        self.reads = 0

    def reader(self) -> Owned:
        return self

    def close(self) -> None:
        pass

    def block(self, _: Any, token: int, room: int) -> tuple[Any, int]:
        assert room == 0
        self.reads += 1
        (found,) = (each for each in self.batches if each[0] <= token < each[0] + each[1])
        raw: Any = np.zeros(seg.BATCH_HEADER_BYTES, dtype=np.uint8)
        for value, at, form in zip(
            found,
            (seg.BATCH_BASE_TOKEN_AT, seg.BATCH_COUNT_AT, seg.BATCH_OWNER_AT),
            ("<q", "<I", "<I"),
            strict=True,
        ):
            struct.pack_into(form, raw, at, value)
        return raw, raw.size


@given(
    st.integers(0, 1 << 40),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 500)), max_size=30),
    st.integers(0, 10),
)
def test_an_epoch_ends_where_a_later_owner_has_written(
    first: int, batches: list[tuple[int, int]], epoch: int
) -> None:
    log: Any = Owned(first, sorted(batches, key=lambda each: each[0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch, "read_batches", log.block)
        found = fetch._end_of_epoch(log, epoch)
    assert found == first + sum(n for owner, n in batches if owner <= epoch)
    assert log.reads <= 15
