"""`bench kafka-storage`: topics on a Kafka cluster beside confluent-kafka, in turns, on one broker.

Both publish messages of one size from a Python thread to as many partitions, acked by all; ours by
a topic that is stored on Kafka, theirs by a bare idempotent producer. Then both consume the topic
of theirs: ours as an adapter. The last parts count bytes: KAFKA-7548's case, and a slow
subscription beside nine fast ones. The topics of the run stay on the cluster.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidecast.sync
from tidecast.bench.durable import Note
from tidecast.bench.measure import Result, machine
from tidecast.config.kafka import KafkaSource
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import ConfigError, TidecastError
from tidecast.kafka.brokers.adapter import KafkaAdapter

TURNS = 5
BATCH, FETCH, CONFLUENT_FETCH, TIMEOUT_S = 1000, 4096, 5000, 300.0
MESSAGE_BYTES, PAUSED_BYTES = 100, 1000
PAUSED_QUEUES, PAUSED_RECORDS, PAUSED_POLLS = 10, 1000, 200
POLL_S = 0.05
FAST = 9
SEED = 7


def _confluent() -> Any:
    try:
        import confluent_kafka
    except ImportError:
        raise ConfigError(
            "bench kafka-storage compares with confluent-kafka: pip install confluent-kafka"
        ) from None
    return confluent_kafka


def _create(servers: str, topic: str, queues: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, queues)])[topic].result(TIMEOUT_S)


# --- publishing -----------------------------------------------------------------------------------


def _stored(servers: str, topic: str, queues: int, messages: int) -> float:
    """Messages a second of a publisher of a topic with this storage, until all are acked."""
    settings = {
        "name": "stored",
        "mode": "durable",
        "queues": queues,
        "fsync_interval_ms": 5,
        "storage": f"kafka://{servers}/{topic}",
    }
    raw = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": [settings]}
    payloads = [bytes(MESSAGE_BYTES)] * BATCH
    with tempfile.TemporaryDirectory(prefix="tc-bench-") as directory:
        link = EmbeddedLink.open(topology_from(raw), data_dir=Path(directory))
        with tidecast.sync.connect(link=link) as client, client.publisher("stored") as publisher:
            publisher.publish(payloads[0], ack="durable", timeout=TIMEOUT_S)
            begun = time.perf_counter()
            for _ in range(messages // BATCH):
                publisher.publish_batch(payloads)
            publisher.wait_durable(timeout=TIMEOUT_S)
            return messages / (time.perf_counter() - begun)


def _bare(servers: str, topic: str, queues: int, messages: int, size: int = MESSAGE_BYTES) -> float:
    """Messages a second of confluent-kafka's idempotent producer, until all are acked."""
    _create(servers, topic, queues)
    settings = {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5}
    producer = _confluent().Producer(settings)
    payload = bytes(size)
    for queue in range(queues):
        producer.produce(topic, payload, partition=queue)
    producer.flush(TIMEOUT_S)
    begun = time.perf_counter()
    for i in range(messages - queues):
        while True:
            try:
                producer.produce(topic, payload, partition=i % queues)
                break
            except BufferError:
                producer.poll(0.01)
        if i % BATCH == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise TidecastError(f"bench kafka-storage: not acked after {TIMEOUT_S:g} s")
    return (messages - queues) / (time.perf_counter() - begun)


# --- consuming ------------------------------------------------------------------------------------


@contextmanager
def _fed(servers: str, topic: str) -> Iterator[tuple[Any, KafkaAdapter]]:
    """A client of an engine that reads a topic of the cluster as ``feed``."""
    feed = KafkaAdapter(KafkaSource(servers=servers, topic=topic))
    topology = topology_from({"transports": [{"name": "ipc", "kind": "ipc"}]})
    with tempfile.TemporaryDirectory(prefix="tc-bench-") as directory:
        link = EmbeddedLink.open(topology, data_dir=Path(directory), adapters={"feed": feed})
        with tidecast.sync.connect(link=link) as client:
            yield client, feed


