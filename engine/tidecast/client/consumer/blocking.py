"""The blocking consumer of durable topics: made by `tidecast.sync.Connection.consumer`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Self

from tidecast.api.words import AckWhen
from tidecast.client.consumer.core import (
    ITERATE_MESSAGES,
    OnError,
    acknowledge_failed,
    check_outcome,
    check_run,
    give_back,
    worker_of,
)
from tidecast.client.consumer.message import DurableBatch, DurableMessage
from tidecast.client.core.outgoing import reject
from tidecast.client.core.public import Public
from tidecast.client.core.subscription import check_max_messages
from tidecast.client.flows.consumer import ConsumerFlows
from tidecast.client.flows.shells import waits
from tidecast.client.flows.steps import Blocking
from tidecast.client.waiting import Deadline

_NEVER = Deadline(None)
_SPINS = 16
_QUEUED_MAX = 64


class Consumer(Public, Blocking, ConsumerFlows):
    """A member of a durable subscription; a context manager and an iterator of messages."""

    PUBLIC = (
        "batches close drain fetch info messages name next pattern pause redrive resume "
        "run run_compiled seek stats"
    )

    def fetch(self, max_messages: int = 100, max_wait: float = 1.0) -> DurableBatch:
        """Up to ``max_messages``, as soon as there is one; empty when none came in ``max_wait`` s.

        Valid until the next batch is taken. Raises Closed, Fenced, ConnectionLost.
        """
        return self._drive(self.fetch_flow(max_messages, max_wait))

    def batches(self, max_messages: int = 256) -> Iterator[DurableBatch]:
        """Batches as they come, until closed or drained."""
        limit = check_max_messages(max_messages)
        while (batch := self._wait_batch(limit, _NEVER, mark=True)) is not None:
            yield batch

    def messages(self, prefetch: int = ITERATE_MESSAGES) -> Iterator[DurableMessage]:
        """Messages one by one, until closed or drained; ``prefetch`` are taken at a time.

        `ack_wait` of each begins when it is handed out.
        """
        return chain.from_iterable(self._walks(check_max_messages(prefetch)))

    def _walks(self, limit: int) -> Iterator[Iterator[DurableMessage]]:
        while True:
            walk, self._rest = self._rest, None
            if walk is None:
                batch = self._wait_batch(limit, _NEVER, mark=False)
                if batch is None:
                    return
                walk = self.walk(batch)
            self._rest = walk
            yield walk
            if self._rest is walk:
                self._rest = None

    def __iter__(self) -> Iterator[DurableMessage]:
        return self.messages()

    def next(self, timeout: float | None = None) -> DurableMessage:
        """The next message. Raises Timeout, Closed."""
        message = self.prefetched()
        if message is None:
            message = self._drive(self.next_flow(timeout))
        return message

    # --- handlers ---------------------------------------------------------------------------------

    def run(
        self,
        handler: Callable[[DurableMessage], Any],
        concurrency: int = 1,
        *,
        ack: AckWhen = "after",
        on_error: OnError = "nak",
        nak_delay: float = 1.0,
        max_messages: int | None = None,
    ) -> int:
        """Call ``handler`` with every message until closed or drained; how many it was called with.

        Records of one key are handled in order, one after the other. ``ack``: ``after`` the handler
        returns, ``before`` it is called, ``none`` (it does it itself). ``on_error``: ``nak`` (again
        after ``nak_delay`` s), ``term`` (dead-letter topic), ``ack``, ``raise`` (ends the run; the
        message comes again), or a function of the message and the exception that returns one of
        these (None: nak). Raises ConfigError unless ``handler`` is a function of one message.
        """
        if check_run(handler, concurrency, ack, on_error, nak_delay):
            raise reject("handler", handler, "is a plain function: this client does not await")
        self.check()
        settings = handler, ack, on_error, nak_delay
        self.running += 1
        try:
            if concurrency > 1:
                kept = partial(self._handle, *settings)
                return self._run_in_threads(kept, concurrency, max_messages)
            n = 0
            for message in self.messages():  # it hands out none that a seek or a refusal concerns
                self._call(*settings, message)
                n += 1
                if n == max_messages:
                    break
            return n
        finally:
            self.running -= 1

    def _handle(
        self,
        handler: Callable[[DurableMessage], Any],
        ack: str,
        on_error: OnError,
        nak_delay: float,
        message: DurableMessage,
    ) -> bool:
        """Handle a message that waited, unless a seek, a refusal or a drain meanwhile concerns it.

        False: it was given back to the engine, because the consumer drains.
        """
        if self.overtaken(message):
            return True
        if self._draining or message.held_back:
            message.give_back()
            return not self._draining
        self._call(handler, ack, on_error, nak_delay, message)
        return True

    def _call(
        self,
        handler: Callable[[DurableMessage], Any],
        ack: str,
        on_error: OnError,
        nak_delay: float,
        message: DurableMessage,
    ) -> None:
        if ack == "before":
            message.ack()
        try:
            handler(message)
        except Exception as problem:
            said = on_error(message, problem) if callable(on_error) else on_error
            how = check_outcome(said)
            if ack != "before":
                acknowledge_failed(message, how, nak_delay, problem)
            if how == "raise":
                raise
        else:
            if ack == "after":
                message.ack()

    def _run_in_threads(
        self, one: Callable[[DurableMessage], bool], concurrency: int, max_messages: int | None
    ) -> int:
        problems: list[BaseException] = []
        returned: list[int] = []
        inboxes: list[queue.Queue[DurableMessage | None]] = [
            queue.Queue(_QUEUED_MAX) for _ in range(concurrency)
        ]

        def work(inbox: queue.Queue[DurableMessage | None]) -> None:
            while (message := inbox.get()) is not None:
                if problems:
                    give_back([message])
                    continue
                try:
                    if not one(message):
                        returned.append(1)
                except BaseException as problem:  # noqa: BLE001 - raised by `run`
                    problems.append(problem)
                    self._draining = True
                    self._connection.bell.ring()

        threads = [
            threading.Thread(target=work, args=(each,), name=f"tidecast-handler-{i}", daemon=True)
            for i, each in enumerate(inboxes)
        ]
        for thread in threads:
            thread.start()
        n = 0
        try:
            for message in self.messages():
                inboxes[worker_of(message, concurrency, n)].put(message.copy())
                n += 1
                if problems or n == max_messages:
                    break
        except BaseException as problem:
            problems.append(problem)  # Ctrl-C: handlers that have begun end, no other begins
            raise
        finally:
            for inbox in inboxes:
                inbox.put(None)
            for thread in threads:
                thread.join()
            if problems:
                self._draining = self._drained
        if problems:
            raise problems[0]
        return n - len(returned)

    run_compiled = waits(ConsumerFlows.run_compiled_flow)

    # --- control ----------------------------------------------------------------------------------

    pause = waits(ConsumerFlows.pause_flow)
    resume = waits(ConsumerFlows.resume_flow)
    seek = waits(ConsumerFlows.seek_flow)
    redrive = waits(ConsumerFlows.redrive_flow)
    info = waits(ConsumerFlows.info_flow)
    drain = waits(ConsumerFlows.drain_flow)
    close = waits(ConsumerFlows.close_flow)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait_batch(self, limit: int, deadline: Deadline, *, mark: bool) -> DurableBatch | None:
        for _ in range(1 if self._connection.link.inline else _SPINS):
            if self.ended:
                break
            batch = self.step(limit, mark)
            if batch is not None:
                return batch
            if deadline.passed:
                break
        return self._drive(self.batch_flow(limit, deadline, mark=mark))
