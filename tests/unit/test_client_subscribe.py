"""Subscribing: iterating, batches, polls, waiting, gaps, many publications, the end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.clients import loop_client
from tests.support.loop_link import LoopLink

from tidecast.client.kernels import batches as batch_kernels
from tidecast.client.kernels import ports
from tidecast.errors import Closed, CodecError, ConfigError, GapError, Timeout
from tidecast.events import Gap, ImageAvailable, ImageGone
from tidecast.layout import ring as lay
from tidecast.sync import Connection

Pair = tuple[Connection, LoopLink]


@pytest.fixture
def pair() -> Iterator[Pair]:
    with loop_client() as made:
        yield made


def test_iteration_goes_on_where_it_was_left(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        client.publish_batch("t", [b"%d" % i for i in range(10)])
        for message in sub:
            assert bytes(message.data) == b"0"
            break
        assert bytes(sub.next(1.0).data) == b"1"
        assert sub.poll(2).payloads() == [b"2", b"3"]
        assert sub.poll(3).payloads() == [b"4", b"5", b"6"]
        assert [bytes(each.data) for each in itertools.islice(sub, 2)] == [b"7", b"8"]
        assert bytes(sub.next(1.0).data) == b"9"
        assert len(sub.poll()) == 0


def test_poll_is_empty_not_an_error(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        batch = sub.poll()
        assert len(batch) == 0
        assert not batch
        assert (batch.payloads(), batch.messages) == ([], [])
        assert batch.to_arrow().to_pylist() == []
        assert batch.to_numpy().shape == (0, 0)
        assert batch.still_valid
        with pytest.raises(Timeout, match=r"no message on t within 0\.01 s"):
            sub.next(0.01)
        with pytest.raises(ConfigError, match="max_messages: 0"):
            sub.poll(0)


@pytest.mark.parametrize("sizes", [[70] * 100, [1, 0, 13, 12, 200, 1300] * 20])
def test_batches_in_all_shapes(pair: Pair, sizes: list[int]) -> None:
    client, _ = pair
    payloads = [bytes([i & 255]) * size for i, size in enumerate(sizes)]
    with client.subscribe("t") as sub:
        for _ in range(8):  # over the end of the ring, too
            client.publish_batch("t", payloads)
            found: list[bytes] = []
            while len(found) < len(payloads):
                batch = sub.poll(64)
                got = batch.payloads()
                assert [bytes(each.data) for each in batch] == got
                assert [bytes(each.data) for each in batch.messages] == got
                assert batch.to_arrow().to_pylist() == got
                assert batch.to_arrow().type == pa.large_binary()
                in_place = batch.to_arrow(in_place=True)
                in_place.validate(full=True)
                assert in_place.to_pylist() == got
                assert batch.nbytes == sum(map(len, got))
                if len(set(map(len, got))) == 1:
                    matrix = batch.to_numpy()
                    assert matrix.shape == (len(got), len(got[0]))
                    assert [row.tobytes() for row in matrix] == got
                else:
                    with pytest.raises(CodecError, match="different lengths"):
                        batch.to_numpy()
                assert batch.still_valid
                found += got
            assert found == payloads


def test_a_batch_is_over_when_the_next_is_taken(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        client.publish_batch("t", [b"a", b"b"])
        client.publish("t", b"c", key=b"k")
        batch = sub.poll(1)
        kept = batch.messages[0].copy()
        last = sub.poll(2).messages[1]
        assert last.key == b"k"
        assert not batch.still_valid
        for use in (batch.payloads, batch.to_arrow, lambda: batch.messages):
            with pytest.raises(Closed, match="this batch is over"):
                use()
        sub.poll()
        with pytest.raises(Closed):
            _ = last.key
        assert bytes(kept.data) == b"a"


def test_who_iterates_lets_a_writer_get_ahead_unless_he_waits_for_one_message(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[list[int]] = []
    monkeypatch.setattr(batch_kernels, "await_packets", lambda _port, *how: waits.append([*how]))
    client, _ = pair
    with client.subscribe("t") as sub:
        walk = iter(sub)
        client.publish_batch("t", [b"0", b"1", b"2"])
        assert [next(walk).data for _ in range(3)] == [b"0", b"1", b"2"]
        client.publish("t", b"3")
        assert next(walk).data == b"3"
        assert [each[:2] for each in waits] == [[67, 3]], "behind three at once"
        client.publish("t", b"4")
        assert next(walk).data == b"4"
        assert len(waits) == 1, "not behind one"


def test_batches_fill_up(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        client.publish("t", b"0")
        more = threading.Timer(0.05, lambda: client.publish_batch("t", [b"1", b"2", b"3"]))
        more.start()
        batches = sub.batches(max_messages=4, max_wait=10.0)
        assert next(batches).payloads() == [b"0", b"1", b"2", b"3"]
        more.join()
        client.publish_batch("t", [b"4", b"5"])
        assert next(sub.batches(max_messages=4, max_wait=0.0)).payloads() == [b"4", b"5"]
        client.publish("t", b"6")
        client.publish("t", bytes(9000))
        batches = sub.batches(8, 5.0)
        sizes = [len(next(batches).payloads()[0]) for _ in range(2)]
        assert sizes == [1, 9000], "a fragmented message comes alone, and at once"


def test_a_waiting_subscriber_is_woken(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub:
        for i in range(5):
            timer = threading.Timer(0.03, publisher.publish, args=(b"%d" % i,))
            timer.start()
            assert bytes(sub.next(10.0).data) == b"%d" % i
            timer.join()
        assert sub.stats()["missed_wakes"] == 0, "it was woken, and did not look by itself"


def test_a_wake_up_that_is_missed_is_counted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = pair
    publisher = client.publisher("t")

    def publish_unheard(_bell: Any, seen: int, _timeout_s: float) -> int:
        publisher.publish(b"x")
        return seen

    monkeypatch.setattr(type(client.bell), "wait", publish_unheard)
    with client.subscribe("t") as sub:
        assert bytes(sub.next(10.0).data) == b"x"
        assert sub.stats()["missed_wakes"] == 1


def test_wildcards_and_many_publications_are_served_in_turn(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("md.*") as some, client.subscribe("md.>") as more:
        publishers = [client.publisher(f"md.{name}") for name in "abc"]
        deep = client.publisher("md.a.x")
        for each in publishers:
            each.publish_batch([b"m"] * 500)
        deep.publish(b"deep")
        topics = [some.poll(10).topic for _ in range(6)]
        assert sorted(topics) == ["md.a", "md.a", "md.b", "md.b", "md.c", "md.c"]
        found = {batch.topic for _, batch in zip(range(8), more.batches(100, 0), strict=False)}
        assert found == {"md.a", "md.b", "md.c", "md.a.x"}
        assert {each.topic for each in some.images()} == {"md.a", "md.b", "md.c"}
        assert some.lag() > 0
        assert some.stats()["messages"] == 60


def test_lag_counts_what_nobody_has_looked_at(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as subscription:
        client.publish("t", b"x", flush=True)
        assert subscription.lag() == 1
        assert bytes(subscription.next(timeout=5.0).data) == b"x"


def test_start(pair: Pair) -> None:
    client, _ = pair
    client.publish("t", b"old", flush=True)
    with (
        client.subscribe("t") as late,
        client.subscribe("t", start="earliest") as early,
    ):
        client.publish("t", b"new")
        assert bytes(early.next(1.0).data) == b"old"
        assert bytes(early.next(1.0).data) == b"new"
        assert bytes(late.next(1.0).data) == b"new"
    with pytest.raises(ConfigError, match="start: 'newest'"):
        client.subscribe("t", start="newest")  # type: ignore[arg-type]


def lap(client: Connection) -> None:
    publisher = client.publisher("t")
    for i in range(200):
        publisher.publish(b"%04d" % i + bytes(1000), flush=True)


def test_gap_raises_and_reading_goes_on(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t", tethered=False) as sub:
        lap(client)
        with pytest.raises(GapError, match="packets 0 to") as caught:
            sub.next(1.0)
        first, end = caught.value.lost_range
        assert first == 0
        found = [int(bytes(sub.next(1.0).data)[:4]) for _ in range(200 - end)]
        assert found == list(range(end, 200))


def test_gap_as_event_or_skipped(pair: Pair) -> None:
    client, _ = pair
    with (
        client.subscribe("t", tethered=False, on_gap="event") as told,
        client.subscribe("t", tethered=False, on_gap="skip") as untold,
    ):
        lap(client)
        end = int(bytes(told.next(1.0).data)[:4])
        assert int(bytes(untold.next(1.0).data)[:4]) == end
        gaps = [each for each in client.events() if isinstance(each, Gap)]
        assert [(each.topic, each.first, each.end) for each in gaps] == [("t", 0, end)]
        assert told.stats()["lost_packets"] == untold.stats()["lost_packets"] == end
        assert client.health().gaps == 2
    with pytest.raises(ConfigError, match="on_gap: 'ignore'"):
        client.subscribe("t", on_gap="ignore")  # type: ignore[arg-type]


def test_gaps_of_unreliable_topics_are_events_by_default() -> None:
    with (
        loop_client(reliability=lay.UNRELIABLE) as (client, _),
        client.subscribe("t", tethered=False) as sub,
    ):
        lap(client)
        sub.next(1.0)
        assert any(isinstance(each, Gap) for each in client.events())


def test_what_a_lapped_subscription_hands_out_is_whole(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t", tethered=False) as sub:
        publisher.publish(b"a" * 1000, key=b"k")
        publisher.publish(b"b" * 5000)
        batch = sub.poll()
        lap(client)
        assert batch.payloads() == [b"a" * 1000]
        assert batch.messages[0].key == b"k"
        assert batch.still_valid


def test_a_torn_batch_is_a_gap_and_nothing_behind_it_is_missing(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader is paused between its copy and its check, and the writer laps it by one packet."""
    client, link = pair
    publisher = client.publisher("t")
    held, laps = ports.is_held, [b"z" * 1360]

    def lapped_before_the_check(port: Any) -> bool:
        while laps:
            publisher.publish(laps.pop())
        return bool(held(port))

    with client.subscribe("t", tethered=False, on_gap="event") as sub:
        for i in range(link.slots - 1):
            publisher.publish(bytes([i]) * 1360)  # a packet each
        publisher.publish_batch([b"open", b"too"])  # in the last packet, which is not sealed yet
        monkeypatch.setattr(ports, "is_held", lapped_before_the_check)
        assert len(sub.poll()) == 0
        found = [bytes(each.data) for each in sub.poll()]
        [gap] = [each for each in client.events() if isinstance(each, Gap)]
    assert (gap.first, gap.end, gap.reason) == (0, link.slots - 1, "lapped")
    assert found == [b"open", b"too", b"z" * 1360]


