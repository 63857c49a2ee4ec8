"""What the node keeps in mind about clients, publications, subscriptions, images and peers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from tidecast.client.link import SubscriptionOptions
from tidecast.config import TopicConfig
from tidecast.events import Event
from tidecast.native.mapped import MappedFile
from tidecast.node.transports import TransportRuntime

EVENTS_KEPT_MAX = 10_000


@dataclass(slots=True)
class Client:
    """An attached client."""

    id: int
    name: str
    doorbell: int
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_KEPT_MAX))
    publications: set[int] = field(default_factory=set)
    subscriptions: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Publication:
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
    readers: dict[int, int] = field(default_factory=dict)
    """Subscription id -> consumer entry."""
    watch: dict[int, tuple[int, float]] = field(default_factory=dict)


@dataclass(slots=True)
class Subscription:
    """A subscription of a client, to one or more topics."""

    id: int
    client: int
    pattern: str
    options: SubscriptionOptions
    created_ns: int


@dataclass(slots=True)
class Image:
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


@dataclass(slots=True)
class Peer:
    """Another node, as its SETUP packets introduce it."""

    id: int
    name: str
    incarnation: int
    heard_s: float
