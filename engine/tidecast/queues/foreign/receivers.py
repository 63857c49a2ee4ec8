"""The receivers of an adapter that are open, and the sums of their counts."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, TypeVar

from tidecast.queues.adapter import Counts


class Counted(Protocol):
    """A receiver that counts; see `Counts`.

    ``behind``, ``end``: the token behind the records that were read last, -1: none yet; the newest
    end that is known.
    """

    fetches: int
    records: int
    bytes: int
    errors: int
    reconnects: int
    behind: int
    end: int

    @property
    def queue(self) -> int:
        """The number of its queue."""

    @property
    def is_closed(self) -> bool:
        """It receives nothing more."""

    def close(self) -> None:
        """See `Receiver.close`."""


R = TypeVar("R", bound=Counted)


class Receivers:
    """See module. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._each: list[Counted] = []
        self._before = Counts()
        """Sum of the closed receivers."""

    def add(self, made: R) -> R:
        """Count a new receiver, too. Returns it."""
        with self._lock:
            closed = [one for one in self._each if one.is_closed]
            self._before = _sum(self._before, closed)
            self._each = [one for one in self._each if one not in closed] + [made]
        return made

    def __len__(self) -> int:
        """Number of receivers that are open, or were open a moment ago."""
        with self._lock:
            return len(self._each)

    def counted(self) -> Counts:
        """Of all together; the lag of a queue is that of its foremost reader."""
        with self._lock:
            each, before = list(self._each), self._before
        ends, read = dict[int, int](), dict[int, int]()
        for one in each:
            ends[one.queue] = max(one.end, ends.get(one.queue, 0))
            read[one.queue] = max(one.behind, read.get(one.queue, -1))
        lag = sum(max(0, ends[queue] - behind) for queue, behind in read.items() if behind >= 0)
        return replace(_sum(before, each), lag=lag)

    def close(self) -> None:
        """Close them all. Idempotent."""
        with self._lock:
            each = list(self._each)
        for one in each:
            one.close()


def _sum(before: Counts, receivers: Iterable[Counted]) -> Counts:
    each: list[Counts | Counted] = [before, *receivers]
    return Counts(
        fetches=sum(one.fetches for one in each),
        records=sum(one.records for one in each),
        bytes=sum(one.bytes for one in each),
        errors=sum(one.errors for one in each),
        reconnects=sum(one.reconnects for one in each),
    )
