"""The tables of each receiver: the way of each session's packets, and the wanted topics.

The receiver has tables of its own. This module knows their intended contents, and the entries that
have changed since they were written: a change costs the same however many there are. Called with
the node's lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from tidecast.agents.live import images as image_table
from tidecast.config.topology import TopicConfig, is_pattern, matches
from tidecast.node.context import NodeContext
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.registry import Indexed
from tidecast.node.state import Image, Subscription
from tidecast.protocol.session_table import insert, remove

WITHOUT_IMAGE_MAX = 4096
Place = tuple[str, int]
"""A transport, and a topic's id on it."""


class KnownSessions:
    """The way of each session's packets in the receiver of one lane of a transport."""

    def __init__(self, images: Indexed[Image], runtime: TransportRuntime) -> None:
        self._images, self._runtime = images, runtime
        self._why: dict[int, int] = {}
        self._topics: dict[int, str] = {}
        self._ignored: dict[str, dict[int, None]] = {}
        self._changed: dict[int, None] = {}

    def drop(self, session: int, why: int, topic: str = "") -> None:
        """Drop packets of a session; ``topic``: until a client subscribes to it."""
        self.forget(session)
        while len(self._why) >= WITHOUT_IMAGE_MAX:
            self.forget(next(iter(self._why)))
        self._why[session] = why
        if topic:
            self._topics[session] = topic
            self._ignored.setdefault(topic, {})[session] = None

    def forget(self, session: int) -> None:
        """A session is unknown, unless it has an image: its next SETUP is looked at."""
        self._changed[session] = None
        self._why.pop(session, None)
        topic = self._topics.pop(session, None)
        if topic is not None:
            same = self._ignored[topic]
            del same[session]
            if not same:
                del self._ignored[topic]

    def has(self, session: int) -> bool:
        """Its packets are dropped now."""
        return session in self._why

    def image_changed(self, session: int) -> None:
        """A session has one image more, or less."""
        self._changed[session] = None

    def wanted_again(self, pattern: str) -> None:
        """A client subscribed: ignored sessions get another chance."""
        if not is_pattern(pattern):
            topics = [pattern]
        else:
            topics = [topic for topic in self._ignored if matches(pattern, topic)]
        for topic in topics:
            for session in list(self._ignored.get(topic, ())):
                self.forget(session)

    def write(self) -> None:
        """Write the changes into the receiver's table."""
        changed, self._changed = list(self._changed), {}

        def put() -> None:
            for session in changed:
                self._write(session)
            self._runtime.rx_state.misc[image_table.M_LAST_SESSION] = 0

        if changed:
            self._runtime.on_receiver(put)

    def _write(self, session: int) -> None:
        state, value, following = self._runtime.rx_state, self._why.get(session), -1
        for image in self._images.of("session", (self._runtime.config.name, session)):
            if image.slot >= 0 and image.runtime is self._runtime:
                state.images[image.slot]["next"] = following
                value = following = image.slot
        if value is None:
            remove(state.sessions, session)
        else:
            insert(state.sessions, session, value)


class SessionTables:
    """The `KnownSessions` of each lane of the transports."""

    def __init__(self, images: Indexed[Image]) -> None:
        self._images = images
        self._of: dict[tuple[str, int], KnownSessions] = {}

    def of(self, runtime: TransportRuntime) -> KnownSessions:
        """The known sessions of a lane."""
        key = (runtime.config.name, runtime.lane.number)
        if key not in self._of:
            self._of[key] = KnownSessions(self._images, runtime)
        return self._of[key]

    def image_changed(self, image: Image) -> None:
        """A session has one image more, or less."""
        known = self.of(image.runtime)
        known.image_changed(image.session)
        known.write()

    def forget(self, runtime: TransportRuntime, session: int) -> None:
        """A session whose image was removed or was not made is unknown from now on."""
        known = self.of(runtime)
        known.forget(session)
        known.write()


class WantedTopics:
    """Which topics have a reader here, counted by their ids in packets.

    A receiver asks for the SETUP of an unknown session only if it has the id of a wanted topic. A
    change of one topic or one subscription costs the same however many there are.
    """

    def __init__(
        self, ctx: NodeContext, known: SessionTables, keeps: Callable[[TopicConfig], bool]
    ) -> None:
        """``keeps``: are the queues of a topic kept by this node?"""
        self._ctx, self._known, self._keeps = ctx, known, keeps
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

    def changed(self, names: Iterable[str]) -> None:
        """Topics were made, removed, or are kept by another node now."""
        for name in names:
            self.look_at(name)
            self._again(name)

    def look_at(self, name: str) -> None:
        """Count a topic if it has a reader."""
        topic = self._ctx.topic_by_name.get(name)
        before = self._counted.get(name)
        place: Place | None = None
        if topic is not None and (self._exact[name] > 0 or self._keeps(topic)):
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
        for runtime in self._ctx.runtimes.values():
            known = self._known.of(runtime)
            known.wanted_again(pattern)
            known.write()

    def _write(self, place: Place, bit: int) -> None:
        name, number = place
        word, mask = number >> 6, 1 << (number & 63)

        def put(runtime: TransportRuntime) -> None:
            bits = int(runtime.rx_state.wanted[word]) & ((1 << 64) - 1)
            bits = bits | mask if bit else bits & ~mask
            runtime.rx_state.wanted[word] = bits - (1 << 64) if bits >> 63 else bits
            self._write_reads(runtime)

        for runtime in self._ctx.runtimes.of(name):
            runtime.on_receiver(partial(put, runtime))

    def _write_all(self) -> None:
        for runtime in self._ctx.runtimes.values():
            runtime.on_receiver(partial(self._write_reads, runtime))

    def _write_reads(self, runtime: TransportRuntime) -> None:
        """In the receiver's thread: has it readers, and readers of all topics?"""
        misc, name = runtime.rx_state.misc, runtime.config.name
        misc[image_table.M_WANT_ALL] = int(self._patterns > 0)
        misc[image_table.M_READS] = int(self._patterns > 0 or self._on[name] > 0)
