"""The time of the control service, as this engine's monotonic clock advances it.

Epochs of sealed transports begin and end by it: a host's clock that is set changes nothing. The
link asks the service for its time; an answer is wrong by half of its round trip at most.
"""

from __future__ import annotations

ANSWER_NS_MAX = 5 * 10**9
"""A longer round trip gives no useful time."""


class ServiceClock:
    """See module. The link's thread teaches it, the node's reads it; no call waits."""

    def __init__(self) -> None:
        self._known: tuple[int, int] | None = None
        """The service's time minus the monotonic clock, and by how much it can be wrong, ns."""

    def learn(self, asked_ns: int, answered_ns: int, time_ns: int) -> bool:
        """The service answered ``time_ns``, asked and answered at these monotonic times.

        A rough answer does not replace an exact answer that it agrees with. False: it is not used.
        """
        trip_ns = answered_ns - asked_ns
        if not 0 <= trip_ns <= ANSWER_NS_MAX:
            return False
        offset_ns, error_ns = time_ns + trip_ns // 2 - answered_ns, trip_ns // 2 + 1
        if self._known is not None:
            held_ns, held_error_ns = self._known
            agrees = abs(offset_ns - held_ns) <= error_ns + held_error_ns
            if agrees and error_ns > held_error_ns:
                # monotonic clocks of two hosts drift apart: the exact answer grows old
                self._known = (held_ns, held_error_ns + held_error_ns // 8 + 1)
                return False
        self._known = (offset_ns, error_ns)
        return True

    def now_ns(self, monotonic_ns: int) -> int | None:
        """The service's time, ns since 1970; None: it has not answered since this engine began."""
        return None if self._known is None else monotonic_ns + self._known[0]
