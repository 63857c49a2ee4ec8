"""Connecting again and again: the pauses between attempts, and a logger that drops all lines."""

from __future__ import annotations

import logging
import random

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0
_DOUBLINGS_MAX = 16

UNLOGGED = logging.Logger("tidecast.websockets")  # noqa: LOG001 - see below
"""For the websocket library: at DEBUG it logs the headers of handshakes, with tokens and keys.

`logging.getLogger` does not know this logger. `logging.config` would enable it otherwise: a
configuration with ``disable_existing_loggers: false`` enables all loggers that it finds.
"""
UNLOGGED.disabled = True


class Backoff:
    """Pauses that double from ``first_s`` to ``max_s``, with some jitter."""

    def __init__(
        self,
        first_s: float | None = None,
        max_s: float | None = None,
        chance: random.Random | None = None,
    ) -> None:
        """``chance``: the source of the jitter, for runs that must be repeatable."""
        self._first_s = BACKOFF_S_MIN if first_s is None else first_s
        self._max_s = BACKOFF_S_MAX if max_s is None else max_s
        self._uniform = random.uniform if chance is None else chance.uniform
        self.failures = 0

    def next_s(self) -> float:
        """The pause after one more failure."""
        pause_s = min(self._max_s, self._first_s * 2 ** min(self.failures, _DOUBLINGS_MAX))
        self.failures += 1
        return pause_s * self._uniform(0.75, 1.25)

    def clear(self) -> None:
        """The attempt succeeded: the next pause is the first one again."""
        self.failures = 0