def test_an_evicted_subscription_is_told(pair: Pair) -> None:
    client, link = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub:
        publisher.publish(b"x" * 1000, flush=True)
        batch = sub.poll()
        [publication] = link.publications.values()
        entry = lay.CONSUMERS_AT + lay.CONSUMER_STATE_AT
        publication.mapped.array[entry] = lay.CONSUMER_EVICTED
        assert not batch.still_valid
        with pytest.raises(GapError, match="overwritten"):
            batch.payloads()
        for _ in range(130):
            publisher.publish(b"y" * 1000, flush=True)
        with pytest.raises(GapError):
            sub.next(1.0)
        assert bytes(sub.next(1.0).data) == b"y" * 1000
        assert publication.mapped.array[entry] == lay.CONSUMER_ACTIVE


def test_a_publication_that_ends_is_drained_and_released(pair: Pair) -> None:
    client, link = pair
    with client.subscribe("t") as sub:
        with client.publisher("t") as publisher:
            publisher.publish(b"last")
        assert link.publications, "held for who still reads"
        assert bytes(sub.next(1.0).data) == b"last"
        assert len(sub.poll()) == 0
        assert not link.publications
        assert len(link.released) == 1
        kinds = [type(each) for each in client.events()]
        assert kinds == [ImageAvailable, ImageGone]
        client.publish("t", b"another")
        assert bytes(sub.next(1.0).data) == b"another"
        assert sub.stats()["messages"] == 2


