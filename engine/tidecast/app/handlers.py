"""Handlers of an app: each reads one topic and calls one function with its messages."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import msgspec

from tidecast.api.start import Start
from tidecast.api.words import StartWord
from tidecast.app.parameters import Call, InvalidMessage, Plan
from tidecast.app.payloads import encode
from tidecast.client.aio import Connection, Responder, Subscription
from tidecast.client.consumer.aio import Consumer
from tidecast.client.core.outgoing import reject
from tidecast.codecs import Codec
from tidecast.errors import ConfigError

logger = logging.getLogger("tidecast.app")
CONCURRENCY_MAX = 1024
DELAY_MAX_S = 604_800.0


class Reject(Exception):
    """Raise it in a handler: the message is given up, and becomes a dead letter."""


class RetryLater(Exception):
    """Raise it in a handler: the message is delivered again after ``seconds``."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(reason or f"again after {seconds:g} s")
        self.seconds = seconds


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The reaction to an exception of a handler.

    ``max_deliver``: deliveries of a message, then it is a dead letter; None: as the subscription
    has it, 0: no limit. ``delays``: seconds before the second, third ... delivery; the last one
    repeats. ``reject``: exceptions that another delivery cannot fix: the message is given up.
    """

    max_deliver: int | None = 5
    delays: tuple[float, ...] = (1.0, 5.0, 30.0)
    reject: tuple[type[Exception], ...] = ()

    def check(self) -> None:
        """Raise ConfigError for values outside the limits."""
        if not self.delays:
            raise reject("retry.delays", self.delays, "are one or more numbers of seconds")
        for delay in self.delays:
            if not 0 <= delay <= DELAY_MAX_S:
                raise reject("retry.delays", delay, f"are 0 to {DELAY_MAX_S:.0f} seconds each")

    def delay_s(self, attempts: int) -> float:
        """Seconds until the next delivery of a message that was delivered ``attempts`` times."""
        return self.delays[min(max(attempts, 1), len(self.delays)) - 1]


class Publish(msgspec.Struct, frozen=True):
    """A handler's result with a key, headers, or a topic of its own.

    ``key``: None: the key of the message that was handled. ``topic``: None: the topic that the
    handler's ``publishes`` names.
    """

    value: Any
    key: bytes | str | None = None
    headers: dict[str, Any] | None = None
    topic: str | None = None


class Counts(msgspec.Struct):
    """Of one handler, since the app started."""

    handled: int = 0
    """Messages whose function returned."""
    retried: int = 0
    """Messages that are delivered again, because the function raised."""
    rejected: int = 0
    """Messages that were given up: invalid, refused by the function, or failed without a retry."""
    active: int = 0
    """Calls under way."""
    seconds: float = 0.0
    """Sum of the calls' durations."""

    @property
    def completed(self) -> int:
        """Calls that are over, however they ended."""
        return self.handled + self.retried + self.rejected


