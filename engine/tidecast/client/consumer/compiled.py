"""Compiled handlers of durable consumers: take, call, ack, in one kernel."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tidecast.buffers import member_ring
from tidecast.client.compiled import jitable, kernel_of, parameters, run_kernel
from tidecast.client.core.outgoing import reject
from tidecast.native.jit import closure_kernel

if TYPE_CHECKING:
    from tidecast.client.consumer.core import ConsumerCore

_BATCH = 4096
_RUNS = 512


def _make(fn: Callable[..., Any]) -> Any:
    user = jitable(fn)
    take, acks, mark = member_ring.take_into, member_ring.ack_all_into, member_ring.mark_taken

    def consume(ring, k, assembly, rows, runs, limit, state, reason, done):  # type: ignore[no-untyped-def]
        n, r = done[3], done[4]  # taken already
        if n == 0:
            n, r = take(ring, k, assembly, rows, runs, limit)
        memory = ring
        count = n
        if n == member_ring.ASSEMBLED:
            memory = assembly
            count = 1
        if count <= 0:
            return n
        mark(ring, rows, count)
        for i in range(count):
            at = rows[i, 0]
            user(memory[at : at + rows[i, 1]], state)
        done[0] = count
        done[1] = acks(ring, k, runs, r, reason)
        done[2] = r
        return count

    return closure_kernel(consume)


class CompiledConsumer:
    """The progress of one compiled handler."""

    def __init__(
        self,
        consumer: ConsumerCore,
        fn: Callable[..., Any],
        state: Any,
        max_messages: int | None,
        until: Callable[[], bool] | threading.Event | None,
    ) -> None:
        if isinstance(until, threading.Event):
            until = until.is_set
        if until is not None and not callable(until):
            raise reject("until", until, "is a function without arguments, or an Event")
        self._consumer, self._fn, self._state = consumer, fn, state
        self._limit, self._until = max_messages, until
        parameters(fn, (2,), "fn(data, state)")
        self._kernel = kernel_of(fn, "consume durable", lambda: _make(fn))
        self._rows = np.zeros((_BATCH, member_ring.ROW_FIELDS), dtype=np.int64)
        self._runs = np.zeros((_RUNS, member_ring.RUN_FIELDS), dtype=np.int64)
        self._done = np.zeros(5, dtype=np.int64)
        self.done = 0

    @property
    def ended(self) -> bool:
        """Enough messages, or `until` says so."""
        enough = self._limit is not None and self.done >= self._limit
        return enough or (self._until is not None and bool(self._until()))

    def step(self) -> bool:
        """Handle the records that are there. False: there were none."""
        left = _BATCH if self._limit is None else min(_BATCH, self._limit - self.done)
        self._done[3:] = 0
        if self._consumer.refuses and not self._take_some(min(left, _RUNS)):
            return False
        n = self._consumer.run_kernel(
            lambda ring, k, assembly, reason: run_kernel(
                self._fn, self._state, (), self._kernel, ring, k, assembly, self._rows,
                self._runs, left, self._state, reason, self._done,
            )
        )  # fmt: skip
        if n > 0:
            self.done += n
            acked, runs = int(self._done[1]), int(self._done[2])
            if acked < runs:
                rest = self._runs[acked:runs].copy()
                self._consumer.ack_runs(rest, self._consumer.generation)
            else:
                self._consumer.wake()
        return n > 0

    def _take_some(self, limit: int) -> bool:
        """Take messages as others do, which gives back those of keys that were refused."""
        batch = self._consumer.step(limit)
        if batch is None:
            return False
        self._consumer.forget_refused(batch.acks_seen)
        n, self._done[4] = batch.lay_out(self._rows, self._runs)
        self._done[3] = member_ring.ASSEMBLED if batch.assembled else n
        return True
