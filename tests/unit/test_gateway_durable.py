"""Durable topics over the gateway: acks, consumers and their credit, connections that break."""

# ruff: noqa: SIM117 - who connects, and then what is done with it

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import Eventually
from tests.support.clients import nothing_comes
from tests.support.gateways import TIMEOUT_S, TOKEN, local, make_gateway, remote, until_event
from tests.support.handlers import handled_around
from tests.support.proxy import Proxy

import tidecast
from tidecast.api.frames.common import Reply
from tidecast.api.start import Earliest, Latest
from tidecast.client.remote import frames
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import (
    ConfigError,
    Fenced,
    NotFound,
    SequenceGap,
    TidecastError,
    Timeout,
)
from tidecast.events import ConsumerRejoined, GatewayBack, GatewayLost, SubscriptionMoved
from tidecast.gateway.server import Gateway
from tidecast.gateway.session import RemoteSession

_names = (f"t{i}" for i in itertools.count())
TOPICS = [
    {"name": f"t{i}", "transport": "ipc", "mode": "durable", "fsync_interval_ms": 2, "queues": 2}
    for i in range(24)
]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": TOPICS}
    link = EmbeddedLink.open(
        topology_from(settings), data_dir=tmp_path_factory.mktemp("node"), name="host"
    )
    yield link
    link.close()


@pytest.fixture(scope="module")
def gateway(node: EmbeddedLink) -> Iterator[Gateway]:
    made = make_gateway(node)
    yield made
    made.stop()


@pytest.fixture
def proxy(gateway: Gateway) -> Iterator[Proxy]:
    made = Proxy(gateway.port)
    yield made
    made.close()


@pytest.fixture
def topic() -> str:
    return next(_names)


def bodies(n: int, size: int = 0) -> list[bytes]:
    return [b"%06d" % i + bytes(size) for i in range(n)]


def take(consumer: Any, n: int, *, ack: bool = True) -> list[bytes]:
    """n payloads."""
    got: list[bytes] = []
    while len(got) < n:
        batch = consumer.fetch(min(n - len(got), 4096), TIMEOUT_S)
        assert batch, f"{len(got)} of {n} came"
        got += batch.payloads()
        if ack:
            batch.ack()
    return got


# --- publishing --------------------------------------------------------------------------------
def test_what_is_acked_is_durable(node: EmbeddedLink, gateway: Gateway, topic: str) -> None:
    with remote(gateway.url) as far, far.publisher(topic) as publisher:
        publisher.publish(b"one", key=b"k", headers={"n": 1}, ack="durable")
        receipts = []
        for body in bodies(500):
            publisher.publish(body, key=body[-2:])
            receipts.append(publisher.receipt())
        assert receipts[-1].wait(TIMEOUT_S) == 501
        assert all(each.done for each in receipts)
        assert publisher.publish_batch(bodies(2000), ack="durable", timeout=TIMEOUT_S).ok
        assert publisher.durable_position == publisher.position == 2501
    with local(node) as near, near.consumer(topic, "check") as consumer:
        assert sorted(take(consumer, 2501)) == sorted([b"one", *bodies(500), *bodies(2000)])


