"""Events of transports: peers, paths, keys, and packets that were refused."""

from __future__ import annotations

from tidecast.events.base import Event


class PeerJoined(Event, frozen=True):
    """A node was seen for the first time, or in a new incarnation."""

    node: str
    node_id: int
    incarnation: int


class PeerTimeout(Event, frozen=True):
    """Nothing was heard from a node's session for the image time-out."""

    node: str
    topic: str
    session: int


class PeerSilent(Event, frozen=True):
    """A discovered peer of a unicast transport is not heard: it is down, or cut off.

    Its engine sends a beacon each second, also when it publishes nothing. ``silence_s``: since it
    was heard, or since it is a peer if it was never heard. ``address``: where this engine sends.
    """

    transport: str
    node: str
    node_id: int
    address: str
    silence_s: float


class PeerHeard(Event, frozen=True):
    """A discovered peer that was silent is heard again."""

    transport: str
    node: str
    node_id: int
    address: str


class PathNarrow(Event, frozen=True):
    """IP packets of ``wire_bytes`` to a target are longer than ``mtu``: they become fragments."""

    transport: str
    address: str
    wire_bytes: int
    mtu: int
    packet_bytes_max: int


class SendsRefused(Event, frozen=True):
    """The kernel refused sends of a transport, the last one to ``address``. At most one in 10 s."""

    transport: str
    address: str
    error: str
    sends: int
    wire_bytes: int
    mtu: int


class StaleIncarnation(Event, frozen=True):
    """Packets of an incarnation that was replaced were refused."""

    node_id: int
    incarnation: int


class NodeConflict(Event, frozen=True):
    """Two living nodes use the same node id, or a node claims to start in the future."""

    node_id: int
    names: tuple[str, str]


class ForeignPackets(Event, frozen=True):
    """Packets that claim to be of a session came from another address, and were refused.

    At most one a second of each agent; the counter FOREIGN_ADDRESS has all. A host that changed its
    address is heard again once its old address has been silent for the time-out.
    """

    transport: str
    session: int
    node_id: int
    address: str


class ForeignPlatform(Event, frozen=True):
    """A node of another platform sends to this platform's group and port: its packets are refused.

    Once for each such node; the counter FOREIGN_PLATFORM has all. Give either platform another
    `group` or `port`; or, to make one platform of them, the same `platform` (see docs/TUNING.md).
    """

    transport: str
    node: str
    platform: str
    address: str


class WireKeyActive(Event, frozen=True):
    """This node seals the packets of a transport under an epoch from now on."""

    transport: str
    epoch: int


class WireKeyMissing(Event, frozen=True):
    """A key of a sealed transport is missing; at most one each ten seconds of each node.

    ``node_id`` 0: this node's own keys: it sends nothing (`required`), or plain packets until its
    first epoch is active (`optional`). Else packets of that node, from ``address``, are refused.
    """

    transport: str
    node_id: int
    epoch: int
    address: str
    reason: str


class WireForgery(Event, frozen=True):
    """A packet at a sealed transport is not authentic, and was refused.

    At most one a second of each agent; the counters TAG_FAILED and PLAIN_REFUSED have all.
    ``node_id``: the node that it claims to be from. ``reason``: ``tag`` (forged, damaged, or sealed
    with another secret), ``plain`` (not sealed, where `secure: required` is set).
    """

    transport: str
    node_id: int
    address: str
    reason: str


TransportEvent = (
    PeerJoined
    | PeerTimeout
    | PeerSilent
    | PeerHeard
    | PathNarrow
    | SendsRefused
    | StaleIncarnation
    | NodeConflict
    | ForeignPackets
    | ForeignPlatform
    | WireKeyActive
    | WireKeyMissing
    | WireForgery
)