def test_handlers(pair: Pair) -> None:
    client, _ = pair
    for concurrency in (1, 4):
        with client.subscribe("t") as sub:
            client.publish_batch("t", [b"%d" % i for i in range(100)])
            sub.drain()
            seen: list[bytes] = []

            def note(message: Any, seen: list[bytes] = seen) -> None:
                seen.append(bytes(message.data))

            assert sub.run(note, concurrency) == 100
            assert sorted(seen) == sorted(b"%d" % i for i in range(100))
            if concurrency == 1:
                assert seen == [b"%d" % i for i in range(100)]


def test_a_failing_handler_ends_the_run(pair: Pair) -> None:
    client, _ = pair

    def handler(message: Any) -> None:
        raise ValueError(bytes(message.data))

    for concurrency in (1, 3):
        with client.subscribe("t") as sub:
            client.publish_batch("t", [b"1"] * 10)
            with pytest.raises(ValueError, match="1"):
                sub.run(handler, concurrency)


@pytest.mark.parametrize("wrong", [None, 5, "text", lambda: None, lambda a, b: None])
def test_wrong_handlers_are_refused_at_once(pair: Pair, wrong: Any) -> None:
    with pair[0].subscribe("t") as sub:
        with pytest.raises(ConfigError, match="handler"):
            sub.run(wrong)
        with pytest.raises(ConfigError, match="concurrency: 0"):
            sub.run(print, concurrency=0)


