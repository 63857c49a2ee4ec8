"""The asyncio client: `tidecast.connect`. The steps are those of the cores; here they are awaited.

Opening and closing ask the node, which takes a moment, and so run in a thread; publishing and
receiving never block the loop.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, Self

from tidecast import codecs
from tidecast.api.link import Link
from tidecast.api.start import Latest, Start
from tidecast.client import compiled
from tidecast.client.aio_publisher import Publisher
from tidecast.client.consumer.aio import AsyncConsumers, Consumer
from tidecast.client.core.connection import CLOSED, DRAINING
from tidecast.client.core.message import Batch, Message
from tidecast.client.core.outgoing import BatchResult
from tidecast.client.core.subscription import (
    ITERATE_MESSAGES,
    SubscriptionCore,
    check_concurrency,
    check_handler,
    check_max_messages,
)
from tidecast.client.links.open import open_link
from tidecast.client.waiting import Backoff, Deadline, InlinePace, LoopWaker
from tidecast.errors import TidecastError, Timeout
from tidecast.events import Event

_NEVER = Deadline(None)


class Subscription(SubscriptionCore):
    """Receives what matches one pattern; an async context manager and iterator of messages."""

    _connection: Connection

    async def open(self) -> Self:
        """Subscribe now; ``async with`` and ``await`` do it too. Granted when this returns."""
        await asyncio.to_thread(self._open)
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
                batch = await self._fill(batch, limit, max_wait)
            yield batch

    async def next(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109
        """The next message, valid until the call after. Raises Timeout, GapError, Closed."""
        self.check()
        walk = self.rest()
        if walk is None:
            batch = await self._wait_batch(ITERATE_MESSAGES, Deadline(timeout))
            if batch is None:
                self.check()
                raise Timeout(f"no message on {self.pattern} within {timeout} s")
            walk = self.start_walk(batch)
        return next(walk)

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
        self.check()
        consumer = await asyncio.to_thread(
            compiled.Consumer, self, fn, state, max_messages, until
        )  # it compiles
        deadline, pace = Deadline(duration_s), InlinePace()
        self.running += 1
        try:
            while not (consumer.ended or self.ended or deadline.passed):
                if not await asyncio.to_thread(consumer.step):
                    await self._idle(deadline, pace)
        finally:
            self.running -= 1
        if self.ended:
            self.raise_end()
        return consumer.done

    async def drain(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Take nothing new: iteration ends behind what is in the rings; then waits for handlers.

        Raises Timeout when handlers run on for longer than ``timeout`` seconds.
        """
        self._start_drain()
        self._connection.bell.ring()
        deadline, backoff = Deadline(timeout), Backoff(self._connection.link)
        while self.running:
            if deadline.passed:
                raise Timeout(f"handlers of {self.pattern} still run after {timeout} s")
            await backoff.pause_async(deadline)

    async def close(self) -> None:
        """End the subscription; whoever waits for it is woken. Idempotent."""
        if self._opened or self._refusal is None:
            await asyncio.to_thread(self._shut)
        if not self._connection.closed:
            self._connection.bell.ring()

    async def _wait_batch(self, limit: int, deadline: Deadline) -> Batch | None:
        """The next batch; None when the time is over, or closed or drained."""
        pace = InlinePace()
        await asyncio.sleep(0)  # a subscriber that always finds something must not hog the loop
        while True:
            batch = self.step(limit)
            if batch is not None:
                return batch
            if self.ended:
                self.raise_end()
                return None
            if deadline.passed:
                return None
            await self._idle(deadline, pace)

    async def _idle(self, deadline: Deadline, pace: InlinePace, batch: Batch | None = None) -> None:
        connection = self._connection
        if connection.link.inline:
            await asyncio.sleep(deadline.left_s(pace.pause_s(connection.link.work())))
            return
        await connection.sleep(lambda: self.arm(batch) is not None, deadline)

    async def _fill(self, batch: Batch, limit: int, max_wait: float) -> Batch:
        deadline, pace = Deadline(max_wait), InlinePace()
        while len(batch) < limit and not deadline.passed:
            grown = self.grow(batch, limit)
            if grown is None:
                return batch
            if len(grown) == len(batch):
                await self._idle(deadline, pace, grown)
            batch = grown
        return batch


