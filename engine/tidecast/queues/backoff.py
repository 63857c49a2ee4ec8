"""Waits that double, for what is tried again until another system is back."""

from __future__ import annotations

import random

BACKOFF_S_MIN, BACKOFF_S_MAX = 0.05, 2.0


class Backoff:
    """Waits that double, with some jitter, from BACKOFF_S_MIN to BACKOFF_S_MAX."""

    def __init__(self) -> None:
        self.failures = 0

    def next_s(self) -> float:
        """How long to wait after one more failure."""
        wait_s = min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(self.failures, 10))
        self.failures += 1
        return wait_s * random.uniform(0.75, 1.25)

    def clear(self) -> None:
        """It worked."""
        self.failures = 0
