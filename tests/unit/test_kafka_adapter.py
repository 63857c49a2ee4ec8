"""The adapter of Kafka topics against Kafka itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.support.kafka_brokers import Brokers
from tests.support.patience import wait_until

from tidecast.config.sources.kafka import KafkaSource, kafka_source
from tidecast.errors import ConfigError
from tidecast.kafka.brokers.adapter import KafkaAdapter
from tidecast.queues import conformance
from tidecast.queues.adapter import Adapter, Receiver, Record, unpack

_NAMES = itertools.count()


def fresh(name: str) -> str:
    return f"{name}-{next(_NAMES)}"


def source_of(kafka: Brokers, topic: str, **more: Any) -> KafkaSource:
    return kafka_source({"servers": kafka.address, "topic": topic, **more})


@pytest.fixture
def topic(real_kafka: Brokers) -> str:
    name = fresh("t")
    real_kafka.create(name, 2)
    return name


@pytest.fixture
def adapter(real_kafka: Brokers, topic: str) -> Iterator[KafkaAdapter]:
    made = KafkaAdapter(source_of(real_kafka, topic))
    yield made
    made.close()


def read_all(receiver: Receiver, token: int, room: int = 1 << 16) -> list[tuple[int, Record]]:
    """All records from a token to the end."""
    found: list[tuple[int, Record]] = []
    end = receiver.latest()
    buffer = np.zeros(room, dtype=np.uint8)
    while token < end:
        got = receiver.receive(token, buffer, 5.0)
        if got.need:
            buffer = np.zeros(got.need, dtype=np.uint8)
            continue
        assert got.next_token > token
        found += [one for one in unpack(buffer[: got.bytes]) if one[0] >= token]
        token = got.next_token
    return found


def markers_written(kafka: Brokers, topic: str, partition: int = 0) -> None:
    """Wait until all transactions that ended are: brokers write their markers behind the answer."""
    receiver = KafkaAdapter(source_of(kafka, topic)).receiver(partition)
    wait_until(lambda: receiver.latest() == kafka.end(topic, partition), 30.0, "markers")
    receiver.close()


class Subject:
    def __init__(self, kafka: Brokers, transactional: bool) -> None:
        self.kafka, self.topic, self.transactional = kafka, fresh("conform"), transactional
        kafka.create(self.topic, 2)
        self.time_ms = time.time_ns() // 1_000_000 + 600_000  # markers have the time of now

    def open(self) -> KafkaAdapter:
        return KafkaAdapter(source_of(self.kafka, self.topic))

    def fill(self, adapter: Adapter, queue: int, count: int) -> None:
        del adapter
        config = {"transactional_id": self.topic} if self.transactional else {}
        producer = self.kafka.producer(**config)
        if self.transactional:
            producer.init_transactions(30)
        for begin in range(0, count, 30):
            if self.transactional:
                producer.begin_transaction()
            for i in range(begin, min(begin + 30, count)):
                self.time_ms += 1
                producer.produce(
                    self.topic,
                    b"%d" % i + bytes(i % 90),
                    key=b"k%d" % (i % 5),
                    partition=queue,
                    timestamp=self.time_ms,
                )
            if self.transactional:
                producer.commit_transaction(30)
        assert producer.flush(30) == 0
        markers_written(self.kafka, self.topic, queue)


@pytest.mark.parametrize("transactional", [False, True])
@pytest.mark.parametrize("check", conformance.CHECKS)
def test_it_conforms(check: str, transactional: bool, real_kafka: Brokers) -> None:
    conformance.run(check, Subject(real_kafka, transactional))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_shape_come_as_they_are(codec: str, real_kafka: Brokers) -> None:
    topic = fresh("shapes")
    real_kafka.create(topic, max_message_bytes="5000000")
    adapter = KafkaAdapter(source_of(real_kafka, topic))
    producer = real_kafka.producer(compression_type=codec, message_max_bytes=4_000_000)
    given: list[Any] = [
        (None, b"plain", None),
        (b"", b"", None),
        (b"k", b"v" * 1000, {"a": b"1", "text": "ä"}),
        (b"gone", None, None),
        (b"big", bytes(range(256)) * 12_000, {"x": b""}),
        (b"twice", b"v", [("h", b"1"), ("h", b"2"), ("null", None)]),
    ]
    for key, value, headers in given * 20:
        if len(value or b"") < 10_000 or codec == "none":
            producer.produce(topic, value, key=key, headers=headers, partition=0, timestamp=5000)
    assert producer.flush(30) == 0
    found = read_all(adapter.receiver(0), 0, 1 << 12)
    kept = [one for one in given * 20 if len(one[1] or b"") < 10_000 or codec == "none"]
    assert [token for token, _ in found] == list(range(len(kept)))
    for (_, record), (key, value, headers) in zip(found, kept, strict=True):
        assert (record.key, record.payload, record.time_ns) == (key, value or b"", 5_000_000_000)
        if isinstance(headers, dict):
            as_bytes = {n: v.encode() if isinstance(v, str) else v for n, v in headers.items()}
            assert record.headers == as_bytes
        elif headers is not None:
            assert record.headers is not None
            assert set(record.headers) == {"kafka-headers"}
        elif value is None:
            assert record.headers == {"kafka-null": True}


def test_aborted_transactions_are_holes(
    real_kafka: Brokers, adapter: KafkaAdapter, topic: str
) -> None:
    producers = [real_kafka.producer(transactional_id=f"{topic}-{i}") for i in range(2)]
    for one in producers:
        one.init_transactions(30)
    expected = []
    for i in range(12):
        for one in producers:
            one.begin_transaction()
        for k, one in enumerate(producers):
            for j in range(3):
                one.produce(topic, b"%d %d %d" % (i, k, j), partition=0)
            one.flush(30)
        real_kafka.fill(topic, [b"%d plain" % i])
        for k, one in enumerate(producers):
            if (i + k) % 3:
                one.commit_transaction(30)
                expected += [b"%d %d %d" % (i, k, j) for j in range(3)]
            else:
                one.abort_transaction(30)
        expected.append(b"%d plain" % i)
    markers_written(real_kafka, topic)
    receiver = adapter.receiver(0)
    found = read_all(receiver, 0, 1 << 10)
    assert sorted(record.payload for _, record in found) == sorted(expected)
    producers[0].begin_transaction()
    producers[0].produce(topic, b"open", partition=0)
    producers[0].flush(30)
    end = receiver.latest()
    got = receiver.receive(end, np.zeros(1 << 12, dtype=np.uint8), 0.2)
    assert (got.bytes, got.next_token) == (0, end), "what is not committed is not read"
    producers[0].commit_transaction(30)
    assert unpack_one(receiver, end) == b"open"


def unpack_one(receiver: Receiver, token: int) -> bytes:
    buffer = np.zeros(1 << 12, dtype=np.uint8)
    got = receiver.receive(token, buffer, 10.0)
    return unpack(buffer[: got.bytes])[0][1].payload


def test_a_topic_that_is_not_there_is_named_with_the_fix(real_kafka: Brokers) -> None:
    with pytest.raises(ConfigError, match=r"no-such.*UNKNOWN_TOPIC_OR_PARTITION.*create it first"):
        KafkaAdapter(source_of(real_kafka, "no-such"))
