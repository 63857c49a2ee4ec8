"""Requests and replies on live topics, with the blocking and the asyncio client."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.gateways import local, until_event

import tidecast
import tidecast.sync
import tidecast.testing
from tidecast.client.core.outgoing import Outgoing
from tidecast.client.requests import requester, wire
from tidecast.config.internal import RESPONDERS, internal_topics, served_topic
from tidecast.config.topology import TopicConfig, matches, topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import (
    Closed,
    ConfigError,
    Conflict,
    NoResponders,
    PayloadTooLarge,
    RequestFailed,
    RequestTimeout,
    ResponderLost,
)
from tidecast.events import RepliesDropped, RequestRefused

TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedLink]:
    settings = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{"name": "stored", "mode": "durable", "fsync": "none"}],
    }
    link = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path_factory.mktemp("node"))
    yield link
    link.close()


class Both:
    """One client, used alike: the blocking one, or the asyncio one on a loop in a thread."""

    def __init__(self, node: EmbeddedLink, *, blocking: bool) -> None:
        self.blocking, self.ended = blocking, False
        self._serving: list[tuple[Any, Future[Any]]] = []
        if blocking:
            self.client: Any = local(node)
            return
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        link: Any = EmbeddedLink(node.node, "loop", owns_node=False)

        async def connect() -> Any:
            return await tidecast.connect(link=link)

        self.client = self.run(connect())

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(TIMEOUT_S * 2)

    def request(self, topic: str, payload: Any, **options: Any) -> tidecast.Message:
        found: tidecast.Message
        if self.blocking:
            found = self.client.request(topic, payload, **{"timeout": TIMEOUT_S, **options})
        else:
            found = self.run(
                self.client.request(topic, payload, **{"timeout": TIMEOUT_S, **options})
            )
        return found

    def begin(self, topic: str, payload: Any, **options: Any) -> Future[tidecast.Message]:
        """A request beside the test."""
        future: Future[tidecast.Message] = Future()

        def work() -> None:
            try:
                future.set_result(self.request(topic, payload, **options))
            except BaseException as problem:  # noqa: BLE001 - raised by the test
                future.set_exception(problem)

        threading.Thread(target=work).start()
        return future

    def many(self, topic: str, payload: Any, **options: Any) -> tuple[list[bytes], Any]:
        """All replies, sorted, and what gave them."""
        replies = None
        options = {"timeout": TIMEOUT_S, **options}
        if self.blocking:
            replies = self.client.request_many(topic, payload, **options)
            return sorted(each.data for each in replies), replies

        async def walk() -> tuple[list[bytes], Any]:
            replies = self.client.request_many(topic, payload, **options)
            return sorted([each.data async for each in replies]), replies

        return self.run(walk())

    def serve(
        self, topic: str, handler: Callable[[Any], Any], concurrency: int = 1, **options: Any
    ) -> Any:
        """A responder that serves beside the test."""
        if self.blocking:
            responder = self.client.responder(topic, **options)
            future: Future[Any] = Future()

            def work() -> None:
                try:
                    future.set_result(responder.serve(handler, concurrency))
                except BaseException as problem:  # noqa: BLE001 - raised by `stop`
                    future.set_exception(problem)

            threading.Thread(target=work).start()
        else:

            async def opened() -> Any:
                return await self.client.responder(topic, **options)

            responder = self.run(opened())
            future = asyncio.run_coroutine_threadsafe(
                responder.serve(handler, concurrency), self._loop
            )
        self._serving.append((responder, future))
        return responder

    def stop(self, responder: Any, how: str = "close") -> int:
        """End a responder; how many requests it served."""
        (future,) = [f for r, f in self._serving if r is responder]
        done = getattr(responder, how)()
        if not self.blocking:
            self.run(done)
        served: int = future.result(TIMEOUT_S)
        return served

    def fate(self, responder: Any) -> BaseException | None:
        """How serving ended that nobody stopped."""
        (future,) = [f for r, f in self._serving if r is responder]
        return future.exception(TIMEOUT_S)

    def end(self) -> None:
        """Close the client. Idempotent."""
        if self.ended:
            return
        self.ended = True
        done = self.client.close()
        if not self.blocking:
            self.run(done)
        for _, future in self._serving:
            future.exception(TIMEOUT_S)
        if not self.blocking:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(TIMEOUT_S)
            self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def both(request: pytest.FixtureRequest, node: EmbeddedLink) -> Iterator[Both]:
    made = Both(node, blocking=request.param == "blocking")
    yield made
    made.end()


@pytest.fixture
def other(node: EmbeddedLink) -> Iterator[tidecast.sync.Connection]:
    """Another client of the node, a blocking one."""
    with local(node) as made:
        yield made


def upper(request: Any) -> bytes:
    data: bytes = request.data
    return data.upper()


def constant(reply: bytes) -> Callable[[Any], bytes]:
    return lambda _: reply


# --- one request ---------------------------------------------------------------------------------
def test_the_reply_is_what_the_handler_returns(both: Both, node: EmbeddedLink) -> None:
    both.serve("upper", upper)
    reply = both.request("upper", b"hello")
    assert reply.data == b"HELLO"
    assert (reply.topic, reply.node, reply.headers, reply.key) == (
        "upper",
        node.node_name,
        {},
        None,
    )
    assert both.request("upper", b"").data == b""


def test_key_headers_and_codec_go_both_ways(both: Both, other: tidecast.sync.Connection) -> None:
    with other.responder("fields", codec=tidecast.Json()) as responder:
        future = both.begin("fields", {"n": 1}, key="k", headers={"a": 1}, codec=tidecast.Json())
        request = responder.next(timeout=TIMEOUT_S)
        assert (request.value, request.key, request.headers) == ({"n": 1}, b"k", {"a": 1})
        assert request.copy() is request
        assert not request.answered
        request.respond({"n": 2}, headers={"b": "two"})
        reply = future.result(TIMEOUT_S)
        assert (reply.value, reply.headers) == ({"n": 2}, {"b": "two"})


def test_many_bytes_go_both_ways(both: Both) -> None:
    both.serve("large", lambda request: request.data[::-1])
    payload = bytes(range(256)) * 4000
    assert both.request("large", payload).data == payload[::-1]


def test_without_a_responder_the_request_fails_at_once(
    both: Both, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    monkeypatch.setattr(requester, "DISCOVERY_S", 3600.0)  # one that waited for it would hang
    with pytest.raises(NoResponders, match=r"nobody: no responder .*client\.serve"):
        both.request("nobody", b"", timeout=None)
    responder = both.serve("nobody", upper)
    assert both.request("nobody", b"a").data == b"A"
    assert both.stop(responder) == 1

    def nobody_is_known() -> bool:
        try:
            both.request("nobody", b"", timeout=None)
        except ResponderLost:  # the end of the last one is still on its way
            return False
        except NoResponders:
            return True
        return False

    eventually(nobody_is_known, "the end of the only responder")
    with pytest.raises(NoResponders):
        both.many("nobody", b"", timeout=None)


def test_a_request_times_out_and_its_reply_is_counted_as_late(
    both: Both, other: tidecast.sync.Connection
) -> None:
    with other.responder("slow") as responder:
        with pytest.raises(RequestTimeout, match=r"slow: no reply within 0\.05 s") as caught:
            both.request("slow", b"1", timeout=0.05)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.retryable
        late = responder.next(timeout=TIMEOUT_S)
        future = both.begin("slow", b"2")
        timely = responder.next(timeout=TIMEOUT_S)
        late.respond(b"late")
        timely.respond(b"timely")
        assert future.result(TIMEOUT_S).data == b"timely"
    counts = both.client.stats()["client"]["requests"][0]
    assert (counts["sent"], counts["replies"], counts["timeouts"], counts["late"]) == (2, 1, 1, 1)
    if both.blocking:
        dropped = until_event(both.client, RepliesDropped)
        assert (dropped.topic, dropped.replies, dropped.reason) == ("slow", 1, "late")


def test_a_handler_that_raises_answers_with_its_error(both: Both) -> None:
    def handler(request: Any) -> bytes:
        if request.data == b"bad":
            raise KeyError("no such order")
        return upper(request)

    responder = both.serve("orders", handler)
    with pytest.raises(RequestFailed, match=r"orders: KeyError: 'no such order'") as caught:
        both.request("orders", b"bad")
    assert caught.value.kind == "KeyError"
    assert both.request("orders", b"good").data == b"GOOD"
    if both.blocking:
        refused = until_event(both.client, RequestRefused)
        assert (refused.topic, refused.kind) == ("orders", "KeyError")
    assert both.stop(responder) == 2


def test_a_reply_that_does_not_fit_answers_with_the_error(both: Both) -> None:
    both.serve("huge", lambda _: bytes(64 << 20))
    with pytest.raises(RequestFailed, match="history_bytes") as caught:
        both.request("huge", b"")
    assert caught.value.kind == PayloadTooLarge.__name__
    both.serve("text", lambda _: "a str")
    with pytest.raises(RequestFailed) as caught:
        both.request("text", b"")
    assert caught.value.kind == "CodecError"


def test_a_handler_may_refuse_in_its_own_words(both: Both, other: tidecast.sync.Connection) -> None:
    with other.responder("own") as responder:
        future = both.begin("own", b"")
        request = responder.next(timeout=TIMEOUT_S)
        request.refuse("OutOfStock", "0 left")
        with pytest.raises(Conflict, match="has its reply already"):
            request.respond(b"")
        with pytest.raises(RequestFailed, match="OutOfStock: 0 left"):
            future.result(TIMEOUT_S)


def test_a_responder_that_ends_fails_its_requests(
    both: Both, other: tidecast.sync.Connection
) -> None:
    responder = other.responder("ends")
    future = both.begin("ends", b"", timeout=None)
    responder.next(timeout=TIMEOUT_S)
    responder.close()
    with pytest.raises(ResponderLost, match="may have handled"):
        future.result(TIMEOUT_S)
    counts = both.client.stats()["client"]["requests"][0]
    assert (counts["lost"], counts["in_flight"]) == (1, 0)


def test_a_request_never_goes_to_a_responder_that_is_known_to_have_ended(
    both: Both, other: tidecast.sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its replies was read. Nothing would end a request that it gets now."""
    monkeypatch.setattr(requester, "_LOOK_S", 3600.0)  # the retry comes within this time
    responder = other.responder("retried")
    future = both.begin("retried", b"", timeout=None)
    responder.next(timeout=TIMEOUT_S)
    assert responder._replies is not None
    responder._replies.detach()  # and before the announcement ends
    with pytest.raises(ResponderLost):
        future.result(TIMEOUT_S)
    with pytest.raises(NoResponders):
        both.request("retried", b"", timeout=0.1)
    with pytest.raises(NoResponders):
        both.many("retried", b"", timeout=0.1)
    responder.close()
    counts = both.client.stats()["client"]["requests"][0]
    assert (counts["sent"], counts["lost"], counts["timeouts"]) == (1, 1, 0)


