"""The progress of a mirror: counts from any thread, a limit of its rate, events to a listener."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

BYTES, BYTES_SLOW = 1 << 20, 1 << 16
"""Of a run that is read at once; with a rate less, because it waits in memory."""
EVEN_S = 0.2
"""A mirror with a rate copies the records of so many seconds at once, so that the rate is even."""
RECORDS_MAX = 1 << 30
"""Records that are copied at once without a rate: as many as a run has."""


class Stopped(Exception):
    """The mirror was asked to stop."""


class Counts(msgspec.Struct, kw_only=True):
    """The figures of a mirror. ``lag`` is a gauge: offsets that are to be copied.

    ``repeated``: records that the topic had already; ``gone``: offsets that the source deleted
    before they were copied; ``left_out``: records that cannot be copied; ``retries``: attempts
    after an error.
    """

    records: int = 0
    bytes: int = 0
    repeated: int = 0
    gone: int = 0
    left_out: int = 0
    retries: int = 0
    lag: int = 0


class Place(msgspec.Struct, frozen=True):
    """How far a queue of the source is copied: all below ``position``; ``durable`` for ever."""

    source: int
    position: int
    durable: int
    end: int
    """Of the source, as far as is known."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """``event``: RecordsGone, RecordsLeftOut, SourceAway, EngineAway, TargetAway, Placed, ..."""

    event: str
    text: str
    about: dict[str, Any] = {}


class Progress:
    """Counts of all threads of a mirror; its rate, and its end."""

    def __init__(
        self, rate: float | None, report: Callable[[Event], None], *, patience_s: float
    ) -> None:
        """``rate``: records a second; ``patience_s``: how long errors may last."""
        self.counts, self.patience_s, self._report = Counts(), patience_s, report
        self.stopping, self._lock = threading.Event(), threading.Lock()
        self._rate, self._free_s = rate, time.monotonic()
        self.bytes_at_once = BYTES if rate is None else BYTES_SLOW
        self.records_at_once = RECORDS_MAX if rate is None else max(1, int(rate * EVEN_S))

    def count(self, **more: int) -> None:
        """Add to the counts."""
        with self._lock:
            for name, n in more.items():
                setattr(self.counts, name, getattr(self.counts, name) + n)

    def tell(self, event: str, text: str, **about: Any) -> None:
        """Report an event."""
        self._report(Event(event=event, text=text, about=about))

    def take(self, records: int) -> None:
        """Wait until the rate has room for these records. Raises Stopped."""
        if self._rate is None:
            return
        with self._lock:
            now_s = time.monotonic()
            begin_s = max(self._free_s, now_s)
            self._free_s = begin_s + records / self._rate
        self.wait(begin_s - now_s)

    def wait(self, seconds: float) -> None:
        """Wait, or raise Stopped."""
        if self.stopping.wait(max(0.0, seconds)):
            raise Stopped

    def check(self) -> None:
        """Raise Stopped when that was asked."""
        if self.stopping.is_set():
            raise Stopped
