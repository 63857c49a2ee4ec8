"""Publishing: what may be given, what happens when there is no room, order, counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.clients import loop_client
from tests.support.loop_link import LoopLink

from tidecast.client.core.publisher import COLLECTED_MAX
from tidecast.errors import (
    BackPressure,
    Closed,
    CodecError,
    ConfigError,
    NoResponders,
    NotFound,
    PayloadTooLarge,
    RateLimited,
    Timeout,
)
from tidecast.events import MessagesDropped
from tidecast.layout import ring as lay
from tidecast.sync import Connection

Pair = tuple[Connection, LoopLink]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with loop_client() as made:
        yield made


def received(subscription: Any, n: int) -> list[bytes]:
    return [bytes(subscription.next(5.0).data) for _ in range(n)]


@pytest.mark.parametrize(
    "payload", [b"xy", bytearray(b"xy"), memoryview(b"xy"), np.frombuffer(b"xy", np.uint8)]
)
def test_payload_kinds(pair: Pair, payload: Any) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub:
        publisher.publish(payload)
        assert publisher.try_publish(payload)
        assert received(sub, 2) == [b"xy", b"xy"]


def test_text_and_other_objects_are_refused_with_the_mend(pair: Pair) -> None:
    publisher = pair[0].publisher("t")
    for call in (publisher.publish, publisher.try_publish):
        with pytest.raises(CodecError, match=r"encode\(\).*codec=Json"):
            call("text")
    with pytest.raises(CodecError, match="payload is int"):
        publisher.publish(5)
    with pytest.raises(CodecError, match="float64"):
        publisher.publish(np.zeros(3))
    with pytest.raises(CodecError, match=r"item 1: .*str"):
        publisher.publish_batch([b"a", "b"])


def test_acks_of_a_live_topic(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        for ack in ("none", "engine"):
            client.publish("t", b"x", ack=ack)
            assert client.publish_batch("t", [b"y"], ack=ack).ok
        assert received(sub, 4) == [b"x", b"y"] * 2
    with pytest.raises(ConfigError, match="ack: 'durable': topic t is live"):
        client.publish("t", b"x", ack="durable")
    with pytest.raises(ConfigError, match="ack: 'twice': allowed are none, engine, durable"):
        client.publish("t", b"x", ack="twice")  # type: ignore[arg-type]


def test_key_headers_timestamp(pair: Pair) -> None:
    client, _ = pair
    before = time.time_ns()
    with client.subscribe("t") as sub:
        client.publish("t", b"1", key=b"k", headers={"a": 1, "b": "two", "c": b"3"}, timestamp=True)
        client.publish("t", b"2", key="ключ", timestamp=5)
        client.publish("t", b"3", headers={"only": 1 << 62})
        client.publish("t", b"4")
        one = sub.next(5.0)
        assert (one.key, one.headers) == (b"k", {"a": 1, "b": "two", "c": b"3"})
        assert one.timestamp is not None
        assert before <= one.timestamp <= time.time_ns()
        assert (one.topic, one.node, one.size) == ("t", "loop", 1)
        kept = one.copy()
        two = sub.next(5.0)
        assert (two.key, two.timestamp, two.headers) == ("ключ".encode(), 5, {})
        assert sub.next(5.0).headers == {"only": 1 << 62}
        four = sub.next(5.0)
        assert (four.key, four.headers, four.timestamp) == (None, {}, None)
        assert (kept.key, bytes(kept.data)) == (b"k", b"1")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"key": 5}, "key: 5"),
        ({"key": bytes(70_000)}, "key: 70000 bytes"),
        ({"headers": [1]}, "headers"),
        ({"headers": {"a": 1.5}}, "headers: 'a': 1.5"),
        ({"headers": {"a": True}}, "headers: 'a': True"),
        ({"headers": {1: "a"}}, "headers: 1"),
        ({"headers": {"a": 1 << 64}}, "headers: 'a'"),
        ({"timestamp": "now"}, "timestamp: 'now'"),
        ({"timestamp": -1}, "timestamp: -1: allowed are True"),
        ({"subscriber": -1}, "subscriber: -1"),
        ({"to": 70_000}, "to: 70000"),
    ],
)
def test_wrong_options_name_field_and_value(
    pair: Pair, options: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigError, match=match):
        pair[0].publish("t", b"x", **options)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"producer": "me"}, "producer: 'me': topic t is live"),
        ({"first_seq": 1}, "first_seq: 1: topic t is live"),
    ],
)
def test_a_producer_of_a_live_topic_is_refused(
    pair: Pair, options: dict[str, Any], match: str
) -> None:
    client, _ = pair
    with pytest.raises(ConfigError, match=match):
        client.publisher("t", **options)
    client.publish("t", b"x")


def test_one_subscriber_or_one_node(pair: Pair) -> None:
    client, link = pair
    with client.subscribe("t") as one, client.subscribe("t") as two:
        client.publish("t", b"for two", subscriber=two.subscriber_id)
        client.publish("t", b"for all")
        client.publish("t", bytes(5000), subscriber=one.subscriber_id)
        client.publish("t", b"to a node", to="other")
        client.publish("t", b"last")
        assert received(one, 3) == [b"for all", bytes(5000), b"last"]
        assert received(two, 3) == [b"for two", b"for all", b"last"]
    with pytest.raises(NoResponders, match="nobody"):
        client.publish("t", b"x", to="nobody")
    assert link.nodes["other"] == 9


def test_sizes_up_to_half_the_history(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    limit = publisher.payload_bytes_max
    assert limit > 40_000
    with client.subscribe("t") as sub:
        for size in (0, 1, 1364, 1365, limit // 2, limit):
            publisher.publish(bytes(i & 255 for i in range(size)), key=None)
            assert received(sub, 1) == [bytes(i & 255 for i in range(size))]
    with pytest.raises(PayloadTooLarge, match=rf"{limit + 1} bytes, the limit is {limit}"):
        publisher.publish(bytes(limit + 1))
    with pytest.raises(PayloadTooLarge, match="key and headers"):
        publisher.publish(b"x", key=bytes(2000))
    result = publisher.publish_batch([b"a", bytes(limit + 1), b"c"])
    assert (result.requested, result.appended, result.taken, result.ok) == (3, 2, 3, False)
    assert [each.index for each in result.refused] == [1]
    with pytest.raises(PayloadTooLarge):
        result.check()
    result = publisher.publish_batch(np.zeros((2, limit + 1), dtype=np.uint8))
    assert (result.appended, [each.index for each in result.refused]) == (0, [0, 1])


def test_lists(pair: Pair) -> None:
    client, _ = pair
    wide = np.arange(3, dtype=np.int16)
    with client.subscribe("t") as sub:
        assert client.publish_batch("t", [b"a", b"", bytearray(b"bc")]).ok
        assert client.publish_batch("t", (each for each in [b"g"])).ok
        assert client.publish_batch("t", [memoryview(b"mm"), np.frombuffer(b"n", np.uint8)]).ok
        assert client.publish_batch("t", [wide.data, b"z"]).ok
        assert client.publish_batch("t", []).ok
        assert received(sub, 8) == [b"a", b"", b"bc", b"g", b"mm", b"n", wide.tobytes(), b"z"]
    with pytest.raises(CodecError, match="one payload"):
        client.publish_batch("t", b"abc")
    with pytest.raises(CodecError, match="int"):
        client.publish_batch("t", 5)  # type: ignore[arg-type]


def test_numpy_arrays(pair: Pair) -> None:
    client, _ = pair
    rows = np.arange(24, dtype=np.uint8).reshape(4, 6)
    with client.subscribe("t") as sub:
        client.publish_batch("t", rows)
        assert received(sub, 4) == [row.tobytes() for row in rows]
        client.publish_batch("t", rows[:, ::2])
        assert received(sub, 4) == [row.tobytes() for row in rows[:, ::2]]
        client.publish_batch("t", np.array([1, 2], dtype="<i8"))
        assert received(sub, 2) == [b"\1" + bytes(7), b"\2" + bytes(7)]
        records = np.array([(1, 2.0)], dtype=[("a", "<i4"), ("b", "<f8")])
        client.publish_batch("t", records)
        assert received(sub, 1) == [records.tobytes()]
    for wrong in (np.zeros(3, np.uint8), np.zeros((2, 2, 2)), np.array([None, 1])):
        with pytest.raises(CodecError, match="messages is an array"):
            client.publish_batch("t", wrong)


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary(2)]
)
def test_arrow_columns(pair: Pair, kind: pa.DataType) -> None:
    client, _ = pair
    values = ["aa", "bb", "cc", "dd"]
    array = pa.array([each.encode() for each in values], pa.binary()).cast(kind)
    with client.subscribe("t") as sub:
        client.publish_batch("t", array)
        client.publish_batch("t", array[1:3])
        client.publish_batch("t", pa.chunked_array([array[:1], array[3:], array[:0]]))
        expected = [*values, "bb", "cc", "aa", "dd"]
        assert received(sub, 8) == [each.encode() for each in expected]
    with pytest.raises(CodecError, match=r"type 'l' .*allowed are binary"):
        client.publish_batch("t", pa.array([1]))
    with pytest.raises(CodecError, match="Scalar: allowed are a list of bytes"):
        client.publish_batch("t", pa.scalar(b"a"))


def test_arrow_columns_that_are_cast(pair: Pair) -> None:
    client, _ = pair
    texts = pa.array(["a", "bb", "a", "a longer one than fits in place"])
    with client.subscribe("t") as sub:
        for kind in (pa.string_view(), pa.binary_view(), pa.dictionary(pa.int32(), pa.string())):
            client.publish_batch("t", texts.cast(kind)[1:])
            assert received(sub, 3) == [each.encode() for each in texts[1:].to_pylist()]


def test_numpy_text(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        client.publish_batch("t", np.array([b"a", b"longer"]))
        assert received(sub, 2) == [b"a", b"longer"]
    with pytest.raises(CodecError, match=r"array of <U1 .*encode\(\)"):
        client.publish_batch("t", np.array(["a"]))


def test_too_large_names_the_history_that_would_do(pair: Pair) -> None:
    client, _ = pair
    small = client.publisher("t")
    payload = bytes(small.payload_bytes_max + 1)
    advice = r"open the publisher with history_bytes=(\d+), or give the topic history_bytes=\1$"
    with pytest.raises(PayloadTooLarge, match=advice) as met:
        small.publish(payload)
    wanted = int(str(met.value).partition("history_bytes=")[2].partition(",")[0])
    assert client.publisher("t", history_bytes=wanted).payload_bytes_max >= len(payload)


def fill(publisher: Any) -> int:
    n = 0
    while publisher.try_publish(bytes(1000)):
        n += 1
    return n


def test_on_full_error(pair: Pair) -> None:
    client, link = pair
    publisher = client.publisher("t", on_full="error")
    with client.subscribe("t") as sub:
        n = fill(publisher)
        assert n >= 64
        with pytest.raises(BackPressure, match="ring of 64 packets is full"):
            publisher.publish(bytes(1000))
        result = publisher.publish_batch([bytes(1000)])
        assert isinstance(result.error, BackPressure)
        link.set_word(publisher.publication_id, lay.NEAR_LIMIT_AT, 1)
        link.set_word(publisher.publication_id, lay.RATE_PACKETS_AT, 100)
        with pytest.raises(RateLimited) as limited:
            publisher.publish(bytes(1000))
        assert limited.value.retry_after_s == 0.01
        assert len(received(sub, n)) == n
        sub.poll()
        publisher.publish(b"room again")
        assert received(sub, 1) == [b"room again"]


def test_on_full_drop_counts_and_tells(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t", on_full="drop")
    with client.subscribe("t") as sub:
        n = fill(publisher)
        for _ in range(3):
            publisher.publish(bytes(1000))
        result = publisher.publish_batch([bytes(1000)] * 2)
        assert (result.appended, result.dropped, result.error) == (0, 2, None)
        [told] = [each for each in client.events() if isinstance(each, MessagesDropped)]
        assert (told.topic, told.messages) == ("t", 5)
        assert publisher.stats().dropped == 5
        assert not client.health().healthy
        assert len(received(sub, n)) == n


def test_on_full_block_waits_for_room_or_time(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub:
        n = fill(publisher)
        with pytest.raises(Timeout, match=r"full.*waited 0\.02 s"):
            publisher.publish(bytes(1000), timeout=0.02)
        result = publisher.publish_batch([bytes(1000)], timeout=0.02)
        assert isinstance(result.error, Timeout)
        reader = threading.Thread(target=lambda: received(sub, n + 1))
        reader.start()
        publisher.publish(b"in the end", timeout=10.0)
        reader.join()


def test_a_burst_is_collected_and_flushed_by_itself(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub:
        n = 3 * COLLECTED_MAX + 100
        for i in range(n):
            if i == 1000:
                publisher.publish(b"%d" % i, key=b"k")
            else:
                publisher.publish(b"%d" % i)
            if i % 64 == 0:
                sub.poll(1)  # keeps the ring open; what is polled here is counted below
        seen = int(sub.stats()["messages"])
        found = received(sub, n - seen)
        assert found == [b"%d" % i for i in range(seen, n)]
        assert publisher.stats().messages == n


def test_collected_messages_of_a_full_ring_are_kept(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t", on_full="error")
    publisher.buffering = True
    with client.subscribe("t") as sub:
        n = fill(publisher)
        publisher.buffering = True
        accepted = 0

        def publish_on() -> None:
            nonlocal accepted
            for i in range(10 * COLLECTED_MAX):
                publisher.buffering = True
                publisher.publish(b"%06d" % i + bytes(900))
                accepted += 1

        with pytest.raises(BackPressure):
            publish_on()
        client.flusher.add(publisher)
        received(sub, n)
        found = received(sub, accepted)
        assert [int(each[:6]) for each in found] == list(range(accepted))


def test_two_threads_publish_without_harm(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    n = 3000

    def work(name: int) -> None:
        for i in range(n):
            publisher.publish(b"%d:%06d" % (name, i) * (1 + i % 7))

    with client.subscribe("t") as sub:
        threads = [threading.Thread(target=work, args=(name,)) for name in range(3)]
        for each in threads:
            each.start()
        found = received(sub, 3 * n)
        for each in threads:
            each.join()
    for name in range(3):
        mine = [each for each in found if each.startswith(b"%d:" % name)]
        assert mine == [b"%d:%06d" % (name, i) * (1 + i % 7) for i in range(n)]


def test_flush_seals_and_what_is_published_with_it_shares_a_packet(pair: Pair) -> None:
    # No sender drains this ring: readers see what is committed, so a packet goes on after it.
    client, link = pair
    publisher = client.publisher("t")
    publisher.publish(b"a")
    publisher.flush()
    publisher.publish(b"b", flush=True)
    publisher.publish(b"c")
    assert publisher.stats().packets == 2
    assert link.publications


def test_closed_publishers_refuse(pair: Pair) -> None:
    client, link = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub, publisher:
        publisher.publish(b"a")
        publisher.buffering = True
        publisher.publish(b"b")
        publisher.close()
        publisher.close()
        assert received(sub, 2) == [b"a", b"b"]
        for call in (publisher.publish, publisher.try_publish):
            with pytest.raises(Closed, match="publisher of t"):
                call(b"x")
        with pytest.raises(Closed):
            publisher.publish_batch([b"x"])
        with pytest.raises(Closed):
            publisher.flush()
        assert len(sub.poll()) == 0
        assert not link.publications, "drained and released"


def test_close_says_what_found_no_room(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t"):
        fill(publisher)
        publisher.buffering = True
        for _ in range(5):
            publisher.publish(bytes(1000))
        with pytest.raises(BackPressure, match="5 messages were not published"):
            publisher.close(timeout=0.02)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"on_full": "explode"}, "on_full: 'explode'.*block, error, drop"),
        ({"channel": "fast"}, "channel: 'fast'.*control, ordinary, large"),
        ({"codec": "xml"}, "codec: 'xml'.*json"),
        ({"codec": 7}, "codec: 7"),
        ({"linger_us": -1}, r"linger_us: -1: allowed 0\.\.1000000"),
        ({"linger_us": 1 << 62}, r"linger_us: 4611686018427387904: allowed 0\.\.1000000"),
        ({"rate_packets_per_s": -7}, r"rate_packets_per_s: -7: allowed 0\.\."),
        ({"rate_bytes_per_s": 10**30}, r"rate_bytes_per_s: 1000.*: allowed 0\.\."),
        ({"history_bytes": -5}, r"history_bytes: -5: allowed 1\.\."),
    ],
)
def test_wrong_publishers(pair: Pair, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        pair[0].publisher("t", **options)


def test_a_wrong_ring_of_a_subscription(pair: Pair) -> None:
    with pytest.raises(ConfigError, match=r"receive_bytes: -5: allowed 1\.\."):
        pair[0].subscribe("t", receive_bytes=-5)


def test_unknown_topics() -> None:
    with loop_client(topics={"known"}) as (client, link):
        client.publish("known", b"x")
        with pytest.raises(NotFound, match="other"):
            client.publish("other", b"x")
        assert len(link.publications) == 1
