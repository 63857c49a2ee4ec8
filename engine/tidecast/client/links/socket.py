"""`Link` to an engine process: over the unix socket in its data directory, rings in shared memory.

When the engine goes away, requests raise ConnectionLost and `take_events` yields `EngineLost`;
`reconnect` begins a new session with a new client id and doorbell, and yields `EngineBack`.
Publications and subscriptions of the old session are gone then: the connection opens them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tidecast.api.frames import socket as frames
from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    Link,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.api.logs import Logs, Report
from tidecast.client.kernels.ports import ring_line
from tidecast.client.links.socket_session import EngineSession
from tidecast.client.log.sources import LocalLogs
from tidecast.native.mapped import Bytes, MappedFile


class SocketLink(EngineSession, Link):
    """See the module, and `Link` for the methods."""

    client_id: int = 0
    node_id: int = 0
    node_name: str = ""
    incarnation: int = 0
    bells: Bytes = np.empty(0, dtype=np.uint8)
    doorbell: int = 0
    reconnects: bool = True

    def __init__(self, data_dir: Path, name: str, token: str | None = None) -> None:
        super().__init__(data_dir, name, token, attach=True)
        try:
            self._reconnected()
        except BaseException:
            self.close()
            raise

    @classmethod
    def connect(cls, data_dir: Path, name: str, token: str | None = None) -> SocketLink:
        """Begin a session. Raises EngineNotRunning, AuthError, Conflict (too many clients)."""
        return cls(data_dir, name, token)

    def _reconnected(self) -> None:
        welcome = self.welcome
        # The old mapping is not unmapped: writers and waiters may hold it until they notice.
        self.bells = MappedFile.open(Path(welcome.bells_path)).array
        self.doorbell = welcome.doorbell
        self.client_id, self.incarnation = welcome.client_id, welcome.incarnation
        self.node_id, self.node_name = welcome.node_id, welcome.node_name

    def _ring(self) -> None:
        if self.bells.size:
            ring_line(self.bells, self.doorbell)

    def open_publication(self, topic: str, options: PublicationOptions) -> PublicationGrant:
        """Create a publication. Raises NotFound, ConfigError, SharedMemoryError."""
        granted: PublicationGrant = self.ask(frames.OpenPublication(topic=topic, options=options))
        return granted

    def begin_publication(self, publication_id: int) -> None:
        """A continued publication's ring holds the messages of the old ring."""
        self.ask(frames.BeginPublication(publication_id=publication_id))

    def close_publication(self, publication_id: int) -> None:
        """Give the publication up; the node sends the rest, then removes it."""
        self.ask(frames.ClosePublication(publication_id=publication_id))

    def open_subscription(self, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        """Subscribe to topics: exact name, or ``*`` one token, ``>`` all tokens that follow."""
        granted: SubscriptionGrant = self.ask(
            frames.OpenSubscription(pattern=pattern, options=options)
        )
        return granted

    def close_subscription(self, subscription_id: int) -> None:
        """End a subscription and free its consumer entries."""
        self.ask(frames.CloseSubscription(subscription_id=subscription_id))

    def release_image(self, subscription_id: int, image_id: int) -> None:
        """The client has drained and unmapped an image that is gone."""
        self.ask(frames.ReleaseImage(subscription_id=subscription_id, image_id=image_id))

    def sync(self) -> None:
        """Wait for all events that the engine reported before."""
        self.ask(frames.Sync())

    def open_consumer(self, pattern: str, name: str, options: ConsumerOptions) -> ConsumerGrant:
        """Join a durable subscription, or make it. Raises NotFound, Conflict, ConfigError."""
        granted: ConsumerGrant = self.ask(
            frames.OpenConsumer(pattern=pattern, name=name, options=options)
        )
        return granted

    def close_consumer(self, consumer_id: int) -> None:
        """Leave; outstanding records go to other members."""
        self.ask(frames.CloseConsumer(consumer_id=consumer_id))

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        """Look at or change durable subscriptions."""
        return self.ask(frames.Administer(action=action, arguments=arguments))

    def open_logs(self, topic: str, report: Report) -> Logs:
        """See `Link`: the files of the data directory. The engine checks the right to read them."""
        self.administer("read_log", {"topic": topic})
        return LocalLogs(self.data_dir, topic, report)

    def node_id_of(self, name: str) -> int:
        """Id of a node by name, for unicast. Raises NoResponders when it is not known."""
        return int(self.ask(frames.NodeIdOf(name=name)))

    def stats(self) -> dict[str, Any]:
        """Counters by entity, see `tidecast.layout.counters`."""
        found: dict[str, Any] = self.ask(frames.Stats())
        return found
