"""Single acks of a durable consumer, collected: many go to the engine in one step.

They are sent when there are `COLLECTED_MAX`, after `COLLECT_S` at the latest, and before any other
request or wait of the consumer. When the process dies, records whose acks were collected and not
sent are delivered again, as records without an ack.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from tidecast.buffers import member_ring
from tidecast.client.consumer.message import COLLECTED_MAX, DurableBatch, KeptBatch
from tidecast.errors import TidecastError

COLLECT_S = 0.01
Collected = list[tuple["DurableBatch", list[int]]]
"""Batches, and rows of each in the order in which they were acked."""


def runs_of(acks: Collected) -> Any:
    """Runs (see `member_ring.RUN_*`) of records that were acked one by one, in that order."""
    kept: list[list[int]] = []
    found = []
    for batch, rows in acks:
        if type(batch) is KeptBatch:  # of `copy()`: it has one message, and is a run by itself
            kept.append(batch.numbers_of(0))
            continue
        if kept:
            found.append(_joined(np.array(kept, dtype=np.int64)))
            kept = []
        found.append(_runs_of_rows(batch.runs, rows))
    if kept:
        found.append(_joined(np.array(kept, dtype=np.int64)))
    return np.concatenate(found) if len(found) > 1 else found[0]


def _runs_of_rows(runs: Any, rows: list[int]) -> Any:
    first, end = rows[0], rows[0] + len(rows)
    if rows[-1] == end - 1 and rows == list(range(first, end)):  # in order, as nearly always
        starts = runs[:, member_ring.RUN_ROW]
        low = np.maximum(starts, first)
        counts = np.minimum(starts + runs[:, member_ring.RUN_COUNT], end) - low
        inside = counts > 0
        each, low, counts = runs[inside], low[inside], counts[inside]
    else:
        low = np.array(rows, dtype=np.int64)
        each = runs[np.searchsorted(runs[:, member_ring.RUN_ROW], low, side="right") - 1]
        counts = np.ones(len(low), dtype=np.int64)
    each[:, member_ring.RUN_TOKEN] += low - each[:, member_ring.RUN_ROW]
    each[:, member_ring.RUN_COUNT] = counts
    return each if len(each) == 1 else _joined(each)


def _joined(each: Any) -> Any:
    """Runs, each with those behind it that continue it."""
    cursors, counts = each[:, member_ring.RUN_CURSOR], each[:, member_ring.RUN_COUNT]
    tokens = each[:, member_ring.RUN_TOKEN]
    continues = (tokens[1:] == tokens[:-1] + counts[:-1]) & (cursors[1:] == cursors[:-1])
    starts = np.concatenate(([0], np.flatnonzero(~continues) + 1))
    joined = each[starts]
    joined[:, member_ring.RUN_COUNT] = np.add.reduceat(counts, starts)
    return joined


class Rounds(Protocol):
    """Sends the acks of collectors, again and again; see `tidecast.client.waiting.Flusher`."""

    def add(self, collector: Collector) -> None:
        """Look after a collector until it has nothing."""


class Collector:
    """The acks of one consumer that are not sent. ``send`` gets them; any thread may call.

    ``flusher``: sends them in time; None (no other thread does): nothing is collected.
    """

    def __init__(
        self,
        send: Callable[[Collected], None],
        fail: Callable[[TidecastError], None],
        flusher: Rounds | None,
    ) -> None:
        self._send, self._fail, self._flusher = send, fail, flusher
        self.flush_after_s = COLLECT_S
        self._batches: list[DurableBatch] = []
        """Batches with unsent acks. Each has the rows itself, and may be in the list twice."""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        """Held while acks are taken and sent, so that a close waits for acks that another thread
        has taken."""
        self._watched = self._owing = False

    def send_within(self, ack_wait_s: float) -> None:
        """Acks are sent long before an engine that waits so long for them delivers again."""
        self.flush_after_s = min(COLLECT_S, ack_wait_s / 2)

    def note(self, batch: DurableBatch) -> None:
        """A batch has its first ack, or as many as are sent together."""
        with self._lock:
            self._batches.append(batch)
            full = len(self._batches) >= COLLECTED_MAX or len(batch.acked) >= COLLECTED_MAX
            begins, self._watched = not self._watched, True
        if full or self._flusher is None:
            self.flush()
        elif begins:
            self._flusher.add(self)

    def watch(self) -> None:
        """Something that was sent found no room: ``send`` is called again each round, with nothing.

        Until it does not ask for that any more.
        """
        with self._lock:
            self._owing = True
            begins, self._watched = not self._watched, True
        if begins and self._flusher is not None:
            self._flusher.add(self)

    def flush(self) -> None:
        """Send all acks, and wait for acks that another thread sends. Raises ConnectionLost."""
        if self._batches or self._sending.locked():
            with self._sending:
                if acks := self._take():
                    self._send(acks)

    def _take(self) -> Collected:
        """Take the rows of all batches. Other threads may add rows meanwhile, without the lock."""
        with self._lock:
            batches, self._batches = self._batches, []
            return [(batch, rows) for batch in batches if (rows := batch.take_acked())]

    def forget(self) -> None:
        """The engine is gone: its deliveries come again."""
        self._take()

    # --- for the flusher --------------------------------------------------------------------------

    @property
    def buffering(self) -> bool:
        """Something is collected, or found no room."""
        return bool(self._batches) or self._owing

    def tick(self) -> bool:
        """The flusher's round. False: there was nothing."""
        with self._lock:
            owing, self._owing = self._owing, False
            self._watched = watched = owing or bool(self._batches)
        try:
            self.flush()
            if owing:
                self._send([])
        except TidecastError as problem:
            self._fail(problem)
        return watched
