"""Actions on a subscription: seek, pause queues, decide about failed messages."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clients import nothing_comes
from tests.support.handlers import handled_around
from tests.support.patience import wait_until
from tests.unit.test_consumer import BODIES, connected, publish, take, topology

import tidecast
import tidecast.sync
from tidecast.api.start import Earliest, Latest, Start, Time, Tokens
from tidecast.client.consumer.dispatch import Dispatch
from tidecast.client.consumer.message import DurableMessage
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed, ConfigError, NotFound, StorageError
from tidecast.events import (
    ConsumerLeft,
    DeliveryPaused,
    PositionsNotSaved,
    QueueUnreadable,
    SubscriptionMoved,
)
from tidecast.node.consumers import admin, checks
from tidecast.queues.subscription_store import SubscriptionStore
from tidecast.sync import Connection
from tidecast.telemetry.views import connect_inside


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Connection]:
    with connected(tmp_path) as one:
        yield one


def test_after_a_seek_nothing_comes_of_what_was_on_its_way(client: Connection) -> None:
    publish(client, *BODIES)
    with client.consumer("orders", "billing") as consumer:
        whole = {bytes(message.data): message.token for message in consumer.fetch(30, 5.0)}
        while len(whole) < 30:
            whole |= {bytes(message.data): message.token for message in consumer.fetch(30, 5.0)}
        consumer.seek(Earliest())
        assert consumer.fetch(1, 5.0)  # what lies behind it is in the ring now
        consumer.seek(Latest())
        assert nothing_comes(consumer)
        publish(client, b"new")
        assert take(consumer, 1) == [b"new"]
        consumer.seek(Earliest())
        seen = []
        for message in consumer.messages():
            seen.append(bytes(message.data))
            if len(seen) == 5:
                consumer.seek(Latest())  # amid what was taken together
                publish(client, b"newer")
            if seen[-1] == b"newer":
                break
        assert seen[5:] == [b"newer"]
        assert nothing_comes(consumer)
        moved = consumer.seek(Tokens({whole[b"m00"].queue: whole[b"m00"].sequence}), dry_run=True)
        assert [row["after"] for row in moved] == [whole[b"m00"].sequence]
        for wrong, said in (
            (Tokens({7: 0}), "queue 7: orders has 0 to 1"),
            (Tokens({0: -1}), "whole numbers from 0 on"),
            (Time("2031-05-04"), "ns since 1970"),  # type: ignore[arg-type]
        ):
            with pytest.raises(ConfigError, match=said):
                consumer.seek(wrong)
        assert repr(consumer.fetch(1, 0.0)) == "<DurableBatch of 0 messages from orders>"
    with pytest.raises(Closed):
        consumer.fetch(1, 0.0)


@given(st.sets(st.integers(0, 60)))
def test_positions_are_saved_as_ranges(settled: set[int]) -> None:
    waiting = np.array(sorted(set(range(61)) - settled), dtype=np.int64)
    ranges = checks._between(0, waiting, 61)
    assert [token for first, end in ranges for token in range(first, end)] == sorted(settled)
    assert all(end < first for (_, end), (first, _) in itertools.pairwise(ranges))


@pytest.mark.parametrize("producers", [1, 4])
@pytest.mark.parametrize("members", [1, 4])
def test_any_number_of_producers_and_members(
    client: Connection, producers: int, members: int
) -> None:
    sharing = [client.consumer("orders", "billing") for _ in range(members)]

    def produce(number: int) -> None:
        with client.publisher("orders") as publisher:
            for body in BODIES:
                publisher.publish(body, key=b"producer %d" % number)

    threads = [threading.Thread(target=produce, args=(n,)) for n in range(producers)]
    for thread in threads:
        thread.start()
    seen: dict[bytes | None, list[bytes]] = {}
    while sum(map(len, seen.values())) < producers * len(BODIES):
        for consumer in sharing:
            batch = consumer.fetch(50, 0.01)
            for message in batch:
                seen.setdefault(message.key, []).append(bytes(message.data))
            batch.ack()
    for thread in threads:
        thread.join()
    assert seen == {b"producer %d" % n: BODIES for n in range(producers)}
    assert not any(consumer.fetch(1, 0.0) for consumer in sharing)


def test_a_seek_by_somebody_else_takes_back_what_was_on_its_way(client: Connection) -> None:
    publish(client, *BODIES)
    move = client.link.node.consumers.perform  # type: ignore[attr-defined]
    with client.consumer("orders", "billing") as consumer:

        def out() -> dict[int, int]:
            return {row["queue"]: row["outstanding"] for row in consumer.info()["cursors"]}

        wait_until(lambda: sum(out().values()) == 30, 5.0, "all on their way")
        before = out()
        messages = consumer.messages()
        seen = [next(messages).token.queue for _ in range(5)]  # all 30 were taken together
        here = seen[-1]
        which = {"pattern": "orders", "name": "billing", "start": "latest", "queue": here}
        (row,) = move("seek", which)
        assert row["forgotten"] == before[here]
        rest = [next(messages).token.queue for _ in range(before[1 - here] - seen.count(1 - here))]
        assert rest == [1 - here] * len(rest), "those of the other queue go on"
        publish(client, b"new")
        assert bytes(next(messages).data) == b"new"
        moved = [event for event in client.events() if isinstance(event, SubscriptionMoved)]
        assert [event.forgotten for event in moved] == [before[here]]


@pytest.mark.parametrize("to", [Earliest(), Latest()])
def test_what_waits_for_a_handler_is_taken_back_by_a_seek(client: Connection, to: Start) -> None:
    publish(client, *BODIES)
    with client.consumer("orders", "billing") as consumer:

        def move() -> None:
            assert sum(row["forgotten"] for row in consumer.seek(to)) == 30
            publish(client, b"new")

        before, after = handled_around(consumer, move)
    assert len(before) <= 2, "only what a worker had begun with"
    due = [*BODIES, b"new"] if isinstance(to, Earliest) else [b"new"]
    assert sorted(after) == sorted(due)


def test_what_waits_for_a_coroutine_is_taken_back_by_a_seek(tmp_path: Path) -> None:
    async def main() -> None:
        begun, all_out, go_on = asyncio.Queue[bytes](), asyncio.Event(), asyncio.Event()

        async def handle(message: Any) -> None:
            begun.put_nowait(bytes(message.data))
            await go_on.wait()

        put = Dispatch.put

        async def and_say(dispatch: Dispatch, message: DurableMessage) -> None:
            await put(dispatch, message)
            if message.data == BODIES[-1]:
                all_out.set()

        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            for body in BODIES:
                await client.publish("orders", body, key=b"k")
            consumer = await client.consumer("orders", "billing")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Dispatch, "put", and_say)
                running = asyncio.create_task(consumer.run(handle, extend=True))
                async with asyncio.timeout(10.0):
                    assert await begun.get() == BODIES[0]
                    await all_out.wait()
                    await consumer.seek(Latest())
                    await client.publish("orders", b"new")
                    go_on.set()
                    assert await begun.get() == b"new"
            assert begun.empty()
            running.cancel()

    asyncio.run(main())


def test_pauses_outlive_the_engine_and_are_told(tmp_path: Path) -> None:
    with connected(tmp_path) as client:
        publish(client, *BODIES)
        with client.consumer("orders", "billing") as consumer:
            consumer.pause()
            client.topics.pause("orders", queue=1)
            client.topics.pause("orders")
            told = [event for event in client.events() if isinstance(event, DeliveryPaused)]
            assert [(one.queue, one.subscription) for one in told] == [
                (-1, "billing"),
                (1, ""),
                (-1, ""),
            ]
    with connected(tmp_path) as client:
        node = client.link.node  # type: ignore[attr-defined]

        def told_later() -> list[tuple[int, str]]:
            with connect_inside(node, "later") as later:
                paused = [e for e in later.events() if isinstance(e, DeliveryPaused)]
                return [(e.queue, e.subscription) for e in paused]

        assert told_later() == [(-1, ""), (1, ""), (-1, "billing")]
        with client.consumer("orders", "billing") as consumer:
            by = [cursor["paused_by"] for cursor in consumer.info()["cursors"]]
            assert by == [["subscription", "topic"], ["subscription", "queue", "topic"]]
            client.topics.resume("orders")
            assert told_later() == [(1, ""), (-1, "billing")]
            consumer.resume()
            assert told_later() == [(1, "")]
            queues = {message.token.queue for message in consumer.fetch(30, 5.0)}
            assert queues == {0}
            client.topics.resume("orders", queue=1)
    with connected(tmp_path) as client, client.consumer("orders", "billing") as consumer:
        assert len(take(consumer, 30)) == 30
    assert not list(tmp_path.rglob("paused.json"))


def test_a_queue_and_a_topic_are_paused_for_all(client: Connection) -> None:
    publish(client, *BODIES)
    with client.consumer("orders", "billing", max_in_flight=1) as consumer:
        batch = consumer.fetch(1, 5.0)
        client.topics.pause("orders")
        batch.ack()
        assert {cursor["reason"] for cursor in consumer.info()["cursors"]} == {"paused"}
        client.topics.resume("orders")
        (one,) = (message.token for message in consumer.fetch(1, 5.0))
        client.topics.pause("orders", queue=1 - one.queue)
        consumer.seek(Earliest())
        queues = set()
        while batch := consumer.fetch(1, 0.1):
            queues |= {token.queue for token in batch.tokens()}
            batch.ack()
        assert queues == {one.queue}
        client.topics.resume("orders", queue=1 - one.queue)
        assert consumer.fetch(1, 5.0)
    with pytest.raises(NotFound, match=r"no queue 7 of topic orders: it has 0\.\.1"):
        client.topics.pause("orders", queue=7)


def test_a_function_says_what_becomes_of_a_message_that_failed(client: Connection) -> None:
    publish(client, *BODIES[:4], keys=4)
    said = {b"m00": "term", b"m01": None, b"m02": "ack", b"m03": "raise"}
    told: list[tuple[bytes, str]] = []

    def handler(message: Any) -> None:
        if message.attempts == 1:
            raise ValueError(bytes(message.data).decode())

    def on_error(message: Any, problem: Exception) -> str | None:
        told.append((bytes(message.data), str(problem)))
        return said[bytes(message.data)]

    with client.consumer("orders", "billing", dead_letter="dead") as consumer:
        raised: list[str] = []
        while len(told) < 4:
            try:
                consumer.run(handler, on_error=on_error, nak_delay=0.0, max_messages=1)
            except ValueError as problem:
                raised.append(str(problem))
        assert raised == ["m03"]
        assert sorted(told) == [(body, body.decode()) for body in BODIES[:4]]
        wait_until(lambda: consumer.info()["dead"] == 1, 5.0, "a dead letter")


def test_a_drained_run_ends_behind_what_it_took_and_a_compiled_one_goes_on(tmp_path: Path) -> None:
    def count(_data: Any, state: Any) -> None:
        state[0] += 1

    async def main() -> None:
        link: Any = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            consumer = await client.consumer("orders", "billing")
            seen, drained = list[bytes](), list[asyncio.Task[None]]()

            async def handle(message: Any) -> None:
                seen.append(bytes(message.data))
                if len(seen) == 3:
                    drained.append(asyncio.create_task(consumer.drain(10.0)))

            await client.publish_batch("orders", BODIES[:3])
            async with asyncio.timeout(10.0):
                assert await consumer.run(handle) == 3
                await drained[0]
            await consumer.close()
            assert seen == BODIES[:3]
            consumer = await client.consumer("orders", "billing")
            await client.publish_batch("orders", BODIES[3:])
            state = np.zeros(1, dtype=np.int64)
            left = len(BODIES) - 3
            assert await consumer.run_compiled(count, state, max_messages=left) == left
            assert state[0] == left

    asyncio.run(main())


HELD = [b"%d" % i for i in range(300)]
"""More than a walk takes at a time, and than threads and tasks hold."""


def taken_once_by_another(client: Connection, handled: list[bytes]) -> None:
    """Messages that a drained run did not begin go to another member, without an attempt."""
    left = sorted(set(HELD) - set(handled))
    with client.consumer("orders", "billing") as other:
        found = list[bytes]()
        while len(found) < len(left):
            message = other.next(timeout=10.0)
            assert message.attempts == 1
            found.append(bytes(message.data))
            message.ack()
        assert sorted(found) == left
        wait_until(lambda: other.info()["lag"] == 0, 5.0, "all are acked")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_drained_run_begins_nothing_more(client: Connection, concurrency: int) -> None:
    handled: list[bytes] = []
    with client.consumer("orders", "billing") as consumer:
        client.publish_batch("orders", HELD, ack="durable").check()
        all_busy = threading.Barrier(concurrency + 1)

        def handle(message: DurableMessage) -> None:
            handled.append(bytes(message.data))
            all_busy.wait(10.0)
            wait_until(lambda: consumer.ended, 10.0, "a drain")

        def drain() -> None:
            all_busy.wait(10.0)
            consumer.drain(10.0)

        drains = threading.Thread(target=drain)
        drains.start()
        assert consumer.run(handle, concurrency) == concurrency
        drains.join(10.0)
    assert len(handled) == concurrency
    taken_once_by_another(client, handled)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_drained_run_of_coroutines_begins_nothing_more(tmp_path: Path, concurrency: int) -> None:
    handled: list[bytes] = []

    async def main(link: Any) -> None:
        async with tidecast.connect(link=link) as client:
            drained, drains = asyncio.Event(), list[asyncio.Task[None]]()
            async with client.consumer("orders", "billing") as consumer:
                await client.publisher("orders").publish_batch(HELD, ack="durable")

                async def handle(message: Any) -> None:
                    handled.append(bytes(message.data))
                    if len(handled) < concurrency:
                        await drained.wait()
                        return
                    drains.append(asyncio.create_task(consumer.drain(10.0)))
                    await asyncio.sleep(0)  # it drains from its first step on
                    assert consumer.ended
                    drained.set()

                async with asyncio.timeout(20.0):
                    assert await consumer.run(handle, concurrency) == concurrency
            assert len(handled) == concurrency

    node = EmbeddedLink.open(topology(), data_dir=tmp_path)
    asyncio.run(main(node))
    with connected(tmp_path) as client:
        taken_once_by_another(client, handled)


class Fault(Exception):
    """Of a handler, or a program that stops."""


@pytest.mark.parametrize("stops", ["handler", "program"])
def test_a_run_that_fails_gives_back_what_no_handler_has_begun(
    client: Connection, stops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for `ack_wait` and counted as attempts: dead letters that no handler ever had."""
    handled: list[bytes] = []
    with client.consumer("orders", "billing", max_deliver=1) as consumer:
        client.publish_batch("orders", HELD, ack="durable").check()
        all_busy, go_on, messages = threading.Barrier(3), threading.Event(), consumer.messages

        def handle(message: DurableMessage) -> None:
            handled.append(bytes(message.data))
            if stops == "handler":
                all_busy.wait(10.0)
                raise Fault
            go_on.wait(10.0)

        def interrupted() -> Iterator[DurableMessage]:
            for n, message in enumerate(messages()):
                yield message
                if n == 50:
                    go_on.set()
                    raise Fault  # as Ctrl-C does

        if stops == "program":
            monkeypatch.setattr(consumer, "messages", interrupted)
        else:
            threading.Thread(target=all_busy.wait, args=(10.0,)).start()
        with pytest.raises(Fault):
            consumer.run(handle, 2, on_error="raise")
        assert len(handled) <= 2
        assert consumer.info()["dead"] == 0
    taken_once_by_another(client, handled)