class Handler(ABC):
    """One function of an app, and where its messages come from."""

    kind = ""
    kept = False
    """Its messages are records: acked when they are handled."""

    def __init__(
        self,
        app: Any,
        fn: Callable[..., Any],
        topic: str,
        *,
        concurrency: int,
        timeout: float | None,
        codec: Codec | str | None,
        publishes: str | None,
        local: Mapping[str, Any],
    ) -> None:
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise reject("concurrency", concurrency, f"are 1 to {CONCURRENCY_MAX}")
        if timeout is not None and not 0 < timeout <= DELAY_MAX_S:
            raise reject("timeout", timeout, f"are seconds, up to {DELAY_MAX_S:.0f}, or None")
        if timeout is not None and not inspect.iscoroutinefunction(fn):
            raise ConfigError(
                f"timeout: {timeout!r}: {fn.__qualname__}() is no coroutine function: a thread "
                "cannot be stopped; write it with `async def`, or leave out timeout"
            )
        self.app, self.fn, self.topic = app, fn, topic
        self.codec: Codec | str = app.codec if codec is None else codec
        self.plan = Plan(fn, self.codec, local)
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self.concurrency, self.timeout, self.publishes = concurrency, timeout, publishes
        self.counts = Counts()
        self._result_topics: set[str] = set()
        self.changed = asyncio.Event()
        """Set, and replaced, when a call is over."""

    @abstractmethod
    async def open(self, client: Connection) -> None:
        """Join, subscribe, or announce: messages from now on are handled."""

    @abstractmethod
    async def run(self) -> None:
        """Handle messages until drained. Raises the error that ends it before."""

    @abstractmethod
    async def drain(self, timeout: float | None) -> None:  # noqa: ASYNC109 - as in the client
        """Take no new messages, and wait for calls under way. Raises Timeout."""

    @abstractmethod
    async def close(self) -> None:
        """Leave: unhandled messages go to others. The connection stays open."""

    def describe(self) -> dict[str, Any]:
        """Its description, as JSON."""
        return {"name": self.name, "kind": self.kind, "topic": self.topic}

    async def call(self, message: Any) -> Any:
        """Call the function for a message. Raises its errors, and InvalidMessage."""
        counts, began = self.counts, time.perf_counter()
        counts.active += 1
        try:
            async with AsyncExitStack() as stack:
                call = Call(
                    message, self.app.client, self.app, {}, stack, self.app.dependency_overrides
                )
                if self.timeout is None:
                    result = await self.plan.call(call)
                else:
                    async with asyncio.timeout(self.timeout):
                        result = await self.plan.call(call)
                if result is not None and self.publishes is not None:
                    await self._publish(result, message)
                return result
        finally:
            counts.active -= 1
            counts.seconds += time.perf_counter() - began

    async def _publish(self, result: Any, message: Any) -> None:
        for each in result if isinstance(result, list) else [result]:
            out = each if isinstance(each, Publish) else Publish(each)
            topic = out.topic or self.publishes
            assert topic is not None
            key = message.key if out.key is None else out.key
            payload = encode(out.value, self.codec, topic)
            await self._check_stored(topic)
            await self.app.publish(topic, payload, key=key, headers=out.headers)

    async def _check_stored(self, topic: str) -> None:
        """Warn once if results go to a topic that keeps nothing, and a message was kept."""
        if not self.kept or topic in self._result_topics:
            return
        self._result_topics.add(topic)
        if not (await self.app.publisher_of(topic)).durable:
            logger.warning(
                "%s: results go to the topic %s, which is live: they are not stored. Declare it "
                'with app.topic("%s", mode="durable")',
                self.name,
                topic,
                topic,
            )

    def completed(self) -> None:
        """A call is over, and counted."""
        self.changed.set()
        self.changed = asyncio.Event()


