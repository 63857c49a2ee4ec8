"""How a client reaches a node: the one interface behind all connections.

`EmbeddedLink` calls a node in this process, `SocketLink` an engine process over a unix socket,
`RemoteLink` a gateway over a websocket, `SimulatedLink` a node of a simulated network. Each is a
subclass of `Link`, so mypy checks it against the whole contract. Messages never pass through here:
they lie in rings that the client maps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import msgspec

from tidecast.api.logs import Logs, Report
from tidecast.api.renamed import Cursors
from tidecast.config.topology import RING_BYTES_MAX, Count, LingerUs
from tidecast.errors import ConfigError, ConnectionLost, NotFound, TidecastError
from tidecast.events import Event, Gap
from tidecast.layout.packet import MESSAGE_BYTES_MAX
from tidecast.native.mapped import Bytes

RESUME_MAX, AGE_S_MAX = 8192, 366 * 86_400.0
"""Sessions that a subscription remembers and asks for, and longer than any is remembered."""


class Continued(msgspec.Struct, frozen=True, kw_only=True):
    """Live topics: the session that a publisher continues after it lost its engine.

    ``incarnation``: of the engine that made its ring. ``topic``, ``slots``, ``slot_bytes``: of
    that ring. It holds packets from ``first`` (its first ever) to ``head``; packets from
    ``sent`` on were not sent. ``readers``: subscriptions of the node that it holds packets for.
    ``age_s``: since the session began.
    """

    session: int
    incarnation: int
    topic: int
    slots: int
    slot_bytes: int
    first: int
    head: int
    sent: int
    readers: int
    age_s: float


RingSize = Annotated[int, msgspec.Meta(ge=1, le=RING_BYTES_MAX)]
"""Of one publisher or subscriber: the ring has at least 16 packets."""


class PublicationOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A publisher's choices; None = the topic's setting."""

    channel: str = "ordinary"
    history_bytes: RingSize | None = None
    linger_us: LingerUs | None = None
    rate_packets_per_s: Count | None = None
    rate_bytes_per_s: Count | None = None
    producer: str = ""
    """Durable topics: the name of the producer; a newer session by the same name fences this."""
    producer_id: int = 0
    """Durable topics: continues a session that was lost; see `PublicationGrant`."""
    first_seq: int | None = None
    """Durable topics: sequence of the first message; None: behind the last known message."""
    line: int = 0
    """Durable topics: first session of a publisher that continues after it has lost its engine."""
    after: int = 0
    """Then: the newest epoch that it had."""
    continues: Continued | None = None
    """Live topics: continues a session whose engine was lost, if the node can."""


class SubscriptionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A subscriber's choices. ``start``: latest or earliest (as far as history reaches).

    ``tethered``: None = the topic's flow control decides; False = may be lapped, never holds back.
    """

    start: str = "latest"
    receive_bytes: RingSize | None = None
    tethered: bool | None = None
    resume: Annotated[dict[int, int], msgspec.Meta(max_length=RESUME_MAX)] = {}
    """Of a subscription that lost its engine: by session, the packet at which it continues."""
    age_s: Annotated[float, msgspec.Meta(ge=0, le=AGE_S_MAX)] = msgspec.field(
        default=0.0, name="away_s"
    )
    """For how long the subscription exists. It reads other, younger publications from their
    beginning."""


class PublicationGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A publication that the node made. The client is the only writer of the ring."""

    publication_id: int
    ring_path: str
    topic: str
    session: int
    reliability: str
    flow: str
    continued: bool = False
    """It has the requested session. The client copies its old ring into this ring and calls
    `Link.begin_publication`; the ring is not read or sent before."""
    on_full: str = "block"
    """The topic's setting for a full ring; a publisher may choose otherwise."""
    durable: bool = False
    """The topic keeps its messages; the fields below belong to it."""
    producer_id: int = 0
    epoch: int = 0
    first_seq: int = 1
    """Sequence of the ring's first message."""
    acked_seq: int = 0
    """All of the producer up to here was durable, as far as the engine remembers."""
    last_seq: int = 0
    """The producer's highest sequence in any queue."""
    owner: str = ""
    """The node that keeps the topic, if another: fields above are 0 until it answers."""
    message_bytes_max: int = MESSAGE_BYTES_MAX
    """The most bytes of a message that the link carries, with key and headers."""


class SubscriptionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription that the node made; `ImageAvailable` events follow for it.

    A publisher addresses messages to ``subscriber_id``.
    """

    subscription_id: int
    subscriber_id: int
    pattern: str


class ConsumerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer's choices. None: as the subscription has it, else the default.

    ``start``: earliest, latest, time (``start_time_ns``, since 1970) or tokens (``start_tokens``,
    by queue; other queues: earliest). It counts when the subscription is made.
    """

    start: str = "earliest"
    start_time_ns: int = 0
    start_tokens: dict[int, int] = {}
    ack_wait_s: float | None = None
    max_deliver: int | None = None
    dead_letter: str | None = None
    key_pattern: str | None = None
    headers: dict[str, str] | None = None
    max_in_flight: int = 500
    max_bytes_in_flight: int = 64 << 20
    ring_bytes: int = 1 << 20
    where: str | None = None
    """A filter's text, see `tidecast.queues.filters.where`."""
    filter_digest: str | None = None
    """Names a compiled filter that was offered to an engine in this process."""
    may_create: ClassVar[bool] = True


class JoinOptions(ConsumerOptions, frozen=True, kw_only=True):
    """Options of a consumer that may join a subscription, not create one. Never on the wire."""

    may_create: ClassVar[bool] = False


