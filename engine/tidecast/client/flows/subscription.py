"""Receiving where it waits: for messages, for handlers, for the node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from tidecast.client import compiled
from tidecast.client.core.message import Batch, Message
from tidecast.client.core.subscription import ITERATE_MESSAGES, SubscriptionCore
from tidecast.client.flows.steps import TURN, Ask, Flow, Pause, idle
from tidecast.client.waiting import Backoff, Deadline, FillPace, InlinePace
from tidecast.errors import Timeout


class SubscriptionFlows(SubscriptionCore):
    """The flows of one subscription; the shells document them."""

    def poll(self, max_messages: int = 256) -> Batch:
        """The messages that are there, up to ``max_messages``; or an empty batch. Never waits.

        Raises GapError by policy, Closed, ConfigError.
        """
        if self._connection.link.inline:
            self._connection.link.work()
        return self._poll(max_messages)

    def open_flow(self) -> Flow[None]:
        """Subscribe now."""
        yield Ask(self._open)

    def batch_flow(self, limit: int, deadline: Deadline) -> Flow[Batch | None]:
        """The next batch; None when the time is over, or closed or drained."""
        pace = InlinePace()
        yield TURN
        while (batch := self.step(limit)) is None:
            if self.finished() or deadline.passed:
                return None
            yield from self.idle_flow(deadline, pace)
        return batch

    def idle_flow(
        self, deadline: Deadline, pace: InlinePace, batch: Batch | None = None
    ) -> Flow[None]:
        """Wait for a message; the slots of ``batch`` stay held."""
        arm = partial(self.arm, batch)
        if not (yield from idle(self._connection, arm, deadline, pace)) and batch is None:
            self.look_unrung()

    def fill_flow(self, batch: Batch, limit: int, max_wait: float) -> Flow[Batch]:
        """Wait up to ``max_wait`` seconds for ``batch`` to have ``limit`` messages."""
        fill, pace = FillPace(), InlinePace()
        deadline = Deadline(max_wait, self._connection.link.now_s)
        while len(batch) < limit and not deadline.passed:
            self._await_more(batch, limit)
            grown = self.grow(batch, limit)
            if grown is None:
                return batch
            if len(grown) == len(batch):
                yield from self.idle_flow(deadline, pace, grown)
            elif len(grown) < limit and not self.inline:
                yield Pause(deadline.left_s(fill.next_s()))
            batch = grown
        return batch

    def next_flow(self, timeout: float | None) -> Flow[Message]:
        """The next message, when none is left of the batch before."""
        deadline = Deadline(timeout, self._connection.link.now_s)
        batch = yield from self.batch_flow(ITERATE_MESSAGES, deadline)
        if batch is None:
            self.check()
            raise Timeout(f"no message on {self.pattern} within {timeout} s")
        return next(self.start_walk(batch))

    def run_compiled_flow(
        self,
        fn: Callable[..., Any],
        state: Any,
        *,
        max_messages: int | None = None,
        duration_s: float | None = None,
        until: Callable[[], bool] | threading.Event | None = None,
    ) -> Flow[int]:
        """Run a compiled function over every message, in place; how many there were.

        ``fn(data: uint8[:], state)`` or ``fn(data, meta, state)`` with ``meta`` a
        `tidecast.client.compiled.Meta`. Numba compiles it once; with asyncio it runs in a thread.
        Ends after ``max_messages``, after ``duration_s`` seconds, when ``until`` returns True
        (called between batches), when closed or drained. Raises GapError by policy, ConfigError.
        """
        self.check()
        handler: compiled.CompiledHandler = yield Ask(
            partial(compiled.CompiledHandler, self, fn, state, max_messages, until)
        )  # it compiles
        yield from run_handler(self, handler, Deadline(duration_s, self._connection.link.now_s))
        self.finished()
        return handler.done

    def drain_flow(self, timeout: float | None = None) -> Flow[None]:
        """Take nothing new: iteration ends behind the messages in the rings. Wait for handlers.

        Raises Timeout when handlers run on for longer than ``timeout`` seconds.
        """
        self._start_drain()
        yield from await_handlers(self, timeout)

    def close_flow(self) -> Flow[None]:
        """End the subscription; calls that wait for it return. Idempotent."""
        if self._opened or self._refusal is None:
            yield Ask(self._shut)
        if not self._connection.closed:
            self._connection.bell.ring()


class HandlerProgress(Protocol):
    """The progress of a compiled handler."""

    @property
    def ended(self) -> bool:
        """It handles no more."""

    def step(self) -> bool:
        """Handle the messages that are there. False: there were none."""


class Handled(Protocol):
    """A subscription or a durable consumer whose messages go to handlers."""

    pattern: str
    running: int

    @property
    def connection(self) -> Any:
        """The connection it was opened by."""

    @property
    def ended(self) -> bool:
        """Nothing more will come."""

    def idle_flow(self, deadline: Deadline, pace: InlinePace) -> Flow[None]:
        """Wait for something to read."""


def run_handler(source: Handled, handler: HandlerProgress, deadline: Deadline) -> Flow[None]:
    """Run a compiled handler until it, its source, or the time has ended."""
    pace = InlinePace()
    source.running += 1
    try:
        while not (handler.ended or source.ended or deadline.passed):
            if not (yield Ask(handler.step)):
                yield from source.idle_flow(deadline, pace)
    finally:
        source.running -= 1


def await_handlers(source: Handled, timeout: float | None) -> Flow[None]:
    """Wait until no handler of a source that drains runs. Raises Timeout."""
    source.connection.bell.ring()
    link = source.connection.link
    deadline, backoff = Deadline(timeout, link.now_s), Backoff(link)
    while source.running:
        if deadline.passed:
            raise Timeout(f"handlers of {source.pattern} still run after {timeout} s")
        yield Pause(deadline.left_s(backoff.next_s()))