class ConsumerHandler(Handler):
    """A member of a durable subscription: acks, retries, gives up."""

    kind = "consumer"
    kept = True

    def __init__(
        self,
        app: Any,
        fn: Callable[..., Any],
        topic: str,
        subscription: str,
        *,
        retry: Retry,
        options: dict[str, Any],
        **common: Any,
    ) -> None:
        retry.check()
        super().__init__(app, fn, topic, **common)
        self.subscription, self.retry, self._options = subscription, retry, options
        self._consumer: Consumer | None = None

    async def open(self, client: Connection) -> None:
        """See `Handler`. Raises NotFound, Conflict (the subscription has other settings)."""
        self._consumer = await client.consumer(
            self.topic, self.subscription, max_deliver=self.retry.max_deliver, **self._options
        )

    async def run(self) -> None:
        """See `Handler`."""
        assert self._consumer is not None
        await self._consumer.run(self._handle, self.concurrency, ack="none", extend=True)

    async def drain(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """See `Handler`. Messages that no call has begun go to other members."""
        if self._consumer is not None:
            await self._consumer.drain(timeout)

    async def close(self) -> None:
        """See `Handler`."""
        if self._consumer is not None:
            await self._consumer.close()

    def describe(self) -> dict[str, Any]:
        """See `Handler`."""
        return super().describe() | {"subscription": self.subscription}

    async def _handle(self, message: Any) -> None:
        try:
            await self.call(message)
        except Exception as problem:  # noqa: BLE001 - a handler may raise anything
            self._failed(message, problem)
        else:
            message.ack()
            self.counts.handled += 1
        self.completed()

    def _failed(self, message: Any, problem: Exception) -> None:
        text = f"{type(problem).__name__}: {problem}"
        if isinstance(problem, RetryLater):
            message.nak(problem.seconds)
            self.counts.retried += 1
        elif isinstance(problem, (Reject, InvalidMessage, *self.retry.reject)):
            message.term(str(problem) if isinstance(problem, Reject) else text)
            self.counts.rejected += 1
            logger.error("%s: %s is given up: %s", self.name, message.token, text)
        elif 0 < (self.retry.max_deliver or 0) <= message.attempts:
            message.term(text)  # with the reason, which the engine would not know
            self.counts.rejected += 1
            logger.error(
                "%s: %s is given up after %d deliveries",
                self.name,
                message.token,
                message.attempts,
                exc_info=problem,
            )
        else:
            message.nak(self.retry.delay_s(message.attempts))
            self.counts.retried += 1
            logger.warning(
                "%s: %s failed at delivery %d",
                self.name,
                message.token,
                message.attempts,
                exc_info=problem,
            )


class SubscriberHandler(Handler):
    """A subscriber of live topics: nothing is delivered twice."""

    kind = "subscriber"

    def __init__(
        self,
        app: Any,
        fn: Callable[..., Any],
        topic: str,
        *,
        start: Start | StartWord,
        **common: Any,
    ) -> None:
        super().__init__(app, fn, topic, **common)
        self._start = start
        self._subscription: Subscription | None = None

    async def open(self, client: Connection) -> None:
        """See `Handler`."""
        self._subscription = await client.subscribe(self.topic, start=self._start, on_gap="event")

    async def run(self) -> None:
        """See `Handler`. Messages that are lost on the way are `Gap` events, and logged."""
        assert self._subscription is not None
        await self._subscription.run(self._handle, self.concurrency)

    async def drain(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """See `Handler`."""
        if self._subscription is not None:
            await self._subscription.drain(timeout)

    async def close(self) -> None:
        """See `Handler`."""
        if self._subscription is not None:
            await self._subscription.close()

    async def _handle(self, message: Any) -> None:
        try:
            await self.call(message)
            self.counts.handled += 1
        except Exception as problem:
            self.counts.rejected += 1
            logger.error(
                "%s: a message of %s failed: %s: %s",
                self.name,
                message.topic,
                type(problem).__name__,
                problem,
                exc_info=None if isinstance(problem, (Reject, InvalidMessage)) else problem,
            )
        self.completed()


class ResponderHandler(Handler):
    """Responds to requests with results of its function."""

    kind = "responder"

    def __init__(
        self, app: Any, fn: Callable[..., Any], topic: str, *, group: str | None, **common: Any
    ) -> None:
        super().__init__(app, fn, topic, publishes=None, **common)
        self._group = group
        self._responder: Responder | None = None

    async def open(self, client: Connection) -> None:
        """See `Handler`."""
        self._responder = await client.responder(self.topic, group=self._group, codec="raw")

    async def run(self) -> None:
        """See `Handler`."""
        assert self._responder is not None
        await self._responder.serve(self._handle, self.concurrency)

    async def drain(self, timeout: float | None) -> None:  # noqa: ASYNC109
        """See `Handler`."""
        if self._responder is not None:
            await self._responder.drain(timeout)

    async def close(self) -> None:
        """See `Handler`."""
        if self._responder is not None:
            await self._responder.close()

    async def _handle(self, request: Any) -> bytes:
        try:
            result = await self.call(request)
            payload = b"" if result is None else encode(result, self.codec, self.topic)
        except Exception as problem:
            self.counts.rejected += 1
            logger.warning("%s: a request failed", self.name, exc_info=problem)
            raise
        else:
            self.counts.handled += 1
            return payload
        finally:
            self.completed()


def local_names(depth: int) -> Mapping[str, Any]:
    """Names that are visible where a handler is defined: its annotations may use them."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame is not None else None
    return dict(frame.f_locals) if frame is not None else {}