def _drain(consumer: Any, n: int) -> int:
    """Fetch and ack ``n`` messages, every payload as bytes."""
    done = 0
    while done < n:
        batch = consumer.fetch(FETCH, TIMEOUT_S)
        done += len(batch.payloads())
        batch.ack()
    return done


def _read(servers: str, topic: str, messages: int) -> float:
    with _fed(servers, topic) as (client, _):
        begun = time.perf_counter()
        with client.consumer("feed", "reader", max_in_flight=65_536) as consumer:
            _drain(consumer, messages)
        return messages / (time.perf_counter() - begun)


def _assigned(servers: str, topic: str, queues: int, more: dict[str, Any] | None = None) -> Any:
    confluent = _confluent()
    settings = {
        "bootstrap.servers": servers,
        "group.id": "bench",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 2,
        **(more or {}),
    }
    consumer = confluent.Consumer(settings)
    beginning = confluent.OFFSET_BEGINNING
    consumer.assign([confluent.TopicPartition(topic, each, beginning) for each in range(queues)])
    return consumer


def _confluent_read(servers: str, topic: str, queues: int, messages: int) -> float:
    begun = time.perf_counter()
    consumer, done = _assigned(servers, topic, queues), 0
    while done < messages:
        done += len([message.value() for message in consumer.consume(CONFLUENT_FETCH, TIMEOUT_S)])
    seconds = time.perf_counter() - begun
    consumer.close()
    return messages / seconds


# --- bytes ----------------------------------------------------------------------------------------


def _paused(servers: str, topic: str, once: int) -> tuple[float, float]:
    """KAFKA-7548: (bytes fetched by byte delivered, seconds) when 9 of 10 queues are paused."""
    chance, paused, done = random.Random(SEED), set[int](), 0
    with _fed(servers, topic) as (client, feed):
        consumer = client.consumer("feed", "reader", max_in_flight=20)
        begun = time.perf_counter()
        for _ in range(PAUSED_POLLS):
            wanted = set(range(PAUSED_QUEUES)) - {chance.randrange(PAUSED_QUEUES)}
            for queue in wanted ^ paused:
                change = client.topics.pause if queue in wanted else client.topics.resume
                change("feed", queue=queue)
            paused = wanted
            batch = consumer.fetch(20, POLL_S)
            done += len(batch.payloads())
            batch.ack()
        for queue in paused:
            client.topics.resume("feed", queue=queue)
        _drain(consumer, PAUSED_QUEUES * PAUSED_RECORDS - done)
        seconds = time.perf_counter() - begun
        consumer.close()
        return feed.counted().bytes / once, seconds


def _confluent_paused(servers: str, topic: str, once: int) -> tuple[float, float]:
    """The same by the pause call of confluent-kafka; bytes as librdkafka counts them."""
    confluent, chance, done = _confluent(), random.Random(SEED), 0
    counted = [0]

    def note(raw: str) -> None:
        counted[0] = sum(
            row["rxbytes"]
            for each in json.loads(raw)["topics"].values()
            for row in each["partitions"].values()
        )

    more = {"statistics.interval.ms": 100, "stats_cb": note, "fetch.wait.max.ms": 50}
    consumer = _assigned(servers, topic, PAUSED_QUEUES, more)
    places = [confluent.TopicPartition(topic, each) for each in range(PAUSED_QUEUES)]
    begun = time.perf_counter()
    for _ in range(PAUSED_POLLS):
        chosen = chance.randrange(PAUSED_QUEUES)
        consumer.pause([each for each in places if each.partition != chosen])
        consumer.resume([places[chosen]])
        done += len(consumer.consume(20, POLL_S))
    consumer.resume(places)
    while done < PAUSED_QUEUES * PAUSED_RECORDS:
        done += len(consumer.consume(CONFLUENT_FETCH, 1.0))
    seconds = time.perf_counter() - begun
    for _ in range(3):  # the figures of the last interval
        consumer.poll(0.1)
    consumer.close()
    return counted[0] / once, seconds


