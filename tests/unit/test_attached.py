"""An engine that consumes queues of an adapter."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.feeds import RECIPE, made
from tests.support.patience import wait_until
from tests.support.punched import Punched, PunchedAdapter
from tests.unit.test_consumer import take, topology

import tidecast.sync
from tidecast.agents.puller import entries
from tidecast.api.start import Earliest, Latest, Time, Tokens
from tidecast.embedded import EmbeddedLink
from tidecast.engine.adapters import made_by
from tidecast.errors import ConfigError, Conflict, ConnectionLost, NotFound, StorageError
from tidecast.events import MessageDropped, QueueUnreadable, RecordsGone, RecordsLeftOut
from tidecast.layout.counters import AdapterCounter
from tidecast.queues import attached
from tidecast.queues.adapter import LeftOut, Received
from tidecast.queues.generator import GeneratorAdapter
from tidecast.queues.sources import Fetched
from tidecast.sync import Connection
from tidecast.telemetry.queues import Times, samples


@contextmanager
def fed(data_dir: Path, feed: Any) -> Iterator[Connection]:
    link = EmbeddedLink.open(topology(), data_dir=data_dir, adapters={"feed": feed})
    with tidecast.sync.connect(link=link) as client:
        yield client


def test_an_adapter_is_consumed_acked_and_gone_on_with(tmp_path: Path) -> None:
    feed = made()
    receivers: list[Any] = []
    make = feed.receiver

    def receiver(queue: int) -> Any:
        receivers.append(make(queue))
        return receivers[-1]

    feed.receiver = receiver  # type: ignore[method-assign]
    with fed(tmp_path, feed) as client:
        with client.consumer("feed", "reader") as consumer:
            assert consumer.info()["lag"] == 100
            assert len(set(take(consumer, 60))) == 60
            feed.grow(1, 25)
            assert len(take(consumer, 65)) == 65
            wait_until(lambda: consumer.info()["settled"] == 125, 5.0, "all acks")
            assert {cursor["reason"] for cursor in consumer.info()["cursors"]} == {"caught up"}
            feed.grow(0, 5)  # it waits at the end, and wakes the puller
            assert len(take(consumer, 5)) == 5
            shown = samples(client.link.node, Times())["queues"]  # type: ignore[attr-defined]
            feeds = [(q["number"], q["latest"]) for q in shown if q["topic"] == "feed"]
            assert feeds == [(0, 55), (1, 75)]
            wait_until(lambda: {r.acked for r in receivers} == {0, 55, 75}, 5.0, "acks there")
        for start, n in ((Latest(), 0), (Tokens({0: 50, 1: 75}), 5), (Time(0), 130)):
            with client.consumer("feed", f"from {start}", start=start) as other:
                got = take(other, n) if n else other.fetch(1, 0.1)
                assert len(got) == n
        client.topics.pause("feed", queue=1)
    with fed(tmp_path, made()) as client, client.consumer("feed", "reader") as consumer:
        assert [cursor["paused_by"] for cursor in consumer.info()["cursors"]] == [[], ["queue"]]
        client.topics.resume("feed", queue=1)
        assert consumer.info()["lag"] == 0, "what the adapter has lost is not read again"
        consumer.seek(Earliest())
        assert len(take(consumer, 100)) == 100


def test_a6_an_adapter_is_told_of_nothing_that_a_slow_subscription_still_needs(
    tmp_path: Path,
) -> None:
    feed = made()
    acked: list[tuple[int, int]] = []
    make = feed.receiver

    def receiver(queue: int) -> Any:
        one = make(queue)
        one.ack = lambda token: acked.append((queue, token))  # type: ignore[method-assign]
        return one

    feed.receiver = receiver  # type: ignore[method-assign]
    with fed(tmp_path, feed) as client:
        node = client.link.node  # type: ignore[attr-defined]
        with client.consumer("feed", "slow") as slow, client.consumer("feed", "fast") as fast:
            first: dict[int, Any] = {}
            while len(first) < 2:  # the first record of each queue stays in hands
                message = slow.next(5.0).copy()
                first.setdefault(message.token.queue, message)
            assert len(take(fast, 100)) == 100
            wait_until(lambda: fast.info()["settled"] == 100, 5.0, "all acks of the fast one")
            node.consumers.attached.look_after()
            assert not [token for _, token in acked if token > 0]
            for message in first.values():
                message.ack()
            wait_until(lambda: slow.info()["settled"] == 2, 5.0, "acks of the slow one")
            node.consumers.attached.look_after()
            assert {(q, token) for q, token in acked if token > 0} == {(0, 1), (1, 1)}


def test_filters_and_dead_letters_hold_for_it(tmp_path: Path) -> None:
    with fed(tmp_path, made()) as client:
        consumer = client.consumer("feed", "some", where="size > 60", dead_letter="dead")
        message = consumer.next(5.0)
        assert message.size > 60
        message.term("no good")
        with client.consumer("dead", "graves") as graves:
            dead = graves.next(5.0)
            assert (dead.headers["dead-topic"], dead.data) == ("feed", message.data)


def test_errors_of_an_adapter_are_told_and_tried_again(tmp_path: Path) -> None:
    failing = threading.Event()
    failing.set()

    def fault(call: int) -> Exception | None:
        if not failing.is_set():
            return None
        return ZeroDivisionError("of theirs") if call % 2 else ConnectionLost("away")

    with fed(tmp_path, GeneratorAdapter(1, 30, RECIPE, fault=fault)) as client:
        consumer = client.consumer("feed", "reader")
        told = next(e for e in client.events(5.0) if isinstance(e, QueueUnreadable))
        assert "away" in told.detail or "ZeroDivisionError: of theirs" in told.detail
        failing.clear()
        assert len(take(consumer, 30)) == 30


@pytest.mark.parametrize("fault", ["a turned bit", "nothing", "too much", "no end"])
def test_what_an_adapter_gets_wrong_is_told_and_ends_nothing(fault: str, tmp_path: Path) -> None:
    feed, wrong = GeneratorAdapter(1, 30, RECIPE), [False]
    make = feed.receiver

    def receiver(queue: int) -> Any:
        one: Any = make(queue)
        receive, latest = one.receive, one.latest

        def received(token: int, buffer: Any, timeout_s: float) -> Any:
            got = receive(token, buffer, timeout_s)
            if wrong[0] and fault == "a turned bit" and got.bytes:
                buffer[got.bytes - 1] ^= 4
            if wrong[0] and fault == "too much":
                return got._replace(bytes=buffer.size + 1)
            return None if wrong[0] and fault == "nothing" else got

        def end() -> int:
            if wrong[0] and fault == "no end":
                raise ValueError("of the client of another system")
            return int(latest())

        one.receive, one.latest = received, end
        return one

    feed.receiver = receiver  # type: ignore[method-assign]
    with fed(tmp_path, feed) as client:
        wrong[0] = True
        consumer = client.consumer("feed", "reader")
        told = next(e for e in client.events(5.0) if isinstance(e, QueueUnreadable))
        assert "the adapter: " in told.detail
        assert consumer.info()["lag"] == 30
        wrong[0] = False
        assert len(take(consumer, 30)) == 30
        feed.grow(0, 5)
        assert len(take(consumer, 5)) == 5, "its thread still looks for more"


def test_what_the_adapter_no_longer_keeps_is_a_gap(tmp_path: Path) -> None:
    feed = GeneratorAdapter(1, 30, RECIPE)
    make = feed.receiver

    def receiver(queue: int) -> Any:
        one = make(queue)
        receive = one.receive

        def kept(token: int, buffer: Any, timeout_s: float) -> Any:
            if token < 20:
                raise NotFound(f"token {token} is gone")
            return receive(token, buffer, timeout_s)

        one.receive, one.earliest = kept, lambda: 20  # type: ignore[method-assign]
        return one

    feed.receiver = receiver  # type: ignore[method-assign]
    with fed(tmp_path, feed) as client:
        consumer = client.consumer("feed", "reader", start=Tokens({0: 5}))
        gone = next(e for e in client.events(5.0) if isinstance(e, RecordsGone))
        assert (gone.first, gone.end) == (5, 20)
        batch = consumer.fetch(10, 5.0)
        link: Any = EmbeddedLink(client.link.node, "later", owns_node=False)  # type: ignore[attr-defined]
        with tidecast.sync.connect(link=link) as later:
            member = later.consumer("feed", "reader")
            told = next(e for e in later.events(5.0) if isinstance(e, RecordsGone))
            assert (told.first, told.end) == (5, 20)
            batch.ack()
            take(consumer, 10 - len(batch))
            member.close()
            wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "all is acked")
            later.consumer("feed", "reader")
            after = [e for e in later.events(0.0) if isinstance(e, RecordsGone)]
            assert not after, "the subscription is behind it"


def test_what_cannot_be(tmp_path: Path) -> None:
    with fed(tmp_path, made()) as client:
        with pytest.raises(Conflict, match="it can be consumed here, not published to"):
            client.publish("feed", b"x")
        with pytest.raises(Conflict, match="not published to"):
            client.consumer("orders", "x", dead_letter="feed")
        one: Any = client.link.node.consumers.attached  # type: ignore[attr-defined]
        with pytest.raises(Conflict, match="this engine has a topic of this name"):
            one.attach("orders", made())
        one.detach("feed")
        with pytest.raises(NotFound):
            one.detach("feed")
        one.attach("feed", made())
        with client.consumer("feed", "reader") as consumer:
            assert len(take(consumer, 100)) == 100


def test_a_function_is_named_by_its_module() -> None:
    topic, kind, make = made_by(f"feed={made.__module__}:made")
    assert (topic, kind, make().queues) == ("feed", f"{made.__module__}:made", 2)
    for text in ("feed", "feed=x", "feed=no.such:thing", f"feed={__name__}:nothing", "=a:b"):
        with pytest.raises(ConfigError, match="adapter"):
            made_by(text)


def test_a_block_is_waited_for_by_nobody() -> None:
    source = attached.AttachedQueue(made(), 0, lambda: None, lambda _: None).source()
    block = np.zeros(1 << 16, dtype=np.uint8)
    source.read(0, block)
    wait_until(lambda: source._answer is not None, 5.0, "an answer")
    got = source.poll(0)
    assert got is not None
    assert (got.end, source.poll(0)) == (50, None)
    source.close()


def test_a_reader_behind_the_end_is_not_held_up_by_a_watch_of_it(tmp_path: Path) -> None:
    """A receive at the end waits for the next record, and the next block waits for it."""
    n = 30_000
    feed, asked = GeneratorAdapter(1, n, RECIPE), list[int]()
    make = feed.receiver

    def receiver(queue: int) -> Any:
        one: Any = make(queue)
        receive = one.receive

        def noted(token: int, buffer: Any, timeout_s: float) -> Any:
            asked.append(token)
            return receive(token, buffer, timeout_s)

        one.receive = noted
        return one

    feed.receiver = receiver  # type: ignore[method-assign]
    with fed(tmp_path, feed) as client, client.consumer("feed", "reader") as consumer:
        got = 0
        while got < n:
            batch = consumer.fetch(4096, 5.0)
            got += len(batch)
            batch.ack()
        feed.grow(0, 5)
        assert len(take(consumer, 5)) == 5  # at the end it is watched
    blocks = [at for at, token in enumerate(asked) if token < n]
    assert len(blocks) > 5
    assert n not in asked[: blocks[-1]]


@pytest.mark.parametrize(
    ("answer", "end", "watched"),
    [
        (Fetched(9, 50, next_token=10), -1, (-1, 0.0)),
        (Fetched(9, 50, next_token=50), -1, (50, 0.0)),
        (Fetched(0, 50, next_token=50), -1, (50, 0.0)),
        (Fetched(9, 60, next_token=10), 50, (60, attached.NEXT_S)),
        (Fetched(0, 10, 4096), 50, (-1, 0.0)),
    ],
)
def test_the_end_is_watched_once_a_reader_is_there(
    answer: Fetched, end: int, watched: tuple[int, float]
) -> None:
    assert attached._watched(answer, end) == watched


def test_holes_are_passed_and_positions_lag_and_seek_stay_true(tmp_path: Path) -> None:
    queue = Punched()
    for hole in (3, 0, 7, 50_000, 2):
        queue.add(hole, 10)
    queue.add(4, 0)  # a hole at the end: markers of transactions
    tokens = queue.tokens()
    with fed(tmp_path, PunchedAdapter(queue)) as client:
        consumer = client.consumer("feed", "reader")
        passed = queue.end - consumer.info()["lag"]  # holes that were read ahead count as acked
        assert passed in (0, 3, 10, 50_010, 50_012, 50_016)
        rows = client.subscriptions.peek("feed", "reader", 3)
        assert [row.offset for row in rows] == tokens[:3]
        got = take_messages(consumer, 30)
        assert [m.token.sequence for m in got] == tokens[:30]
        for message in got:
            message.ack()
        wait_until(lambda: consumer.info()["settled"] == 30, 5.0, "acks of the first three batches")
        (cursor,) = consumer.info()["cursors"]
        assert cursor["position"] in (tokens[29] + 1, tokens[30]), "behind the hole, or before it"
        assert consumer.info()["lag_s"] > 0
        assert len(take(consumer, 20)) == 20
        wait_until(lambda: consumer.info()["lag"] == 0, 5.0, "the hole at the end is passed")
        (cursor,) = consumer.info()["cursors"]
        assert (cursor["position"], cursor["reason"]) == (queue.end, "caught up")
        queue.add(1, 1)
        assert consumer.next(5.0).token.sequence == queue.end - 1
        consumer.seek(Tokens({0: tokens[9] + 1}))  # in the hole behind the second batch
        assert consumer.next(5.0).token.sequence == tokens[10]
        assert not [e for e in client.events(0.1) if isinstance(e, RecordsGone | QueueUnreadable)]
        consumer.close()
    with fed(tmp_path, PunchedAdapter(queue)) as client, client.consumer("feed", "reader") as again:
        assert [m.token.sequence for m in take_messages(again, 5)] == tokens[10:15]


def test_records_that_are_left_out_are_reported_once_counted_and_passed(tmp_path: Path) -> None:
    queue = Punched()
    queue.leave_out()
    queue.add(0, 5)
    queue.leave_out(3)
    queue.leave_out()
    queue.add(2, 5)
    feed = PunchedAdapter(queue)
    with fed(tmp_path, feed) as client:
        with client.consumer("feed", "one") as one, client.consumer("feed", "other") as other:
            for consumer in (one, other):
                got = take_messages(consumer, 10)
                assert [m.token.sequence for m in got] == queue.tokens()
                for message in got:
                    message.ack()
            queue.leave_out()  # at the end
            for consumer in (one, other):
                wait_until(partial(_is_through, consumer), 5.0, "all is passed")
            one.seek(Earliest())
            assert len(take(one, 10)) == 10
            events = [e for e in client.events(0.1) if isinstance(e, RecordsLeftOut)]
        assert [(e.topic, e.queue, e.first, e.end, e.records) for e in events] == [
            ("feed", 0, first, end, end - first)
            for first, end in ((0, 1), (6, 9), (9, 10), (17, 18))
        ]
        assert {(e.bytes, e.reason) for e in events} == {(70_000, "headers too large")}
        node = client.link.node  # type: ignore[attr-defined]
        node.consumers.attached.counters.update(node.counters, now=True)
        (row,) = (each for each in node.counters.rows() if each.kind == "adapter")
        assert node.counters.values[row.index, AdapterCounter.LEFT_OUT] == 6
        assert not [e for e in client.events(0.0) if isinstance(e, RecordsGone | QueueUnreadable)]


@pytest.mark.parametrize(
    "wrong",
    [
        Received(0, 3, left_out=LeftOut(0, 2, 1, 1, "another end")),
        Received(0, 2, left_out=LeftOut(0, 2, 3, 1, "more records than offsets")),
        Received(0, 2, left_out=LeftOut(2, 2, 1, 1, "no offset")),
        Received(0, 2, need=9, left_out=LeftOut(0, 2, 1, 1, "and a need")),
    ],
)
def test_a_record_left_out_that_makes_no_sense_is_refused(wrong: Received) -> None:
    queue = Punched()
    queue.add(5, 1)
    receiver = PunchedAdapter(queue).receiver(0)
    receiver.receive = lambda *_: wrong  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="the adapter: it received"):
        attached.fetched(receiver, 0, np.zeros(1 << 10, dtype=np.uint8), lambda _: None)


def _is_through(consumer: Any) -> bool:
    return bool(consumer.info()["lag"] == 0)


def take_messages(consumer: Any, n: int) -> list[Any]:
    return [consumer.next(5.0).copy() for _ in range(n)]


def test_a_dead_record_that_its_source_deleted_is_dropped_and_told(tmp_path: Path) -> None:
    queue = Punched()
    queue.add(0, 10)
    with fed(tmp_path, PunchedAdapter(queue)) as client:
        node = client.link.node  # type: ignore[attr-defined]
        consumer = client.consumer("feed", "reader", dead_letter="dead")
        got = take_messages(consumer, 10)
        queue.compact({4})
        puller, (one,) = node.consumers.puller, node.consumers.topics["feed"].queues
        puller.call(entries.drop_queue_blocks, puller.words, one.row)
        got[4].term("no good")
        told = next(e for e in client.events(5.0) if isinstance(e, MessageDropped))
        assert (told.topic, told.token) == ("feed", 4)
