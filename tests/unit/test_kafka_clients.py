"""Real Kafka clients, unmodified, against the endpoint: librdkafka, aiokafka, kafka-python."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from tests.support.kafka import TIMEOUT_S, Served

import tidecast.sync
from tidecast.api.start import Earliest

TOPICS = [
    {"name": f"t{i}", "mode": "durable", "queues": 3, "fsync_interval_ms": 2} for i in range(12)
]
_names = iter(range(12))
N = 600


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("node"), TOPICS)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    assert made.endpoint.counters.of("bad_requests") == 0
    made.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(_names)}"


def rd_produce(served: Served, topic: str, **settings: Any) -> dict[tuple[int, int], bytes]:
    """N records by librdkafka: what lies where, as it was told."""
    stored: dict[tuple[int, int], bytes] = {}

    def told(problem: Any, message: Any) -> None:
        assert problem is None
        stored[message.partition(), message.offset()] = message.value()

    producer = confluent_kafka.Producer(
        {"bootstrap.servers": served.endpoint.address, "linger.ms": 2} | settings
    )
    for i in range(N):
        producer.produce(
            topic,
            key=b"k%d" % (i % 9),
            value=b"v%d" % i,
            headers=[("n", b"%d" % i)],
            on_delivery=told,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert len(stored) == N
    return stored


def rd_consume(served: Served, topic: str, n: int) -> dict[tuple[int, int], bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": served.endpoint.address, "group.id": "none"}
    )
    consumer.assign(
        [
            confluent_kafka.TopicPartition(topic, q, confluent_kafka.OFFSET_BEGINNING)
            for q in range(3)
        ]
    )
    found: dict[tuple[int, int], bytes] = {}
    while len(found) < n:
        batch = consumer.consume(n, TIMEOUT_S)
        assert batch
        for message in batch:
            assert message.error() is None
            found[message.partition(), message.offset()] = message.value()
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_librdkafka(served: Served, topic: str, codec: str) -> None:
    idempotent = codec in ("none", "zstd")
    stored = rd_produce(
        served, topic, **{"compression.type": codec, "enable.idempotence": idempotent}
    )
    assert rd_consume(served, topic, N) == stored
    for queue in range(3):
        offsets = sorted(offset for q, offset in stored if q == queue)
        assert offsets == list(range(len(offsets)))


def test_a_native_consumer_gets_what_kafka_clients_produce(served: Served, topic: str) -> None:
    rd_produce(served, topic)
    link: Any = type(served.link)(served.link.node, "near", owns_node=False)
    with (
        tidecast.sync.connect(link=link) as client,
        client.consumer(topic, "sub", start=Earliest()) as consumer,
    ):
        got: dict[bytes, Any] = {}
        while len(got) < N:
            for message in consumer.fetch(N, TIMEOUT_S):
                got[bytes(message.data)] = (bytes(message.key or b""), dict(message.headers))
                message.ack()
    assert got[b"v17"] == (b"k8", {"n": b"17"})


def test_kafka_clients_get_what_a_native_publisher_publishes(served: Served, topic: str) -> None:
    link: Any = type(served.link)(served.link.node, "near", owns_node=False)
    with tidecast.sync.connect(link=link) as client, client.publisher(topic) as publisher:
        for i in range(N):
            publisher.publish(b"v%d" % i, key=b"k%d" % (i % 9), headers={"n": i})
        publisher.wait_durable(timeout=TIMEOUT_S)
    assert set(rd_consume(served, topic, N).values()) == {b"v%d" % i for i in range(N)}


def test_kafka_python(served: Served, topic: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=served.endpoint.address)
    sent = [
        producer.send(topic, b"v%d" % i, key=b"k", partition=i % 3, headers=[("h", b"x")])
        for i in range(N)
    ]
    producer.flush(TIMEOUT_S)
    assert sorted(each.get(TIMEOUT_S).offset for each in sent[::3]) == list(range(N // 3))
    producer.close()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=served.endpoint.address, consumer_timeout_ms=20_000
    )
    consumer.assign([kafka.TopicPartition(topic, q) for q in range(3)])
    consumer.seek_to_beginning()
    got = {next(consumer).value for _ in range(N)}
    consumer.close()
    assert got == {b"v%d" % i for i in range(N)}


def test_aiokafka(served: Served, topic: str) -> None:
    async def main() -> None:
        address = served.endpoint.address
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=address, enable_idempotence=True
        ) as producer:
            sent = [await producer.send(topic, b"v%d" % i, partition=i % 3) for i in range(N)]
            told = [await each for each in sent]
            assert sorted(each.offset for each in told if each.partition == 0) == list(
                range(N // 3)
            )
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=address) as consumer:
            partitions = [aiokafka.TopicPartition(topic, q) for q in range(3)]
            consumer.assign(partitions)
            await consumer.seek_to_beginning(*partitions)
            got: set[bytes] = set()
            while len(got) < N:
                for records in (await consumer.getmany(timeout_ms=20_000)).values():
                    got |= {each.value for each in records}
            assert got == {b"v%d" % i for i in range(N)}
            assert await consumer.end_offsets(partitions) == dict.fromkeys(partitions, N // 3)

    asyncio.run(main())
