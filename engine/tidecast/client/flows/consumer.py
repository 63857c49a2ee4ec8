"""Consuming durable topics where it waits: for deliveries, for handlers, for the node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tidecast.client.consumer import compiled
from tidecast.client.consumer.core import ITERATE_MESSAGES, ConsumerCore
from tidecast.client.consumer.message import DurableBatch, DurableMessage, EmptyDurableBatch
from tidecast.client.core.subscription import check_max_messages
from tidecast.client.flows.steps import TURN, Ask, Flow, idle
from tidecast.client.flows.subscription import await_handlers, run_handler
from tidecast.client.waiting import Deadline, InlinePace
from tidecast.errors import Timeout


class ConsumerFlows(ConsumerCore):
    """The flows of one durable consumer; the shells document what they do."""

    def batch_flow(
        self, limit: int, deadline: Deadline, *, mark: bool
    ) -> Flow[DurableBatch | None]:
        """The next batch; None when the time is over, or closed or draining.

        Without ``mark`` its messages count as taken when they are handed out one by one.
        """
        pace = InlinePace()
        yield TURN
        while not self.finished():
            batch = self.step(limit, mark)
            if batch is not None:
                return batch
            if deadline.passed:
                return None
            yield from self.idle_flow(deadline, pace)
        return None

    def idle_flow(self, deadline: Deadline, pace: InlinePace) -> Flow[None]:
        """Wait for something to take."""
        yield from idle(self._connection, self.arm, deadline, pace)

    def fetch_flow(self, max_messages: int, max_wait: float) -> Flow[DurableBatch]:
        """Up to ``max_messages``; empty when none came."""
        limit = check_max_messages(max_messages)
        deadline = Deadline(max_wait, self._connection.link.now_s)
        batch = yield from self.batch_flow(limit, deadline, mark=True)
        if batch is None:
            self.check()
            return EmptyDurableBatch(self)
        return batch

    def next_flow(self, timeout: float | None) -> Flow[DurableMessage]:
        """The next message: of a batch that was taken already, or of the next one."""
        deadline = Deadline(timeout, self._connection.link.now_s)
        while (message := self.prefetched()) is None:
            batch = yield from self.batch_flow(ITERATE_MESSAGES, deadline, mark=False)
            if batch is None:
                self.check()
                raise Timeout(f"no message for {self.name} of {self.pattern} within {timeout} s")
            self._rest = self.walk(batch)
        return message

    def run_compiled_flow(
        self, fn: Callable[..., Any], state: Any, max_messages: int | None,
        duration_s: float | None, until: Callable[[], bool] | threading.Event | None,
    ) -> Flow[int]:  # fmt: skip
        """Run a compiled function over every message."""
        self.check()
        handler = compiled.CompiledConsumer(self, fn, state, max_messages, until)
        yield from run_handler(self, handler, Deadline(duration_s, self._connection.link.now_s))
        return handler.done

    def drain_flow(self, timeout: float | None) -> Flow[None]:
        """Take nothing new, then wait for handlers."""
        self._draining = True
        yield from await_handlers(self, timeout)

    def close_flow(self) -> Flow[None]:
        """Leave the subscription."""
        if (yield Ask(self._shut)) and not self._connection.closed:
            self._connection.bell.ring()
