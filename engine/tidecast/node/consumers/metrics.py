"""Rows of the counters file for durable subscriptions (lag, redeliveries, ...) and for adapters.

The puller counts by cursor in its own tables; the subscriptions' helper sums them up now and then,
without asking the puller: a gauge may be some microseconds old.
"""

from __future__ import annotations

import contextlib
import time

import numpy as np

from tidecast.buffers.counters import CountersFile
from tidecast.errors import SharedMemoryError
from tidecast.layout.counters import ROW_ADAPTER, ROW_SUBSCRIPTION
from tidecast.layout.counters import AdapterCounter as A
from tidecast.layout.subscription_counters import SubscriptionCounter as S
from tidecast.node.consumers.lag import NOT_ACKED, acked_ahead
from tidecast.node.consumers.state import ConsumersState, SubscriptionState
from tidecast.queues.adapter import Counting
from tidecast.queues.attached import AttachedQueue
from tidecast.queues.cache.cursors import FOR_QUEUE, STREAM_CHAINS, WHERE

INTERVAL_S = 1.0
ROWS_MAX = 2048
"""Subscriptions with a row; `show` alone counts further subscriptions."""
SUMS = {
    S.DELIVERED: "delivered",
    S.DELIVERED_BYTES: "delivered_bytes",
    S.SETTLED: "settled",
    S.REDELIVERED: "redelivered",
    S.NAKS: "naks",
    S.TIMEOUTS: "timeouts",
    S.DEAD: "dead",
    S.FILTERED: "filtered",
    S.FILTER_ERRORS: "filter_errors",
    S.OUTSTANDING: "out",
    S.WAITING: "again_n",
    S.SCHEDULED: "scheduled",
    S.CANCELLED: "cancelled",
}


class SubscriptionRows:
    """The rows. Called under the lock of the subscriptions."""

    def __init__(self, state: ConsumersState) -> None:
        self._state = state
        self._rows: dict[int, int] = {}
        self._next = 0.0

    def update(self, counters: CountersFile, *, now: bool = False) -> None:
        """Write all rows, if it is time."""
        at = time.monotonic()
        if not now and at < self._next:
            return
        self._next = at + INTERVAL_S
        here = {one.number: one for one in self._state.subscriptions.values()}
        for number in self._rows.keys() - here.keys():
            counters.free(self._rows.pop(number))
        for number, subscription in here.items():
            row = self._row(counters, number, subscription)
            if row is not None:
                self._sum(subscription, counters.values[row])

    def _row(
        self, counters: CountersFile, number: int, subscription: SubscriptionState
    ) -> int | None:
        row = self._rows.get(number)
        if row is None and len(self._rows) < ROWS_MAX:
            saved = subscription.saved
            try:
                row = counters.allocate(ROW_SUBSCRIPTION, saved.pattern, saved.name)
            except SharedMemoryError:  # all rows are taken
                return None
            self._rows[number] = row
        return row

    def _sum(self, subscription: SubscriptionState, values: np.ndarray) -> None:
        puller = self._state.puller
        values[S.MEMBERS], values[S.QUEUES] = len(subscription.members), len(subscription.cursors)
        if puller is None:
            return
        cursors = list(subscription.cursors.values())
        numbers = np.array([one.number for one in cursors], dtype=np.int64)
        tables = puller.state

        def of(name: str) -> np.ndarray:  # whole records of 1,000 cursors took 0.5 ms
            found: np.ndarray = tables.cursors[name][numbers]
            return found

        for column, name in SUMS.items():
            values[column] = int(of(name).sum())
        values[S.PAUSED] = int((of("paused") != 0).sum())
        ends = np.array([one.here.log.next_token for one in cursors], dtype=np.int64)
        following = tables.links[numbers, FOR_QUEUE, WHERE] >= STREAM_CHAINS
        scanned = np.where(following, tables.queues["scanned"][of("queue")], 0)
        next_tokens = np.maximum(of("next"), scanned)
        lag = int(
            np.maximum(ends - next_tokens, 0).sum() + sum(of(name).sum() for name in NOT_ACKED)
        )
        for k in np.flatnonzero(of("restored_left")).tolist():
            lag -= acked_ahead(puller, int(numbers[k]), int(next_tokens[k]), int(ends[k]))
        arriving = self._state.arriving(subscription)
        values[S.ARRIVING], values[S.LAG] = arriving, max(0, lag) + arriving


class AdapterRows:
    """Rows of adapters, waiting adapters included. Called under the same lock."""

    def __init__(self, state: ConsumersState) -> None:
        self._state = state
        self._rows: dict[str, int] = {}
        self._next = 0.0

    def update(self, counters: CountersFile, *, now: bool = False) -> None:
        """Write all rows, if it is time."""
        at = self._state.ctx.now_s()
        if not now and at < self._next:
            return
        self._next = at + INTERVAL_S
        state = self._state
        here = {topic: one.adapter for topic, one in state.waiting.items()}
        here |= {topic: adapter.name for topic, adapter in state.adapters.items()}
        for topic in self._rows.keys() - here.keys():
            counters.free(self._rows.pop(topic))
        for topic, name in here.items():
            if topic not in self._rows:
                try:
                    self._rows[topic] = counters.allocate(ROW_ADAPTER, topic, name)
                except SharedMemoryError:  # all rows are taken
                    continue
            self._write(topic, counters.values[self._rows[topic]])

    def _write(self, topic: str, values: np.ndarray) -> None:
        state = self._state
        there, adapter = state.topics.get(topic), state.adapters.get(topic)
        values[A.QUEUES] = len(there.queues) if there is not None else 0
        values[A.WAITING] = topic in state.waiting
        logs = [one.log for one in there.queues] if there is not None else []
        values[A.LEFT_OUT] = sum(one.left_out for one in logs if isinstance(one, AttachedQueue))
        if isinstance(adapter, Counting):
            with contextlib.suppress(Exception):  # the code of others must not end this thread
                counts = adapter.counted()
                values[A.FETCHES], values[A.RECORDS] = counts.fetches, counts.records
                values[A.BYTES], values[A.ERRORS] = counts.bytes, counts.errors
                values[A.RECONNECTS], values[A.LAG] = counts.reconnects, counts.lag