class ConsumerGrant(Cursors, frozen=True, kw_only=True):
    """A member of a durable subscription. The position is fixed when this is given."""

    consumer_id: int
    member: int
    ring_path: str
    wakes_path: str
    pattern: str
    name: str
    ack_wait_s: float
    max_deliver: int
    dead_letter: str


@runtime_checkable
class Link(Protocol):
    """A session with a node. Methods are safe to call from any thread and raise TidecastError.

    Implementations inherit from it. A body here is the behaviour of a link that lacks the
    capability: most links cannot be lost, continue no publication, and take no compiled filters.
    """

    client_id: int
    node_id: int
    node_name: str
    incarnation: int
    bells: Bytes
    """The node's doorbell file."""
    doorbell: int
    """This client's line in it (index; the futex word is at ``doorbell * DOORBELL_BYTES``)."""
    inline: bool = False
    """True: agents run only inside `work`; a waiting caller must call it instead of sleeping."""
    remote: bool = False
    """True: the node is on another host, behind a gateway."""
    of_engine: bool = False
    """True: its publishers may write the headers that the engine reserves."""
    reconnects: bool = False
    """True: after `EngineLost`, `reconnect` begins a session with the next engine."""
    refusal: TidecastError | None = None
    """Why the link will never be connected again, if that is so."""

    @property
    def agents(self) -> tuple[Any, Any] | None:
        """(kernel, arguments) to run inline agents from compiled code, or None."""
        return None

    @property
    def connected(self) -> bool:
        """The node, or the gateway to it, is there."""
        return True

    def reconnect(self) -> None:
        """Begin a session with the next engine; nothing is open in it. Raises ConnectionLost."""
        raise ConnectionLost("this link cannot reconnect")

    def on_lost(self, notify: Callable[[], None]) -> None:
        """Call ``notify``, from any thread, when the engine is lost. Only if it `reconnects`."""
        del notify

    def open_publication(self, topic: str, options: PublicationOptions) -> PublicationGrant:
        """Create a publication. Raises NotFound, ConfigError, SharedMemoryError."""

    def begin_publication(self, publication_id: int) -> None:
        """A continued publication's ring holds the messages of the old ring: read and send it."""
        raise NotFound(f"publication {publication_id} continues no session")

    def keep_publication(self, publication_id: int) -> None:
        """The engine stops: another place keeps the unsent messages, and sends them again.

        Raises NotFound.
        """
        raise NotFound(f"publication {publication_id}: this link keeps none for the next engine")

    def close_publication(self, publication_id: int) -> None:
        """Give the publication up; the node sends the rest, then removes it."""

    def open_subscription(self, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        """Subscribe to topics: exact name, or ``*`` one token, ``>`` all tokens that follow."""

    def close_subscription(self, subscription_id: int) -> None:
        """End a subscription and free its consumer entries."""

    def subscriber_of(self, subscription_id: int) -> int | None:
        """The id that messages to a subscription name, if the link gave it another one since."""
        del subscription_id
        return None

    def release_image(self, subscription_id: int, image_id: int) -> None:
        """The client has drained and unmapped an image that is gone."""

    def true_gap(self, subscription_id: int, image_id: int, gap: Gap) -> Gap:
        """A gap in a ring of this client, in the packet numbers of its publisher."""
        del subscription_id, image_id
        return gap

    def take_events(self) -> list[Event]:
        """Events since the call before; never blocks. The doorbell rings when there are some."""

    def sync(self) -> None:
        """Wait for all events of the engine up to now: `take_events` has them then.

        Through a gateway it does not wait: these events take as long as the network.
        """

    def open_consumer(self, pattern: str, name: str, options: ConsumerOptions) -> ConsumerGrant:
        """Join a durable subscription, or make it. Raises NotFound, Conflict, ConfigError."""

    def close_consumer(self, consumer_id: int) -> None:
        """Leave; outstanding records go to other members."""

    def consumer_grant(self, consumer_id: int) -> ConsumerGrant:
        """The new grant of a consumer that the link joined again; see `ConsumerRejoined`."""
        raise NotFound(f"consumer {consumer_id} was not joined again")

    def offer_filter(self, function: Callable[[Any, Any, int], bool]) -> str:
        """Compile a filter of (key, value, timestamp); consumers name it by the digest returned.

        Raises ConfigError.
        """
        del function
        raise ConfigError(
            "where: a compiled function runs in the engine's process, and this engine is another "
            'one: give a text, where="size > 100", or connect to "embedded://..."'
        )

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        """Look at or change topics and durable subscriptions.

        See `tidecast.node.administration` and `tidecast.node.consumers.admin`.
        """

    def open_logs(self, topic: str, report: Report) -> Logs:
        """The queues of a durable topic, to read them without a subscription.

        ``report`` gets the ranges that retention deleted meanwhile. The logs ask when they are
        read: see `Logs` for the errors.
        """
        del report
        raise NotFound(f"topic {topic}: this connection reads no logs")

    def node_id_of(self, name: str) -> int:
        """Id of a node by name, for unicast. Raises NoResponders when it is not known."""

    def stats(self) -> dict[str, Any]:
        """Counters by entity, see `tidecast.layout.counters`."""

    def now_s(self) -> float:
        """The node's clock, monotonic; of a simulated network its virtual time."""
        return time.monotonic()

    def wall_ns(self) -> int:
        """Time of day, ns since 1970; of a simulated network by its virtual clock."""
        return time.time_ns()

    def work(self) -> int:
        """Run the agents once (inline only; else 0). Returns how much was done."""
        return 0

    def close(self) -> None:
        """End the session: publications close, subscriptions end. Idempotent."""
