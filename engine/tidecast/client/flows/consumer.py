"""Consuming durable topics where it waits: for deliveries, for handlers, for the node."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from tidecast.api.renamed import with_new_name
from tidecast.api.start import Start
from tidecast.api.words import StartWord
from tidecast.client.admin.types import ConsumerInfo
from tidecast.client.consumer import compiled
from tidecast.client.consumer.core import ITERATE_MESSAGES, ConsumerCore
from tidecast.client.consumer.message import DurableBatch, DurableMessage, EmptyDurableBatch
from tidecast.client.core.subscription import check_max_messages
from tidecast.client.flows.steps import TURN, Ask, Flow, idle
from tidecast.client.flows.subscription import await_handlers, run_handler
from tidecast.client.waiting import Deadline, InlinePace
from tidecast.errors import Timeout


class ConsumerFlows(ConsumerCore):
    """The flows of one durable consumer; see `tidecast.client.flows.shells`."""

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
        self,
        fn: Callable[..., Any],
        state: Any,
        *,
        max_messages: int | None = None,
        duration_s: float | None = None,
        until: Callable[[], bool] | threading.Event | None = None,
    ) -> Flow[int]:
        """Run a compiled function over every message, in place, and ack them; how many there were.

        ``fn(data: uint8[:], state)``. Numba compiles it once; with asyncio it runs in a thread. The
        messages it was given are acked, a frame of deliveries at a time; an exception ends the run,
        and that frame comes again.
        """
        self.check()
        handler = compiled.CompiledConsumer(self, fn, state, max_messages, until)
        yield from run_handler(self, handler, Deadline(duration_s, self._connection.link.now_s))
        return handler.done

    def drain_flow(self, timeout: float | None = None) -> Flow[None]:
        """Hand out nothing more and wait for the handlers that have begun. Raises Timeout.

        Messages that no handler has begun go to other members when this member is closed, or
        are given back at once.
        """
        self.stop_handing_out()
        yield from await_handlers(self, timeout)

    def close_flow(self) -> Flow[None]:
        """Leave; outstanding records go to other members, or come again later. Idempotent."""
        if (yield Ask(self._shut)) and not self._connection.closed:
            self._connection.bell.ring()

    # --- control ----------------------------------------------------------------------------------

    def pause_flow(self) -> Flow[None]:
        """Pause the subscription, for all its members; fetched records are kept."""
        yield Ask(partial(self._control, "pause"))

    def resume_flow(self) -> Flow[None]:
        """Deliver again, to all members."""
        yield Ask(partial(self._control, "resume"))

    def seek_flow(
        self, start: Start | StartWord, *, dry_run: bool = False
    ) -> Flow[list[dict[str, Any]]]:
        """Move the subscription, for all its members; outstanding records are forgotten.

        Records on their way to members are taken back, and so are records that `run` keeps for
        handlers. A handler or a loop continues with the records that it has: their acks are
        ignored.

        Returns one mapping a queue: topic, queue, before, after, records (that are passed over, or
        come again: below 0), forgotten (they were outstanding). ``dry_run``: only that.
        """
        rows: list[dict[str, Any]] = yield Ask(partial(self._seek, start, dry_run))
        return rows

    def redrive_flow(
        self,
        *,
        dry_run: bool = False,
        reason: str | None = None,
        key: str | bytes | None = None,
        where: str | None = None,
        limit: int = 10_000,
        after: list[list[int]] | None = None,
        to: str | None = None,
    ) -> Flow[dict[str, Any]]:
        """Deliver dead letters of this subscription again, each once; ``dry_run``: list them.

        ``reason``: letters whose reason holds this text; ``key``: letters of this key; ``where``:
        letters for which this filter holds, as in ``headers["dead-attempts"] > 3 and size < 1000``
        (``timestamp``: the time at which the subscription gave the record up). At most ``limit``, 1
        to 10,000; ``after``: ``next`` of the page before (None: no more are there). ``to``: publish
        them to this durable topic instead. Raises ConfigError, NotFound.
        """
        arguments = {
            "dry_run": dry_run,
            "reason": reason,
            "key": key,
            "where": where,
            "limit": limit,
            "after": after,
            "to": to,
        }
        found: dict[str, Any] = yield Ask(partial(self._control, "redrive", **arguments))
        return found

    def info_flow(self) -> Flow[ConsumerInfo]:
        """Position, lag, outstanding, pressure reason by queue; members."""
        found: dict[str, Any] = yield Ask(partial(self._control, "show"))
        return cast(ConsumerInfo, with_new_name(found))