@pytest.mark.parametrize("stops", ["handler", "program"])
def test_a_run_of_coroutines_that_fails_gives_back_what_no_handler_has_begun(
    tmp_path: Path, stops: str
) -> None:
    handled: list[bytes] = []

    async def main(link: Any) -> None:
        async with tidecast.connect(link=link) as client:
            async with client.consumer("orders", "billing", max_deliver=1) as consumer:
                await client.publisher("orders").publish_batch(HELD, ack="durable")
                all_busy = asyncio.Event()

                async def handle(message: Any) -> None:
                    handled.append(bytes(message.data))
                    if len(handled) == 2:
                        all_busy.set()
                        if stops == "handler":
                            raise Fault
                    await asyncio.Event().wait()

                running = asyncio.create_task(consumer.run(handle, 2, on_error="raise"))
                async with asyncio.timeout(20.0):
                    if stops == "program":
                        await all_busy.wait()
                        running.cancel()
                    with pytest.raises(Fault if stops == "handler" else asyncio.CancelledError):
                        await running
            assert len(handled) == 2

    node = EmbeddedLink.open(topology(), data_dir=tmp_path)
    asyncio.run(main(node))
    with connected(tmp_path) as client:
        taken_once_by_another(client, handled)


def test_a_drain_outlives_a_run_that_fails(client: Connection) -> None:
    with client.consumer("orders", "billing") as consumer:
        client.publish_batch("orders", HELD, ack="durable").check()
        all_busy, failed = threading.Barrier(2), threading.Event()

        def handle(message: DurableMessage) -> None:
            all_busy.wait(10.0)
            if message.data == HELD[0]:
                raise Fault
            wait_until(lambda: consumer.ended, 10.0, "the other one has failed")
            consumer.stop_handing_out()
            failed.set()

        with pytest.raises(Fault):
            consumer.run(handle, 2, on_error="raise")
        assert failed.is_set()
        assert consumer.run(handle) == 0, "it drains"


