"""Places that a client read a moment ago, and the time for its next answer: ADR 0063.

librdkafka asks for nothing for a second (``fetch.queue.backoff.ms``) whenever 100,000 messages or
64 MiB wait for the application, and the application runs dry meanwhile. So its answers are paced:
this estimates how full the client's queue is, from the answers so far and from how fast the
application takes them. That rate is learnt: a client that was silent while there was more slept.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from tidecast.log.queue_log import QueueLog

SLEEPER = "rdkafka"
"""Part of the name or the version of the software of clients that sleep."""
QUEUE_RECORDS, QUEUE_BYTES = 100_000, 64 << 20
"""A full queue of such a client, by its defaults."""
FULL = 0.9
"""The share of it that is filled at most."""
DRAIN_FIRST, DRAIN_MIN, DRAIN_MAX = 8.0, 3.0, 1000.0
"""Queues a second that the application takes: at first, at least, at most. A slower application
always finds records in its queue, whether the client sleeps or not."""
FASTER, SLOWER = 1.1, 0.7
"""By so much a rate grows in each second without a sleep, and falls with each sleep."""
SLEEP_S = 0.2
"""A client that asked for nothing for so long, though there was more, has slept."""
DELAY_S_MAX = 0.25
RECENT_S, RECENT_MAX = 2.0, 512
"""A client that leaves out a partition is believed to come back to it for so long; and for so many
partitions."""


class Recent:
    """See module. Of one connection; in the loop's thread alone."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._behind: OrderedDict[QueueLog, tuple[int, float]] = OrderedDict()
        self._drain = DRAIN_FIRST
        self._level = self._cost = 0.0
        """How full the queue was after the last answer; how much this answer added."""
        self._at_s = self._probed_s = now_s()
        self._more = False

    def delay_s(self) -> float:
        """For how long to wait with the answer to the Fetch that has just come; 0: not at all."""
        now_s = self._now_s()
        silent_s = now_s - self._at_s
        if not self._more:
            self._level = 0.0
            return 0.0
        if silent_s >= SLEEP_S:
            self._drain = max(self._drain * SLOWER, DRAIN_MIN)
            self._level, self._probed_s = 0.0, now_s
            return 0.0
        if now_s - self._probed_s >= 1.0:
            self._drain = min(self._drain * FASTER, DRAIN_MAX)
            self._probed_s = now_s
        level = max(self._level - self._drain * silent_s, 0.0)
        over = level + self._cost - max(FULL, self._cost)
        return min(max(over, 0.0) / self._drain, DELAY_S_MAX)

    def answered(self, rows: Iterable[tuple[QueueLog, int, int, int]], n_bytes: int) -> None:
        """A Fetch is answered. ``rows``: log, offset, offset behind the answer, high watermark."""
        now_s, records, self._more = self._now_s(), 0, False
        for log, offset, behind, limit in rows:
            records += behind - offset
            self._more = self._more or behind < limit
            self._behind.pop(log, None)
            if behind > offset:
                self._behind[log] = behind, now_s
        while len(self._behind) > RECENT_MAX:
            self._behind.popitem(last=False)
        level = max(self._level - self._drain * (now_s - self._at_s), 0.0)
        self._cost = max(records / QUEUE_RECORDS, n_bytes / QUEUE_BYTES)
        self._level, self._at_s = level + self._cost, now_s

    def left_out(self, asked: set[QueueLog]) -> bool:
        """Is there more in a partition that was fetched a moment ago, and is not asked for now?

        A client has one Fetch at a time under way. It leaves out partitions whose records still
        wait in it, so a Fetch that waits for the others holds them up.
        """
        since_s = self._now_s() - RECENT_S
        while self._behind:
            log, (_, at_s) = next(iter(self._behind.items()))
            if at_s >= since_s:
                break
            del self._behind[log]
        return any(
            log not in asked and log.durable_token > behind
            for log, (behind, _) in self._behind.items()
        )
