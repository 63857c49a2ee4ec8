"""The asyncio publisher; see `tidecast.client.aio`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ClassVar, Self

from tidecast.client import compiled, durable_waits
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import BatchResult
from tidecast.client.core.producer import check_ack
from tidecast.client.core.publisher import CLOSE_TIMEOUT_S, COLLECTED_MAX, PublisherCore
from tidecast.client.waiting import Backoff, Deadline
from tidecast.errors import (
    BackPressure,
    Closed,
    ForkedProcess,
    StorageError,
    TidecastError,
    Timeout,
)


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


class Publisher(PublisherCore):
    """Publishes to one topic; `tidecast.client.blocking.Publisher` with ``await``.

    `publish` of `bytes` and nothing else is done when the call returns, if there is room: awaiting
    it then costs next to nothing and lets no other task run.
    """

    _QUICK: ClassVar[dict[str, object]] = {"try_publish": True, "publish": Published()}

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
        if ack is not None and check_ack(self, ack):
            await self.publish(payload, key, headers, timestamp, to, subscriber, flush, timeout)
            await self.wait_durable(timeout=timeout)
            return
        plain = key is headers is timestamp is to is subscriber is None  # type: ignore[comparison-overlap]
        if plain and type(payload) is self._plain:
            if len(payload) <= self._collected_bytes_max and not flush:
                collected = self._collected
                if len(collected) < COLLECTED_MAX or await self._room(timeout):
                    collected.append(payload)
                    if self._collected_bytes_max < 0:
                        await self._finish_collecting(timeout)
                return
            if self._collects:
                self.note_call()
            if not flush and self.attempt_plain(payload):
                return
        message = self.prepare(payload, key, headers, timestamp, to, subscriber, flush)
        if not self.attempt(message):
            if not await self._wait(lambda: self.attempt(message), timeout):
                self.drop(1)
        elif flush and self._connection.link.inline:
            self._connection.link.work()

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
        if ack is not None and check_ack(self, ack):
            result = await self.publish_batch(messages, flush=flush, timeout=timeout)
            try:
                await self.wait_durable(timeout=timeout)
            except (Timeout, StorageError) as problem:
                return result if result.error else durable_waits.with_error(result, problem)
            return result
        appended, runs = self.begin_batch(messages, flush)
        requested = appended + sum(run.n for run in runs)
        for run in runs:
            error: TidecastError | None = None
            done = False
            try:
                done = self.attempt_run(run, flush) or await self._wait(
                    partial(self.attempt_run, run, flush), timeout
                )
            except (Closed, ForkedProcess):
                raise
            except TidecastError as problem:
                error = problem
            appended += run.done
            if not done:
                dropped = 0 if error is not None else requested - appended
                self.drop(dropped)
                return BatchResult(requested, appended, dropped, error)
        return BatchResult(requested, appended)

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
        producer = compiled.Producer(self, fn, state, count, message_bytes_max)
        while not await asyncio.to_thread(producer.step, self.lock):
            if not await self._wait(producer.may_go_on, timeout):
                break
        if flush:
            await self.flush(timeout=timeout)
        return producer.done

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Hand over what was collected and send the open packet. Raises Timeout, Closed."""
        if not self.attempt_hand_over(seal=True):
            await self._until(lambda: self.attempt_hand_over(seal=True), timeout)
        if self._connection.link.inline:
            self._connection.link.work()

    async def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:  # noqa: ASYNC109
        """Hand over what was collected, then end the publication. Idempotent.

        Raises BackPressure when messages found no room within ``timeout`` seconds.
        """
        if self._refusal is not None:
            return
        with contextlib.suppress(Timeout):
            if not self.waits_in_vain:
                await self.flush(timeout)
        left = await asyncio.to_thread(self._detach)
        if left:
            raise BackPressure(
                f"topic {self.topic}: {left} messages were not published: the ring stayed full "
                f"for {timeout} s"
            )

    async def wait_durable(
        self,
        seq: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - as in the blocking client
    ) -> int:
        """Wait until ``seq`` (None: all that was published so far) is durable; how far it is then.

        Raises Timeout (wait again), Fenced, Closed, StorageError (``on_full="error"``), ConfigError
        on a live topic.
        """
        return await durable_waits.wait_async(self, seq, timeout)

    async def hand_over(self, timeout: float | None = None) -> None:  # noqa: ASYNC109
        """Put what was collected into the ring. Raises Timeout, Closed."""
        if not self.attempt_hand_over(seal=False):
            await self._until(lambda: self.attempt_hand_over(seal=False), timeout)

    async def _room(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        if self.attempt_hand_over(seal=False):
            return True
        if await self._wait(lambda: self.attempt_hand_over(seal=False), timeout):
            return True
        self.drop(1)
        return False

    async def _finish_collecting(self, timeout: float | None) -> None:  # noqa: ASYNC109
        if not self.attempt_hand_over(seal=False) and not self._lost:
            await self._until(lambda: self.attempt_hand_over(seal=False), timeout)

    async def _wait(
        self,
        attempt: Callable[[], bool],
        timeout: float | None,  # noqa: ASYNC109
    ) -> bool:
        """Repeat ``attempt`` as ``on_full`` says. True: done; False: drop it."""
        if self._connection.link.inline and self._connection.link.work() > 0 and attempt():
            return True
        if self.on_full == "drop":
            return False
        if self.on_full == "error":
            raise self.full_error()
        await self._until(attempt, timeout)
        return True

    async def _until(
        self,
        attempt: Callable[[], bool],
        timeout: float | None,  # noqa: ASYNC109
    ) -> None:
        deadline, backoff = Deadline(timeout), Backoff(self._connection.link)
        while not attempt():
            if deadline.passed:
                raise self.timeout_error(timeout)
            await backoff.pause_async(deadline)
            if self._connection.rung:
                self._connection.pump()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
