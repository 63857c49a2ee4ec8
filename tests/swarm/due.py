"""When delivery times come, by a clock that is set while engines crash and freeze."""

from __future__ import annotations

from tests.swarm import history as swarm_history
from tests.swarm.script import NODES
from tidecast.agents.puller.delivery import SCHEDULE_LOOK_NS

LATE_NS = 50_000_000
"""The engine finds out so much later that a record is due."""


class DueTimes:
    """Since when records are due in the world's time. Takes a history entry by entry."""

    def __init__(self, history: swarm_history.History) -> None:
        self.published: dict[bytes, swarm_history.Published] = {}
        self._due_ns: dict[bytes, int] = {}
        self._came_ns: dict[bytes, int] = {}
        """When the engine knew, at the latest. Without an entry: the time is to come."""
        self._clock_ns = 0
        """The clock minus the world's time."""
        self._frozen = [
            entry
            for entry in history
            if isinstance(entry, swarm_history.Frozen) and entry.node == NODES[0]
        ]

    def take(self, entry: swarm_history.Entry) -> None:
        """The next entry of the history."""
        if isinstance(entry, swarm_history.Published):
            self.published[entry.payload] = entry
            if entry.due_ns:
                self._clock_ns = entry.wall_ns - entry.at_ns
                self._due_ns[entry.payload] = entry.due_ns
        elif isinstance(entry, swarm_history.ClockSet):
            for payload, due_ns in self._due_ns.items():
                if entry.after_ns < due_ns:
                    self._came_ns.pop(payload, None)
                elif payload not in self._came_ns:
                    reached_ns = entry.at_ns - max(0, entry.before_ns - due_ns)
                    late_ns = LATE_NS if entry.before_ns >= due_ns else SCHEDULE_LOOK_NS
                    self._came_ns[payload] = self._known_ns(reached_ns) + late_ns
            self._clock_ns = entry.after_ns - entry.at_ns

    def is_ahead(self, payload: bytes, at_ns: int) -> bool:
        """Is the delivery time of a record still to come?"""
        return self._due_ns.get(payload, 0) > at_ns + self._clock_ns

    def may_pass(self, other: bytes, payload: bytes) -> bool:
        """Could ``other`` be handed to a member before ``payload`` was due?"""
        if payload not in self._due_ns or other not in self.published:
            return False
        came_ns = self._came_ns.get(payload)
        if came_ns is None:
            came_ns = self._known_ns(self._due_ns[payload] - self._clock_ns) + LATE_NS
        return self.published[other].at_ns < came_ns

    def _known_ns(self, came_ns: int) -> int:
        """An engine that is frozen finds out when it goes on."""
        for each in self._frozen:
            if each.at_ns <= came_ns < each.until_ns:
                came_ns = each.until_ns
        return came_ns
