"""The writer of Kafka partitions: each record once, in order, whatever brokers and networks do."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from tests.support.fake_broker import FakeBroker, drop, lose, refuse
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.support.kafka_storage import payloads, texts
from tests.support.kafka_storage import stored as held

from tidecast.config.sources.kafka import KafkaSource, kafka_source
from tidecast.errors import (
    Closed,
    ConfigError,
    ConnectionLost,
    CorruptLog,
    Fenced,
    PayloadTooLarge,
    SequenceGap,
)
from tidecast.kafka.brokers.adapter import KafkaAdapter
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.codes import Code
from tidecast.kafka.records import HEADER, BatchHead
from tidecast.kafka.storing.batches import NO_NOTES, Encoder, Identity
from tidecast.kafka.storing.fencing import count_stored, fence
from tidecast.kafka.storing.writer import PartitionWriter
from tidecast.queues.adapter import Record, Run, pack, unpack

_NAMES = itertools.count()
WHO = Identity(7, 3)


def run_of(*values: bytes, first: int = 0) -> Run:
    return pack([Record(value, b"k", None, 1_000_000) for value in values], first)


def numbered(n: int, first: int = 0, size: int = 0) -> Run:
    return run_of(*(b"%d" % i + bytes(size) for i in range(first, first + n)), first=first)


def source_of(servers: str, topic: str) -> KafkaSource:
    return kafka_source({"servers": servers, "topic": topic})


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    made = FakeBroker("t", 2)
    yield made
    made.close()


@pytest.fixture
def cluster(fake: FakeBroker) -> Iterator[Cluster]:
    made = Cluster(source_of(f"127.0.0.1:{fake.port}", "t"))
    yield made
    made.close()


@pytest.fixture
def writer(cluster: Cluster) -> Iterator[PartitionWriter]:
    made = PartitionWriter(cluster, 0, WHO, patience_s=0.0)
    yield made
    made.close()


def stored(fake: FakeBroker, partition: int = 0) -> list[bytes]:
    return held(fake)[partition]


# --- batches --------------------------------------------------------------------------------------


def test_a_batch_names_its_producer_and_begins_at_the_token_that_is_due() -> None:
    run = numbered(10, first=100)
    made = Encoder(1 << 20).encode(run, 104, Identity(9, 4, 77))
    assert made is not None
    assert (made.token, made.behind, made.records) == (104, 110, 6)
    head = BatchHead(*HEADER.unpack_from(made.data))
    assert head[-4:] == (9, 4, 77, 6)
    assert (head.base_timestamp, head.last_offset_delta) == (1, 5)
    assert payloads(bytes(made.data)) == texts(6, 104)
    assert Encoder(1 << 20).encode(run, 110, WHO) is None


def test_batches_of_several_runs_become_one_and_end_at_their_size() -> None:
    run = np.concatenate([numbered(5), numbered(5, first=5), numbered(90, first=40)])
    made = Encoder(1 << 20).encode(run, 0, WHO)
    assert made is not None
    assert (made.records, made.behind) == (100, 130)  # a hole is passed
    encoder, token, found = Encoder(1 << 10), 0, list[bytes]()
    while (small := encoder.encode(run, token, WHO)) is not None:
        assert len(small.data) <= 1 << 10
        found += payloads(bytes(small.data))
        token = small.behind
    assert found == texts(10) + texts(90, 40)


def test_without_notes_a_batch_has_the_headers_of_its_records_alone() -> None:
    given = [Record(b"a", b"k", {"h": b"1"}), Record(b"b")]
    for log, names in ((0, [["h", "tidecast-log"], []]), (NO_NOTES, [["h"], []])):
        made = Encoder(1 << 20, log).encode(pack(given), 0, WHO)
        assert made is not None
        (batch,) = list(MemoryRecords(bytes(made.data)))
        assert batch.validate_crc()
        assert [[name for name, _ in record.headers] for record in batch] == names


def test_a_pace_is_asked_before_a_batch_is_sent_and_its_error_leaves_nothing_in_doubt(
    fake: FakeBroker, cluster: Cluster
) -> None:
    asked: list[int] = []

    def pace(records: int) -> None:
        asked.append(records)
        if len(asked) == 2:
            raise Closed("enough")

    writer = PartitionWriter(cluster, 0, WHO, batch_bytes=1 << 10, pace=pace)
    run = numbered(100)
    with pytest.raises(Closed):
        writer.write(run, 0)
    assert stored(fake) == texts(asked[0])
    writer.write(run, writer.behind)
    assert stored(fake) == texts(100)
    assert sum(asked) == 100 + asked[1]
    writer.close()


def test_times_that_brokers_refuse_become_the_time_of_now() -> None:
    late, early = Record(b"a", time_ns=10**18), Record(b"b", time_ns=-(10**18))
    made = Encoder(1 << 10).encode(pack([late, early]), 0, WHO, now_ms=5)
    assert made is not None
    head = BatchHead(*HEADER.unpack_from(made.data))
    assert (head.base_timestamp, head.max_timestamp) == (5, 5)


@hypothesis.given(
    st.lists(
        st.builds(
            Record,
            st.binary(max_size=300),
            st.none() | st.binary(max_size=40),
            st.none() | st.dictionaries(st.text(max_size=9), st.binary(max_size=9), max_size=4),
            st.integers(0, 1 << 60),
        ),
        min_size=1,
        max_size=40,
    ),
    st.integers(1 << 10, 1 << 12),
)
def test_every_record_is_in_one_batch(given: list[Record], bytes_max: int) -> None:
    run, encoder, token, found = pack(given), Encoder(bytes_max), 0, list[bytes]()
    while (made := encoder.encode(run, token, WHO)) is not None:
        assert made.records == 1 or len(made.data) <= bytes_max
        found += payloads(bytes(made.data))
        token = made.behind
    assert found == [one.payload for one in given]


@hypothesis.given(st.data())
def test_bytes_that_are_no_run_are_refused(data: st.DataObject) -> None:
    run = numbered(20, size=9)
    for _ in range(data.draw(st.integers(1, 4))):
        run[data.draw(st.integers(0, run.size - 1))] = data.draw(st.integers(0, 255))
    run = run[: data.draw(st.integers(0, run.size))].copy()
    try:
        made = Encoder(1 << 10).encode(run, 0, WHO)
    except CorruptLog:
        return
    assert made is None or 1 <= made.records <= 20


@pytest.mark.parametrize("size", [0, 1023, (16 << 20) + 1])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_bytes: {size}: allowed 1024..16777216"):
        Encoder(size)


# --- the writer -----------------------------------------------------------------------------------


def test_records_are_stored_in_order_under_contiguous_sequences(
    fake: FakeBroker, writer: PartitionWriter
) -> None:
    assert writer.write(numbered(500), 0) == 500
    assert writer.write(numbered(10, first=500), 500) == 510
    assert stored(fake) == texts(510)
    assert writer.identity == WHO.behind(510)
    assert (writer.records, writer.offset, writer.errors) == (510, 500, 0)


def test_sequences_begin_again_behind_the_last() -> None:
    assert Identity(1, 0, (1 << 31) - 2).behind(5).sequence == 3


@pytest.mark.parametrize("fault", [drop, lose, refuse(Code.NOT_LEADER_OR_FOLLOWER)])
def test_a_batch_without_an_answer_is_stored_once(
    fake: FakeBroker, cluster: Cluster, fault: Any
) -> None:
    writer = PartitionWriter(cluster, 0, WHO, patience_s=60.0)
    fake.faults.extend([fault, fault])
    assert writer.write(numbered(5), 0) == 5
    assert stored(fake) == texts(5)
    assert writer.errors == 2
    writer.close()


def test_a_batch_in_doubt_is_settled_before_a_longer_run(
    fake: FakeBroker, writer: PartitionWriter
) -> None:
    fake.faults.append(drop)
    with pytest.raises(ConnectionLost):
        writer.write(numbered(5), 0)
    assert writer.behind == 0
    assert writer.write(numbered(9), 0) == 9
    assert stored(fake) == texts(9)


def test_faults_at_random_lose_nothing_and_repeat_nothing(
    fake: FakeBroker, writer: PartitionWriter
) -> None:
    chance, token = random.Random(3), 0
    faults: list[Any] = [
        drop,
        lose,
        refuse(Code.NOT_ENOUGH_REPLICAS),
        refuse(Code.REQUEST_TIMED_OUT),
    ]
    while token < 300:
        end = token + chance.randint(1, 20)
        if not fake.faults:  # else they pile up faster than writes use them up
            fake.faults.extend(chance.choices(faults, k=chance.randint(0, 3)))
        try:
            token = writer.write(numbered(end), token)
        except ConnectionLost:
            token = writer.behind
    assert stored(fake) == texts(token)


def test_a_batch_that_is_too_large_is_sent_in_parts(
    fake: FakeBroker, writer: PartitionWriter
) -> None:
    def small_topic(body: Any) -> int:
        fake.faults.append(small_topic)
        size = len(body["topics"][0]["partitions"][0]["records"])
        return Code.MESSAGE_TOO_LARGE if size > 4000 else Code.NONE

    fake.faults.append(small_topic)
    assert writer.write(numbered(200, size=100), 0) == 200
    assert len(stored(fake)) == 200
    with pytest.raises(PayloadTooLarge, match=r"t/0: a record of \d+ bytes.*max\.message\.bytes"):
        writer.write(run_of(bytes(5000), first=200), 200)
    assert writer.write(run_of(b"next", first=200), 200) == 201


def test_a_newer_epoch_fences_the_writer_and_a_lost_record_is_a_gap(
    fake: FakeBroker, cluster: Cluster, writer: PartitionWriter
) -> None:
    writer.write(numbered(3), 0)
    newer = PartitionWriter(cluster, 0, Identity(WHO.producer, WHO.epoch + 1))
    newer.write(numbered(1), 0)
    with pytest.raises(Fenced, match=r"t/0: INVALID_PRODUCER_EPOCH \(47\)"):
        writer.write(numbered(4), 3)
    fake.partitions[0].producers.clear()
    with pytest.raises(SequenceGap, match="lost records that they had acknowledged"):
        newer.write(numbered(2), 1)
    newer.close()


def test_a_write_ends_when_the_writer_is_closed(fake: FakeBroker, cluster: Cluster) -> None:
    writer, began = PartitionWriter(cluster, 0, WHO, patience_s=60.0), threading.Event()

    def away(body: Any) -> str:
        fake.faults.append(away)
        began.set()
        return "lose"

    fake.faults.append(away)
    problems = list[BaseException]()

    def write() -> None:
        try:
            writer.write(numbered(1), 0)
        except Closed as problem:
            problems.append(problem)

    thread = threading.Thread(target=write)
    thread.start()
    assert began.wait(30.0)
    writer.close()
    thread.join(30.0)
    assert len(problems) == 1
    with pytest.raises(Closed):
        writer.write(numbered(1), 0)


# --- fencing --------------------------------------------------------------------------------------


def test_a_fence_refuses_the_writer_before_in_each_partition(
    fake: FakeBroker, cluster: Cluster
) -> None:
    first = fence(cluster, "tidecast/t")
    old = [PartitionWriter(cluster, queue, first) for queue in range(2)]
    old[0].write(numbered(7), 0)
    second = fence(cluster, "tidecast/t")
    assert second > first
    for queue, each in enumerate(old):
        with pytest.raises(Fenced):
            each.write(numbered(8), 7 if queue == 0 else 0)
        each.close()
    assert count_stored(cluster, 0, first, 0) == (7, fake.partitions[0].end)
    assert count_stored(cluster, 1, first, 0) == (0, fake.partitions[1].end)
    new = PartitionWriter(cluster, 0, second)
    new.write(numbered(9), 7)
    assert stored(fake) == texts(9)
    new.close()


# --- Kafka itself ---------------------------------------------------------------------------------


def made_topic(kafka: Brokers, **config: str) -> Cluster:
    topic = f"producing-{next(_NAMES)}"
    kafka.create(topic, 2, **config)
    return Cluster(source_of(kafka.address, topic))


def read(cluster: Cluster, partition: int = 0) -> list[bytes]:
    """All records, as the adapter reads them."""
    adapter = KafkaAdapter(cluster.source)
    receiver, token, found = adapter.receiver(partition), 0, list[bytes]()
    buffer, end = np.zeros(2 << 20, dtype=np.uint8), receiver.latest()
    while token < end:
        got = receiver.receive(token, buffer, 30.0)
        found += [one.payload for at, one in unpack(buffer[: got.bytes]) if at >= token]
        token = got.next_token
    adapter.close()
    return found


@pytest.mark.same_kernels
def test_kafka_stores_what_is_written_and_its_consumers_read_it(real_kafka: Brokers) -> None:
    cluster = made_topic(real_kafka)
    writer = PartitionWriter(cluster, 1, fence(cluster, cluster.topic))
    given = [Record(b"%d" % i, b"k%d" % i, {"h": b"v"}, 10**18 + i) for i in range(20_000)]
    assert writer.write(pack(given), 0) == 20_000
    assert read(cluster, 1) == [one.payload for one in given]
    assert writer.errors == 0
    writer.close()
    cluster.close()


@pytest.mark.same_kernels
def test_kafka_refuses_the_writer_before_and_says_how_far_it_came(real_kafka: Brokers) -> None:
    cluster = made_topic(real_kafka)
    first = fence(cluster, cluster.topic)
    old = PartitionWriter(cluster, 0, first)
    old.write(numbered(100), 0)
    old.write(numbered(50, first=100), 100)
    second = fence(cluster, cluster.topic)
    with pytest.raises(Fenced):
        old.write(numbered(1, first=150), 150)
    count, _ = count_stored(cluster, 0, first, 0)
    assert count == 150
    new = PartitionWriter(cluster, 0, second)
    new.write(numbered(30, first=count), count)
    assert read(cluster) == texts(180)
    for each in (old, new, cluster):
        each.close()


@pytest.mark.same_kernels
def test_kafka_stores_a_batch_whose_answer_was_lost_once(real_kafka: Brokers) -> None:
    cluster = made_topic(real_kafka)
    who = fence(cluster, cluster.topic)
    first = PartitionWriter(cluster, 0, who)
    first.write(numbered(10), 0)
    again = PartitionWriter(cluster, 0, who)  # as one that never heard of the answer
    again.write(numbered(10), 0)
    again.write(numbered(5, first=10), 10)
    assert read(cluster) == texts(15)
    for each in (first, again, cluster):
        each.close()


@pytest.mark.same_kernels
def test_kafka_takes_smaller_batches_where_the_topic_wants_them(real_kafka: Brokers) -> None:
    cluster = made_topic(real_kafka, max_message_bytes="5000")
    writer = PartitionWriter(cluster, 0, fence(cluster, cluster.topic))
    assert writer.write(numbered(300, size=100), 0) == 300
    with pytest.raises(PayloadTooLarge):
        writer.write(run_of(bytes(9000), first=300), 300)
    assert len(read(cluster)) == 300
    writer.close()
    cluster.close()


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.timeout(300)
def test_leaders_that_are_killed_lose_nothing_and_repeat_nothing() -> None:
    with brokers(3) as made:
        topic = "killed"
        made.create(topic, 1, min_insync_replicas="2")
        cluster = Cluster(source_of(made.address, topic))
        writer = PartitionWriter(cluster, 0, fence(cluster, topic), patience_s=60.0)
        ended, token = threading.Event(), 0
        tokens = list[int]()

        def write() -> None:
            nonlocal token
            while not ended.is_set():
                token = writer.write(numbered(200, first=token), token)
                tokens.append(token)

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(3):
            leader = made.leader(topic)
            made.kill(leader)
            made.start(leader)
            made.wait_up(leader)
        ended.set()
        thread.join(60.0)
        assert writer.errors > 0
        assert read(cluster) == texts(token)
        writer.close()
        cluster.close()
