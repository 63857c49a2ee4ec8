"""A `Link` without a node: matching subscriptions read each publication's ring directly."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    Link,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.buffers.ring_file import add_consumer, create_ring, describe, remove_consumer
from tidecast.client.kernels import ports
from tidecast.config.topology import check_pattern, check_topic_name, matches
from tidecast.errors import Closed, ConnectionLost, EngineNotRunning, NoResponders, NotFound
from tidecast.events import EngineBack, EngineLost, Event, ImageAvailable, ImageGone
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.native.mapped import Bytes, MappedFile


@dataclass
class _Publication:
    topic: str
    path: Path
    mapped: MappedFile
    session: int
    consumers: dict[int, int] = field(default_factory=dict)
    """Subscription id -> consumer entry."""


@dataclass
class _Subscription:
    pattern: str
    options: SubscriptionOptions


def _live_edge(ring: Bytes) -> tuple[int, int]:
    """(packet, offset in it) where the next message will be: amid the OPEN packet."""
    about = describe(ring)
    last = about.head - 1
    at = lay.HEADER_BYTES + (last & (about.slots - 1)) * 8
    word = int(ring[at : at + 8].view("i8")[0])
    if last >= about.first and word >> lay.STATE_SHIFT & 0xFF == lay.OPEN:
        return last, word & lay.CONTROL_LENGTH_MASK
    return about.head, 0


class LoopLink(Link):
    """See the module. ``topics=None``: every name exists. Rings live in ``directory``."""

    def __init__(
        self,
        directory: Path,
        *,
        slots: int = 64,
        slot_bytes: int = 1400,
        inline: bool = False,
        has_network: bool = False,
        reliability: int = lay.RELIABLE,
        topics: set[str] | None = None,
    ) -> None:
        self.directory, self.slots, self.slot_bytes = directory, slots, slot_bytes
        self.inline, self.has_network, self.reliability = inline, has_network, reliability
        self.topics = topics
        self.client_id, self.node_id, self.node_name, self.incarnation = 1, 7, "loop", 1
        self.doorbell = lay.DOORBELL_FIRST_CLIENT
        self.nodes = {"loop": 7, "other": 9}
        self.works = 0
        self.work_hook: Any = None
        self.lost = self.refuses = self.closed = False
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self._events: list[Event] = []
        self.publications: dict[int, _Publication] = {}
        self.subscriptions: dict[int, _Subscription] = {}
        self.released: list[tuple[int, int]] = []
        self._new_bells()

    def _new_bells(self) -> None:
        path = self.directory / f"bells-{next(self._ids)}"
        self._bells = MappedFile.create(path, lay.DOORBELLS_MAX * lay.DOORBELL_BYTES)
        self.bells = self._bells.array

    def _check(self) -> None:
        if self.closed:
            raise Closed("the link is closed")
        if self.lost:
            raise ConnectionLost("the loop is lost")

    def push(self, *events: Event) -> None:
        """Events for the client; rings its doorbell."""
        with self._lock:
            self._events += events
        ports.ring_line(self.bells, self.doorbell)

    def open_publication(self, topic: str, options: PublicationOptions) -> PublicationGrant:
        self._check()
        check_topic_name(topic)
        if self.topics is not None and topic not in self.topics:
            raise NotFound(f"no topic {topic!r}")
        with self._lock:
            number = next(self._ids)
            path = self.directory / f"ring-{number}"
            slots = self.slots
            if options.history_bytes:
                slots = lay.slots_for(options.history_bytes, self.slot_bytes)
            mapped = create_ring(
                path,
                kind=lay.KIND_PUBLICATION,
                slots=slots,
                slot_bytes=self.slot_bytes,
                session=1000 + number,
                topic=1,
                node=self.node_id,
                channel=wire.CHANNEL_NAMES.index(options.channel),
                flow=lay.FLOW_MIN,
                reliability=self.reliability,
                has_network=self.has_network,
                incarnation=1,
                node_name=self.node_name,
                topic_name=topic,
            )
            publication = _Publication(topic, path, mapped, 1000 + number)
            self.publications[number] = publication
            if self.has_network:
                self.allow(number, slots)
            for subscription_id, subscription in self.subscriptions.items():
                if matches(subscription.pattern, topic):
                    self._join(number, subscription_id, position=0)
            return PublicationGrant(
                publication_id=number,
                ring_path=str(path),
                topic=topic,
                session=1000 + number,
                reliability=lay.RELIABILITY_NAMES[self.reliability],
                flow="min",
            )

    def allow(self, publication_id: int, limit: int) -> None:
        """Let the publication open packets below ``limit``, as a sender does."""
        ring = self.publications[publication_id].mapped.array
        ring[lay.NETWORK_LIMIT_AT :][:8].view("i8")[0] = limit

    def set_word(self, publication_id: int, at: int, value: int) -> None:
        """Write one word of a ring's header."""
        self.publications[publication_id].mapped.array[at : at + 8].view("i8")[0] = value

    def _join(
        self, publication_id: int, subscription_id: int, *, position: int, offset: int = 0
    ) -> None:
        publication = self.publications[publication_id]
        options = self.subscriptions[subscription_id].options
        tethered = True if options.tethered is None else options.tethered
        consumer = add_consumer(
            publication.mapped.array,
            position=position,
            offset=offset,
            client=self.client_id,
            doorbell=self.doorbell,
            subscription=subscription_id,
            tethered=tethered,
        )
        publication.consumers[subscription_id] = consumer
        self.push(
            ImageAvailable(
                subscription_id=subscription_id,
                image_id=publication_id,
                ring_path=str(publication.path),
                consumer=consumer,
                topic=publication.topic,
                node=self.node_name,
                session=publication.session,
            )
        )

    def close_publication(self, publication_id: int) -> None:
        self._check()
        with self._lock:
            publication = self.publications[publication_id]
            gone = [
                ImageGone(
                    subscription_id=each,
                    image_id=publication_id,
                    topic=publication.topic,
                    node=self.node_name,
                    session=publication.session,
                    reason="closed",
                )
                for each in publication.consumers
            ]
            if gone:
                self.push(*gone)
            else:
                self._remove(publication_id)

    def open_subscription(self, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        self._check()
        check_pattern(pattern)
        with self._lock:
            number = next(self._ids)
            self.subscriptions[number] = _Subscription(pattern, options)
            for publication_id, publication in self.publications.items():
                if not matches(pattern, publication.topic):
                    continue
                about = describe(publication.mapped.array)
                position, offset = _live_edge(publication.mapped.array)
                if options.start == "earliest":
                    position, offset = max(about.first, about.head - about.slots * 3 // 4), 0
                self._join(publication_id, number, position=position, offset=offset)
            return SubscriptionGrant(
                subscription_id=number, subscriber_id=5000 + number, pattern=pattern
            )

    def close_subscription(self, subscription_id: int) -> None:
        self._check()
        with self._lock:
            self.subscriptions.pop(subscription_id)
            for publication in self.publications.values():
                consumer = publication.consumers.pop(subscription_id, None)
                if consumer is not None:
                    remove_consumer(publication.mapped.array, consumer)

    def release_image(self, subscription_id: int, image_id: int) -> None:
        self._check()
        with self._lock:
            self.released.append((subscription_id, image_id))
            publication = self.publications[image_id]
            consumer = publication.consumers.pop(subscription_id, None)
            if consumer is not None:
                remove_consumer(publication.mapped.array, consumer)
            if not publication.consumers:
                self._remove(image_id)

    def _remove(self, publication_id: int) -> None:
        publication = self.publications.pop(publication_id)
        publication.mapped.unlink()
        publication.mapped.close()

    def take_events(self) -> list[Event]:
        if self.closed:
            raise Closed("the link is closed")
        with self._lock:
            taken, self._events = self._events, []
            return taken

    def open_consumer(self, pattern: str, name: str, options: ConsumerOptions) -> ConsumerGrant:
        raise NotFound(f"no durable topic {pattern}")

    def close_consumer(self, consumer_id: int) -> None:
        raise NotFound(f"no consumer {consumer_id}")

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        raise NotFound(f"no subscription: {action}")

    def sync(self) -> None:
        """See `Link`: what it pushes is there at once."""

    def node_id_of(self, name: str) -> int:
        self._check()
        if name not in self.nodes:
            raise NoResponders(f"no node {name!r}")
        return self.nodes[name]

    def stats(self) -> dict[str, Any]:
        self._check()
        return {"works": self.works}

    def work(self) -> int:
        self.works += 1
        return int(self.work_hook() or 0) if self.work_hook is not None else 0

    def lose(self, reason: str = "killed") -> None:
        """The engine dies; `restart` lets a new one answer."""
        self.refuses = True  # first: a test that sees the loss may call `restart`
        self.lost = True
        self.push(EngineLost(reason=reason))

    def restart(self) -> None:
        """The engine can be reached again."""
        self.refuses = False

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for number in list(self.publications):
            self._remove(number)


class ReconnectingLoopLink(LoopLink):
    """A `LoopLink` that can be lost and found again, like the one to an engine process."""

    reconnects = True

    @property
    def connected(self) -> bool:
        return not self.lost

    def reconnect(self) -> None:
        if self.refuses:
            raise EngineNotRunning("not yet")
        with self._lock:
            self.incarnation += 1
            self.publications.clear()
            self.subscriptions.clear()
            self._events.clear()
            self._new_bells()
            self.lost = False
        self.push(EngineBack(incarnation=self.incarnation))
