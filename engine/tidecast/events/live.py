"""Events of live publications, subscriptions and requests."""

from __future__ import annotations

from tidecast.events.base import Event


class ImageAvailable(Event, frozen=True):
    """A subscription can read a publication: map ``ring_path`` and poll consumer ``consumer``."""

    subscription_id: int
    image_id: int
    ring_path: str
    consumer: int
    topic: str
    node: str
    session: int


class ImageGone(Event, frozen=True):
    """A publication that a subscription reads ended. Reason: closed, timeout, restarted."""

    subscription_id: int
    image_id: int
    topic: str
    node: str
    session: int
    reason: str


class Gap(Event, frozen=True):
    """Packets [first, end) of a session are lost for good for this subscription.

    ``reason``: ``lost`` (no node holds them any more), ``lapped`` (the subscription was too slow
    and slows no publisher down), ``malformed`` (the content cannot be parsed), ``ended`` (the
    session ended, or fell silent, before they came), ``reconnect`` (missed while the engine was
    away). Each lost packet is in exactly one gap of a subscription.
    """

    topic: str
    node: str
    session: int
    first: int
    end: int
    reason: str = "lost"


class ReceiverJoined(Event, frozen=True):
    """A receiver of a publication of this node was seen for the first time."""

    topic: str
    session: int
    receiver: int
    node_id: int
    node: str = ""


class ReceiverTimeout(Event, frozen=True):
    """A receiver was dropped.

    ``reason``: ``stuck`` (it held the publication back too long), ``silent``, or ``removed`` (its
    node is quarantined, is no peer of this transport any more, or has moved).
    """

    topic: str
    session: int
    receiver: int
    node_id: int
    reason: str
    node: str = ""


class SubscriberEvicted(Event, frozen=True):
    """A local subscriber held a ring back too long, or fell a whole ring behind; it rejoins."""

    topic: str
    session: int
    subscription_id: int
    behind_packets: int


class TopicConflict(Event, frozen=True):
    """A peer uses this topic id for another topic, or another packet size or reliability."""

    topic: str
    node: str
    detail: str


class SetupNotUnderstood(Event, frozen=True):
    """A publisher on another node uses a field of a level that this engine does not read.

    Its session is refused: nothing of it is delivered here. Install the version of that node here.
    """

    topic: str
    node: str
    session: int
    field: int


class MessagesDropped(Event, frozen=True):
    """A publisher with ``on_full="drop"`` dropped messages since the event before."""

    topic: str
    session: int
    messages: int


class MessagesUnsent(Event, frozen=True):
    """A live publication is gone with messages in its ring that were not sent to other nodes.

    Its topic was deleted or recreated and its writer did not stop; or it was closed and a rate
    limit or a receiver held it back for half a minute, or until the engine stopped; or it lost its
    engine, and was closed before the next one came, or the next one could not continue it.

    A publisher behind a gateway that can never open it again reports the most that may be unsent.
    """

    topic: str
    session: int
    messages: int
    bytes: int


class PublisherUnheard(Event, frozen=True):
    """A publisher's transport sends to no other node: ``mend`` has the remedy."""

    topic: str
    session: int
    transport: str
    mend: str


class PublisherRefused(Event, frozen=True):
    """No memory here for the ring of a publisher on another node; it is tried again.

    Durable messages wait for it. On other topics a gap reports packets that history did not keep.
    """

    topic: str
    node: str
    session: int
    bytes: int
    detail: str


class PublicationEnded(Event, frozen=True):
    """A publisher cannot continue: why, as the error that its next call raises."""

    topic: str
    session: int
    code: str
    reason: str


class SubscriptionEnded(Event, frozen=True, kw_only=True):
    """A live subscription cannot continue; with the error that its iterator raises.

    For example, its topic was deleted. Messages that had arrived before can still be read.
    """

    subscription_id: int
    pattern: str
    code: str
    reason: str


class PayloadInvalid(Event, frozen=True):
    """A message of a typed topic could not be decoded to its type, see `tidecast.Topic`.

    ``fate``: ``term`` (given up: a dead letter), ``nak`` (delivered again), ``skip`` (live topics),
    or ``raise`` (the program gets the error).
    """

    topic: str
    subscription: str
    fate: str
    detail: str


class RepliesDropped(Event, frozen=True):
    """Replies that no request of this client waits for, since the event before.

    ``reason``: ``late`` (its request has timed out or was given up), ``foreign`` (it answers none
    of this client's requests), ``lapped`` (they were overwritten before this client read them;
    ``replies`` counts packets then).
    """

    topic: str
    replies: int
    reason: str


class RequestRefused(Event, frozen=True):
    """A responder's handler raised: the requester got the error as its reply."""

    topic: str
    kind: str
    detail: str


LiveEvent = (
    ImageAvailable
    | ImageGone
    | Gap
    | ReceiverJoined
    | ReceiverTimeout
    | SubscriberEvicted
    | TopicConflict
    | SetupNotUnderstood
    | MessagesDropped
    | MessagesUnsent
    | PublisherUnheard
    | PublisherRefused
    | PublicationEnded
    | SubscriptionEnded
    | PayloadInvalid
    | RepliesDropped
    | RequestRefused
)
