"""The frames between a client and an engine process over the unix socket.

A frame is a little-endian u32 length and that many bytes of MessagePack. The client sends
`Request`; the engine answers each with one `Reply` of the same id, in any order, and pushes
`Events` and one `Goodbye` at will. Only the control of a session passes here, never messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidecast.api.frames.common import HEAD, Goodbye, Reply, Working, encoder
from tidecast.api.levels import FIRST, UNSAID, protocol_of
from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.config.topology import FaultSettings
from tidecast.errors import ConfigError
from tidecast.events import AnyEvent

FRAME_BYTES_MAX = 32 << 20
EVENTS_PUSHED_MAX = 256
"""Events a push; the next push waits until the client has taken them."""


class Body(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of a client's requests. `RESULTS` has the kind of answer of each."""


class Hello(Body, frozen=True, kw_only=True):
    """First of all. ``attach``: with a doorbell, for publishing and subscribing.

    ``levels``: lowest and highest that the client reads, see `api.levels`; ``protocol``: of the
    lowest.
    """

    name: str
    token: str | None = None
    attach: bool = True
    protocol: int = protocol_of("socket")
    levels: tuple[int, int] = UNSAID
    version: str = ""
    working: bool = False
    """The client understands `Working`."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's answer. ``client_id`` and ``doorbell`` are 0 for clients that did not attach.

    ``level``: that both speak.
    """

    client_id: int
    doorbell: int
    bells_path: str
    node_id: int
    node_name: str
    incarnation: int
    engine_pid: int
    counters_path: str
    recorder_path: str
    version: str
    level: int = FIRST


class OpenPublication(Body, frozen=True, kw_only=True):
    """See `Link.open_publication`."""

    topic: str
    options: PublicationOptions


class BeginPublication(Body, frozen=True, kw_only=True):
    """See `Link.begin_publication`."""

    publication_id: int


class ClosePublication(Body, frozen=True, kw_only=True):
    """See `Link.close_publication`."""

    publication_id: int


class OpenSubscription(Body, frozen=True, kw_only=True):
    """See `Link.open_subscription`."""

    pattern: str
    options: SubscriptionOptions


class CloseSubscription(Body, frozen=True, kw_only=True):
    """See `Link.close_subscription`."""

    subscription_id: int


class ReleaseImage(Body, frozen=True, kw_only=True):
    """See `Link.release_image`."""

    subscription_id: int
    image_id: int


class EventsTaken(Body, frozen=True, kw_only=True):
    """The client has taken the events of the last push; it wants no reply (request id 0)."""


class Sync(Body, frozen=True, kw_only=True):
    """See `Link.sync`: events are pushed before the reply."""


class OpenConsumer(Body, frozen=True, kw_only=True):
    """See `Link.open_consumer`."""

    pattern: str
    name: str
    options: ConsumerOptions


class CloseConsumer(Body, frozen=True, kw_only=True):
    """See `Link.close_consumer`."""

    consumer_id: int


class Administer(Body, frozen=True, kw_only=True):
    """See `Link.administer`."""

    action: str
    arguments: dict[str, Any]


class NodeIdOf(Body, frozen=True, kw_only=True):
    """See `Link.node_id_of`."""

    name: str


class Stats(Body, frozen=True, kw_only=True):
    """See `Link.stats`."""


class Overview(Body, frozen=True, kw_only=True):
    """The publications, images and receivers of the node."""


class OverviewResult(msgspec.Struct, frozen=True, kw_only=True):
    """One mapping an entity."""

    publications: list[dict[str, Any]]
    images: list[dict[str, Any]]
    receivers: list[dict[str, Any]]
    peers: list[dict[str, Any]] = []


class SetFaults(Body, frozen=True, kw_only=True):
    """Switch fault injection of a transport; settings of zero switch it off."""

    transport: str
    faults: FaultSettings


class GetFaults(Body, frozen=True, kw_only=True):
    """Fault injection by transport."""


AnyBody = (
    Hello | OpenPublication | BeginPublication | ClosePublication | OpenSubscription
    | CloseSubscription
    | ReleaseImage | EventsTaken | Sync | NodeIdOf | Stats | Overview | SetFaults | GetFaults
    | OpenConsumer | CloseConsumer | Administer
)  # fmt: skip

RESULTS: dict[type[Body], Any] = {
    Hello: Welcome,
    OpenPublication: PublicationGrant,
    BeginPublication: None,
    ClosePublication: None,
    OpenSubscription: SubscriptionGrant,
    CloseSubscription: None,
    ReleaseImage: None,
    Sync: None,
    OpenConsumer: ConsumerGrant,
    CloseConsumer: None,
    Administer: Any,
    NodeIdOf: int,
    Stats: dict[str, Any],
    Overview: OverviewResult,
    SetFaults: None,
    GetFaults: dict[str, FaultSettings],
}


UNDO: dict[type[Body], Callable[[Any], Body]] = {
    OpenPublication: lambda grant: ClosePublication(publication_id=grant.publication_id),
    OpenSubscription: lambda grant: CloseSubscription(subscription_id=grant.subscription_id),
    OpenConsumer: lambda grant: CloseConsumer(consumer_id=grant.consumer_id),
}
"""The frames that close a grant that came after its client had given up."""


class Request(msgspec.Struct, frozen=True):
    """One question. ``id`` 0 wants no reply."""

    id: int
    body: AnyBody


class Events(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Events since the push before, oldest first."""

    events: list[AnyEvent]


FromEngine = Reply | Working | Events | Goodbye

_request_decoder = msgspec.msgpack.Decoder(Request)
_engine_decoder = msgspec.msgpack.Decoder(FromEngine)


def frame(message: Request | FromEngine) -> bytes:
    """A message with its length in front. Raises ConfigError when it is too long."""
    content = encoder.encode(message)
    if len(content) > FRAME_BYTES_MAX:
        raise ConfigError(
            f"a control message of {len(content)} bytes: allowed {FRAME_BYTES_MAX} bytes"
        )
    return HEAD.pack(len(content)) + content


def decode_request(content: bytes) -> Request:
    """Raises msgspec.DecodeError when it is not a request."""
    return _request_decoder.decode(content)


def decode_from_engine(content: bytes) -> FromEngine:
    """Raises msgspec.DecodeError when it is none of them."""
    return _engine_decoder.decode(content)
