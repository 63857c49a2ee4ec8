"""Which topics somebody here reads, counted by their ids in packets.

A receiver asks for the SETUP of an unknown session only if it has the id of a wanted topic. A
change of one topic or one subscription costs the same however many there are. Called with the
node's lock held.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from tidecast.agents.live import images as im
from tidecast.config.topology import is_pattern

if TYPE_CHECKING:
    from tidecast.node.node import Node
    from tidecast.node.state import Subscription

Place = tuple[str, int]
"""A transport, and a topic's id on it."""


class WantedTopics:
    """See module."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._exact: Counter[str] = Counter()
        self._patterns = 0
        self._counted: dict[str, Place] = {}
        self._places: Counter[Place] = Counter()
        self._on: Counter[str] = Counter()
        """Topics that are counted, by transport."""

    def subscribed(self, subscription: Subscription) -> None:
        """A subscription was opened; sessions that were ignored get another chance."""
        pattern = subscription.pattern
        if is_pattern(pattern):
            self._patterns += 1
            self._write_all()
        else:
            self._exact[pattern] += 1
            self.look_at(pattern)
        self._again(pattern)

    def unsubscribed(self, subscription: Subscription) -> None:
        """A subscription has ended."""
        pattern = subscription.pattern
        if is_pattern(pattern):
            self._patterns -= 1
            self._write_all()
            return
        self._exact[pattern] -= 1
        if self._exact[pattern] <= 0:
            del self._exact[pattern]
        self.look_at(pattern)

    def changed(self, name: str) -> None:
        """A topic was made, removed, or is kept by another node now."""
        self.look_at(name)
        self._again(name)

    def look_at(self, name: str) -> None:
        """Count a topic if somebody reads it."""
        node, topic = self._node, self._node.topic_by_name.get(name)
        before = self._counted.get(name)
        place: Place | None = None
        if topic is not None and (self._exact[name] > 0 or node.durable.keeps(topic)):
            place = (topic.transport, topic.wire_id)
        if place == before:
            return
        if before is not None:
            del self._counted[name]
            self._on[before[0]] -= 1
            self._places[before] -= 1
            if self._places[before] <= 0:
                del self._places[before]
                self._write(before, 0)
        if place is not None:
            self._counted[name] = place
            self._on[place[0]] += 1
            self._places[place] += 1
            if self._places[place] == 1:
                self._write(place, 1)

    def _again(self, pattern: str) -> None:
        for runtime in self._node.runtimes.values():
            known = self._node.known_sessions(runtime)
            known.wanted_again(pattern)
            known.write()

    def _write(self, place: Place, bit: int) -> None:
        name, number = place
        runtime = self._node.runtimes.get(name)
        if runtime is None:
            return
        word, mask = number >> 6, 1 << (number & 63)

        def put() -> None:
            bits = int(runtime.rx_state.wanted[word]) & ((1 << 64) - 1)
            bits = bits | mask if bit else bits & ~mask
            runtime.rx_state.wanted[word] = bits - (1 << 64) if bits >> 63 else bits
            self._write_reads(name)

        runtime.on_receiver(put)

    def _write_all(self) -> None:
        for name, runtime in self._node.runtimes.items():
            runtime.on_receiver(partial(self._write_reads, name))

    def _write_reads(self, name: str) -> None:
        """In the receiver's thread: does anybody read from it, and everything?"""
        misc = self._node.runtimes[name].rx_state.misc
        misc[im.M_WANT_ALL] = int(self._patterns > 0)
        misc[im.M_READS] = int(self._patterns > 0 or self._on[name] > 0)