def test_a_reply_that_was_given_before_the_end_arrives(
    both: Both, other: tidecast.sync.Connection
) -> None:
    responder = other.responder("given")
    future = both.begin("given", b"", timeout=None)
    responder.next(timeout=TIMEOUT_S).respond(b"given")
    responder.close()
    assert future.result(TIMEOUT_S).data == b"given"


def test_a_drained_responder_replies_to_what_has_arrived(
    both: Both, other: tidecast.sync.Connection
) -> None:
    entered, go = threading.Event(), threading.Event()

    def handler(request: Any) -> bytes:
        entered.set()
        assert go.wait(TIMEOUT_S)
        return upper(request)

    serving = Both.__new__(Both)
    serving.blocking, serving.client, serving._serving = True, other, []
    responder = serving.serve("drained", handler)
    first = both.begin("drained", b"one", timeout=None)
    assert entered.wait(TIMEOUT_S)
    draining = threading.Thread(target=responder.drain)
    draining.start()
    go.set()
    assert first.result(TIMEOUT_S).data == b"ONE"
    draining.join(TIMEOUT_S)
    assert serving.stop(responder) == 1


def test_closing_the_client_ends_what_waits(both: Both, other: tidecast.sync.Connection) -> None:
    with other.responder("closing") as responder:
        future = both.begin("closing", b"", timeout=None)
        responder.next(timeout=TIMEOUT_S)
        done = both.client.close()
        if not both.blocking:
            both.run(done)
        with pytest.raises(Closed):
            future.result(TIMEOUT_S)