def test_drain_takes_what_is_there(pair: Pair) -> None:
    client, _ = pair
    publisher = client.publisher("t")
    with client.subscribe("t") as sub:
        publisher.publish_batch([b"before"] * 700, flush=True)
        sub.drain()
        publisher.publish(b"behind", flush=True)
        assert sum(bytes(each.data) == b"before" for each in sub) == 700
        with pytest.raises(Timeout):
            sub.next(0.01)


def test_close_wakes_whoever_waits(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    client, _ = pair
    sub = client.subscribe("t")
    arm, armed = sub.arm, threading.Event()

    def arm_and_say(*batch: Any) -> int | None:
        word = arm(*batch)
        armed.set()
        return word

    monkeypatch.setattr(sub, "arm", arm_and_say)

    def close() -> None:
        armed.wait(60.0)
        sub.close()

    closer = threading.Thread(target=close)
    closer.start()
    assert list(sub) == []
    closer.join()
    with pytest.raises(Closed, match="subscription to t"):
        sub.poll()
    with pytest.raises(Closed):
        sub.next(1.0)
    sub.close()


def test_memory_outlives_the_subscription(pair: Pair) -> None:
    client, _ = pair
    with client.subscribe("t") as sub:
        client.publish("t", b"still here")
        message = sub.next(1.0)
    client.publish("t", b"x")
    assert bytes(message.data) == b"still here"


def test_inline_links_are_worked_while_waiting() -> None:
    with loop_client(inline=True) as (client, link), client.subscribe("t") as sub:
        publisher = client.publisher("t")
        turns = iter([0, 0, 0, 1])

        def work() -> int:
            did = next(turns, 0)
            if did:
                publisher.try_publish(b"by an agent")
            return did

        link.work_hook = work
        assert bytes(sub.next(5.0).data) == b"by an agent"
        assert link.works >= 4
        with pytest.raises(Timeout):
            sub.next(0.01)


def test_thousands_of_messages_between_threads(pair: Pair) -> None:
    client, _ = pair
    rng = np.random.default_rng(5)
    sizes = rng.integers(0, 3000, 5000).tolist()
    payloads = [bytes([i & 255]) * size for i, size in enumerate(sizes)]

    def work() -> None:
        publisher = client.publisher("t")
        for i in range(0, len(payloads), 50):
            if i % 100:
                publisher.publish_batch(payloads[i : i + 50])
            else:
                for each in payloads[i : i + 50]:
                    publisher.publish(each)
        publisher.flush()

    with client.subscribe("t") as sub:
        thread = threading.Thread(target=work)
        thread.start()
        found = [bytes(sub.next(10.0).data) for _ in payloads]
        thread.join()
        assert found == payloads
