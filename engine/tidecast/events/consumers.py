"""Events of durable subscriptions and their consumers."""

from __future__ import annotations

from tidecast.events.base import Event


class ConsumerStandsBy(Event, frozen=True):
    """A consumer was opened at an engine that does not have the queues now.

    It gets records once this engine has taken them, from where the subscription is then.
    ``owner``: the node that has them, "": no node.
    """

    topic: str
    subscription: str
    owner: str


class ConsumerExpelled(Event, frozen=True):
    """A consumer gets nothing more: its subscription is deleted, or it damaged its ring."""

    topic: str
    subscription: str
    consumer_id: int
    reason: str


class ConsumerLeft(Event, frozen=True):
    """The client of a consumer died, or left without closing it: others get its records.

    ``members``: how many the subscription has now.
    """

    topic: str
    subscription: str
    consumer_id: int
    members: int


class ConsumerRejoined(Event, frozen=True):
    """A remote consumer joined its subscription again: its gateway had given its place up.

    Records that it had and did not ack come again.
    """

    topic: str
    subscription: str
    consumer_id: int


class RecordsGone(Event, frozen=True):
    """Retention deleted records [first, end) of a queue before a subscription came to them."""

    topic: str
    queue: int
    first: int
    end: int
    subscription: str


class RecordsCancelled(Event, frozen=True):
    """Records of a queue were cancelled before their delivery time: they are never delivered."""

    topic: str
    queue: int
    subscription: str
    records: int


class MessageDropped(Event, frozen=True):
    """A record was delivered too often, or refused, and its subscription has no dead letters."""

    topic: str
    queue: int
    token: int
    subscription: str
    attempts: int
    reason: str


class MessageDead(Event, frozen=True):
    """A record was delivered too often, or refused: it lies in the dead-letter topic."""

    topic: str
    queue: int
    token: int
    subscription: str
    attempts: int
    reason: str
    dead_letter: str


class DeadLetterNotStored(Event, frozen=True):
    """A record that is given up cannot be stored in the dead-letter topic; that is tried again."""

    topic: str
    queue: int
    token: int
    subscription: str
    dead_letter: str
    detail: str


class SubscriptionDamaged(Event, frozen=True):
    """The file of a subscription is not sound: it was set aside, and its positions are not known.

    The subscription is not served, and retention keeps records that it may need, until the file is
    restored or the subscription deleted. Clients that connect later get the event, too. ``topic``:
    pattern.
    """

    file: str
    topic: str = ""
    subscription: str = ""


class SubscriptionMoved(Event, frozen=True):
    """A `seek` moved a subscription; ``forgotten`` were outstanding: they may come again.

    ``records``: passed over; below 0: they come again.
    """

    topic: str
    subscription: str
    records: int
    forgotten: int


class PositionsNotSaved(Event, frozen=True):
    """How far a subscription is could not be saved: after a crash more comes again."""

    pattern: str
    name: str
    detail: str


class DeliveryPaused(Event, frozen=True):
    """Delivery was paused, is resumed, or is paused still where an engine takes the queues up.

    Of a topic (or pattern), of one queue (-1: all), for one subscription ("": all).
    """

    topic: str
    queue: int
    subscription: str
    paused: bool


ConsumersEvent = (
    ConsumerStandsBy
    | ConsumerExpelled
    | ConsumerLeft
    | ConsumerRejoined
    | RecordsGone
    | RecordsCancelled
    | MessageDropped
    | MessageDead
    | DeadLetterNotStored
    | SubscriptionDamaged
    | SubscriptionMoved
    | PositionsNotSaved
    | DeliveryPaused
)
