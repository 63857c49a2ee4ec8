"""The asyncio consumer of durable topics: made by `tidecast.Connection.consumer`.

Opening asks the node once over its socket; taking and acking use shared memory. Calls that ask the
node (`seek`, `pause`, `info` ...) run in a thread, so the loop continues.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from functools import partial
from typing import Any, Self

from tidecast.api.in_thread import made_in_thread
from tidecast.api.words import AckWhen
from tidecast.client.consumer.core import (
    ITERATE_MESSAGES,
    OnError,
    acknowledge_failed,
    check_outcome,
    check_run,
    give_back,
)
from tidecast.client.consumer.dispatch import Dispatch
from tidecast.client.consumer.message import DurableBatch, DurableMessage
from tidecast.client.core.public import Public
from tidecast.client.core.subscription import check_max_messages
from tidecast.client.flows.consumer import ConsumerFlows
from tidecast.client.flows.shells import awaits
from tidecast.client.flows.steps import OnLoop
from tidecast.client.waiting import Deadline, LoopPace

_NEVER = Deadline(None)
_EXTENSIONS = 3
"""A message that is held is extended so often within `ack_wait`."""


class Consumer(Public, OnLoop, ConsumerFlows):
    """A member of a durable subscription: see `tidecast.client.consumer.blocking.Consumer`."""

    PUBLIC = (
        "batches close drain fetch info messages name next pattern pause redrive resume "
        "run run_compiled seek stats"
    )

    async def fetch(self, max_messages: int = 100, max_wait: float = 1.0) -> DurableBatch:
        """Up to ``max_messages``, as soon as there is one; empty after ``max_wait`` s without."""
        return await self._known(await self._drive(self.fetch_flow(max_messages, max_wait)))

    async def batches(self, max_messages: int = 256) -> AsyncIterator[DurableBatch]:
        """Batches as they come, until closed or drained."""
        limit = check_max_messages(max_messages)
        while (batch := await self._wait_batch(limit, _NEVER, mark=True)) is not None:
            yield batch

    async def messages(self, prefetch: int = ITERATE_MESSAGES) -> AsyncIterator[DurableMessage]:
        """Messages one by one, until closed or drained; ``prefetch`` are taken at a time."""
        limit = check_max_messages(prefetch)
        pace = LoopPace()
        burst = 1
        while True:
            walk, self._rest = self._rest, None
            if walk is None:
                batch = await self._wait_batch(limit, _NEVER, mark=False)
                if batch is None:
                    return
                walk = self.walk(batch)
            self._rest = walk
            for message in walk:
                yield message
                burst -= 1
                if not burst:
                    burst = await pace.turn()
            if self._rest is walk:
                self._rest = None

    def __aiter__(self) -> AsyncIterator[DurableMessage]:
        return self.messages()

    async def next(self, timeout: float | None = None) -> DurableMessage:  # noqa: ASYNC109
        """The next message. Raises Timeout, Closed."""
        message = self.prefetched()
        if message is None:
            message = await self._drive(self.next_flow(timeout))
            await self._known(message.batch)
        return message

    async def run(
        self,
        handler: Callable[[DurableMessage], Any],
        concurrency: int = 1,
        *,
        ack: AckWhen = "after",
        on_error: OnError = "nak",
        nak_delay: float = 1.0,
        max_messages: int | None = None,
        extend: bool = False,
    ) -> int:
        """Call ``handler``, a function or coroutine function, with every message; how many.

        Records of one key are handled in order. ``extend``: messages that this call holds are not
        delivered again, however long their handlers take. See the blocking `Consumer.run`.
        """
        asynchronous = check_run(handler, concurrency, ack, on_error, nak_delay)
        self.check()
        settings = handler, asynchronous, ack, on_error, nak_delay
        self.running += 1
        try:
            if concurrency > 1 or extend:
                kept = partial(self._handle, *settings)
                return await self._run_in_tasks(kept, concurrency, max_messages, extend)
            n = 0
            async for message in self.messages():
                # it hands out none that a seek or a refusal concerns
                await self._call(*settings, message)
                n += 1
                if n == max_messages:
                    break
            return n
        finally:
            self.running -= 1

    async def _run_in_tasks(
        self,
        one: Callable[[DurableMessage], Coroutine[Any, Any, bool]],
        concurrency: int,
        max_messages: int | None,
        extend: bool,
    ) -> int:
        dispatch = Dispatch(concurrency)
        returned = 0

        async def work() -> None:
            nonlocal returned
            pace = LoopPace()
            while (taken := await dispatch.take()) is not None:
                number, key, message = taken
                called = await one(message)
                returned += not called  # in one step: other tasks count while this one waits
                dispatch.complete(number, key)
                await pace.turn()

        n = 0
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
                keeper = group.create_task(self._keep(dispatch)) if extend else None
                async for message in self.messages():
                    await dispatch.put(message.copy())
                    n += 1
                    if n == max_messages:
                        break
                dispatch.end()
                if keeper is not None:
                    await dispatch.done.wait()
                    keeper.cancel()
        except* Exception as group_of:  # noqa: BLE001 - the first one, as it was
            raise group_of.exceptions[0] from None
        finally:  # a handler raised, or this was cancelled
            give_back(dispatch.not_begun())
        return n - returned

    async def _keep(self, dispatch: Dispatch) -> None:
        """Ask for more time for all messages that are held, again and again."""
        while True:
            await asyncio.sleep(self.ack_wait / _EXTENSIONS)
            for message in list(dispatch.held.values()):
                message.extend()

    run_compiled = awaits(ConsumerFlows.run_compiled_flow)

    async def _handle(
        self,
        handler: Callable[[DurableMessage], Any],
        asynchronous: bool,
        ack: str,
        on_error: OnError,
        nak_delay: float,
        message: DurableMessage,
    ) -> bool:
        """Handle a message that waited, unless a seek, a refusal or a drain meanwhile concerns it.

        False: it was given back to the engine, because the consumer drains.
        """
        if message.batch.moved != self.moved and await asyncio.to_thread(self.overtaken, message):
            return True
        if self._draining or message.held_back:
            message.give_back()
            return not self._draining
        await self._call(handler, asynchronous, ack, on_error, nak_delay, message)
        return True

    async def _call(
        self,
        handler: Callable[[DurableMessage], Any],
        asynchronous: bool,
        ack: str,
        on_error: OnError,
        nak_delay: float,
        message: DurableMessage,
    ) -> None:
        if ack == "before":
            message.ack()
        try:
            outcome = handler(message)
            if asynchronous:
                await outcome
        except Exception as problem:
            said = on_error(message, problem) if callable(on_error) else on_error
            how = check_outcome(await said if inspect.isawaitable(said) else said)
            if ack != "before":
                acknowledge_failed(message, how, nak_delay, problem)
            if how == "raise":
                raise
        else:
            if ack == "after":
                message.ack()

    # --- control ----------------------------------------------------------------------------------

    pause = awaits(ConsumerFlows.pause_flow)
    resume = awaits(ConsumerFlows.resume_flow)
    seek = awaits(ConsumerFlows.seek_flow)
    redrive = awaits(ConsumerFlows.redrive_flow)
    info = awaits(ConsumerFlows.info_flow)
    drain = awaits(ConsumerFlows.drain_flow)
    close = awaits(ConsumerFlows.close_flow)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _wait_batch(
        self, limit: int, deadline: Deadline, *, mark: bool
    ) -> DurableBatch | None:
        batch = await self._drive(self.batch_flow(limit, deadline, mark=mark))
        return batch if batch is None else await self._known(batch)

    async def _known(self, batch: DurableBatch) -> DurableBatch:
        """The batch; asks for the cursors of its messages first, or a message would block later."""
        if not self.knows_cursors(batch):
            await asyncio.to_thread(self.ask_cursors)
        return batch


class Opening:
    """The awaitable of `consumer`: await it, or use it with ``async with``."""

    def __init__(self, make: Callable[[], Consumer]) -> None:
        self._make = make
        self._made: Consumer | None = None

    async def _open(self) -> Consumer:
        self._made = await made_in_thread(self._make, lambda made: made.abandon())
        return self._made

    def __await__(self) -> Generator[Any, None, Consumer]:
        return self._open().__await__()

    async def __aenter__(self) -> Consumer:
        return await self._open()

    async def __aexit__(self, *_: object) -> None:
        if self._made is not None:
            await self._made.close()
