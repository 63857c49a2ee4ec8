"""The parts of a node that admission server and engine process need; `Node` is the real one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.config.topology import FaultSettings, TopicConfig
from tidecast.events import Event


class ConsumersApi(Protocol):
    """Durable subscriptions of a node."""

    def open_consumer(
        self, client_id: int, pattern: str, name: str, options: ConsumerOptions
    ) -> ConsumerGrant:
        """See `Link`."""

    def close_consumer(self, client_id: int, consumer_id: int) -> None:
        """See `Link`."""

    def perform(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link.administer`."""


class KafkaApi(Protocol):
    """Clients and groups of a node's Kafka endpoint, if it has one."""

    def perform(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link.administer`. Raises NotFound without an endpoint."""


class PeerAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A node to which a unicast transport sends: ``host`` is an IPv4 address."""

    node: str
    node_id: int
    host: str
    port: int

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.host}:{self.port}"


class LeftBehind(msgspec.Struct, frozen=True, kw_only=True):
    """The messages that live publications held unsent when their engine stopped.

    ``waiting_messages`` of ``publications`` lie in rings of publishers that look for the next
    engine, or are kept by clients of the gateway; ``lost_messages`` lie in rings of others.
    """

    publications: int = 0
    waiting_messages: int = 0
    lost_messages: int = 0


class NodeApi(Protocol):
    """A node. Every method may be called from any thread and raises TidecastError."""

    id: int
    name: str
    incarnation: int
    bells_path: Path
    counters_path: Path
    recorder_path: Path
    left_behind: LeftBehind
    """After `stop`."""

    @property
    def level(self) -> int:
        """The level of the cluster: the formats that this node writes."""

    @property
    def consumers(self) -> ConsumersApi:
        """Durable subscriptions."""

    @property
    def kafka(self) -> KafkaApi:
        """The Kafka endpoint."""

    def start(self) -> None:
        """Open sockets and start the agents. Raises Conflict, ConfigError, SharedMemoryError."""

    def stop(self) -> None:
        """Stop the agents, announce the end of all sessions, remove the shared memory."""

    def attach(self, name: str, *, outlives: bool = False) -> int:
        """A new client. Raises Conflict when there are too many.

        ``outlives``: it runs in a process of its own, and looks for the next engine.
        """

    def end(self) -> None:
        """The engine ends: clients that outlive it keep their publications."""

    def client_gone(self, client_id: int) -> None:
        """Release whatever the client held. Idempotent."""

    def doorbell(self, client_id: int) -> int:
        """The client's line in the doorbell file."""

    def open_publication(
        self, client_id: int, topic: str, options: PublicationOptions
    ) -> PublicationGrant:
        """See `Link`."""

    def begin_publication(self, client_id: int, publication_id: int) -> None:
        """See `Link`."""

    def keep_publication(self, client_id: int, publication_id: int) -> None:
        """See `Link`."""

    def close_publication(self, client_id: int, publication_id: int) -> None:
        """See `Link`."""

    def open_subscription(
        self, client_id: int, pattern: str, options: SubscriptionOptions
    ) -> SubscriptionGrant:
        """See `Link`."""

    def close_subscription(self, client_id: int, subscription_id: int) -> None:
        """See `Link`."""

    def release_image(self, client_id: int, subscription_id: int, image_id: int) -> None:
        """See `Link`."""

    def take_events(self, client_id: int) -> list[Event]:
        """See `Link`."""

    def discovered(self) -> list[dict[str, Any]]:
        """One mapping a peer of a unicast transport that the control service named."""

    def set_events_hook(self, hook: Callable[[int], None] | None) -> None:
        """Call ``hook(client id)``, from any thread, when `take_events` has something for it."""

    def node_id_of(self, name: str) -> int:
        """See `Link`."""

    def stats(self) -> dict[str, Any]:
        """Counters by entity."""

    def publications(self) -> list[dict[str, Any]]:
        """One mapping a publication."""

    def images(self) -> list[dict[str, Any]]:
        """One mapping an image."""

    def receivers(self) -> list[dict[str, Any]]:
        """One mapping a receiver of a publication of this node."""

    def topics(self) -> list[TopicConfig]:
        """All topics, those made on first use included."""

    def create_topic(self, topic: TopicConfig) -> None:
        """Raises Conflict, ConfigError."""

    def edit_topic(self, name: str, changes: dict[str, Any]) -> None:
        """Change live settings. Raises NotFound, ConfigError."""

    def delete_topic(self, name: str, *, keep_data: bool = False) -> None:
        """Raises NotFound. ``keep_data``: a durable topic's files stay."""

    def set_faults(self, transport: str, faults: FaultSettings) -> None:
        """Raises NotFound, ConfigError when the transport does not allow faults."""

    def get_faults(self) -> dict[str, FaultSettings]:
        """Fault injection by transport."""