def test_columns_from_both_clients(gateway: Gateway, topic: str) -> None:
    n = 3000
    keys = pa.array([f"k{i % 7}" if i % 5 else None for i in range(n)]).dictionary_encode()
    columns: dict[str, Any] = {
        "keys": keys,
        "headers": {"n": np.arange(n), "kind": "x"},
        "timestamps": np.arange(n) + 1,
        "ack": "durable",
        "timeout": TIMEOUT_S,
    }
    payloads = pa.array(bodies(n))

    async def from_the_loop() -> None:
        async with tidecast.connect(gateway.url, token=TOKEN) as far:
            (await far.publish_batch(topic, payloads, **columns)).check()

    asyncio.run(from_the_loop())
    with remote(gateway.url) as far:
        far.publish_batch(topic, payloads, **columns).check()
        found: list[Any] = []
        with far.consumer(topic, "columns") as consumer:
            while len(found) < 2 * n:
                batch = consumer.fetch(1000, TIMEOUT_S)
                assert batch
                frame = batch.to_record_batch()
                assert frame.column("headers").to_pylist()[0][1] == ("kind", b"x")
                assert frame.column("offset").to_pylist() == [t.sequence for t in batch.tokens()]
                assert frame.column("queue").to_pylist() == [t.queue for t in batch.tokens()]
                assert set(frame.column("topic").to_pylist()) == {topic}
                assert set(frame.column("attempts").to_pylist()) == {1}
                assert frame.column("payload").to_pylist() == batch.payloads()
                assert frame.column("key").to_pylist() == [m.key for m in batch]
                found += [(m.headers["n"], m.data, m.key, m.timestamp) for m in batch]
                batch.ack()
    expected = [
        (i, body, None if key is None else key.encode(), i + 1)
        for i, (body, key) in enumerate(zip(bodies(n), keys.to_pylist(), strict=True))
    ]
    assert sorted(found, key=lambda row: row[0]) == [row for row in expected for _ in range(2)]


def test_acks_on_an_event_loop(gateway: Gateway, topic: str) -> None:
    async def go() -> list[bytes]:
        async with tidecast.connect(gateway.url, token=TOKEN) as far:
            await far.publish(topic, b"1", ack="durable")
            publisher = far.publisher(topic)
            await publisher.publish(b"2")
            await publisher.receipt()
            consumer = await far.consumer(topic, "aio")
            seen: list[bytes] = []

            async def handle(message: Any) -> None:
                seen.append(bytes(message.data))

            await consumer.run(handle, concurrency=4, max_messages=2)
            batch = await consumer.fetch(10, 0.01)
            assert not batch
            await consumer.close()
            await publisher.close()
            return seen

    assert sorted(asyncio.run(go())) == [b"1", b"2"]


def test_cuts_lose_and_double_nothing(node: EmbeddedLink, proxy: Proxy, topic: str) -> None:
    sent = bodies(12_000, 100)
    with remote(proxy.url) as far, far.publisher(topic, producer="shop") as publisher:
        for i in range(0, len(sent), 3000):
            proxy.cut_after(1 << 18)
            publisher.publish_batch(sent[i : i + 3000], timeout=TIMEOUT_S).check()
            assert publisher.wait_durable(timeout=TIMEOUT_S) == i + 3000
        assert proxy.connections > 3
    with local(node) as near, near.consumer(topic, "check", max_in_flight=5000) as consumer:
        assert sorted(take(consumer, len(sent))) == sent
        assert nothing_comes(consumer, 0.02)


def test_a_session_that_the_gateway_forgot_goes_on_without_doubles(
    node: EmbeddedLink, topic: str, eventually: Eventually
) -> None:
    gateway = make_gateway(node, resume_s=0.01)
    proxy = Proxy(gateway.port)
    try:
        with remote(proxy.url) as far, far.publisher(topic) as publisher:
            publisher.publish_batch(bodies(1000), ack="durable", timeout=TIMEOUT_S).check()
            proxy.refuses = True
            proxy.cut()
            publisher.publish_batch(bodies(3000)[1000:], timeout=TIMEOUT_S).check()
            eventually(lambda: not gateway.stats()["sessions"], "the end of the session")
            proxy.refuses = False
            assert not until_event(far, GatewayBack).resumed
            assert publisher.wait_durable(timeout=TIMEOUT_S) == 3000
            publisher.publish(b"last", ack="durable", timeout=TIMEOUT_S)
            with local(node) as near, near.consumer(topic, "check", max_in_flight=5000) as all_:
                assert sorted(take(all_, 3001)) == [*bodies(3000), b"last"]
                assert nothing_comes(all_)
    finally:
        proxy.close()
        gateway.stop()


def test_a_newer_session_of_a_producer_fences_the_older(gateway: Gateway, topic: str) -> None:
    with remote(gateway.url) as first, remote(gateway.url) as second:
        old = first.publisher(topic, producer="shop")
        old.publish(b"1", ack="durable")
        new = second.publisher(topic, producer="shop")
        new.publish(b"2", ack="durable")
        with pytest.raises(Fenced):
            old.publish(b"3", ack="durable", timeout=TIMEOUT_S)