def test_a_drain_ends_a_loop_over_messages(client: Connection) -> None:
    handled = []
    with client.consumer("orders", "billing") as consumer:
        client.publish_batch("orders", HELD, ack="durable").check()
        for message in consumer:
            handled.append(bytes(message.data))
            message.ack()
            if len(handled) == 3:
                consumer.drain()
    assert len(handled) == 3
    taken_once_by_another(client, handled)


def test_a_function_that_says_nothing_known_ends_the_run(tmp_path: Path) -> None:
    async def no_idea(message: Any, problem: Exception) -> str:
        return "hope"

    async def main() -> None:
        link = EmbeddedLink.open(topology(), data_dir=tmp_path)
        async with tidecast.connect(link=link) as client:
            await client.publish("orders", b"1")
            async with client.consumer("orders", "aio") as consumer:
                with pytest.raises(ConfigError, match="on_error: 'hope': allowed are nak, term"):
                    await consumer.run(lambda message: 1 / 0, on_error=no_idea)

    asyncio.run(main())


def test_what_the_disk_refuses_is_not_half_done(
    client: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, *BODIES[:4], keys=4)
    subs = client.link.node.consumers  # type: ignore[attr-defined]
    with client.consumer("orders", "billing") as consumer:

        def refuse(*_: Any) -> None:
            raise StorageError("subscriptions: No space left on device", 28)

        monkeypatch.setattr(SubscriptionStore, "save", refuse)
        monkeypatch.setattr(admin, "save_paused", refuse)
        for _ in range(2):
            with pytest.raises(StorageError):
                client.consumer("orders", "late")
        with pytest.raises(StorageError):
            consumer.pause()
        with pytest.raises(StorageError):
            client.topics.pause("orders")
        consumer.seek(Latest())  # goes on in memory, and that it is not saved is told
        assert [cursor["paused_by"] for cursor in consumer.info()["cursors"]] == [[], []]
        monkeypatch.undo()
        assert [one["name"] for one in subs.perform("list", {})] == ["billing"]
        told = [event for event in client.events() if isinstance(event, PositionsNotSaved)]
        assert told