class Connection(AsyncConsumers):
    """A connection to a node, for one event loop. Made by `tidecast.connect`."""

    def __init__(self, link: Link, name: str = "") -> None:
        super().__init__(link, name)
        self._kept: dict[str, Publisher] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._waker: LoopWaker | None = None

    def publisher(
        self,
        topic: str,
        *,
        channel: str = "ordinary",
        on_full: str | None = None,
        linger_us: int | None = None,
        history_bytes: int | None = None,
        rate_packets_per_s: int | None = None,
        rate_bytes_per_s: int | None = None,
        codec: codecs.Codec | str | None = None,
        buffer: bool = False,
        producer: str | None = None,
        first_seq: int | None = None,
    ) -> Publisher:
        """Open a publication of ``topic``. Raises NotFound, ConfigError, SharedMemoryError.

        Asks the node and waits for its answer (no await: it takes about a millisecond, once).
        ``on_full`` (None: as the topic says): ``block`` waits for room, ``error`` raises
        BackPressure or RateLimited, ``drop`` counts and tells by a MessagesDropped event.
        ``linger_us``: how long a packet may wait for more messages. ``buffer=True``: calls in
        quick succession are collected and handed over together.
        ``producer``, ``first_seq``: as in the blocking client.
        """
        self.check()
        options = self._options(
            channel=channel, linger_us=linger_us, history_bytes=history_bytes,
            rate_packets_per_s=rate_packets_per_s, rate_bytes_per_s=rate_bytes_per_s,
            producer=producer, first_seq=first_seq,
        )  # fmt: skip
        publisher = Publisher(self, topic, options, on_full=on_full, codec=codec, buffer=buffer)
        self.add_publisher(publisher)
        return publisher

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

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start | str = Latest(),  # noqa: B008 - immutable
        on_gap: str | None = None,
        tethered: bool | None = None,
        receive_bytes: int | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> Subscription:
        """Subscribe to topics: a name, or with ``*`` for one token and ``>`` for all that follow.

        Use it with ``async with`` or ``await``: granted when that returns. ``on_gap``: ``raise`` a
        GapError, put a Gap into the ``event`` stream, or ``skip``; the default is ``raise``, for
        unreliable topics ``event``. ``tethered=False``: never holds a publisher back and may be
        lapped. Raises ConfigError.
        """
        self.check()
        return Subscription(
            self, pattern, start=start, on_gap=on_gap, tethered=tethered,
            receive_bytes=receive_bytes, codec=codec,
        )  # fmt: skip

    async def events(self, timeout: float | None = None) -> AsyncIterator[Event]:  # noqa: ASYNC109
        """Events as they come, until closed, or none came for ``timeout`` seconds."""
        deadline, pace = Deadline(timeout), InlinePace()
        while self.goes_on():
            event = self.take_event()
            if event is not None:
                yield event
                deadline = Deadline(timeout)
            elif deadline.passed:
                return
            elif self.link.inline:
                await asyncio.sleep(deadline.left_s(pace.pause_s(self.link.work())))
            else:
                await self.sleep(self._no_events, deadline)

    def _no_events(self) -> bool:
        self.pump()
        return not self._events

    async def sleep(
        self, arm: Callable[[], bool], deadline: Deadline, at_most_s: float = 1.0
    ) -> None:
        """Wait for the doorbell, if ``arm`` says so when everything is prepared for it."""
        loop = asyncio.get_running_loop()
        waker = self._waker
        if waker is None or waker.loop is not loop:
            if waker is not None:
                waker.stop()
            waker = self._waker = LoopWaker(lambda: self.bell, loop)
        future = waker.enlist()
        try:
            if arm():
                await asyncio.wait((future,), timeout=deadline.left_s(at_most_s))
        finally:
            waker.retire(future)
            future.cancel()

    def work(self) -> int:
        """Run an inline node's agents once; how much they did. Elsewhere nothing."""
        self.check()
        return self.link.work()

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Flush all publishers. Raises Timeout."""
        self.check()
        for publisher in self._all_publishers():
            await publisher.flush(timeout)

    async def drain(self, timeout: float | None = 30.0) -> None:  # noqa: ASYNC109
        """Send what was published, wait for handlers of what has arrived, then close.

        Raises Timeout, and closes all the same.
        """
        self.check()
        deadline = Deadline(timeout)
        self.status = DRAINING
        try:
            await self.flush(timeout)
            for subscription in self._all_subscriptions():
                await subscription.drain(deadline.left_s(1e9))
            backoff = Backoff(self.link)
            while any(each.stats().unsent_packets for each in self._all_publishers()):
                if deadline.passed:
                    raise self.unsent_error(timeout)
                await backoff.pause_async(deadline)
        finally:
            await self.close()

    async def close(self) -> None:
        """Close publishers (what was collected is handed over) and subscriptions. Idempotent."""
        if self.status == CLOSED or os.getpid() != self._pid:
            return
        problem: TidecastError | None = None
        for publisher in self._all_publishers():
            try:
                await publisher.close()
            except TidecastError as raised:
                problem = raised
        for subscription in self._all_subscriptions():
            await subscription.close()
        for consumer in [each for each in self._consumers if isinstance(each, Consumer)]:
            await consumer.close()
        if self._waker is not None:
            await asyncio.to_thread(self._waker.stop)
        await asyncio.to_thread(self._finish)
        if problem is not None:
            raise problem

    def _all_publishers(self) -> Iterator[Publisher]:
        return iter([each for each in self._publishers if isinstance(each, Publisher)])

    def _all_subscriptions(self) -> Iterator[Subscription]:
        every = list(self._subscriptions.values())
        return iter([each for each in every if isinstance(each, Subscription)])

    async def __aenter__(self) -> Self:
        self.check()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class _Connecting:
    """What `connect` returns: await it, or use it with ``async with``."""

    def __init__(self, make: Callable[[], Connection]) -> None:
        self._make = make
        self._connection: Connection | None = None

    def __await__(self) -> Generator[Any, None, Connection]:
        return asyncio.to_thread(self._make).__await__()

    async def __aenter__(self) -> Connection:
        self._connection = await self
        return self._connection

    async def __aexit__(self, *_: object) -> None:
        assert self._connection is not None
        await self._connection.close()


def connect(
    url: str = "tidecast://",
    *,
    name: str = "",
    token: str | None = None,
    link: Link | None = None,
    **options: Any,
) -> _Connecting:
    """Begin a session with a node: use it with ``async with``, or await it.

    ``tidecast://`` the engine of the default data directory, ``tidecast:///path`` of another one;
    ``embedded://`` an engine in this process (``topology=`` file or object, ``mode=`` ``threads``
    or ``inline``). Raises EngineNotRunning, AuthError, ConfigError.
    """
    return _Connecting(lambda: Connection(link or open_link(url, name, token, options), name))


__all__ = ["Connection", "Publisher", "Subscription", "connect"]