def test_errors_that_only_durable_topics_have(gateway: Gateway, topic: str) -> None:
    with remote(gateway.url) as far:
        with far.publisher(topic, producer="gap") as publisher:
            publisher.publish(b"1", ack="durable")
        with pytest.raises(SequenceGap) as refused:
            far.publisher(topic, producer="gap", first_seq=7)
        assert refused.value.expected == 2
        with pytest.raises(NotFound):
            far.consumer("nowhere", "billing")
        with pytest.raises(ConfigError, match="ring_bytes"):
            far.consumer(topic, "billing", ring_bytes=128 << 20)
        assert far.health().healthy


# --- consuming ---------------------------------------------------------------------------------
def test_the_same_api(gateway: Gateway, topic: str, eventually: Eventually) -> None:
    with remote(gateway.url) as far:
        with far.consumer(topic, "billing", start=Earliest(), ack_wait=5.0) as consumer:
            assert not consumer.fetch(10, 0.01)
            far.publish_batch(topic, bodies(10)).check()
            first = consumer.next(timeout=TIMEOUT_S)
            assert (first.topic, first.attempts, first.size) == (topic, 1, 6)
            first.extend(20.0)
            first.ack()
            seen = {bytes(first.data)}
            for message in consumer.messages(prefetch=4):
                seen.add(bytes(message.data))
                message.ack()
                if len(seen) == 10:
                    break
            assert sorted(seen) == bodies(10)
            assert consumer.ack_wait == 5.0
            eventually(lambda: consumer.info()["settled"] == 10, "all acks")
            again = consumer.seek(Earliest(), dry_run=True)
            assert sum(each["records"] for each in again) == -10
            consumer.seek(Earliest())
            assert consumer.run(lambda m: None, concurrency=2, max_messages=10) == 10
            consumer.seek(Earliest())
            messages = consumer.messages()
            next(messages)  # all are here, and some in hands
            consumer.seek(Latest())
            assert nothing_comes(consumer, 0.02)
            consumer.pause()
            far.publish(topic, b"later", ack="durable")
            assert nothing_comes(consumer, 0.02)
            consumer.resume()
            assert take(consumer, 1) == [b"later"]


def test_a_seek_from_elsewhere_takes_back_what_is_in_the_mirror(
    gateway: Gateway, topic: str, eventually: Eventually
) -> None:
    with remote(gateway.url) as far, remote(gateway.url, name="mover") as mover:
        far.publish_batch(topic, bodies(500), ack="durable").check()
        with far.consumer(topic, "s") as consumer:
            assert len(consumer.fetch(5, TIMEOUT_S)) == 5
            eventually(lambda: consumer.stats()["unread_bytes"] > 400 * 30, "the rest is here")
            which = {"pattern": topic, "name": "s", "start": "latest"}
            mover.link.administer("seek", which)
            moved = until_event(far, SubscriptionMoved)
            assert moved.forgotten == 500
            before = consumer.stats()["unread_bytes"]
            far.publish(topic, b"new", ack="durable")
            eventually(lambda: consumer.stats()["unread_bytes"] > before, "the new one is here")
            assert take(consumer, 1) == [b"new"]


def test_a_seek_from_elsewhere_takes_back_what_waits_for_a_handler(
    gateway: Gateway, topic: str
) -> None:
    with remote(gateway.url) as far, remote(gateway.url, name="mover") as mover:
        far.publish_batch(topic, bodies(50), ack="durable").check()
        with far.consumer(topic, "s") as consumer:

            def move() -> None:
                mover.link.administer("seek", {"pattern": topic, "name": "s", "start": "latest"})
                assert until_event(far, SubscriptionMoved).forgotten == 50
                far.publish(topic, b"new", ack="durable")

            before, after = handled_around(consumer, move)
            assert len(before) <= 2, "all frames were released, and still it is known"
            assert after == [b"new"]