def test_a_client_that_dies_is_told_of(client: Connection) -> None:
    node = client.link.node  # type: ignore[attr-defined]
    other = tidecast.sync.connect(link=EmbeddedLink(node, "other", owns_node=False))
    with client.consumer("orders", "billing"):
        lost = other.consumer("orders", "billing")
        node.client_gone(other.link.client_id)
        (told,) = [event for event in client.events() if isinstance(event, ConsumerLeft)]
        assert (told.topic, told.subscription, told.members) == ("orders", "billing", 1)
        assert told.consumer_id == lost.consumer_id


def test_a_damaged_batch_stops_its_queue_and_says_why(client: Connection, tmp_path: Path) -> None:
    for body in (b"damaged", b"sound"):
        publish(client, body, keys=1)
        client.publisher("orders").wait_durable()
    (log,) = (path for path in tmp_path.rglob("*.log") if b"damaged" in path.read_bytes())
    raw = log.read_bytes()
    log.write_bytes(raw.replace(b"damaged", b"dAmaged"))
    with client.consumer("orders", "billing") as consumer:

        def reasons() -> set[str]:
            return {cursor["reason"] for cursor in consumer.info()["cursors"]}

        wait_until(lambda: "the log cannot be read" in reasons(), 5.0, "the reason")
        unreadable = next(e for e in client.events(5.0) if isinstance(e, QueueUnreadable))
        assert (unreadable.token, "checksum" in unreadable.detail) == (0, True)
        assert not consumer.fetch(1, 0.0)
        consumer.seek(Tokens({unreadable.queue: 1}))
        assert take(consumer, 1) == [b"sound"]
