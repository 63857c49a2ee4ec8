"""Publishing where it waits: for room in the ring, for the disk."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import msgspec

from tidecast.api.words import Ack
from tidecast.client import compiled
from tidecast.client.columns.batch import (
    BatchHeaders,
    Deliveries,
    Keys,
    Messages,
    Optional,
    Timestamps,
    needs_columns,
)
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import BatchResult, Outgoing, Refused, Run
from tidecast.client.core.producer import check_ack
from tidecast.client.core.publisher import COLLECTED_MAX, PublisherCore
from tidecast.client.flows.steps import Ask, Begun, Done, Flow, Pause, idle
from tidecast.client.kernels.warm import columns_compiled, compile_columns
from tidecast.client.waiting import Backoff, Deadline, InlinePace
from tidecast.errors import (
    BackPressure,
    Closed,
    ForkedProcess,
    StorageError,
    TidecastError,
    Timeout,
)

CLOSE_TIMEOUT_S = 10.0
_SLICE_S = 0.1
"""Longest sleep: a publisher that was fenced or lost its engine is noticed."""


class PublisherFlows(PublisherCore):
    """The flows of one publisher; see `tidecast.client.flows.shells`."""

    # --- one message ------------------------------------------------------------------------------

    def publish_flow(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        timestamp: bool | int | None,
        to: str | int | None,
        subscriber: int | None,
        flush: bool,
        timeout: float | None,
        ack: str | None,
        deliver_at: datetime | int | None = None,
        deliver_in: float | None = None,
    ) -> Flow[Any] | None:
        """Publish one message; None: done without waiting.

        The shells append collected messages themselves, as long as there is room for them.
        """
        if ack is not None and check_ack(self, ack):
            begin = partial(
                self.publish_flow,
                payload,
                key,
                headers,
                timestamp,
                to,
                subscriber,
                flush,
                timeout,
                None,
                deliver_at,
                deliver_in,
            )
            return self._publish_durable(begin, timeout)
        due_ns = self.due_ns_of(deliver_at, deliver_in)
        plain = key is headers is timestamp is to is subscriber is due_ns is None  # type: ignore[comparison-overlap]
        if plain and type(payload) is self._plain:
            if len(payload) <= self._collected_bytes_max and not flush:
                return self._collect(payload, timeout)
            if self._collects:
                self.note_call()
            if not flush and self.try_append(payload):
                return None
        message = self.prepare(payload, key, headers, timestamp, to, subscriber, flush, due_ns)
        if not self.attempt(message):
            return self._put_or_drop(partial(self.attempt, message), timeout)
        if flush and self._connection.link.inline:
            self._connection.link.work()
        return None

    def append_flow(self, message: Outgoing, timeout: float | None) -> Flow[None] | None:
        """Append a message that is encoded; None: done. It is never dropped: raises BackPressure.

        Raises Timeout.
        """
        link = self._connection.link
        if self.attempt(message):
            if link.inline:
                link.work()
            return None
        return self._append(message, timeout)

    def _append(self, message: Outgoing, timeout: float | None) -> Flow[None]:
        if not (yield from self._room(partial(self.attempt, message), timeout)):
            raise self.full_error()

    def _publish_durable(
        self, begin: Callable[[], Flow[Any] | None], timeout: float | None
    ) -> Flow[None]:
        flow = begin()
        if flow is not None:
            yield from flow
        yield from self.wait_durable_flow(None, timeout)

    def _put_or_drop(self, attempt: Callable[[], bool], timeout: float | None) -> Flow[bool]:
        """False: it was dropped, and is counted."""
        if (yield from self._room(attempt, timeout)):
            return True
        self.drop(1)
        return False

    def _collect(self, payload: bytes, timeout: float | None) -> Flow[None]:
        """Collect a message; hand over those before it when there are as many as may be."""
        attempt = partial(self.attempt_flush, seal=False)
        full = len(self._collected) >= COLLECTED_MAX
        if full and not attempt() and not (yield from self._put_or_drop(attempt, timeout)):
            return
        self._collected.append(payload)
        if self._collected_bytes_max < 0:
            yield from self.end_burst_flow(timeout)

    def end_burst_flow(self, timeout: float | None) -> Flow[None]:
        """The burst ended while a message was collected: hand it over here."""
        attempt = partial(self.attempt_flush, seal=False)
        if not attempt() and not self._lost:
            yield from self._until(attempt, timeout)

    # --- many -------------------------------------------------------------------------------------

    def publish_batch_flow(
        self,
        messages: Messages,
        *,
        keys: Keys | None = None,
        headers: BatchHeaders | None = None,
        timestamps: Timestamps | None = None,
        deliver_at: Deliveries | None = None,
        deliver_in: float | None = None,
        flush: bool = False,
        timeout: float | None = None,
        ack: Ack | None = None,
    ) -> Begun[BatchResult]:
        """Publish many messages: a list of bytes, a NumPy array, an Arrow array, column or frame.

        Rows of a two-dimensional array are messages, items of a one-dimensional one. Arrow comes
        from any library (PyCapsule interface): binary or string, of any width, as views, with a
        dictionary; a frame has the columns ``payload`` (or ``value``), ``key``, ``headers``,
        ``timestamp``, ``deliver_at``. ``keys``: bytes or text of each message, None where it has
        none; a single value is the key of all. ``headers``: a map for each message; or a map of
        names to values or columns; or an Arrow map, struct, or binary of MessagePack.
        ``timestamps``: ns since 1970 of each; True: now. ``deliver_at``: delivery times (ns since
        1970) of each, or a single time of all (also a datetime); ``deliver_in``: seconds from now,
        of all; only on durable topics. Columns are sequences, NumPy or Arrow arrays.

        Returns the outcome: ``refused`` items are left out (null, too large, a key too long),
        ``error`` ended the batch (no room). Other publishers' messages may come between.
        ``ack="durable"``: return when all is on disk, else ``error`` has the reason. Raises
        CodecError, ConfigError (field and item) before anything is published, Closed.
        """
        optional = Optional(keys, headers, timestamps, deliver_at, deliver_in)
        return self._publish_batch(messages, optional, flush, timeout, ack)

    def _publish_batch(
        self,
        messages: Any,
        optional: Optional,
        flush: bool,
        timeout: float | None,
        ack: str | None,
    ) -> Begun[BatchResult]:
        if ack is not None and check_ack(self, ack):
            return self._publish_batch_durable(messages, optional, flush, timeout)
        if not columns_compiled() and needs_columns(messages, optional):
            return self._compile_and_publish(messages, optional, flush, timeout)
        appended, runs = self.begin_batch(messages, optional, flush)
        if not runs:
            return Done(BatchResult(appended, appended))
        return self._append_runs(appended, runs, flush, timeout)

    def _compile_and_publish(
        self, messages: Any, optional: Optional, flush: bool, timeout: float | None
    ) -> Flow[BatchResult]:
        """The first columns of a process: their kernels take seconds where none are on disk."""
        yield Ask(compile_columns)
        begun = self._publish_batch(messages, optional, flush, timeout, None)
        return begun.result if isinstance(begun, Done) else (yield from begun)

    def _publish_batch_durable(
        self, messages: Any, optional: Optional, flush: bool, timeout: float | None
    ) -> Flow[BatchResult]:
        begun = self._publish_batch(messages, optional, flush, timeout, None)
        result = begun.result if isinstance(begun, Done) else (yield from begun)
        try:
            yield from self.wait_durable_flow(None, timeout)
        except (Timeout, StorageError) as problem:
            return result if result.error else msgspec.structs.replace(result, error=problem)
        return result

    def _append_runs(
        self, appended: int, runs: list[Run], flush: bool, timeout: float | None
    ) -> Flow[BatchResult]:
        """Append the runs that `begin_batch` returned."""
        requested, first = appended + sum(run.n for run in runs), appended
        refused: list[Refused] = []
        error: TidecastError | None = None
        done = True
        for run in runs:
            attempt = partial(self.attempt_run, run, flush)
            try:
                done = attempt() or (yield from self._room(attempt, timeout))
            except (Closed, ForkedProcess):
                raise
            except TidecastError as problem:
                error, done = problem, False
            left_out = run.refused()
            refused += [Refused(first + each.index, each.error) for each in left_out]
            appended += run.done - len(left_out)
            first += run.n
            if not done:
                break
        dropped = 0
        if not done and error is None:
            dropped = requested - appended - len(refused)
            self.drop(dropped)
        return BatchResult(requested, appended, dropped, error, tuple(refused))

    def run_compiled_flow(
        self,
        fn: Callable[..., Any],
        state: Any,
        count: int,
        *,
        message_bytes_max: int,
        flush: bool = True,
        timeout: float | None = None,
    ) -> Flow[int]:
        """Publish up to ``count`` messages that a compiled function writes in place.

        ``fn(buf: uint8[:], i: int, state) -> int``: write message ``i`` into ``buf`` (at most
        ``message_bytes_max`` bytes), return its length; 0 stops. Numba compiles it once. One
        commit a packet; with asyncio it runs in a thread. Returns how many were published. Raises
        ConfigError, Timeout, Closed.
        """
        producer = compiled.CompiledPublisher(self, fn, state, count, message_bytes_max)
        while not (yield Ask(partial(producer.step, self.lock))):
            if not (yield from self._room(producer.may_go_on, timeout)):
                break
        if flush:
            yield from self.flush_flow(timeout)
        return producer.done

    # --- to the ring, to the disk, to the end -----------------------------------------------------

    def flush_to_ring_flow(self, timeout: float | None = None) -> Flow[None]:
        """Put collected messages into the ring. Raises Timeout, Closed."""
        yield from self._until(partial(self.attempt_flush, seal=False), timeout)

    def flush_flow(self, timeout: float | None = None) -> Flow[None]:
        """Append collected messages, and send the open packet. Raises Timeout, Closed."""
        yield from self._until(partial(self.attempt_flush, seal=True), timeout)
        if self._connection.link.inline:
            self._connection.link.work()

    def close_flow(self, timeout: float | None = CLOSE_TIMEOUT_S) -> Flow[None]:
        """Put collected messages into the ring, then end the publication. Idempotent.

        Raises BackPressure when messages found no room within ``timeout`` seconds.
        """
        if self._refusal is not None:
            yield Ask(self.discard)
            return
        with contextlib.suppress(Timeout):
            if not self.waits_in_vain:
                yield from self.flush_flow(timeout)
        left = yield Ask(self.detach)
        if left:
            raise BackPressure(
                f"topic {self.topic}: {left} messages were not published: the ring stayed full "
                f"for {timeout} s"
            )

    def wait_durable_flow(self, seq: int | None = None, timeout: float | None = None) -> Flow[int]:
        """Wait until ``seq`` (None: all that was published so far) is durable; how far it is then.

        Raises Timeout (wait again), Fenced, Closed, StorageError (``on_full="error"``), ConfigError
        on a live topic.
        """
        check_ack(self, "durable")
        pace, connection = InlinePace(), self._connection
        deadline = Deadline(timeout, connection.link.now_s)
        if seq is None:
            yield from self.flush_to_ring_flow(timeout)
            seq = self.position
        while not self.is_durable(seq):
            if deadline.passed:
                raise self._not_durable(seq, timeout)
            if connection.rung:
                connection.pump()
            arm = partial(self._arm_durable, seq)
            yield from idle(connection, arm, deadline, pace, _SLICE_S)
        return self.durable_position

    def _arm_durable(self, seq: int) -> int | None:
        word, session = self._connection.bell.word, self.producer_session
        return word if session is not None and session.arm() < seq else None

    def _not_durable(self, seq: int, timeout_s: float | None) -> Timeout:
        problem = Timeout(
            f"topic {self.topic}: message {seq} is not durable after {timeout_s:g} s: durable up "
            f"to {self.durable_position}; it stays in the ring, wait for it again"
        )
        session = self.producer_session
        problem.__cause__ = None if session is None else session.disk()
        return problem

    # --- waiting for room -------------------------------------------------------------------------

    def _room(self, attempt: Callable[[], bool], timeout: float | None) -> Flow[bool]:
        """Repeat ``attempt`` by the rule of ``on_full``. True: done; False: drop it."""
        link = self._connection.link
        if link.inline and link.work() > 0 and attempt():
            return True
        if self.on_full == "drop":
            return False
        if self.on_full == "error":
            raise self.full_error()
        yield from self._until(attempt, timeout)
        return True

    def _until(self, attempt: Callable[[], bool], timeout: float | None) -> Flow[None]:
        link = self._connection.link
        deadline, backoff = Deadline(timeout, link.now_s), Backoff(link)
        while not attempt():
            if deadline.passed:
                raise self.timeout_error(timeout)
            yield Pause(deadline.left_s(backoff.next_s()))
            if self._connection.rung:
                self._connection.pump()