def test_a_filter_as_text_and_what_is_wrong_with_it(gateway: Gateway, topic: str) -> None:
    with remote(gateway.url) as far:
        with pytest.raises(ConfigError, match="'price' at character 1"):
            far.consumer(topic, "dear", where="price > 3")
        with far.consumer(topic, "late", where='value >= "000007"') as consumer:
            far.publish_batch(topic, bodies(10), ack="durable").check()
            assert sorted(take(consumer, 3)) == bodies(10)[7:]


def test_nak_term_and_redrive(gateway: Gateway, topic: str) -> None:
    dead = next(_names)
    with remote(gateway.url) as far:
        with far.consumer(topic, "billing", dead_letter=dead) as consumer:
            far.publish_batch(topic, [b"bad", b"good"], ack="durable").check()
            seen: list[tuple[bytes, int]] = []
            while len(seen) < 3:
                message = consumer.next(timeout=TIMEOUT_S)
                seen.append((bytes(message.data), message.attempts))
                if bytes(message.data) == b"good":
                    message.ack()
                elif message.attempts == 1:
                    message.nak(delay=0.01)
                else:
                    message.term("no use")
            assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
            with far.consumer(dead, "morgue") as morgue:
                letter = morgue.next(timeout=TIMEOUT_S)
                assert bytes(letter.data) == b"bad"
                assert letter.headers["dead-reason"] == "no use"
                letter.ack()
            assert consumer.redrive(dry_run=True)["records"] == 1
            consumer.redrive()
            assert take(consumer, 1) == [b"bad"]


@pytest.mark.long  # compiles for seconds
def test_compiled_handlers(gateway: Gateway, topic: str) -> None:
    import numpy as np

    def count(data, state):  # type: ignore[no-untyped-def]
        state[0] += 1
        state[1] += data.size

    with remote(gateway.url) as far, far.consumer(topic, "compiled") as consumer:
        far.publish_batch(topic, bodies(5000)).check()
        state = np.zeros(2, dtype=np.int64)
        assert consumer.run_compiled(count, state, max_messages=5000, duration_s=TIMEOUT_S) == 5000
        assert state.tolist() == [5000, 30_000]


def test_large_records_and_many_rings_full(gateway: Gateway, topic: str) -> None:
    """The ring of 64 KiB goes round often, and a record of 1 MiB comes in pieces."""
    sent = [bytes([i % 251]) * n for i, n in enumerate([40_000, 1, 1_000_000, 900, 60_000] * 12)]
    with remote(gateway.url) as far:
        with far.consumer(topic, "big", ring_bytes=1 << 16) as consumer:
            with far.publisher(topic, channel="large") as publisher:
                for each in sent:
                    publisher.publish(each, key=b"one")
                assert take(consumer, len(sent)) == sent


def test_credit_in_messages_and_bytes(
    node: EmbeddedLink, gateway: Gateway, topic: str, eventually: Eventually
) -> None:
    with remote(gateway.url) as far, far.publisher(topic) as publisher:
        publisher.publish_batch(bodies(3000, 500), ack="durable", timeout=TIMEOUT_S).check()
        with far.consumer(topic, "slow", max_in_flight=7, start=Earliest()) as consumer:
            unsettled = take(consumer, 7, ack=False)
            assert nothing_comes(consumer, 0.02), "no credit in messages"
            assert len(unsettled) == 7
            assert consumer.info()["outstanding"] == 7
        with far.consumer(topic, "narrow", max_in_flight=10_000, ring_bytes=1 << 16) as narrow:
            unread = narrow.fetch(1, TIMEOUT_S)
            eventually(lambda: narrow.stats()["unread_bytes"] > 50_000, "a full ring")
            assert narrow.info()["outstanding"] < 140
            unread.ack()
            rest = take(narrow, 2999)
            assert len(set(rest)) == 2999


