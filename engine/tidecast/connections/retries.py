"""Attempts to reach servers: how long, with which pauses, and when their absence is an error."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidecast.api.connecting import Backoff
from tidecast.errors import ConnectionLost, TidecastError


class Attempts:
    """Attempts at one task, until ``patience_s`` are over."""

    def __init__(self, patience_s: float, pause: Callable[[float], None]) -> None:
        """``pause(seconds)``: waits between two attempts; raises Closed when its owner closes."""
        self._deadline = time.monotonic() + patience_s
        self._pause, self._backoff = pause, Backoff()

    def wait(self, problem: TidecastError) -> None:
        """Wait before the next attempt. Raises ``problem`` when the time is over, and Closed."""
        if time.monotonic() >= self._deadline:
            raise problem
        self._pause(self._backoff.next_s())


class Outage:
    """The time since a reader lost its servers, and the pauses between its attempts."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._backoff = Backoff()
        self._since_s = 0.0

    def note(self, problem: TidecastError, now_s: float) -> None:
        """An attempt failed. Raises ConnectionLost when the outage lasts longer than allowed."""
        self._since_s = self._since_s or now_s
        if now_s - self._since_s > self._patience_s:
            raise ConnectionLost(f"{problem} (since {now_s - self._since_s:.0f} s)")

    def pause_s(self, left_s: float) -> float:
        """The pause before the next attempt, at most ``left_s``."""
        return max(0.0, min(self._backoff.next_s(), left_s))

    def end(self) -> None:
        """A server answered."""
        self._backoff.clear()
        self._since_s = 0.0
