"""The asyncio client, made by `tidecast.connect`. The steps are in the cores.

Opening and closing ask the node, which takes a moment, and so run in a thread; publishing and
receiving never block the loop.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from tidecast import codecs
from tidecast.api.in_thread import made_in_thread
from tidecast.api.link import Link
from tidecast.api.words import Ack, PublishOptions
from tidecast.client.admin.aio import Subscriptions, Topics
from tidecast.client.columns.batch import (
    BatchOptions,
    Messages,
)
from tidecast.client.consumer.aio import Consumer, Opening
from tidecast.client.core.message import Batch, Message
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import BatchResult
from tidecast.client.core.public import Public
from tidecast.client.core.publisher import COLLECTED_MAX
from tidecast.client.core.subscription import (
    ITERATE_MESSAGES,
    check_concurrency,
    check_handler,
    check_max_messages,
)
from tidecast.client.flows.connection import ConnectionFlows
from tidecast.client.flows.publisher import PublisherFlows
from tidecast.client.flows.shells import awaits
from tidecast.client.flows.steps import LoopDriver, OnLoop
from tidecast.client.flows.subscription import SubscriptionFlows
from tidecast.client.log.aio import Records
from tidecast.client.requests.connection import (
    TIMEOUT_S,
    Gathering,
    known_requester,
    make_requester,
)
from tidecast.client.requests.requester import Pending, Requester
from tidecast.client.requests.responder import Request, ResponderFlows
from tidecast.client.requests.wire import Return
from tidecast.client.typed.aio import TypedOpening
from tidecast.client.typed.core import MessagesCore, TopicCore, TypedMessage, check_invalid
from tidecast.client.typed.options import ConsumeOptions, Invalid, InvalidLive, SubscribeOptions
from tidecast.client.waiting import Deadline, LoopPace, LoopSpin
from tidecast.errors import Closed, TidecastError
from tidecast.events import Event

T = TypeVar("T")
_NEVER = Deadline(None)


class Published(Coroutine[Any, Any, None]):
    """The awaitable of `Publisher.publish`: await it, or make a task of it."""

    __slots__ = ()
    __await__ = ().__iter__  # type: ignore[assignment] # no line of Python: 60 ns, not 100

    def send(self, value: Any) -> Any:
        """It is over."""
        del value
        raise StopIteration

    def throw(self, *problem: Any) -> Any:
        """A task cancels a call that is done."""
        raise problem[1] if len(problem) > 1 and problem[1] is not None else problem[0]

    def close(self) -> None:
        """Nothing is open."""


_DONE = Published()


class Publisher(Public, OnLoop, PublisherFlows):
    """Publishes to one topic; `tidecast.client.blocking.Publisher` with ``await``.

    `publish` of `bytes` and nothing else is done when the call returns, if there is room: awaiting
    it then costs next to nothing and lets no other task run.
    """

    PUBLIC = (
        "close closed durable durable_position flush flush_to_ring position publish "
        "publish_batch run_compiled session stats topic try_publish wait_durable"
    )

    _FAST: ClassVar[dict[str, object]] = {"try_publish": True, "publish": _DONE}

    async def publish(
        self,
        payload: Any,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: bool | int | None = None,
        to: str | int | None = None,
        subscriber: int | None = None,
        flush: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the blocking client
        ack: Ack | None = None,
        deliver_at: datetime | int | None = None,
        deliver_in: float | None = None,
    ) -> None:
        """Publish one message: bytes, or a value that the codec encodes.

        ``to``: name of the only node that shall have it; ``subscriber``: id of the only subscriber.
        ``timestamp``: True = now, or ns since 1970. ``flush``: send at once. ``timeout``: seconds
        to wait for room. Raises CodecError, ConfigError, PayloadTooLarge, NoResponders, Timeout,
        BackPressure or RateLimited (``on_full="error"``), ConnectionLost, Closed.
        ``ack="durable"``: return when it is on disk; raises also Fenced, StorageError. ``engine``
        and ``none``, as without ``ack``: return when the ring has it. ``deliver_at`` (a
        datetime with a time zone, or ns since 1970) or ``deliver_in`` (seconds from now), of a
        durable topic: no subscription gets the message before, see docs/CONSUMING.md.
        """
        plain = key is headers is timestamp is to is subscriber is ack is None  # type: ignore[comparison-overlap]
        plain = plain and deliver_at is deliver_in is None
        if plain and type(payload) is self._plain and not flush:
            collected = self._collected
            if len(payload) <= self._collected_bytes_max and len(collected) < COLLECTED_MAX:
                collected.append(payload)
                if self._collected_bytes_max < 0:
                    await self._drive(self.end_burst_flow(timeout))
                return
        flow = self.publish_flow(
            payload,
            key,
            headers,
            timestamp,
            to,
            subscriber,
            flush,
            timeout,
            ack,
            deliver_at,
            deliver_in,
        )
        if flow is not None:
            await self._drive(flow)

    publish_batch = awaits(PublisherFlows.publish_batch_flow)
    run_compiled = awaits(PublisherFlows.run_compiled_flow)
    flush = awaits(PublisherFlows.flush_flow)
    close = awaits(PublisherFlows.close_flow)
    wait_durable = awaits(PublisherFlows.wait_durable_flow)
    flush_to_ring = awaits(PublisherFlows.flush_to_ring_flow)

    hand_over = flush_to_ring
    """The name of `flush_to_ring` in older versions; the next version has it no more."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Subscription(Public, OnLoop, SubscriptionFlows):
    """Receives the messages of a pattern; an async context manager and iterator of messages."""

    PUBLIC = (
        "batches close closed drain images lag messages next open pattern poll run "
        "run_compiled stats subscriber_id"
    )

    @functools.cached_property
    def _spin(self) -> LoopSpin:
        return LoopSpin()

    async def open(self) -> Self:
        """Subscribe now; ``async with`` and ``await`` do it too. Granted when this returns."""
        await made_in_thread(self._open, lambda _: self.abandon())
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self.open().__await__()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(self) -> AsyncIterator[Message]:
        """Messages as they come, until closed or drained.

        Raises GapError by policy; iterate again to continue behind the gap.
        """
        self.check()
        pace, burst = LoopPace(), 1
        while True:
            walk = self.rest()
            if walk is None:
                batch = await self._wait_batch(ITERATE_MESSAGES, _NEVER)
                if batch is None:
                    return
                walk = self.start_walk(batch)
            for message in walk:
                yield message
                burst -= 1
                if not burst:
                    burst = await pace.turn()

    def batches(self, max_messages: int = 256, max_wait: float = 0.01) -> AsyncIterator[Batch]:
        """Batches as they come, until closed or drained.

        A batch holds up to ``max_messages`` of one publication. A batch that is not full waits up
        to ``max_wait`` seconds for more. Raises GapError by policy, ConfigError.
        """
        self.check()
        return self._batches(check_max_messages(max_messages), max_wait)

    async def _batches(self, limit: int, max_wait: float) -> AsyncIterator[Batch]:
        while (batch := await self._wait_batch(limit, _NEVER)) is not None:
            if len(batch) < limit:
                batch = await self._drive(self.fill_flow(batch, limit, max_wait))
            yield batch

    async def next(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109
        """The next message, valid until the call after. Raises Timeout, GapError, Closed."""
        self.check()
        walk = self.rest()
        return next(walk) if walk is not None else await self._drive(self.next_flow(timeout))

    def run(self, handler: Callable[[Message], Any], concurrency: int = 1) -> Any:
        """Await it: calls ``handler``, a function or coroutine function, with every message.

        Until closed or drained; returns how many there were. With ``concurrency`` above 1 that
        many calls of a coroutine function run at a time, each with a copy of its own; plain
        functions run in threads then. The first exception of a handler ends the run, after the
        handlers that still run. Raises ConfigError, at the call, unless ``handler`` is a function
        of one message.
        """
        asynchronous = check_handler(handler)
        check_concurrency(concurrency)
        self.check()
        return self._run_handler(handler, asynchronous, concurrency)

    async def _run_handler(
        self, handler: Callable[[Message], Any], asynchronous: bool, concurrency: int
    ) -> int:
        self.running += 1
        try:
            if concurrency > 1:
                return await self._run_many(handler, asynchronous, concurrency)
            n = 0
            async for message in self.messages():
                n += 1
                if asynchronous:
                    await handler(message)
                else:
                    handler(message)
            return n
        finally:
            self.running -= 1

    async def _run_many(
        self, handler: Callable[[Message], Any], asynchronous: bool, concurrency: int
    ) -> int:
        n = 0
        pending: set[asyncio.Task[Any]] = set()

        async def one(message: Message) -> None:
            if asynchronous:
                await handler(message)
            else:
                await asyncio.to_thread(handler, message)

        try:
            async for message in self.messages():
                n += 1
                pending.add(asyncio.create_task(one(message.copy())))
                if len(pending) >= concurrency:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for each in done:
                        each.result()
        finally:
            results = await asyncio.gather(*pending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return n

    run_compiled = awaits(SubscriptionFlows.run_compiled_flow)
    drain = awaits(SubscriptionFlows.drain_flow)
    close = awaits(SubscriptionFlows.close_flow)

    async def _wait_batch(self, limit: int, deadline: Deadline) -> Batch | None:
        """The next batch; None when the time is over, or closed or drained."""
        looks = 0 if self.inline else self._spin.looks()
        if looks:
            await asyncio.sleep(0)
            for _ in range(looks):
                if (batch := self.step(limit)) is not None:
                    self._spin.looked(found=True)
                    return batch
            self._spin.looked(found=False)
        return await self._drive(self.batch_flow(limit, deadline))


class Responder(ResponderFlows, Subscription):
    """Responds to the requests on one topic: `tidecast.sync.Responder` with ``await``."""

    PUBLIC = "close closed drain group messages next pattern poll serve stats topic"

    def messages(self) -> AsyncIterator[Request]:
        """Requests as they come, until closed or drained."""
        return super().messages()  # type: ignore[return-value]

    def __aiter__(self) -> AsyncIterator[Request]:
        return self.messages()

    async def next(self, timeout: float | None = None) -> Request:  # noqa: ASYNC109
        """The next request. Raises Timeout, Closed."""
        return await super().next(timeout)  # type: ignore[return-value]

    async def serve(self, handler: Callable[[Request], Any], concurrency: int = 1) -> int:
        """Call ``handler`` with every request until closed or drained; how many there were.

        The handler responds, or its result is the reply (None: an empty reply). When it raises,
        its requester gets RequestFailed, and a RequestRefused event reports it here. A handler that
        is no coroutine function runs in a thread if ``concurrency`` is above 1. Raises ConfigError.
        """
        asynchronous = check_handler(handler)
        check_concurrency(concurrency)

        async def answer(request: Any) -> None:
            try:
                if asynchronous:
                    value = await handler(request)
                elif concurrency > 1:
                    value = await asyncio.to_thread(handler, request)
                else:
                    value = handler(request)
                if not request.answered:
                    await request.respond(b"" if value is None else value)
            except Exception as problem:
                kind, text = self.handler_failed(problem)
                if request.answered:
                    raise
                await request.refuse(kind, text)

        return await self.run(answer, concurrency)

    def reply(self, to: Return, payload: Any, headers: Headers | None) -> Coroutine[Any, Any, None]:
        """Send a reply: see `Request.respond`."""
        flow = self.reply_flow(to, payload, headers, None)
        return _DONE if flow is None else self._drive(flow)

    def refuse(self, to: Return, kind: str, text: str) -> Coroutine[Any, Any, None]:
        """Send an error in place of a reply: see `Request.refuse`."""
        flow = self.reply_flow(to, b"", None, (kind, text))
        return _DONE if flow is None else self._drive(flow)


class Responding:
    """The awaitable of `Connection.responder`: await it, or use it with ``async with``."""

    def __init__(self, responder: Responder) -> None:
        self._responder = responder

    def __await__(self) -> Generator[Any, None, Responder]:
        return self._open().__await__()

    async def _open(self) -> Responder:
        await self._responder.open()
        return self._responder

    async def __aenter__(self) -> Responder:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self._responder.close()


class Replies:
    """Replies of several responders to one request: `tidecast.sync.Replies` with ``async for``."""

    def __init__(self, connection: Connection, topic: str, make: Callable[..., Any]) -> None:
        self._connection, self._topic, self._make = connection, topic, make
        self._gathering: Gathering | None = None

    @property
    def asked(self) -> int:
        """Responders that have the request."""
        return 0 if self._gathering is None else self._gathering.asked

    @property
    def failures(self) -> list[TidecastError]:
        """Errors that came in place of replies, so far."""
        return [] if self._gathering is None else self._gathering.failures

    @property
    def missing(self) -> int:
        """Responders that have neither replied nor failed, so far."""
        return 0 if self._gathering is None else self._gathering.missing

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        drive = self._connection.driver.run
        if self._gathering is None:
            requester = await self._connection.requester(self._topic)
            self._gathering, flow = self._make(requester)
            await drive(flow)
        reply: Message | None = await drive(self._gathering.next_flow())
        if reply is None:
            raise StopAsyncIteration
        return reply


class Topic(Public, TopicCore[T], Generic[T]):
    """A topic whose payloads are values of one type; see `tidecast.sync.Topic`."""

    PUBLIC = "codec consumer kind name publish publish_batch publisher subscribe"

    def __init__(
        self, connection: Connection, name: str, kind: type[T], codec: codecs.Codec | str
    ) -> None:
        super().__init__(connection, name, kind, codec)
        self._opening = asyncio.Lock()
        self._publisher: Publisher | None = None

    async def publisher(self) -> Publisher:
        """The publisher of this topic, opened by the first call."""
        kept = self._publisher
        if kept is None or kept.closed:
            async with self._opening:
                kept = self._publisher
                if kept is None or kept.closed:
                    successor = self._connection.publisher_after
                    open_one = partial(successor, kept, self.name, self.codec)
                    made = await made_in_thread(open_one, lambda late: late.abandon())
                    kept = self._publisher = made
        return kept

    async def publish(self, value: T, **options: Unpack[PublishOptions]) -> None:
        """Publish a value; arguments as `Publisher.publish`. Raises CodecError, as it does."""
        await (await self.publisher()).publish(value, **options)

    async def publish_batch(
        self, values: Sequence[T], **options: Unpack[BatchOptions]
    ) -> BatchResult:
        """Publish many values; arguments as `Publisher.publish_batch`."""
        payloads: Any = values
        return await (await self.publisher()).publish_batch(payloads, **options)

    def subscribe(
        self, *, invalid: InvalidLive = "raise", **options: Unpack[SubscribeOptions]
    ) -> TypedSubscription[T]:
        """Subscribe: await it, or use it with ``async with``. See `tidecast.sync.Topic`."""
        check_invalid(invalid, InvalidLive)
        plain = self._connection.subscribe(self.name, **options)
        return TypedSubscription(self, plain, invalid)

    def consumer(
        self, name: str, *, invalid: Invalid = "term", **options: Unpack[ConsumeOptions]
    ) -> TypedOpening[T]:
        """Join a durable subscription: await it, or use it with ``async with``.

        See `tidecast.sync.Topic.consumer`.
        """
        check_invalid(invalid, Invalid)
        return TypedOpening(self, self._connection.consumer(self.name, name, **options), invalid)


class TypedSubscription(Public, MessagesCore[T], Generic[T]):
    """A subscription whose messages have a decoded value. ``plain``: the `Subscription`."""

    PUBLIC = "close invalid next plain"

    def __init__(self, topic: Topic[T], plain: Subscription, invalid: InvalidLive) -> None:
        super().__init__(topic, invalid)
        self.plain = plain

    async def __aiter__(self) -> AsyncIterator[TypedMessage[T]]:
        """Messages as they come, until closed or drained."""
        async for message in self.plain:
            typed = self.message(message)
            if typed is not None:
                yield typed

    async def next(self, timeout: float | None = None) -> TypedMessage[T]:  # noqa: ASYNC109
        """The next message. Raises Timeout, CodecError, and as `Subscription.next`."""
        deadline = self.deadline(timeout)
        while True:
            typed = self.message(await self.plain.next(deadline()))
            if typed is not None:
                return typed

    async def close(self) -> None:
        """End the subscription."""
        await self.plain.close()

    async def _open(self) -> Self:
        await self.plain.open()
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Connection(Public, ConnectionFlows[Publisher, Subscription, Consumer, Opening, Records]):
    """A connection to a node, for one event loop. Made by `tidecast.connect`."""

    PUBLIC = (
        "close closed consumer drain events flush health name publish publish_batch "
        "publisher read request request_many responder serve stats status subscribe "
        "subscriptions topic topics work"
    )

    driver: LoopDriver

    def __init__(
        self, link: Link, name: str = "", topic_codecs: codecs.TopicCodecs | None = None
    ) -> None:
        self.driver = LoopDriver(lambda: self.bell)
        self._opening: dict[str, asyncio.Lock] = {}
        self._pumps: dict[Requester, asyncio.Task[None]] = {}
        self._spin = LoopSpin()
        super().__init__(link, name, topic_codecs, Publisher, Subscription, Consumer, Records)
        self.topics, self.subscriptions = Topics(self), Subscriptions(self)

    def _joined(self, join: Callable[[], Consumer]) -> Opening:
        return Opening(join)

    async def publish(self, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> None:
        """Publish one message; arguments as `Publisher.publish`. Keeps a publisher a topic."""
        await (await self._publisher_of(topic)).publish(payload, **options)

    async def publish_batch(
        self, topic: str, messages: Messages, **options: Unpack[BatchOptions]
    ) -> BatchResult:
        """Publish many messages, see `Publisher.publish_batch`. Keeps a publisher a topic."""
        return await (await self._publisher_of(topic)).publish_batch(messages, **options)

    async def _publisher_of(self, topic: str) -> Publisher:
        kept = self._kept.get(topic)
        if kept is None or kept.closed:
            self.check()
            async with self._opening.setdefault(topic, asyncio.Lock()):
                kept = self._kept.get(topic)
                if kept is None or kept.closed:
                    open_one = partial(self.publisher_after, kept, topic)
                    kept = await made_in_thread(open_one, lambda made: made.abandon())
                    self._kept[topic] = kept
        return kept

    def topic(self, name: str, kind: type[T], *, codec: codecs.Codec | str = "json") -> Topic[T]:
        """A topic whose payloads are of the type ``kind``, to publish to and to receive from.

        ``kind``: a builtin type, dataclass, `msgspec.Struct` or pydantic model; `bytes` and `str`
        are payloads as they are. ``codec``: ``json``, ``msgpack``, or an object that encodes and
        decodes it. ``name``: may be a pattern, to receive from. Raises ConfigError.
        """
        return Topic(self, name, kind, codec)

    async def request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float | None = TIMEOUT_S,  # noqa: ASYNC109 - as in the blocking client
        key: bytes | str | None = None,
        headers: Headers | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> Message:
        """Send a request to one responder of a live topic, and wait for its reply.

        Many may be under way, each in a task. ``codec`` encodes the payload, and decodes
        `Message.value` of the reply. Raises NoResponders at once when no responder serves the
        topic, RequestTimeout after ``timeout`` seconds (None: never), RequestFailed when the
        handler raised, ResponderLost when the responder ended before it replied, CodecError,
        ConfigError, PayloadTooLarge, ConnectionLost, Closed.
        """
        deadline, given = Deadline(timeout, self.link.now_s), self.topic_codecs.of(topic, codec)
        requester = known_requester(self, topic) or await self.requester(topic)
        pending = requester.begin(payload, key, headers, given)
        if pending is None:
            pending = await self.driver.run(
                requester.begin_flow(payload, key, headers, given, timeout)
            )
        if not pending.done:
            await self._look_for_reply(requester, pending)
        if not pending.done:
            await self._await_reply(requester, pending, timeout, deadline)
        return pending.reply()

    async def _look_for_reply(self, requester: Requester, pending: Pending) -> None:
        """Look for a reply that comes soon, once other tasks had their turn."""
        looks = 0 if self.link.inline or requester in self._pumps else self._spin.looks()
        if not looks:
            return
        try:
            await asyncio.sleep(0)
        except BaseException:
            requester.forget(pending)
            raise
        while looks and not pending.done:
            requester.pump()
            looks -= 1
        self._spin.looked(found=pending.done)

    async def _await_reply(
        self, requester: Requester, pending: Pending, within_s: float | None, deadline: Deadline
    ) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def arrived(_: Pending | None) -> None:
            if not future.done():
                future.set_result(None)

        pending.when_done(arrived)
        self._pump(requester)
        timer = None
        if within_s is not None:
            timer = loop.call_later(deadline.left_s(within_s), arrived, None)
        try:
            await future
        except BaseException:
            requester.forget(pending)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if not pending.done:
            raise requester.expire(pending, within_s)

    def _pump(self, requester: Requester) -> None:
        """Have one task take the replies of all requests on a topic."""
        task = self._pumps.get(requester)
        if task is None or task.done():
            self._pumps[requester] = task = asyncio.create_task(
                self.driver.run(requester.pump_flow())
            )
            task.add_done_callback(lambda _: self._pumped(requester, task))

    def _pumped(self, requester: Requester, task: asyncio.Task[None]) -> None:
        """No request waits any more, or the pump failed: then its requests fail, too."""
        if self._pumps.get(requester) is task:
            del self._pumps[requester]
        problem = None if task.cancelled() else task.exception()
        if problem is not None or task.cancelled():
            requester.fail(
                problem
                if isinstance(problem, TidecastError)
                else Closed(f"the client: {problem!r}")
            )
            requester.pump()

    def request_many(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float | None = TIMEOUT_S,
        max_replies: int | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> Replies:
        """Send a request to each responder, and to one member of each group; iterate over replies.

        It is sent when iteration begins, and iteration ends when all have replied, after
        ``max_replies``, or after ``timeout`` seconds. Raises RequestTimeout when no reply came in
        time; else as `request`.
        """
        given = self.topic_codecs.of(topic, codec)

        def make(requester: Requester) -> tuple[Gathering, Any]:
            gathering = Gathering(requester, timeout, max_replies)
            return gathering, gathering.begin_flow(payload, key, headers, given)

        return Replies(self, topic, make)

    def responder(
        self, topic: str, *, group: str | None = None, codec: codecs.Codec | str | None = None
    ) -> Responding:
        """Respond to requests on a live topic: iterate over them, or `Responder.serve` them.

        ``group``: `request_many` asks one member of it. Announced once it is awaited, or entered
        by ``async with``. Raises ConfigError, NotFound, AuthError.
        """
        self.check()
        return Responding(Responder(self, topic, group=group, codec=codec))

    async def serve(
        self,
        topic: str,
        handler: Callable[[Request], Any],
        *,
        group: str | None = None,
        concurrency: int = 1,
        codec: codecs.Codec | str | None = None,
    ) -> int:
        """Respond with results of ``handler``, until closed or drained. See `Responder.serve`."""
        async with self.responder(topic, group=group, codec=codec) as responder:
            return await responder.serve(handler, concurrency)

    async def requester(self, topic: str) -> Requester:
        """The sender of requests on a topic; opened by the first."""
        self.check()
        publisher = await self._publisher_of(topic)
        async with self._opening.setdefault(topic, asyncio.Lock()):
            found = known_requester(self, topic)
            if found is None:
                found = await asyncio.to_thread(make_requester, self, publisher)
            return found

    async def events(self, timeout: float | None = None) -> AsyncIterator[Event]:  # noqa: ASYNC109
        """Events as they come, until closed, or none came for ``timeout`` seconds."""
        while (event := await self.driver.run(self.event_flow(timeout))) is not None:
            yield event

    flush = awaits(ConnectionFlows.flush_flow)
    drain = awaits(ConnectionFlows.drain_flow)
    close = awaits(ConnectionFlows.close_flow)

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


__all__ = ["Connection", "Publisher", "Records", "Replies", "Request", "Responder", "Subscription"]