def test_members_far_and_near_share(node: EmbeddedLink, gateway: Gateway, topic: str) -> None:
    with remote(gateway.url) as far, local(node) as near:
        with far.consumer(topic, "shared") as there, near.consumer(topic, "shared") as here:
            far.publish_batch(topic, bodies(400), ack="durable").check()
            far.publisher(topic)
            seen: list[bytes] = []
            lock, done = threading.Lock(), threading.Event()

            def drink(consumer: Any) -> None:
                while not done.is_set():
                    batch = consumer.fetch(50, 0.02)
                    with lock:
                        seen.extend(batch.payloads())
                    batch.ack()
                    if len(seen) >= 400:
                        done.set()

            threads = [threading.Thread(target=drink, args=(each,)) for each in (here, there)]
            for each in threads:
                each.start()
            assert done.wait(TIMEOUT_S)
            for each in threads:
                each.join()
            assert sorted(seen) == bodies(400)


# --- broken connections ------------------------------------------------------------------------
def test_a_short_cut_brings_nothing_twice(gateway: Gateway, proxy: Proxy, topic: str) -> None:
    with remote(gateway.url) as near, remote(proxy.url) as far:
        near.publish_batch(topic, bodies(4000, 100), ack="durable").check()
        with far.consumer(topic, "cut", max_in_flight=10_000) as consumer:
            seen: list[bytes] = []
            while len(seen) < 4000:
                if len(seen) < 3000:
                    proxy.cut()
                    until_event(far, GatewayBack)
                batch = consumer.fetch(700, TIMEOUT_S)
                assert batch
                seen += batch.payloads()
                batch.ack()
            assert sorted(seen) == bodies(4000, 100), "each once: the place was kept"
            assert nothing_comes(consumer, 0.02)
        assert proxy.connections >= 4


def test_a_place_that_was_given_up_brings_what_was_not_acked_again(
    node: EmbeddedLink, topic: str, eventually: Eventually
) -> None:
    gateway = make_gateway(node, keep_s=0.01)
    proxy = Proxy(gateway.port)
    try:
        with local(node) as near, remote(proxy.url) as far:
            near.publish_batch(topic, bodies(100), ack="durable").check()
            with far.consumer(topic, "lost", max_in_flight=60) as consumer:
                acked = take(consumer, 20)
                held = consumer.fetch(20, TIMEOUT_S)
                unacked = held.payloads()
                # What was acked is settled before the cut.
                eventually(lambda: _settled(near, topic, "lost") == 20, "acks")
                counts = lambda: gateway.stats()["sessions"][0]["consumers_given_up"]  # noqa: E731
                before = counts()  # at the opening, too, a busy client may be back too late
                proxy.refuses = True
                proxy.cut()
                eventually(lambda: counts() > before, "the place given up")
                proxy.refuses = False
                until_event(far, GatewayLost)  # a busy client may have rejoined before the cut too
                assert until_event(far, ConsumerRejoined).subscription == "lost"
                held.ack()  # too late: it comes again
                far.stats()  # what was sent before has arrived
                assert _settled(near, topic, "lost") == 20
                rest = take(consumer, 80)
                assert sorted(acked + rest) == bodies(100)
                assert set(unacked) <= set(rest)
                eventually(lambda: _settled(near, topic, "lost") == 100, "all settled")
    finally:
        proxy.close()
        gateway.stop()


class Flaky(EmbeddedLink):
    """Fails to open what is named; once, where another attempt may help."""

    problems: ClassVar[dict[str, TidecastError]] = {}
    failed: ClassVar[set[str]] = set()

    def _fail(self, what: str) -> None:
        problem = self.problems.get(what)
        if problem is None:
            return
        self.failed.add(what)
        if problem.retryable:
            del self.problems[what]
        raise problem

    def open_publication(self, topic: str, options: Any) -> Any:
        self._fail("publication")
        return super().open_publication(topic, options)

    def open_consumer(self, pattern: str, name: str, options: Any) -> Any:
        self._fail("consumer")
        return super().open_consumer(pattern, name, options)


