"""The lanes of a node's transports: which of them sends a session, and which hear of a topic.

A lane is a `TransportRuntime`. Each session is sent by one lane, for as long as it lasts, and
received by one lane of each node that hears it: the order of its packets is that of one socket.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidecast.node.live.transports import TransportRuntime


class Lanes:
    """See module. By name of the transport; transports without a network have none."""

    def __init__(self) -> None:
        self._of: dict[str, list[TransportRuntime]] = {}

    def add(self, runtime: TransportRuntime) -> None:
        """One more lane of its transport, behind its other lanes."""
        self._of.setdefault(runtime.config.name, []).append(runtime)

    def clear(self) -> None:
        """No transport any more."""
        self._of.clear()

    def of(self, name: str) -> list[TransportRuntime]:
        """All lanes of a transport, the first one first; empty: it has no network."""
        return list(self._of.get(name, ()))

    def values(self) -> list[TransportRuntime]:
        """All lanes of all transports."""
        return [runtime for lanes in self._of.values() for runtime in lanes]

    def first(self) -> list[TransportRuntime]:
        """The first lane of each transport."""
        return [lanes[0] for lanes in self._of.values()]

    def of_session(self, name: str, session: int) -> TransportRuntime | None:
        """The lane that sends a session; None: the transport has no network."""
        lanes = self._of.get(name)
        return lanes[session % len(lanes)] if lanes else None

    def session_of_lane(self, name: str, drawn: int, used: list[int]) -> int:
        """A session id like ``drawn``, of the lane that is used least.

        ``used``: how many publications each lane sends.
        """
        n = len(self._of.get(name, ()))
        if n < 2:
            return drawn
        lane = min(range(n), key=lambda each: used[each])
        return max(drawn // n - 1, 1) * n + lane

    def __getitem__(self, name: str) -> TransportRuntime:
        """The first lane of a transport. Raises KeyError."""
        return self._of[name][0]

    def __iter__(self) -> Iterator[str]:
        """Names of transports."""
        return iter(list(self._of))

    def __contains__(self, name: object) -> bool:
        """Does a transport have a network?"""
        return name in self._of