def _slow_beside_fast(servers: str, topic: str, messages: int, once: int) -> float:
    """Bytes read from the broker by byte stored: one slow subscription beside nine fast ones."""
    with _fed(servers, topic) as (client, feed):
        slow = client.consumer("feed", "slow", max_in_flight=10)
        _drain_slowly(slow, 10)
        fast = [client.consumer("feed", f"fast {i}", max_in_flight=4096) for i in range(FAST)]
        threads = [threading.Thread(target=_drain, args=(one, messages)) for one in fast]
        for thread in threads:
            thread.start()
        _drain_slowly(slow, messages - 10)
        for thread in threads:
            thread.join(TIMEOUT_S)
        for one in (slow, *fast):
            one.close()
        return feed.counted().bytes / once


def _drain_slowly(consumer: Any, n: int) -> None:
    """Ten messages at a time."""
    done = 0
    while done < n:
        batch = consumer.fetch(10, TIMEOUT_S)
        done += len(batch.payloads())
        batch.ack()


def _once(servers: str, topic: str, messages: int) -> int:
    """Bytes of the records of a topic, each fetched once by a reader that never pauses."""
    with _fed(servers, topic) as (client, feed):
        with client.consumer("feed", "reader") as consumer:
            _drain(consumer, messages)
        return feed.counted().bytes


# --- the run --------------------------------------------------------------------------------------


def kafka_storage(
    note: Note, *, messages: int = 300_000, queues: int = 4, servers: str = ""
) -> Result:
    """See module. Raises ConfigError."""
    if not servers:
        raise ConfigError("bench kafka-storage: --servers HOST:PORT of a Kafka broker is needed")
    _confluent()
    messages = max(BATCH, messages // BATCH * BATCH)
    config = {"messages": messages, "message_bytes": MESSAGE_BYTES, "queues": queues}
    result = Result("kafka-storage", {**config, "servers": servers, **machine()})
    name = f"bench-{uuid.uuid4().hex[:8]}"
    turns: list[tuple[float, float, float, float]] = []
    for turn in range(TURNS):
        bare = f"{name}-bare-{turn}"
        note(f"turn {turn + 1} of {TURNS}")
        turns.append(
            (
                _stored(servers, f"{name}-stored-{turn}", queues, messages),
                _bare(servers, bare, queues, messages),
                _read(servers, bare, messages),
                _confluent_read(servers, bare, queues, messages),
            )
        )
    stored, produced, read, consumed = zip(*turns, strict=True)
    result.metrics = {
        "stored_msgs_per_s": round(statistics.median(stored)),
        "read_msgs_per_s": round(statistics.median(read)),
    }
    peer = {
        "stored_msgs_per_s": round(statistics.median(produced)),
        "read_msgs_per_s": round(statistics.median(consumed)),
    }
    ratios = {
        "stored_msgs_per_s": round(_median_ratio(stored, produced), 2),
        "read_msgs_per_s": round(_median_ratio(read, consumed), 2),
    }
    _bytes(note, servers, name, result, peer)
    result.peers["confluent-kafka"] = [{"config": {"servers": servers}, "metrics": peer}]
    result.peers["ratio"] = ratios
    return result


def _bytes(note: Note, servers: str, name: str, result: Result, peer: dict[str, float]) -> None:
    """The parts that count bytes."""
    topic, n = f"{name}-paused", PAUSED_QUEUES * PAUSED_RECORDS
    note("KAFKA-7548: filling 10 partitions")
    _bare(servers, topic, PAUSED_QUEUES, n, PAUSED_BYTES)
    once = _once(servers, topic, n)
    note("KAFKA-7548: pausing")
    fetched, seconds = _paused(servers, topic, once)
    result.metrics |= {
        "paused_fetched_ratio": round(fetched, 4),
        "paused_msgs_per_s": round(n / seconds),
    }
    fetched, seconds = _confluent_paused(servers, topic, once)
    peer["paused_fetched_ratio"] = round(fetched, 4)
    peer["paused_msgs_per_s"] = round(n / seconds)
    note("one slow subscription beside nine fast ones")
    result.metrics["slow_fetched_ratio"] = round(_slow_beside_fast(servers, topic, n, once), 4)


def _median_ratio(ours: tuple[float, ...], theirs: tuple[float, ...]) -> float:
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
