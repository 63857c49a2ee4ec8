"""Login throttling: failures are counted by user and network, and further attempts wait longer.

An attempt counts as failed when it begins, so that many attempts at once do not bypass the limit.
Failures from a network lock no user out in other networks, and none for longer than `WAIT_S_MAX`.
Memory and time are bounded: the names of a network, and the networks, are limited in number.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

FREE_FAILURES, NETWORK_FREE_FAILURES = 5, 100
WAIT_S_MAX, NETWORK_WAIT_S_MAX = 60.0, 10.0
FORGET_S = 3600.0
NETWORKS_MAX, NAMES_MAX = 10_000, 200
"""NAMES_MAX: above `NETWORK_FREE_FAILURES`, so that attempts on other names displace no name."""


@dataclass
class _Count:
    failures: int = 0
    last_s: float = 0.0

    def wait_s(self, now_s: float, free: int, wait_s_max: float) -> float:
        """Seconds until another attempt is heard."""
        if now_s - self.last_s > FORGET_S:
            self.failures = 0
        if self.failures < free:
            return 0.0
        pause_s: float = min(wait_s_max, 2.0 ** min(self.failures - free, 20))
        return max(0.0, self.last_s + pause_s - now_s)

    def failed(self, now_s: float) -> None:
        """One more."""
        self.failures, self.last_s = self.failures + 1, now_s


@dataclass
class _Network:
    total: _Count = field(default_factory=_Count)
    names: OrderedDict[str, _Count] = field(default_factory=OrderedDict)


class Throttle:
    """Failures by network and, in it, by user. Thread-safe."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._networks: OrderedDict[str, _Network] = OrderedDict()

    def attempt(self, user: str, network: str) -> float:
        """Seconds to wait; 0 = continue, and the attempt counts as failed until `succeeded`."""
        now_s = self._clock_s()
        with self._lock:
            known = self._networks.setdefault(network, _Network())
            self._networks.move_to_end(network)
            name = known.names.setdefault(user, _Count())
            known.names.move_to_end(user)
            if len(self._networks) > NETWORKS_MAX:
                self._networks.popitem(last=False)
            if len(known.names) > NAMES_MAX:
                known.names.popitem(last=False)
            wait_s = max(
                name.wait_s(now_s, FREE_FAILURES, WAIT_S_MAX),
                known.total.wait_s(now_s, NETWORK_FREE_FAILURES, NETWORK_WAIT_S_MAX),
            )
            if wait_s == 0:
                name.failed(now_s)
                known.total.failed(now_s)
            return wait_s

    def succeeded(self, user: str, network: str) -> None:
        """The attempt was right: the user's failures there are forgotten."""
        with self._lock:
            known = self._networks.get(network)
            count = known.names.pop(user, None) if known is not None else None
            if known is not None and count is not None:
                known.total.failures = max(0, known.total.failures - count.failures)
