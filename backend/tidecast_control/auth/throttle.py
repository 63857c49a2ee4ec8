"""Login throttling: after a few failures each further one doubles the wait."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

FREE_FAILURES = 5
WAIT_S_MAX = 900.0
FORGET_S = 3600.0
ENTRIES_MAX = 10_000


class Throttle:
    """Failures by key (user, address), bounded: the oldest entry goes first. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def wait_s(self, *keys: str) -> float:
        """Seconds until another attempt is heard; 0 = now."""
        now = self._clock_s()
        with self._lock:
            return max([0.0, *(self._wait_of(key, now) for key in keys)])

    def _wait_of(self, key: str, now: float) -> float:
        failures, last = self._entries.get(key, (0, 0.0))
        if failures < FREE_FAILURES or now - last > FORGET_S:
            return 0.0
        pause: float = min(WAIT_S_MAX, 2.0 ** min(failures - FREE_FAILURES, 20))
        return max(0.0, last + pause - now)

    def failed(self, *keys: str) -> None:
        """Count a failure for each key."""
        now = self._clock_s()
        with self._lock:
            for key in keys:
                failures, last = self._entries.pop(key, (0, now))
                if now - last > FORGET_S:
                    failures = 0
                self._entries[key] = (failures + 1, now)
            while len(self._entries) > ENTRIES_MAX:
                self._entries.popitem(last=False)

    def succeeded(self, *keys: str) -> None:
        """Forget the failures of each key."""
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)
