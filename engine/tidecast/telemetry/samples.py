"""Samples of telemetry: a node's counts, as rows by topic, queue and subscription.

`Collector` reads a node, `Sampler` makes rows of the readings. The fields are those of
`tidecast_spark.telemetry`. Three kinds of rows, which do not count the same thing twice:

- a topic: packets sent and sent again, bytes sent (in) and received (out), lag of live topics in
  packets, fill of the publishers' rings (history);
- a queue of a durable topic: records and bytes appended, fill of its cache;
- a subscription on a queue: records settled (out) and appended (due), lag in records, its age.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tidecast.buffers.ring_file import consumers
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter, QueueCounter
from tidecast.node.consumers.lag import Lag, lag_here, since_ns
from tidecast.node.state import Image, Publication

if TYPE_CHECKING:
    from tidecast.node.consumers.service import DurableSubscriptions
    from tidecast.node.node import Node

QUIET_NS = 60_000_000_000
"""A value that has not changed for so long is written once in so long."""
ENDED_MAX = 100_000
AGES_MAX = 64
"""Of so many cursors the age of their lag is read at most: each is a read of the log."""
MS_NS = 1_000_000


class Key(NamedTuple):
    """The key of counters. ``queue`` -1, ``subscription`` "": of none."""

    topic: str
    queue: int = -1
    subscription: str = ""


@dataclass(slots=True)
class Reading:
    """The counts since the reading before, and the gauges as they are now."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    gauges: dict[str, int] = field(default_factory=dict)

    def highest(self, name: str, value: int) -> None:
        """A gauge of which the highest of several counts."""
        self.gauges[name] = max(self.gauges.get(name, 0), value)

    def add(self, name: str, value: int) -> None:
        """A gauge of which several add up."""
        self.gauges[name] = self.gauges.get(name, 0) + value


_Ended = tuple[tuple[str, int], str, dict[str, int]]


