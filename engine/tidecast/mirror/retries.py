"""Retries of a mirror while a system is away: it is reported once, and waited for with back-off."""

from __future__ import annotations

import time
from collections.abc import Callable

from tidecast.api.connecting import Backoff
from tidecast.errors import TidecastError
from tidecast.mirror.progress import Progress


class Retries:
    """Failed calls to one system, in a row. ``event``: the report of the first failure."""

    def __init__(
        self, progress: Progress, event: str, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress, self._event, self._now_s = progress, event, now_s
        self._backoff = Backoff()
        self._since_s = 0.0

    def note(self, problem: TidecastError, **about: object) -> None:
        """A call failed. Raises ``problem`` when `Progress.patience_s` are over."""
        now_s = self._now_s()
        if not self._since_s:
            self._since_s = now_s
            self._progress.tell(self._event, f"{problem}; it is tried again", **about)
        if now_s - self._since_s > self._progress.patience_s:
            raise problem
        self._progress.count(retries=1)

    def wait(self, problem: TidecastError) -> None:
        """`note`, and wait before the next call. Raises Stopped, too."""
        self.note(problem)
        self._progress.wait(self._backoff.next_s())

    def end(self) -> None:
        """A call succeeded."""
        self._since_s = 0.0
        self._backoff.clear()