# --- several responders --------------------------------------------------------------------------
def test_one_responder_handles_a_request(both: Both) -> None:
    handled: Counter[str] = Counter()
    lock = threading.Lock()

    def handler(name: str) -> Callable[[Any], bytes]:
        def handle(_: Any) -> bytes:
            with lock:
                handled[name] += 1
            return name.encode()

        return handle

    for name in ("a", "b", "c"):
        both.serve("shared", handler(name), group="workers" if name != "c" else None)
    replies = Counter(both.request("shared", b"").data.decode() for _ in range(60))
    assert replies == handled
    assert handled.total() == 60
    assert all(handled[name] == 20 for name in "abc")


def test_many_asks_each_responder_and_one_of_a_group(both: Both) -> None:
    for name in (b"1", b"2"):
        both.serve("survey", constant(name))
        both.serve("survey", constant(b"group"), group="g")
    found, replies = both.many("survey", b"")
    assert found == [b"1", b"2", b"group"]
    assert (replies.asked, replies.missing, replies.failures) == (3, 0, [])
    assert len(both.many("survey", b"", max_replies=2)[0]) == 2
    with pytest.raises(ConfigError, match="max_replies"):
        both.many("survey", b"", max_replies=0)


def test_many_reports_failures_and_the_missing(both: Both, other: tidecast.sync.Connection) -> None:
    def fail(_: Any) -> bytes:
        raise ValueError("no")

    both.serve("mixed", constant(b"ok"))
    failing = both.serve("mixed", fail)
    with other.responder("mixed"):
        found, replies = both.many("mixed", b"", timeout=1.0)
        assert found == [b"ok"]
        assert replies.asked == 3
        assert replies.missing == 1
        assert [type(each) for each in replies.failures] == [RequestFailed]
    both.stop(failing)
    with other.responder("silent"), pytest.raises(RequestTimeout):
        both.many("silent", b"", timeout=0.05)