class Collector:
    """Reads a node's counters; the differences to the reading before."""

    def __init__(self, node: Node, without: str) -> None:
        """``without``: the topic that is left out, telemetry's own."""
        self.node, self._without = node, without
        self._before: dict[tuple[Any, ...], dict[str, int]] = {}
        self._ended: deque[_Ended] = deque(maxlen=ENDED_MAX)
        node.set_source_gone_hook(self._gone)

    def close(self) -> None:
        """The node need no longer report ended sources."""
        self.node.set_source_gone_hook(None)

    def _gone(self, source: Publication | Image) -> None:
        """A publication or image ends: its counts since the last reading are kept."""
        counts = self._sent(source) if isinstance(source, Publication) else self._received(source)
        self._ended.append((_identity(source), source.topic.name, counts))

    def read(self) -> dict[Key, Reading]:
        """All that there is now, by key."""
        found: dict[Key, Reading] = defaultdict(Reading)
        node = self.node
        with node.lock:
            while self._ended:
                identity, topic, counts = self._ended.popleft()
                self._count(found[Key(topic)], identity, counts)
                self._before.pop(identity, None)
            for publication in node.pubs.values():
                self._publication(found[Key(publication.topic.name)], publication)
            for image in node.images_by_id.values():
                self._image(found[Key(image.topic.name)], image)
            self._queues(found)
        self._caches(found)
        self._subscriptions(found)
        return {key: one for key, one in found.items() if key.topic != self._without}

    def _count(self, into: Reading, identity: tuple[Any, ...], now: dict[str, int]) -> None:
        before = self._before.get(identity, {})
        for name, value in now.items():
            into.counts[name] += max(0, value - before.get(name, 0))
        self._before[identity] = now

    # --- live -------------------------------------------------------------------------------------

    def _sent(self, publication: Publication) -> dict[str, int]:
        if publication.slot < 0 or publication.row < 0:  # no network: its ring alone knows
            about = publication.about()
            return {"packets": about.head - about.first}
        values = self.node.counters.values[publication.row]
        return {
            "packets": int(values[Counter.PACKETS_SENT]),
            "resent": int(values[Counter.PACKETS_RESENT]),
            "bytes_in": 0
            if publication.topic.mode == "durable"
            else int(values[Counter.BYTES_SENT]),
        }

    def _received(self, image: Image) -> dict[str, int]:
        return {"bytes_out": int(self.node.counters.values[image.row][Counter.BYTES_RECEIVED])}

    def _publication(self, into: Reading, publication: Publication) -> None:
        self._count(into, _identity(publication), self._sent(publication))
        about = publication.about()
        positions = [
            int(entry[lay.CONSUMER_POSITION_AT // 8])
            for _, entry in consumers(publication.mapped.array)
        ]
        if publication.slot >= 0 and publication.row >= 0:
            values = self.node.counters.values[publication.row]
            if values[Counter.RECEIVERS]:
                positions.append(int(values[Counter.SLOWEST_CONSUMED]))
        behind = max((about.head - at for at in positions), default=0)
        into.add("cache_bytes", min(max(0, behind), about.slots) * about.slot_bytes)
        into.add("cache_max", about.slots * about.slot_bytes)
        if publication.topic.mode != "durable":
            into.highest("lag", behind)

    def _image(self, into: Reading, image: Image) -> None:
        self._count(into, _identity(image), self._received(image))
        values = self.node.counters.values[image.row]
        if image.topic.mode != "durable":
            behind = int(values[Counter.HIGHEST]) - int(values[Counter.CONSUMED])
            into.highest("lag", max(0, behind))

    # --- durable ----------------------------------------------------------------------------------

    def _queues(self, found: dict[Key, Reading]) -> None:
        durable, values = self.node.durable, self.node.counters.values
        for name, topic in durable.topics.items():
            for queue in range(topic.map.queues):
                row = durable.registry.row_of(name, queue)
                counts = {
                    "messages_in": int(values[row][QueueCounter.RECORDS]),
                    "bytes_in": int(values[row][QueueCounter.BYTES]),
                }
                self._count(found[Key(name, queue)], ("queue", name, queue), counts)

    def _caches(self, found: dict[Key, Reading]) -> None:
        subscriptions = self.node.consumers
        puller = subscriptions.puller
        with subscriptions.lock:
            for here in subscriptions.topics.values():
                for one in here.queues:
                    if puller is None:
                        return
                    record = puller.state.queues[one.row]
                    reading, identity = found[Key(one.topic, one.queue)], ("cache", one.row)
                    self._count(reading, identity, {"spilled": int(record["spilled"])})
                    reading.gauges["cache_bytes"] = int(record["blocks"]) * puller.block_bytes
                    reading.gauges["cache_max"] = int(record["blocks_max"]) * puller.block_bytes

    def _subscriptions(self, found: dict[Key, Reading]) -> None:
        for cursor in _cursors(self.node.consumers):
            reading = found[cursor.key]
            identity = ("cursor", *cursor.key)
            if identity not in self._before:  # records appended before are in the lag
                self._before[identity] = {"messages_due": cursor.end}
            now = {"messages_out": cursor.acked, "messages_due": cursor.end}
            self._count(reading, identity, now)
            reading.gauges["lag"] = cursor.lag
            if cursor.age_ns is not None:
                reading.gauges["lag_ms"] = cursor.age_ns // MS_NS


class _CursorSample(NamedTuple):
    """A subscription on a queue: acked records, and its lag in records and time."""

    key: Key
    acked: int
    end: int
    lag: int
    age_ns: int | None


def _cursors(subs: DurableSubscriptions) -> list[_CursorSample]:
    """All cursors, with one question to the puller, and one more for each age."""
    found = []
    with subs.lock:
        puller = subs.puller
        if puller is None:
            return []
        cursors = [
            (subscription.saved.name, cursor)
            for subscription in subs.subscriptions.values()
            for cursor in subscription.cursors.values()
        ]

        def look() -> list[Lag]:
            return [lag_here(puller, cursor, ("settled",)) for _, cursor in cursors]

        ages = AGES_MAX
        for (name, cursor), at in zip(cursors, puller.call(look) if cursors else [], strict=True):
            here, age_ns = cursor.here, None
            if not at.late:
                age_ns = 0
            elif ages:
                ages -= 1
                since = puller.call(since_ns, puller, cursor, at.oldest)
                age_ns = None if since is None else max(0, time.time_ns() - since)
            key = Key(here.topic, here.queue, name)
            found.append(_CursorSample(key, at.figures["settled"], at.end, at.records, age_ns))
    return found


def _identity(source: Publication | Image) -> tuple[str, int]:
    return ("publication" if isinstance(source, Publication) else "image", source.id)


@dataclass(slots=True)
class _Seen:
    written_ns: int
    changed_ns: int
    gauges: dict[str, int] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Sampler:
    """Makes rows of readings: all that changed of late, the rest once in `QUIET_NS`."""

    def __init__(self, node: str, now_ns: int) -> None:
        self._node, self._last_ns = node, now_ns
        self._seen: dict[Key, _Seen] = {}

    def rows(self, readings: dict[Key, Reading], at_us: int, now_ns: int) -> list[dict[str, Any]]:
        """The rows to write. ``at_us``: wall clock; ``now_ns``: monotonic."""
        found = []
        for key, reading in readings.items():
            seen = self._seen.get(key)
            if seen is None:
                seen = self._seen[key] = _Seen(self._last_ns, now_ns)
            for name, count in reading.counts.items():
                seen.counts[name] += count
            if any(reading.counts.values()) or reading.gauges != seen.gauges:
                seen.changed_ns, seen.gauges = now_ns, reading.gauges
            quiet = now_ns - seen.changed_ns >= QUIET_NS
            if quiet and now_ns - seen.written_ns < QUIET_NS:
                continue
            found.append(self._row(key, seen, at_us, now_ns))
        for key in [key for key in self._seen if key not in readings]:
            del self._seen[key]
        self._last_ns = now_ns
        return found

    def _row(self, key: Key, seen: _Seen, at_us: int, now_ns: int) -> dict[str, Any]:
        row: dict[str, Any] = {"time_us": at_us, "node": self._node, "topic": key.topic}
        if key.queue >= 0:
            row["queue"] = key.queue
        if key.subscription:
            row["subscription"] = key.subscription
        row["interval_ms"] = (now_ns - seen.written_ns) // MS_NS
        row |= seen.counts
        row |= seen.gauges
        seen.written_ns = now_ns
        seen.counts = defaultdict(int)
        return row
