"""Apps: handlers of durable topics, live topics and requests, on a node of this process."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

import tidecast
from tidecast.app import (
    App,
    Depends,
    DurableMessage,
    Header,
    Key,
    Publish,
    Reject,
    Retry,
    RetryLater,
    Running,
)
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Closed, ConfigError, NotFound, RequestFailed, Timeout

DURABLE = "orders", "invoices", "failed"
AT_ONCE = Retry(delays=(0.0,), max_deliver=3)


class Order(msgspec.Struct):
    id: int


class Model(pydantic.BaseModel):
    id: int


@dataclasses.dataclass
class Plain:
    id: int


@pytest.fixture
def link(tmp_path: Path) -> Iterator[EmbeddedLink]:
    settings = {
        "transports": [{"name": "ipc", "kind": "ipc"}],
        "topics": [{"name": name, "mode": "durable", "fsync": "none"} for name in DURABLE],
    }
    link = EmbeddedLink.open(topology_from(settings), data_dir=tmp_path)
    yield link
    link.close()


Main = Callable[[Running], Coroutine[Any, Any, None]]


def run(app: App, link: EmbeddedLink, main: Main) -> None:
    """Run ``main`` while the app handles messages."""

    async def running() -> None:
        client = await tidecast.connect(link=link)
        async with app.running(client) as it:
            await main(it)
        await client.close()

    asyncio.run(running())


async def records(client: tidecast.Connection, topic: str, n: int) -> list[DurableMessage]:
    """The first ``n`` records of a topic."""
    async with client.consumer(topic, "test") as consumer:
        found: list[DurableMessage] = []
        while len(found) < n:
            found += [each.copy() for each in await consumer.fetch(n, max_wait=10.0)]
        return found


# --- what a handler gets --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (Order, b'{"id":7}', Order(7)),
        (Model, b'{"id":7}', Model(id=7)),
        (Plain, b'{"id":7}', Plain(7)),
        (dict[str, int], b'{"id":7}', {"id": 7}),
        (bytes, b"\xff", b"\xff"),
        (str, "gr\u00fcn".encode(), "gr\u00fcn"),
    ],
    ids=["struct", "pydantic", "dataclass", "dict", "bytes", "str"],
)
def test_a_payload_is_decoded_to_the_annotated_type(
    link: EmbeddedLink, kind: Any, payload: bytes, value: Any
) -> None:
    app, found = App(), []

    async def handle(it: Any) -> None:
        found.append(it)

    handle.__annotations__["it"] = kind
    app.consumer("orders", "s")(handle)

    async def main(it: Running) -> None:
        await it.client.publish("orders", payload)
        await it.wait(handle)

    run(app, link, main)
    assert found == [value]


def test_msgpack_decodes_structs_and_models(link: EmbeddedLink) -> None:
    app, found = App(codec="msgpack"), list[Any]()

    @app.consumer("orders", "structs")
    async def structs(it: Order) -> None:
        found.append(it)

    @app.consumer("orders", "models", publishes="invoices")
    async def models(it: Model) -> Model:
        found.append(it)
        return it

    async def main(it: Running) -> None:
        await it.client.publish("orders", msgspec.msgpack.encode({"id": 3}))
        await it.wait(structs)
        await it.wait(models)
        (stored,) = await records(it.client, "invoices", 1)
        assert msgspec.msgpack.decode(stored.data) == {"id": 3}

    run(app, link, main)
    assert sorted(found, key=lambda each: type(each).__name__) == [Model(id=3), Order(3)]


def test_a_handler_gets_the_parameters_that_it_names(link: EmbeddedLink) -> None:
    app, found = App("shop"), {}
    app.state.rate = 2

    async def rate(app: App) -> int:
        return int(app.state.rate)

    @app.consumer("orders", "s")
    async def handle(
        order: Order,
        message: DurableMessage,
        client: tidecast.Connection,
        key: Annotated[str | None, Key()],
        raw: Annotated[bytes, Key()],
        kind: Annotated[str, Header()],
        n: Annotated[int, Header("n")],
        absent: Annotated[str, Header("absent")] = "-",
        factor: int = Depends(rate),
    ) -> None:
        found.update({name: value for name, value in locals().items() if name != "found"})

    async def main(it: Running) -> None:
        await it.client.publish("orders", b'{"id":1}', key="k", headers={"kind": b"a", "n": 4})
        await it.wait(handle)
        assert found.pop("client") is it.client

    run(app, link, main)
    message = found.pop("message")
    assert (message.topic, message.attempts) == ("orders", 1)
    assert found == {
        "order": Order(1),
        "key": "k",
        "raw": b"k",
        "kind": "a",
        "n": 4,
        "absent": "-",
        "factor": 2,
    }


def test_dependencies_are_shared_closed_and_replaced(link: EmbeddedLink) -> None:
    app, log = App(), []

    async def pool() -> AsyncIterator[str]:
        log.append("pool opens")
        yield "pool"
        log.append("pool closes")

    def session(pool: Annotated[str, Depends(pool)]) -> Iterator[str]:
        log.append(f"session of {pool}")
        try:
            yield "session"
        except ValueError:
            log.append("session fails")
            raise

    @app.consumer("orders", "s", retry=Retry(max_deliver=1))
    async def handle(
        it: bytes, a: Annotated[str, Depends(session)], b: Annotated[str, Depends(pool)]
    ) -> None:
        log.append(f"{it.decode()} {a} {b}")
        if it == b"bad":
            raise ValueError("bad")

    async def main(it: Running) -> None:
        await it.client.publish("orders", b"good")
        await it.wait(handle)
        assert log == ["pool opens", "session of pool", "good session pool", "pool closes"]
        log.clear()
        await it.client.publish("orders", b"bad")
        await it.wait(handle, 2)
        assert log[-2:] == ["bad session pool", "session fails"]
        log.clear()
        app.dependency_overrides[session] = lambda: "another"
        await it.client.publish("orders", b"good")
        await it.wait(handle, 3)
        assert log == ["pool opens", "good another pool", "pool closes"]

    run(app, link, main)


def test_lifespan_surrounds_all_handlers(link: EmbeddedLink) -> None:
    log: list[str] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        log.append(f"begin {app.client.health().status}")
        yield
        log.append(f"end {app.client.health().status} {app.handlers[0].counts.handled}")

    app = App(lifespan=lifespan)

    @app.consumer("orders", "s")
    def plain(it: bytes) -> None:  # a plain function runs in a thread
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()
        log.append(it.decode())

    async def main(it: Running) -> None:
        await it.client.publish("orders", b"1")
        await it.wait("plain")

    run(app, link, main)
    assert log == ["begin connected", "1", "end connected 1"]
    with pytest.raises(Closed):
        _ = app.client


# --- what follows its call ------------------------------------------------------------------------


def test_results_are_stored_before_the_record_is_acked(link: EmbeddedLink) -> None:
    app = App()

    @app.consumer("orders", "s", publishes="invoices")
    async def handle(order: Order) -> Any:
        if order.id == 0:
            return None
        if order.id == 1:
            return {"of": 1}
        return [Publish(Order(20), key="other", headers={"a": 1}), b"raw", "text"]

    async def main(it: Running) -> None:
        for n in range(3):
            await it.client.publish("orders", b'{"id":%d}' % n, key=f"k{n}")
        await it.wait(handle, 3)
        found = await records(it.client, "invoices", 4)
        assert [(each.data, each.key) for each in found] == [
            (b'{"of":1}', b"k1"),
            (b'{"id":20}', b"other"),
            (b"raw", b"k2"),
            (b"text", b"k2"),
        ]
        assert found[1].headers == {"a": 1}

    run(app, link, main)


def test_a_failed_call_is_tried_again_and_given_up_with_its_reason(link: EmbeddedLink) -> None:
    app, seen = App(), []

    @app.consumer("orders", "s", retry=AT_ONCE, dead_letter="failed", concurrency=4)
    async def handle(it: bytes, message: DurableMessage) -> None:
        seen.append((it, message.attempts))
        if it == b"bad":
            raise ValueError("no such customer")

    async def main(it: Running) -> None:
        for each in (b"bad", b"behind", b"other"):
            await it.client.publish("orders", each, key="x" if each == b"other" else "k")
        await it.wait(handle, 5)
        (letter,) = await records(it.client, "failed", 1)
        assert letter.headers["dead-reason"] == "ValueError: no such customer"
        assert letter.headers["dead-attempts"] == 3

    run(app, link, main)
    assert [each for each in seen if each[0] != b"other"] == [
        (b"bad", 1),
        (b"bad", 2),
        (b"bad", 3),
        (b"behind", 1),
    ]
    counts = app.handler_of(handle).counts
    assert (counts.handled, counts.retried, counts.rejected, counts.active) == (2, 2, 1, 0)


def _raises(problem: Exception) -> Callable[[bytes], Coroutine[Any, Any, None]]:
    async def handle(it: bytes) -> None:
        raise problem

    return handle


@pytest.mark.parametrize(
    ("problem", "reason"),
    [(Reject("sold out"), "sold out"), (KeyError("x"), "KeyError: 'x'")],
    ids=["Reject", "retry.reject"],
)
def test_some_failures_are_final(link: EmbeddedLink, problem: Exception, reason: str) -> None:
    app = App()
    handle = app.consumer("orders", "s", retry=Retry(reject=(KeyError,)), dead_letter="failed")(
        _raises(problem)
    )

    async def main(it: Running) -> None:
        await it.client.publish("orders", b"1")
        await it.wait(handle)
        (letter,) = await records(it.client, "failed", 1)
        assert (letter.headers["dead-reason"], letter.headers["dead-attempts"]) == (reason, 1)

    run(app, link, main)


@pytest.mark.parametrize(
    ("payload", "headers"),
    [(b"{", {"kind": "a"}), (b'{"id":"x"}', {"kind": "a"}), (b'{"id":1}', {})],
    ids=["syntax", "type", "header"],
)
def test_an_invalid_message_is_given_up_at_once(
    link: EmbeddedLink, payload: bytes, headers: dict[str, Any]
) -> None:
    app = App()

    @app.consumer("orders", "s", dead_letter="failed")
    async def handle(order: Order, kind: Annotated[str, Header()]) -> None:
        raise AssertionError("it is invalid")

    async def main(it: Running) -> None:
        await it.client.publish("orders", payload, headers=headers)
        await it.wait(handle)
        (letter,) = await records(it.client, "failed", 1)
        reason = str(letter.headers["dead-reason"])
        assert reason.startswith("InvalidMessage: ")
        assert ("'kind'" in reason) is (headers == {})

    run(app, link, main)


def test_retry_later_chooses_the_delay(link: EmbeddedLink) -> None:
    app, times = App(), []

    @app.consumer("orders", "s", retry=Retry(delays=(600.0,)))
    async def handle(it: bytes, message: DurableMessage) -> None:
        times.append(asyncio.get_running_loop().time())
        if message.attempts == 1:
            raise RetryLater(0.2)

    async def main(it: Running) -> None:
        await it.client.publish("orders", b"1")
        await it.wait(handle, 2)

    run(app, link, main)
    assert times[1] - times[0] >= 0.2


def test_a_call_that_takes_too_long_is_cancelled_and_tried_again(link: EmbeddedLink) -> None:
    app, ended = App(), []

    @app.consumer("orders", "s", timeout=0.05, retry=AT_ONCE)
    async def handle(it: bytes, message: DurableMessage) -> None:
        try:
            await asyncio.Event().wait() if message.attempts == 1 else None
        finally:
            ended.append(message.attempts)

    async def main(it: Running) -> None:
        await it.client.publish("orders", b"1")
        await it.wait(handle, 2)

    run(app, link, main)
    assert ended == [1, 2]


def test_a_slow_call_is_not_delivered_again_meanwhile(link: EmbeddedLink) -> None:
    app, calls, begun, release = App(), [], asyncio.Event(), asyncio.Event()

    @app.consumer("orders", "s", ack_wait=2.0, concurrency=2)
    async def handle(it: bytes, message: DurableMessage) -> None:
        calls.append((it, message.attempts))
        if it == b"slow":
            begun.set()
            await release.wait()

    async def main(it: Running) -> None:
        await it.client.publish("orders", b"slow", key="a")
        await it.client.publish("orders", b"behind", key="a")
        await begun.wait()  # a member that joins before could get the key
        async with it.client.consumer("orders", "s") as other:  # another member gets no copy
            assert not await other.fetch(1, max_wait=4.5)
        assert calls == [(b"slow", 1)]
        release.set()
        await it.wait(handle, 2)

    run(app, link, main)
    assert calls == [(b"slow", 1), (b"behind", 1)]


def test_a_stop_waits_for_calls_and_loses_nothing(link: EmbeddedLink) -> None:
    app, begun, release, done = App(), asyncio.Event(), asyncio.Event(), []

    @app.consumer("orders", "s")
    async def handle(it: bytes) -> None:
        begun.set()
        await release.wait()
        done.append(it)

    async def main() -> None:
        client = await tidecast.connect(link=link)
        stop = asyncio.Event()
        task = asyncio.create_task(app.run(stop=stop, client=client))
        for each in (b"1", b"2", b"3"):
            await client.publish("orders", each)
        await begun.wait()
        stop.set()
        await asyncio.sleep(0)
        release.set()
        await task
        async with client.consumer("orders", "s") as consumer:
            await client.publish("orders", b"last")
            left = list[bytes]()
            while b"last" not in left:
                left += [bytes(each.data) for each in await consumer.fetch(10, max_wait=10.0)]
        assert done + left == [b"1", b"2", b"3", b"last"]
        assert done
        await client.close()

    asyncio.run(main())


def test_a_stop_gives_up_on_calls_after_the_drain_timeout(link: EmbeddedLink) -> None:
    app, begun = App(), asyncio.Event()

    @app.consumer("orders", "s")
    async def handle(it: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def main() -> None:
        client, stop = await tidecast.connect(link=link), asyncio.Event()
        task = asyncio.create_task(app.run(stop=stop, client=client, drain_timeout=0.05))
        await client.publish("orders", b"1")
        await begun.wait()
        stop.set()
        with pytest.raises(Timeout):
            await task
        await client.close()

    asyncio.run(main())


# --- live topics and requests ---------------------------------------------------------------------


def test_live_messages_and_requests_are_handled(
    link: EmbeddedLink, caplog: pytest.LogCaptureFixture
) -> None:
    app, ticks = App(), []

    @app.subscriber("ticks.*", publishes="orders")
    async def tick(price: float) -> str:
        ticks.append(price)
        return f"price {price}"

    @app.responder("quotes", concurrency=4)
    async def quote(order: Order) -> Order:
        if order.id < 0:
            raise ValueError("below zero")
        return Order(order.id * 2)

    async def main(it: Running) -> None:
        for payload in (b"1.5", b"none", b"2.5"):
            await it.client.publish("ticks.eu", payload, flush=True)
        await it.wait(tick, 3)
        assert [each.data for each in await records(it.client, "orders", 2)] == [
            b"price 1.5",
            b"price 2.5",
        ]
        reply = await it.client.request("quotes", b'{"id":4}')
        assert reply.data == b'{"id":8}'
        for payload, kind in ((b'{"id":-1}', "ValueError"), (b"[]", "InvalidMessage")):
            with pytest.raises(RequestFailed) as failed:
                await it.client.request("quotes", payload)
            assert failed.value.kind == kind

    with caplog.at_level(logging.ERROR, "tidecast.app"):
        run(app, link, main)
    assert ticks == [1.5, 2.5]
    assert (app.handler_of(tick).counts.handled, app.handler_of(tick).counts.rejected) == (2, 1)
    assert "tick: a message of ticks.eu failed: InvalidMessage" in caplog.text


# --- what is refused ------------------------------------------------------------------------------


async def _two(a: bytes, b: bytes) -> None: ...
async def _bare(a) -> None: ...  # type: ignore[no-untyped-def]
async def _many(*a: bytes) -> None: ...
async def _first(a: bytes, /) -> None: ...
async def _unknown(a: complex) -> None: ...
def _blocking(a: bytes) -> None: ...


@pytest.mark.parametrize(
    ("fn", "options", "problem"),
    [
        (_two, {}, r"_two\(\): parameter b: a handler has one parameter for the payload, here a"),
        (_bare, {}, r"_bare\(\): parameter a: annotate it"),
        (_many, {}, r"parameter \*a: a handler names all"),
        (_first, {}, "parameter a: it must be allowed by name"),
        (_unknown, {}, "json cannot decode to it"),
        (_blocking, {"timeout": 1.0}, "no coroutine function"),
        (_two, {"concurrency": 0}, "concurrency: 0: allowed are 1 to 1024"),
        (_two, {"retry": Retry(delays=())}, r"retry\.delays"),
        (_two, {"retry": Retry(delays=(-1.0,))}, r"retry\.delays: -1\.0: allowed are 0 to 604800"),
        (_two, {"codec": "xml"}, "codec: 'xml'"),
    ],
    ids=[
        "two",
        "bare",
        "many",
        "positional",
        "type",
        "timeout",
        "concurrency",
        "no-delays",
        "delay",
        "codec",
    ],
)
def test_a_wrong_handler_is_refused_where_it_is_defined(
    fn: Any, options: dict[str, Any], problem: str
) -> None:
    app = App()
    with pytest.raises(ConfigError, match=problem):
        app.consumer("orders", "s", **options)(fn)
    assert app.handlers == []


def test_an_app_says_why_it_cannot_run(link: EmbeddedLink) -> None:
    with pytest.raises(ConfigError, match="it has no handlers"):
        asyncio.run(App().run())
    app = App()

    @app.consumer("absent", "s")
    async def handle(it: bytes) -> None: ...

    async def main(it: Running) -> None:
        raise AssertionError("the topic does not exist")

    with pytest.raises(NotFound, match="absent"):
        run(app, link, main)
    with pytest.raises(NotFound, match="no handler 'other': there are handle"):
        app.handler_of("other")