@pytest.mark.parametrize("problem", [Timeout("busy"), NotFound("deleted meanwhile")])
def test_what_cannot_be_opened_again_is_tried_again_or_says_why(
    node: EmbeddedLink, topic: str, eventually: Eventually, problem: TidecastError
) -> None:
    link: Any = lambda name: Flaky(node.node, name, owns_node=False)  # noqa: E731
    gateway = Gateway(link, TOKEN, port=0, resume_s=0.01, keep_s=0.01)
    gateway.start()
    proxy = Proxy(gateway.port)
    try:
        with remote(proxy.url) as far:
            publisher, consumer = far.publisher(topic), far.consumer(topic, "flaky")
            Flaky.problems |= dict.fromkeys(("publication", "consumer"), problem)
            proxy.refuses = True
            proxy.cut()
            eventually(lambda: not gateway.stats()["sessions"], "the end of the session")
            proxy.refuses = False
            if problem.retryable:
                publisher.publish(b"1", ack="durable", timeout=TIMEOUT_S)
                assert take(consumer, 1) == [b"1"]
            else:
                with pytest.raises(NotFound, match="meanwhile"):
                    publisher.publish(b"1", ack="durable", timeout=TIMEOUT_S)
                with pytest.raises(Fenced, match="meanwhile"):
                    consumer.fetch(1, TIMEOUT_S)
            assert Flaky.failed == {"publication", "consumer"}
    finally:
        Flaky.problems.clear()
        Flaky.failed.clear()
        proxy.close()
        gateway.stop()


def _settled(client: Any, topic: str, name: str) -> int:
    arguments = {"pattern": topic, "name": name}
    settled: int = client.link.administer("show", arguments)["settled"]
    return settled


def test_a_client_that_is_gone_leaves_its_share_to_others(
    node: EmbeddedLink, proxy: Proxy, topic: str
) -> None:
    gone = remote(proxy.url)
    with local(node) as near:
        near.publish_batch(topic, bodies(50), ack="durable").check()
        consumer = gone.consumer(topic, "left")
        held = take(consumer, 5, ack=False)
        gone.close()
        with near.consumer(topic, "left") as other:
            found = take(other, 50)
            assert sorted(found) == bodies(50)
            assert set(held) <= set(found)


def test_deleting_the_subscription_is_felt(
    node: EmbeddedLink, gateway: Gateway, topic: str
) -> None:
    with remote(gateway.url) as far, local(node) as near:
        consumer = far.consumer(topic, "doomed")
        near.link.administer("delete", {"pattern": topic, "name": "doomed"})
        with pytest.raises(Fenced, match="deleted"):
            consumer.fetch(1, TIMEOUT_S)


@pytest.mark.parametrize("ends", ["consumer", "connection"])
def test_acks_of_what_was_delivered_before_the_gateway_answered_count(
    node: EmbeddedLink,
    gateway: Gateway,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
    eventually: Eventually,
) -> None:
    """Deliveries overtake the answer that allows acks: a consumer that closes waits for it."""
    held: list[Callable[[], Any]] = []
    resumed: set[int] = set()
    answer, post = RemoteSession._answer, RemoteSession.post

    async def note(session: RemoteSession, operation: Any, frame: Any) -> None:
        if isinstance(frame, frames.ResumeConsumer):
            resumed.add(frame.id)
        await answer(session, operation, frame)

    def hold(session: RemoteSession, frame: Any, then: Callable[[], None] | None = None) -> None:
        if isinstance(frame, Reply) and frame.id in resumed:
            loop = asyncio.get_running_loop()
            held.append(partial(loop.call_soon_threadsafe, post, session, frame, then))
        else:
            post(session, frame, then)

    monkeypatch.setattr(RemoteSession, "_answer", note)
    monkeypatch.setattr(RemoteSession, "post", hold)
    with local(node) as near:
        near.subscriptions.create(topic, "last")
        near.publisher(topic).publish_batch(bodies(50), ack="durable", timeout=TIMEOUT_S)
        far = remote(gateway.url)
        consumer = far.consumer(topic, "last")
        assert len(take(consumer, 50)) == 50
        closer = threading.Thread(target=consumer.close if ends == "consumer" else far.close)
        closer.start()
        closer.join(0.2)
        for release in held:
            release()
        closer.join(TIMEOUT_S)
        assert not closer.is_alive()
        eventually(lambda: near.subscriptions.get(topic, "last").lag == 0, "all acks")
        far.close()
