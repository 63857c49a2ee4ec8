"""An engine that consumes topics of a Kafka cluster: pauses, slow readers, outages, logins."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import pytest
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.support.patience import wait_until
from tests.unit.test_consumer import take, topology
from tests.unit.test_kafka_keys import self_signed

import tidecast.sync
from tidecast.config.sources.kafka import kafka_source
from tidecast.embedded import EmbeddedLink
from tidecast.errors import AuthError, ConfigError
from tidecast.events import AdapterOpened, QueueUnreadable, RecordsGone, RecordsLeftOut
from tidecast.kafka.brokers.adapter import KafkaAdapter
from tidecast.sync import Connection

_NAMES = itertools.count()


def fresh(name: str) -> str:
    return f"{name}-{next(_NAMES)}"


@contextmanager
def fed(data_dir: Path, feed: KafkaAdapter) -> Iterator[Connection]:
    link = EmbeddedLink.open(topology(), data_dir=data_dir, adapters={"feed": feed})
    with tidecast.sync.connect(link=link) as client:
        yield client


def adapter_of(kafka: Brokers, topic: str, **more: Any) -> KafkaAdapter:
    return KafkaAdapter(kafka_source({"servers": kafka.address, "topic": topic, **more}))


def drain(consumer: Any, n: int, ack: bool = True) -> list[bytes]:
    """``n`` records as they come."""
    found: list[bytes] = []
    while len(found) < n:
        for message in consumer.fetch(1000, max_wait=30.0):
            found.append(bytes(message.data))
            if ack:
                message.ack()
    return found


def test_what_was_fetched_is_not_fetched_again_under_any_pauses(
    real_kafka: Brokers, tmp_path: Path
) -> None:
    """KAFKA-7548: 10 partitions, 9 of them paused at random before each poll."""
    topic, partitions, each = fresh("paused"), 10, 200
    real_kafka.create(topic, partitions)
    for partition in range(partitions):
        values = [b"%d %d " % (partition, i) + bytes(1000) for i in range(each)]
        real_kafka.fill(topic, values, partition=partition)
    plain = adapter_of(real_kafka, topic)
    with fed(tmp_path / "plain", plain) as client, client.consumer("feed", "reader") as consumer:
        assert len(set(drain(consumer, partitions * each))) == partitions * each
        once = plain.counted().bytes
    feed, chance = adapter_of(real_kafka, topic), random.Random(7)
    with fed(tmp_path / "paused", feed) as client:
        consumer = client.consumer("feed", "reader", max_in_flight=20)
        found: list[bytes] = []
        paused: set[int] = set()
        for _ in range(10):
            wanted = set(range(partitions)) - {chance.randrange(partitions)}
            for queue in wanted ^ paused:
                change = client.topics.pause if queue in wanted else client.topics.resume
                change("feed", queue=queue)
            paused = wanted
            for message in consumer.fetch(20, max_wait=0.05):
                found.append(bytes(message.data))
                message.ack()
        for queue in paused:
            client.topics.resume("feed", queue=queue)
        found += drain(consumer, partitions * each - len(found))
        assert len(set(found)) == len(found) == partitions * each
        for partition in range(partitions):
            numbers = [int(x.split()[1]) for x in found if int(x.split()[0]) == partition]
            assert numbers == list(range(each))
        assert feed.counted().bytes == once


def test_the_next_answer_is_asked_for_while_records_are_delivered(real_kafka: Brokers) -> None:
    topic, n = fresh("ahead"), 40
    real_kafka.create(topic, 1)
    real_kafka.fill(topic, [bytes(1000)] * n, batch_num_messages=10)
    receiver: Any = adapter_of(real_kafka, topic, fetch_bytes=16_384).receiver(0)
    buffer, token, ahead = np.empty(1 << 20, dtype=np.uint8), 0, 0
    while token < n:
        token = receiver.receive(token, buffer, 10.0).next_token
        asked = [link.asked for link in receiver._links if link.asked is not None]
        assert asked == [receiver._kept[0].behind] * (receiver._kept[0].behind < n)
        ahead += len(asked)
    assert ahead
    assert receiver.records == n
    receiver.close()


def test_one_slow_subscription_beside_nine_fast_ones_reads_each_byte_once(
    real_kafka: Brokers, tmp_path: Path
) -> None:
    topic, n = fresh("slow"), 3000
    real_kafka.create(topic, 2)
    for partition in range(2):
        values = [b"%d " % i + bytes(500) for i in range(n // 2)]
        real_kafka.fill(topic, values, partition=partition)
    stored = 2 * (n // 2) * 500
    feed = adapter_of(real_kafka, topic)
    with fed(tmp_path, feed) as client:
        slow = client.consumer("feed", "slow", max_in_flight=10)
        slowly = drain(slow, 10)
        fast = [client.consumer("feed", f"fast {i}") for i in range(9)]
        threads = [threading.Thread(target=drain, args=(one, n)) for one in fast]
        for thread in threads:
            thread.start()
        slowly += drain(slow, n - len(slowly))
        for thread in threads:
            thread.join(60.0)
        assert len(slowly) == n
        assert {one.info()["lag"] for one in fast} == {0}
        fetched = feed.counted().bytes
        assert stored < fetched < 1.1 * stored, "each byte once, not ten times"


def test_compaction_deletion_and_groups(real_kafka: Brokers, tmp_path: Path) -> None:
    topic, group = fresh("compacted"), fresh("group")
    real_kafka.create(
        topic,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0.01",
        max_compaction_lag_ms="200",
    )
    feed = adapter_of(real_kafka, topic, group=group)
    with fed(tmp_path, feed) as client:
        producer = real_kafka.producer()
        for i in range(300):
            producer.produce(topic, b"%d" % i, key=b"k%d" % (i % 50 if i % 7 else i), partition=0)
        producer.flush(30)
        last = {b"k%d" % (i % 50 if i % 7 else i): b"%d" % i for i in range(300)}
        reader = confluent_kafka.Consumer(
            {"bootstrap.servers": real_kafka.address, "group.id": "look"}
        )
        start = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_BEGINNING)

        def compacted() -> bool:
            real_kafka.fill(topic, [b"newest"], key=b"last")  # a new segment: the older are cleaned
            reader.assign([start])
            _, end = reader.get_watermark_offsets(start, 20.0)
            kept: list[Any] = []
            while not kept or kept[-1].offset() < end - 1:
                kept += reader.consume(300, 0.1)
            values = [each.value() for each in kept if each.key() != b"last"]
            return values == sorted(last.values(), key=int)

        wait_until(compacted, 60.0, "the cleaner")
        reader.close()
        with client.consumer("feed", "reader") as consumer:
            expected = set(last.values())
            found: list[bytes] = []
            while not expected <= set(found):
                found += drain(consumer, 1)
            assert found[: len(last)] == sorted(last.values(), key=int)

            def at_the_end() -> bool:
                for message in consumer.fetch(100, max_wait=0.1):
                    message.ack()
                return bool(consumer.info()["lag"] == 0)

            wait_until(at_the_end, 20.0, "the end")
            end = consumer.info()["cursors"][0]["position"]
            node = client.link.node  # type: ignore[attr-defined]

            def committed() -> int:
                node.consumers.attached.look_after()
                wanted = confluent_kafka.ConsumerGroupTopicPartitions(group)
                admin = real_kafka.admin()
                rows = admin.list_consumer_group_offsets([wanted])[group].result(30)
                return int(rows.topic_partitions[0].offset) if rows.topic_partitions else -1

            wait_until(lambda: committed() == end, 20.0, "the offset that Kafka's tools show")
        assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone | QueueUnreadable)]


def test_partitions_that_are_added_are_read(real_kafka: Brokers, tmp_path: Path) -> None:
    topic = fresh("growing")
    real_kafka.create(topic)
    real_kafka.fill(topic, [b"%d" % i for i in range(50)])
    feed = adapter_of(real_kafka, topic, refresh_s=1)
    with fed(tmp_path, feed) as client, client.consumer("feed", "reader") as consumer:
        assert drain(consumer, 50) == [b"%d" % i for i in range(50)]
        real_kafka.grow(topic, 3)
        for partition in range(3):
            real_kafka.fill(topic, [b"%d new" % partition] * 10, partition=partition)
        opened = next(e for e in client.events(30.0) if isinstance(e, AdapterOpened))
        assert (opened.topic, opened.queues, opened.added) == ("feed", 3, 2)
        assert sorted(drain(consumer, 30)) == sorted(b"%d new" % (i % 3) for i in range(30))
        wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "all acks")
        positions = {cursor["queue"]: cursor["position"] for cursor in consumer.info()["cursors"]}
        assert positions == {0: 60, 1: 10, 2: 10}
        assert (feed.counted().records, feed.counted().lag) == (80, 0)


def test_records_that_cannot_be_held_are_left_out(real_kafka: Brokers, tmp_path: Path) -> None:
    topic = fresh("large")
    real_kafka.create(topic)
    for value, more in (
        (b"0", {}),
        (b"1", {"headers": [("h", bytes(70_000))]}),
        (b"2", {"key": bytes(70_000)}),
        (b"3", {"headers": [("h", bytes(60_000))], "key": bytes(60_000)}),
        (b"4", {"headers": [(f"h{i}", b"x" * 10) for i in range(6000)]}),
    ):
        producer = real_kafka.producer()
        producer.produce(topic, value, partition=0, **more)
        producer.flush(30)
    with fed(tmp_path, adapter_of(real_kafka, topic)) as client:
        with client.consumer("feed", "reader") as consumer:
            assert drain(consumer, 2) == [b"0", b"3"]
            wait_until(lambda: consumer.info()["lag"] == 0, 20.0, "the last one is passed")
        events = [e for e in client.events(0.1) if isinstance(e, RecordsLeftOut)]
        assert [(e.topic, e.queue, e.first) for e in events] == [("feed", 0, i) for i in (1, 2, 4)]
        assert [e.reason.rsplit(" of ")[0] for e in events] == ["headers", "a key", "headers"]
        assert all(e.bytes > 65_535 for e in events)
        assert not [e for e in client.events(0.0) if isinstance(e, RecordsGone | QueueUnreadable)]


def test_records_that_kafka_deleted_are_told_and_passed(
    real_kafka: Brokers, tmp_path: Path
) -> None:
    topic = fresh("deleted")
    real_kafka.create(topic)
    real_kafka.fill(topic, [b"%d" % i for i in range(100)])
    with fed(tmp_path, adapter_of(real_kafka, topic)) as client:
        client.subscriptions.create("feed", "reader")
        admin = real_kafka.admin()
        where = confluent_kafka.TopicPartition(topic, 0, 60)
        admin.delete_records([where])[confluent_kafka.TopicPartition(topic, 0)].result(30)
        consumer = client.consumer("feed", "reader")
        assert drain(consumer, 40) == [b"%d" % i for i in range(60, 100)]
        gone = next(e for e in client.events(5.0) if isinstance(e, RecordsGone))
        assert (gone.topic, gone.first, gone.end) == ("feed", 0, 60)


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_logins_by_plain_and_scram_in_the_clear_and_by_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    pem = tmp_path / "broker.pem"
    private = Path(key).read_text()
    pem.write_text(private + Path(certificate).read_text())
    secrets = {
        "PLAIN": ("shop", "shop secret"),
        "SCRAM-SHA-256": ("ann", "s1"),
        "SCRAM-SHA-512": ("bob=,", "s2"),
    }
    with brokers(pem=pem) as kafka:
        kafka.create("t")
        kafka.fill("t", [b"hello"])
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            kafka.add_scram(*secrets[mechanism], mechanism)
        for mechanism, (user, secret) in secrets.items():
            file = tmp_path / "secret"
            file.write_text(secret + "\n")
            for servers, tls in ((kafka.sasl, {}), (kafka.tls, {"tls": True, "ca": certificate})):
                given = {
                    "servers": servers,
                    "topic": "t",
                    "user": user,
                    "mechanism": mechanism,
                    "secret_file": str(file),
                    **tls,
                }
                with fed(
                    tmp_path / f"{mechanism}{bool(tls)}", KafkaAdapter(kafka_source(given))
                ) as client:
                    assert take(client.consumer("feed", "reader"), 1) == [b"hello"]
            file.write_text("wrong")
            with pytest.raises(AuthError, match=rf"login of {user} by {mechanism}: "):
                KafkaAdapter(kafka_source(given))
        with pytest.raises(AuthError, match=r"certificate.*: set ca"):
            KafkaAdapter(kafka_source(given | {"ca": ""}))
        with pytest.raises(ConfigError, match=r"ca /nowhere.*PEM files are needed"):
            KafkaAdapter(kafka_source(given | {"ca": "/nowhere"}))


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_brokers_die_and_leaders_move_and_each_record_comes_once(tmp_path: Path) -> None:
    with brokers(3) as kafka:
        kafka.create("moving", 3, min_insync_replicas="1")
        feed = adapter_of(kafka, "moving")
        sent, stop = itertools.count(), threading.Event()

        def produce() -> None:
            producer = kafka.producer(enable_idempotence=True, acks="all")
            while not stop.is_set():
                for _ in range(50):
                    i = next(sent)
                    producer.produce("moving", b"%d" % i, partition=i % 3)
                producer.flush(60)

        thread = threading.Thread(target=produce)
        with fed(tmp_path, feed) as client, client.consumer("feed", "reader") as consumer:
            thread.start()
            found: list[bytes] = []
            for turn in range(3):
                found += drain(consumer, 200)
                node = kafka.leader("moving", turn % 3)
                kafka.kill(node)
                found += drain(consumer, 200)
                kafka.start(node)
                kafka.wait_up(node)
            stop.set()
            thread.join(60.0)
            total = next(sent)
            found += drain(consumer, total - len(found))
            for partition in range(3):
                numbers = [int(x) for x in found if int(x) % 3 == partition]
                assert numbers == list(range(partition, total, 3)), "each once, in order"
            assert feed.counted().errors > 0
            assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone)]
