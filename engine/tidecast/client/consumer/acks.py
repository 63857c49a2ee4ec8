"""Single acks of a durable consumer, collected: many go to the engine in one step.

They are sent when there are `COLLECTED_MAX`, after `COLLECT_S` at the latest, and before anything
else that the consumer says or waits for. What was collected and not sent when the process dies is
delivered again, as what was never acked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from tidecast.buffers import member_ring
from tidecast.errors import TidecastError

if TYPE_CHECKING:
    from tidecast.client.consumer.message import DurableBatch
    from tidecast.client.waiting import Flusher

COLLECTED_MAX = 256
COLLECT_S = 0.01
Collected = list[tuple["DurableBatch", int]]


def runs_of(acks: Collected) -> Any:
    """Runs (see `member_ring.RUN_*`) of what was acked one by one, in that order."""
    found = []
    for batch, rows in groupby(acks, key=lambda ack: ack[0]):
        row = np.array([each for _, each in rows], dtype=np.int64)
        of = batch.runs[np.searchsorted(batch.runs[:, member_ring.RUN_ROW], row, side="right") - 1]
        of[:, member_ring.RUN_TOKEN] += row - of[:, member_ring.RUN_ROW]
        found.append(of)
    each = np.concatenate(found) if len(found) > 1 else found[0]
    cursors, tokens = each[:, member_ring.RUN_CURSOR], each[:, member_ring.RUN_TOKEN]
    continues = (np.diff(tokens, prepend=-2) == 1) & (np.diff(cursors, prepend=-2) == 0)
    first = np.flatnonzero(~continues)
    runs = each[first]
    runs[:, member_ring.RUN_COUNT] = np.diff(first, append=len(each))
    return runs


class Collector:
    """What one consumer has acked and not sent. ``send`` gets it; any thread may call.

    ``flusher``: sends it in time; None (nobody else runs in this process): nothing is collected.
    """

    def __init__(
        self, send: Callable[[Collected], None], fail: Callable[[TidecastError], None],
        flusher: Flusher | None,
    ) -> None:  # fmt: skip
        self._send, self._fail, self._flusher = send, fail, flusher
        self.flush_after_s = COLLECT_S
        self._acks: Collected = []
        self._lock = threading.Lock()
        self._watched = self._owing = False

    def add(self, batch: DurableBatch, row: int) -> None:
        """One message is acked."""
        flusher = self._flusher
        with self._lock:
            self._acks.append((batch, row))
            full = len(self._acks) >= COLLECTED_MAX
            begins, self._watched = not self._watched, True
        if full or flusher is None:
            self.flush()
        elif begins:
            flusher.add(self)

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
        """Send what there is. Raises ConnectionLost."""
        if self._acks:
            with self._lock:
                acks, self._acks = self._acks, []
            if acks:
                self._send(acks)

    def forget(self) -> None:
        """The engine is gone: what it delivered comes again."""
        with self._lock:
            self._acks = []

    # --- for the flusher --------------------------------------------------------------------------

    @property
    def buffering(self) -> bool:
        """Something is collected, or found no room."""
        return bool(self._acks) or self._owing

    def tick(self) -> bool:
        """The flusher's round. False: there was nothing."""
        with self._lock:
            owing, self._owing = self._owing, False
            self._watched = watched = owing or bool(self._acks)
        try:
            self.flush()
            if owing:
                self._send([])
        except TidecastError as problem:
            self._fail(problem)
        return watched