def test_a_slow_responder_gets_fewer_requests(
    node: EmbeddedLink, other: tidecast.sync.Connection
) -> None:
    with local(node) as client, other.responder("pace") as slow, client.responder("pace") as quick:
        done = 0
        pending = []
        for _ in range(40):
            pending.append(client.begin_request("pace", b""))
            for request in quick.poll():
                request.respond(b"")
                done += 1
            for each in pending:
                each.poll()
        assert done > 30
        assert len(slow.poll()) == 40 - done


# --- many in flight ------------------------------------------------------------------------------
def test_ten_thousand_requests_in_flight(node: EmbeddedLink) -> None:
    with local(node) as client, client.responder("flood") as responder:
        pending = [client.begin_request("flood", b"%d" % n) for n in range(10_000)]
        assert client.stats()["client"]["requests"][0]["in_flight"] == 10_000
        while requests := responder.poll(4096):
            for request in requests:
                request.respond(request.data)
        assert [each.result(TIMEOUT_S).data for each in pending] == [
            b"%d" % n for n in range(10_000)
        ]
        assert client.health().healthy


@pytest.mark.timeout(120)
def test_ten_thousand_tasks_wait_for_replies(node: EmbeddedLink) -> None:
    async def ask() -> list[bytes]:
        link: Any = EmbeddedLink(node.node, "tasks", owns_node=False)
        async with tidecast.connect(link=link) as client, client.responder("tasks") as responder:
            serving = asyncio.create_task(responder.serve(upper))
            replies = await asyncio.gather(
                *(client.request("tasks", b"x%d" % n, timeout=100.0) for n in range(10_000))
            )
            await responder.close()
            assert await serving == 10_000
            return [each.data for each in replies]

    assert asyncio.run(ask()) == [b"X%d" % n for n in range(10_000)]


