"""The clock of questions that wait: it moves only when the other side reports that it works."""

from __future__ import annotations

import threading

from tidecast.api.frames.common import Working
from tidecast.api.rpc import Calls

LIMIT_S, STEP_S = 0.5, 0.3
"""Of a question, and the time between two news: without them it would end after the second."""


class HearingClock:
    """Replaces the clock of a connection's questions."""

    def __init__(self, calls: Calls) -> None:
        self.now_s, self.heard = 0.0, threading.Semaphore(0)
        self._hear = calls.hear
        calls._clock = lambda: self.now_s
        calls.hear = self.hear  # type: ignore[method-assign]

    def hear(self, working: Working) -> None:
        """News came, and time passes."""
        self._hear(working)
        self.now_s += STEP_S
        self.heard.release()

    def wait(self, news: int = 10) -> None:
        """Until so many have come: for many times the limit."""
        for _ in range(news):
            assert self.heard.acquire(timeout=60.0)
