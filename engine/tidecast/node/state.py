"""What the node keeps in mind about clients, publications, subscriptions, images and peers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tidecast.api.link import Continued, SubscriptionOptions
from tidecast.buffers.ring_file import RingInfo, describe
from tidecast.config.topology import TopicConfig
from tidecast.errors import SharedMemoryError
from tidecast.events import Event
from tidecast.layout.ring import HEAD_AT
from tidecast.native.mapped import MappedFile
from tidecast.node.live.transports import TransportRuntime

EVENTS_KEPT_MAX = 10_000


@dataclass(slots=True)
class Client:
    """An attached client."""

    id: int
    name: str
    doorbell: int
    of_engine: bool = False
    outlives: bool = False
    """It runs in a process of its own, and looks for the next engine when this one ends."""
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT_MAX))
    publications: set[int] = field(default_factory=set)
    subscriptions: set[int] = field(default_factory=set)


class OwnRing:
    """A ring that this node made and clients map: they may write anything into it.

    What is constant in its header is kept here, so that a client that scribbles harms its own
    messages only.
    """

    mapped: MappedFile
    constant: bytes

    def about(self) -> RingInfo:
        """`describe` with the geometry that the ring was made with."""
        try:
            return describe(self.mapped.array)
        except SharedMemoryError:
            self.mapped.array[: len(self.constant)] = np.frombuffer(self.constant, dtype=np.uint8)
            return describe(self.mapped.array)


def _constant(mapped: MappedFile) -> bytes:
    return bytes(mapped.array[:HEAD_AT])


@dataclass(slots=True)
class Held:
    """An entry that holds a continued publication's writer back; see `node.live.continuation`."""

    entry: int
    until_s: float
    missing: int
    """Subscriptions that have yet to come back."""


@dataclass(slots=True)
class Publication(OwnRing):
    """A local publication: its ring, and its place at the sender (-1: no network)."""

    id: int
    client: int
    topic: TopicConfig
    session: int
    mapped: MappedFile
    runtime: TransportRuntime | None
    slot: int = -1
    row: int = -1
    resent: np.ndarray | None = None
    closing: bool = False
    drained: bool = False
    closed_s: float = 0.0
    ending_s: float = 0.0
    """Its topic is gone: when it is closed if its writer has not done that; 0: it is not."""
    released: bool = False
    """Its writer knows of the end, or is gone itself."""
    readers: dict[int, int] = field(default_factory=dict)
    """Subscription id -> consumer entry."""
    watch: dict[int, tuple[int, float]] = field(default_factory=dict)
    constant: bytes = b""
    source: int = -1
    """Row at the archiver while it still reads this ring (durable topics)."""
    remote: int = -1
    """Durable, and another node keeps it: entry in the ring that its ACKs move; else -1."""
    began_ns: int = 0
    """When it was made."""
    leftover: bool = False
    """Of a dead engine: sent on until it is acked."""
    continues: Continued | None = None
    """A live session that began at an earlier engine."""
    begun: bool = True
    """Not yet: its client copies what the old ring held."""
    left: bool = False
    """The engine stops, and its client keeps it."""
    held: Held | None = None

    def __post_init__(self) -> None:
        self.constant = _constant(self.mapped)


@dataclass(slots=True)
class Subscription:
    """A subscription of a client, to one or more topics."""

    id: int
    client: int
    pattern: str
    options: SubscriptionOptions
    created_ns: int
    told: bool = False
    """Its topic is gone, and its client was told."""


@dataclass(slots=True)
class Image(OwnRing):
    """A remote publication as this node receives it."""

    id: int
    session: int
    mode: str
    topic: TopicConfig
    node_id: int
    node_name: str
    incarnation: int
    mapped: MappedFile
    runtime: TransportRuntime
    slot: int
    row: int
    readers: dict[int, int] = field(default_factory=dict)
    gone: str = ""
    gone_s: float = 0.0
    watch: dict[int, tuple[int, float]] = field(default_factory=dict)
    constant: bytes = b""
    live_seq: int = 0
    """The publisher's live edge when the image was made."""
    history_slots: int = 0
    """Packets that the publisher's ring holds."""
    began_ns: int = 0
    """When its publication was made."""
    silent_ns: int = 0
    """When it was heard last before its silence was reported; 0: it was not."""
    superseded_ns: int = 0
    """When its node was found to have restarted; 0: it was not, or the session continues there."""

    def __post_init__(self) -> None:
        self.constant = _constant(self.mapped)


@dataclass(slots=True)
class Peer:
    """Another node, as its SETUP packets introduce it."""

    id: int
    name: str
    incarnation: int
    heard_ns: int
    hosts: dict[str, int]
    """Where it is heard from, by transport (`tidecast.node.transports.host_of`)."""
