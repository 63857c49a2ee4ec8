"""The asyncio client, made by `tidecast.connect`. The steps are those of the cores, awaited here.

Opening and closing ask the node, which takes a moment, and so run in a thread; publishing and
receiving never block the loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any, ClassVar, Self

from tidecast.api.link import Link
from tidecast.client.consumer.aio import Consumer, Opening
from tidecast.client.core.message import Batch, Message
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import BatchResult
from tidecast.client.core.publisher import COLLECTED_MAX
from tidecast.client.core.subscription import (
    ITERATE_MESSAGES,
    check_concurrency,
    check_handler,
    check_max_messages,
)
from tidecast.client.flows.connection import ConnectionFlows
from tidecast.client.flows.publisher import CLOSE_TIMEOUT_S, PublisherFlows
from tidecast.client.flows.steps import LoopDriver, OnLoop
from tidecast.client.flows.subscription import SubscriptionFlows
from tidecast.client.waiting import Deadline
from tidecast.events import Event

_NEVER = Deadline(None)


class Published(Coroutine[Any, Any, None]):
    """What `Publisher.publish` returns when all is done: await it, or make a task of it."""

    __slots__ = ()
    __await__ = ().__iter__  # type: ignore[assignment] # no line of Python: 60 ns, not 100

    def send(self, value: Any) -> Any:
        """It is over."""
        del value
        raise StopIteration

    def throw(self, *problem: Any) -> Any:
        """Somebody cancels what is done."""
        raise problem[1] if len(problem) > 1 and problem[1] is not None else problem[0]

    def close(self) -> None:
        """Nothing is open."""


class Publisher(OnLoop, PublisherFlows):
    """Publishes to one topic; `tidecast.client.blocking.Publisher` with ``await``.

    `publish` of `bytes` and nothing else is done when the call returns, if there is room: awaiting
    it then costs next to nothing and lets no other task run.
    """

    _FAST: ClassVar[dict[str, object]] = {"try_publish": True, "publish": Published()}

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
        ack: str | None = None,
    ) -> None:
        """Publish one message: bytes, or what the codec encodes.

        ``to``: name of the only node that shall have it; ``subscriber``: id of the only subscriber.
        ``timestamp``: True = now, or ns since 1970. ``flush``: send at once. ``timeout``: seconds
        to wait for room. Raises CodecError, ConfigError, PayloadTooLarge, NoResponders, Timeout,
        BackPressure or RateLimited (``on_full="error"``), ConnectionLost, Closed.
        ``ack="durable"``: return when it is on disk; raises also Fenced, StorageError. ``engine``
        and ``none`` are what happens without: return when the ring has it.
        """
        plain = key is headers is timestamp is to is subscriber is ack is None  # type: ignore[comparison-overlap]
        if plain and type(payload) is self._plain and not flush:
            collected = self._collected
            if len(payload) <= self._collected_bytes_max and len(collected) < COLLECTED_MAX:
                collected.append(payload)
                if self._collected_bytes_max < 0:
                    await self._drive(self.end_burst_flow(timeout))
                return
        flow = self.publish_flow(
            payload, key, headers, timestamp, to, subscriber, flush, timeout, ack
        )
        if flow is not None:
            await self._drive(flow)

    async def publish_batch(
        self,
        messages: Any,
        *,
        flush: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the blocking client
        ack: str | None = None,
    ) -> BatchResult:
        """Publish many messages: a list of bytes, a NumPy array, an Arrow array or column.

        Rows of a two-dimensional array are messages, items of a one-dimensional one. A column's
        values are not copied on the way into the ring. Returns what became of them: what stops a
        batch half way (no room, too large) is in the result's ``error``. Other publishers'
        messages may come between. ``ack="durable"``: return when all is on disk, or say in
        ``error`` why not. Raises CodecError before anything is published, Closed.
        """
        begun = self.publish_batch_flow(messages, flush, timeout, ack)
        return begun if isinstance(begun, BatchResult) else await self._drive(begun)

    async def run_compiled(
        self,
        fn: Callable[..., Any],
        state: Any,
        count: int,
        *,
        message_bytes_max: int,
        flush: bool = True,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the blocking client
    ) -> int:
        """Publish up to ``count`` messages that a compiled function writes in place.

        ``fn(buf: uint8[:], i: int, state) -> int``: write message ``i`` into ``buf`` (at most
        ``message_bytes_max`` bytes), return its length; 0 stops. It runs in a thread. Returns how
        many were published. Raises ConfigError, Timeout, Closed.
        """
        return await self._drive(
            self.run_compiled_flow(fn, state, count, message_bytes_max, flush, timeout)
        )

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Hand over what was collected and send the open packet. Raises Timeout, Closed."""
        await self._drive(self.flush_flow(timeout))

    async def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:  # noqa: ASYNC109
        """Hand over what was collected, then end the publication. Idempotent.

        Raises BackPressure when messages found no room within ``timeout`` seconds.
        """
        await self._drive(self.close_flow(timeout))

    async def wait_durable(
        self,
        seq: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the blocking client
    ) -> int:
        """Wait until ``seq`` (None: all that was published so far) is durable; how far it is then.

        Raises Timeout (wait again), Fenced, Closed, StorageError (``on_full="error"``), ConfigError
        on a live topic.
        """
        return await self._drive(self.wait_durable_flow(seq, timeout))

    async def flush_to_ring(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Put what was collected into the ring. Raises Timeout, Closed."""
        await self._drive(self.flush_to_ring_flow(timeout))

    hand_over = flush_to_ring
    """The name of `flush_to_ring` in older versions; the next version has it no more."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Subscription(OnLoop, SubscriptionFlows):
    """Receives what matches one pattern; an async context manager and iterator of messages."""

    async def open(self) -> Self:
        """Subscribe now; ``async with`` and ``await`` do it too. Granted when this returns."""
        await self._drive(self.open_flow())
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

        Raises GapError by policy; iterate again to go on behind the gap.
        """
        self.check()
        while True:
            walk = self.rest()
            if walk is None:
                batch = await self._wait_batch(ITERATE_MESSAGES, _NEVER)
                if batch is None:
                    return
                walk = self.start_walk(batch)
            for message in walk:
                yield message

    def batches(self, max_messages: int = 256, max_wait: float = 0.01) -> AsyncIterator[Batch]:
        """Batches as they come, until closed or drained.

        A batch holds up to ``max_messages`` of one publication; one that is not full waits up to
        ``max_wait`` seconds for more. Raises GapError by policy, ConfigError.
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

    def poll(self, max_messages: int = 256) -> Batch:
        """What is there now, up to ``max_messages``; an empty batch when nothing is. No await.

        Raises GapError by policy, Closed, ConfigError.
        """
        if self.inline:
            self._connection.link.work()
        return self._poll(max_messages)

    def run(self, handler: Callable[[Message], Any], concurrency: int = 1) -> Any:
        """Await it: calls ``handler``, a function or coroutine function, with every message.

        Until closed or drained; returns how many there were. With ``concurrency`` above 1 that
        many calls of a coroutine function run at a time, each with a copy of its own; plain
        functions run in threads then. The first exception of a handler ends the run, after those
        that still run. Raises ConfigError, at the call, for what is not a function of one message.
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

    async def run_compiled(
        self,
        fn: Callable[..., Any],
        state: Any,
        *,
        max_messages: int | None = None,
        duration_s: float | None = None,
        until: Callable[[], bool] | threading.Event | None = None,
    ) -> int:
        """Run a compiled function over every message, in place; how many there were.

        ``fn(data: uint8[:], state)`` or ``fn(data, meta, state)`` with ``meta`` a
        `tidecast.client.compiled.Meta`. It runs in a thread. Ends after ``max_messages``, after
        ``duration_s`` seconds, when ``until`` says so (asked between batches), when closed or
        drained. Raises GapError by policy, ConfigError.
        """
        return await self._drive(self.run_compiled_flow(fn, state, max_messages, duration_s, until))

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take nothing new: iteration ends behind what is in the rings; then waits for handlers.

        Raises Timeout when handlers run on for longer than ``timeout`` seconds.
        """
        await self._drive(self.drain_flow(timeout))

    async def close(self) -> None:
        """End the subscription; whoever waits for it is woken. Idempotent."""
        await self._drive(self.close_flow())

    async def _wait_batch(self, limit: int, deadline: Deadline) -> Batch | None:
        """The next batch; None when the time is over, or closed or drained."""
        return await self._drive(self.batch_flow(limit, deadline))


class Connection(ConnectionFlows[Publisher, Subscription, Consumer, Opening]):
    """A connection to a node, for one event loop. Made by `tidecast.connect`."""

    driver: LoopDriver

    def __init__(self, link: Link, name: str = "") -> None:
        self.driver = LoopDriver(lambda: self.bell)
        self._opening: dict[str, asyncio.Lock] = {}
        super().__init__(link, name, Publisher, Subscription, Consumer)

    def _joined(self, join: Callable[[], Consumer]) -> Opening:
        return Opening(join)

    async def publish(self, topic: str, payload: Any, **options: Any) -> None:
        """Publish one message; arguments as `Publisher.publish`. Keeps a publisher a topic."""
        await (await self._publisher_of(topic)).publish(payload, **options)

    async def publish_batch(self, topic: str, messages: Any, **options: Any) -> BatchResult:
        """Publish many messages, see `Publisher.publish_batch`. Keeps a publisher a topic."""
        return await (await self._publisher_of(topic)).publish_batch(messages, **options)

    async def _publisher_of(self, topic: str) -> Publisher:
        kept = self._kept.get(topic)
        if kept is None or kept.closed:
            self.check()
            async with self._opening.setdefault(topic, asyncio.Lock()):
                kept = self._kept.get(topic)
                if kept is None or kept.closed:
                    kept = await asyncio.to_thread(self.publisher, topic)
                    self._kept[topic] = kept
        return kept

    async def events(self, timeout: float | None = None) -> AsyncIterator[Event]:  # noqa: ASYNC109
        """Events as they come, until closed, or none came for ``timeout`` seconds."""
        while (event := await self.driver.run(self.event_flow(timeout))) is not None:
            yield event

    async def pause_topic(self, topic: str, queue: int | None = None) -> None:
        """Deliver nothing of a durable topic, or of one queue, to any subscription.

        What was fetched is kept, publishers continue. Until `resume_topic`: an engine that starts
        again remembers it. Raises NotFound.
        """
        await asyncio.to_thread(self._pause, topic, queue, True)

    async def resume_topic(self, topic: str, queue: int | None = None) -> None:
        """Deliver again. Raises NotFound."""
        await asyncio.to_thread(self._pause, topic, queue, False)

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Flush all publishers. Raises Timeout."""
        await self.driver.run(self.flush_flow(timeout))

    async def drain(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109
        """Send what was published, wait for handlers of what has arrived, then close.

        Raises Timeout, and closes all the same.
        """
        await self.driver.run(self.drain_flow(timeout))

    async def close(self) -> None:
        """Close publishers (what was collected is handed over) and subscriptions. Idempotent."""
        await self.driver.run(self.close_flow())

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


__all__ = ["Connection", "Publisher", "Subscription"]