def test_threads_share_a_client(both: Both, node: EmbeddedLink) -> None:
    both.serve("threads", upper)
    found: list[bytes] = []
    with local(node) as client:

        def ask(name: int) -> None:
            for n in range(100):
                payload = b"t%d.%d" % (name, n)
                reply = client.request("threads", payload, timeout=TIMEOUT_S)
                assert reply.data == payload.upper()
                found.append(reply.data)

        threads = [threading.Thread(target=ask, args=(name,)) for name in range(6)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(TIMEOUT_S * 2)
    assert len(set(found)) == 600


def test_concurrent_handlers_finish_in_any_order(both: Both) -> None:
    both_in = threading.Barrier(2, timeout=TIMEOUT_S)

    def handler(request: Any) -> bytes:
        both_in.wait()
        return upper(request)

    both.serve("pairs", handler, concurrency=2)
    one, two = both.begin("pairs", b"one"), both.begin("pairs", b"two")
    assert (one.result(TIMEOUT_S).data, two.result(TIMEOUT_S).data) == (b"ONE", b"TWO")


def test_a_cancelled_request_leaves_nothing_behind(node: EmbeddedLink) -> None:
    async def ask() -> None:
        link: Any = EmbeddedLink(node.node, "cancels", owns_node=False)
        async with tidecast.connect(link=link) as client, client.responder("cancel") as responder:
            task = asyncio.create_task(client.request("cancel", b"", timeout=None))
            request = await responder.next(timeout=TIMEOUT_S)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert client.stats()["client"]["requests"][0]["in_flight"] == 0
            await request.respond(b"")
            second = asyncio.create_task(client.request("cancel", b"", timeout=TIMEOUT_S))
            await (await responder.next(timeout=TIMEOUT_S)).respond(b"2")
            assert (await second).data == b"2"
            assert client.stats()["client"]["requests"][0]["late"] == 1

    asyncio.run(ask())


def test_a_pending_reply_can_be_polled_and_given_up(
    node: EmbeddedLink, other: tidecast.sync.Connection
) -> None:
    with local(node) as client, other.responder("poll") as responder:
        first = client.begin_request("poll", b"1")
        second = client.begin_request("poll", b"2")
        assert not first.poll()
        assert not first.done
        second.cancel()
        for request in (responder.next(TIMEOUT_S), responder.next(TIMEOUT_S)):
            request.respond(request.data)
        assert first.result(TIMEOUT_S).data == b"1"
        assert first.poll()
        with pytest.raises(RequestTimeout):
            second.result(0.0)


def test_requests_in_flight_have_a_limit(
    node: EmbeddedLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requester, "IN_FLIGHT_MAX", 3)
    with local(node) as client, client.responder("limit") as responder:
        pending = [client.begin_request("limit", b"") for _ in range(3)]
        with pytest.raises(tidecast.BackPressure, match="3 requests wait"):
            client.request("limit", b"")
        for request in responder.poll():
            request.respond(b"")
        assert [each.result(TIMEOUT_S).data for each in pending] == [b""] * 3
        client.begin_request("limit", b"").cancel()


# --- what a topic carries besides ----------------------------------------------------------------
def test_messages_and_requests_do_not_mix(both: Both, other: tidecast.sync.Connection) -> None:
    with other.subscribe("mix") as messages, other.subscribe(">") as everything:
        with other.responder("mix") as responder:
            other.publish("mix", b"a message")
            future = both.begin("mix", b"a request")
            assert responder.next(timeout=TIMEOUT_S).data == b"a request"
            assert responder.poll() == []
            other.publish("mix", b"the end")
            for each in (messages, everything):
                assert each.next(timeout=TIMEOUT_S).data == b"a message"
                assert each.next(timeout=TIMEOUT_S).data == b"the end"
        with pytest.raises(ResponderLost):
            future.result(TIMEOUT_S)


def test_a_plain_message_is_no_request_again(node: EmbeddedLink) -> None:
    """A batch of plain messages alone leaves the rows of the batch before as they were."""
    topic = "orders.plain"
    with local(node) as near, near.responder(topic) as responder, local(node) as asker:
        pending = asker.begin_request(topic, b"one")
        responder.next(TIMEOUT_S).respond(b"first")
        assert pending.result(TIMEOUT_S).data == b"first"
        for payload in (b"a", b"bc", bytes(1000)):
            asker.publish(topic, payload)
            asker.flush()
            assert responder.poll() == []
        again = asker.begin_request(topic, b"two")
        request = responder.next(TIMEOUT_S)
        assert request.data == b"two"
        request.respond(b"second")
        assert again.result(TIMEOUT_S).data == b"second"


@pytest.mark.parametrize("name", ["tidecast-request", "tidecast-reply", "tidecast-error"])
def test_users_cannot_write_the_headers_of_requests(
    other: tidecast.sync.Connection, name: str
) -> None:
    with pytest.raises(ConfigError, match="engine's own"):
        other.publish("forged", b"", headers={name: b"x"})
    with other.responder("forged") as responder:
        with pytest.raises(ConfigError, match="engine's own"):
            other.request("forged", b"", headers={name: b"x"})
        other.begin_request("forged", b"")
        request = responder.next(timeout=TIMEOUT_S)
        with pytest.raises(ConfigError, match="engine's own"):
            request.respond(b"", headers={name: b"x"})
        request.respond(b"")


def test_a_reply_without_the_token_is_dropped(
    node: EmbeddedLink, other: tidecast.sync.Connection
) -> None:
    with local(node) as client, other.responder("foreign") as responder:
        pending = client.begin_request("foreign", b"")
        request = responder.next(timeout=TIMEOUT_S)
        to = request._answering.to
        responder.reply(to._replace(token=to.token ^ 1), b"forged", None)
        responder.reply(to._replace(number=to.number + 1), b"other", None)
        request.respond(b"true")
        assert pending.result(TIMEOUT_S).data == b"true"
        counts = client.stats()["client"]["requests"][0]
        assert (counts["foreign"], counts["late"]) == (1, 1)


def test_what_is_no_announcement_is_ignored(
    node: EmbeddedLink, other: tidecast.sync.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = [
        b"",
        b"\xc1",
        b"x" * 600,
        wire.encode_announcement(wire.Announcement(node=70_000, subscriber=1, replies=1)),
    ]
    nobody = wire.encode_announcement(wire.Announcement(node=1, subscriber=1, replies=77))
    with other.publisher(RESPONDERS + "odd") as odd, local(node) as client:
        for payload in bad:
            odd.attempt(Outgoing(payload, b"", 0, 0, True))
        monkeypatch.setattr(requester, "SETTLING_S", 3600.0)
        with pytest.raises(NoResponders):
            client.request("odd", b"", timeout=None)
        odd.attempt(Outgoing(nobody, b"", 0, 0, True))
        monkeypatch.setattr(requester, "SETTLING_S", 0.05)  # its replies may be on their way
        with pytest.raises(NoResponders):
            client.request("odd", b"", timeout=None)
        with other.responder("odd") as responder:
            pending = client.begin_request("odd", b"")
            responder.next(TIMEOUT_S).respond(b"here")
            assert pending.result(TIMEOUT_S).data == b"here"


def test_internal_topics_are_hidden_and_go_with_their_users(
    both: Both, node: EmbeddedLink, eventually: Eventually
) -> None:
    names = internal_topics("hidden")
    responder = both.serve("hidden", upper)
    assert both.request("hidden", b"a").data == b"A"
    assert set(names) <= set(node.node.topic_by_name)
    assert not set(names) & {each.name for each in node.node.topics()}
    assert not any(matches(pattern, name) for name in names for pattern in (">", "*.hidden", "*.>"))
    assert [served_topic(each) for each in names] == ["hidden", "hidden"]
    both.stop(responder)
    both.end()
    eventually(lambda: not set(names) & set(node.node.topic_by_name), "the internal topics to go")


def test_internal_names_are_reserved(node: EmbeddedLink, other: tidecast.sync.Connection) -> None:
    for name in internal_topics("mine"):
        with pytest.raises(ConfigError, match="engine's own"):
            node.node.create_topic(TopicConfig(name=name))
        with pytest.raises(ConfigError, match="engine's own"):
            topology_from({"topics": [{"name": name}]})


def test_requests_need_a_live_topic_by_name(both: Both) -> None:
    with pytest.raises(ConfigError, match="stored: it is durable"):
        both.request("stored", b"")
    with pytest.raises(ConfigError, match="stored: it is durable"):
        both.serve("stored", upper)
    with pytest.raises(ConfigError, match="without wildcards"):
        both.serve("a.*", upper)
    with pytest.raises(ConfigError, match="group"):
        both.serve("named", upper, group="a group")
    with pytest.raises(ConfigError, match="at most"):
        both.request("x" * 195, b"")


def test_a_responder_has_no_batches(other: tidecast.sync.Connection) -> None:
    with other.responder("batches") as responder:
        with pytest.raises(ConfigError, match="iterate, next, poll or serve"):
            responder.batches()
        with pytest.raises(ConfigError, match="iterate, next, poll or serve"):
            responder.run_compiled(upper, None)
        with pytest.raises(ConfigError, match="handler"):
            responder.serve(None)  # type: ignore[arg-type]


def test_requests_go_on_when_the_topic_is_made_again(both: Both, node: EmbeddedLink) -> None:
    responder = both.serve("again", upper)
    assert both.request("again", b"a").data == b"A"
    node.node.delete_topic("again")
    assert isinstance(both.fate(responder), Closed)
    with pytest.raises((NoResponders, Closed)):
        both.request("again", b"b")
    both.serve("again", upper)
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            assert both.request("again", b"c").data == b"C"
            return
        except (NoResponders, Closed):
            assert time.monotonic() < deadline


@pytest.mark.parametrize("seed", range(3))
def test_requests_to_a_responder_that_just_came_on_another_node_arrive(seed: int) -> None:
    with tidecast.testing.Network(seed=seed) as network:
        near, far = (network.node(name, topics=["work"]).connect() for name in ("a", "b"))
        with pytest.raises(NoResponders):
            near.request("work", b"")  # its publication is older than the responder
        responder = far.responder("work")
        pending = []
        for _ in range(5000):
            near.work()
            if near.stats()["client"]["requests"][0]["responders"]:
                pending = [near.begin_request("work", b"%d" % n, timeout=10.0) for n in range(40)]
                break
        assert pending, "the responder is not known"
        for _ in range(3000):
            for request in responder.poll():
                request.respond(request.data)
            if all(each.poll() for each in pending):
                break
            near.work()
        assert [each.result(0.0).data for each in pending] == [b"%d" % n for n in range(40)]
