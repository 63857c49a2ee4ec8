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
import time
import uuid
from typing import Any

from tidecast.bench.brokers import feeds
from tidecast.bench.brokers import stored as stored_topics
from tidecast.bench.durable import Note
from tidecast.bench.measure import Result, machine
from tidecast.config.sources.kafka import KafkaSource
from tidecast.errors import ConfigError, TidecastError
from tidecast.kafka.brokers.adapter import KafkaAdapter

TURNS = 5
BATCH, CONFLUENT_FETCH, TIMEOUT_S = stored_topics.BATCH, 5000, stored_topics.TIMEOUT_S
MESSAGE_BYTES = 100


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
    with stored_topics.topic(f"kafka://{servers}/{topic}", queues) as client:
        return stored_topics.publish(client, messages, MESSAGE_BYTES)


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


def _feed(servers: str, topic: str) -> feeds.Make:
    return lambda: KafkaAdapter(KafkaSource(servers=servers, topic=topic))


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


def _confluent_paused(servers: str, topic: str, once: int) -> tuple[float, float]:
    """The same by the pause call of confluent-kafka; bytes as librdkafka counts them."""
    confluent, chance, done = _confluent(), random.Random(feeds.SEED), 0
    counted = [0]

    def note(raw: str) -> None:
        counted[0] = sum(
            row["rxbytes"]
            for each in json.loads(raw)["topics"].values()
            for row in each["partitions"].values()
        )

    more = {"statistics.interval.ms": 100, "stats_cb": note, "fetch.wait.max.ms": 50}
    consumer = _assigned(servers, topic, feeds.PAUSED_QUEUES, more)
    places = [confluent.TopicPartition(topic, each) for each in range(feeds.PAUSED_QUEUES)]
    begun = time.perf_counter()
    for _ in range(feeds.PAUSED_POLLS):
        chosen = chance.randrange(feeds.PAUSED_QUEUES)
        consumer.pause([each for each in places if each.partition != chosen])
        consumer.resume([places[chosen]])
        done += len(consumer.consume(20, feeds.POLL_S))
    consumer.resume(places)
    while done < feeds.PAUSED_QUEUES * feeds.PAUSED_RECORDS:
        done += len(consumer.consume(CONFLUENT_FETCH, 1.0))
    seconds = time.perf_counter() - begun
    for _ in range(3):  # the figures of the last interval
        consumer.poll(0.1)
    consumer.close()
    return counted[0] / once, seconds


# --- the run --------------------------------------------------------------------------------------


def kafka_storage(
    note: Note, *, messages: int = 300_000, queues: int = 4, servers: str = ""
) -> Result:
    """See module. Raises ConfigError."""
    if not servers:
        raise ConfigError("bench kafka-storage: --servers HOST:PORT of a Kafka broker is needed")
    _confluent()
    messages = stored_topics.rounded(messages)
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
                feeds.read(_feed(servers, bare), messages),
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
        "stored_msgs_per_s": round(feeds.median_ratio(stored, produced), 2),
        "read_msgs_per_s": round(feeds.median_ratio(read, consumed), 2),
    }
    _bytes(note, servers, name, result, peer)
    result.peers["confluent-kafka"] = [{"config": {"servers": servers}, "metrics": peer}]
    result.peers["ratio"] = ratios
    return result


def _bytes(note: Note, servers: str, name: str, result: Result, peer: dict[str, float]) -> None:
    """The parts that count bytes."""
    topic, n = f"{name}-paused", feeds.PAUSED_QUEUES * feeds.PAUSED_RECORDS
    note("KAFKA-7548: filling 10 partitions")
    _bare(servers, topic, feeds.PAUSED_QUEUES, n, feeds.PAUSED_BYTES)
    feed = _feed(servers, topic)
    once = feeds.once(feed, n)
    note("KAFKA-7548: pausing")
    fetched, seconds = feeds.paused(feed, once)
    result.metrics |= {
        "paused_fetched_ratio": round(fetched, 4),
        "paused_msgs_per_s": round(n / seconds),
    }
    fetched, seconds = _confluent_paused(servers, topic, once)
    peer["paused_fetched_ratio"] = round(fetched, 4)
    peer["paused_msgs_per_s"] = round(n / seconds)
    note("one slow subscription beside nine fast ones")
    result.metrics["slow_fetched_ratio"] = round(feeds.slow_beside_fast(feed, n, once), 4)
