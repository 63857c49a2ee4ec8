"""Events of durable topics: their queues, files and producers."""

from __future__ import annotations

from tidecast.events.base import Event


class DiskRefused(Event, frozen=True):
    """The disk takes no more records of a durable topic; its publishers' rings fill up."""

    topic: str
    queue: int
    errno: int
    detail: str


class DiskBack(Event, frozen=True):
    """The disk takes a durable topic's records again. Nothing was lost."""

    topic: str


class TornTail(Event, frozen=True):
    """Recovery found bytes behind a queue's last sound batch, and set them aside."""

    topic: str
    queue: int
    file: str
    position: int
    bytes: int
    aside: str


class FileDamaged(Event, frozen=True):
    """A file beside a queue's log is not sound: its content is not used. ``queue`` -1: of all."""

    topic: str
    queue: int
    file: str
    detail: str = ""


class QueueUnreadable(Event, frozen=True):
    """A queue cannot be read at a token; it is tried again every second."""

    topic: str
    queue: int
    token: int
    detail: str


class RecordsLeftOut(Event, frozen=True):
    """An adapter's queue has records that Tidecast cannot hold: they are never delivered.

    Their tokens are [first, end); ``records``: how many; ``bytes``: their size in their system;
    ``reason``: their defect, with the size and the limit. Reported once for all
    subscriptions, and again after the engine was started again or a subscription went back far.
    """

    topic: str
    queue: int
    first: int
    end: int
    records: int
    bytes: int
    reason: str


class SegmentsDeleted(Event, frozen=True):
    """Retention deleted the oldest segments of a queue."""

    topic: str
    queue: int
    segments: int
    earliest_token: int


class PublisherWaits(Event, frozen=True):
    """Another node keeps the queues, and a publisher's transport does not reach it."""

    topic: str
    session: int
    owner: str
    detail: str


class ProducerFenced(Event, frozen=True):
    """A newer session of the same producer has begun; the one before can publish no more."""

    topic: str
    producer: str
    session: int
    epoch: int


class ProducerHole(Event, frozen=True):
    """Some of a producer's sequences ``first`` to ``end``, none acked, will never come.

    A crash left a part of them in the log, and the ring that holds the rest was silent too long.
    """

    topic: str
    producer: str
    first: int
    end: int


class ProducersExpired(Event, frozen=True):
    """Producers of a durable topic were forgotten: messages sent again are stored again."""

    topic: str
    producers: int


class RingDrained(Event, frozen=True):
    """An engine that starts found the ring of a publisher and put its messages into the log."""

    topic: str
    session: int
    messages: int


class RingDropped(Event, frozen=True):
    """The rest of a ring whose publisher is gone will not be stored. Nothing of it was acked.

    A newer session of its producer has begun, its sequences leave some out, or its topic is
    deleted. Those from ``first`` on are gone, in ``packets`` packets of the ring. ``reason``:
    fenced, refused, deleted.
    """

    topic: str
    producer: str
    session: int
    first: int
    packets: int
    reason: str


class RingStranded(Event, frozen=True):
    """A dead engine left unacked messages of a durable topic that this engine does not have.

    The ring stays in ``file``. Once the topic is created, or an engine starts with it, its messages
    are appended; ``tidecast queue orphans`` lists and removes such rings. ``bytes``: of messages.
    """

    topic: str
    producer: str
    session: int
    messages: int
    bytes: int
    file: str


class QueuesTaken(Event, frozen=True):
    """This engine has the lease on a durable topic's queues now."""

    topic: str
    queues: int
    epoch: int


class QueuesReleased(Event, frozen=True):
    """This engine has flushed a durable topic's queues and given their lease back."""

    topic: str
    epoch: int


class QueuesLost(Event, frozen=True):
    """This engine was fenced off a durable topic's queues: its lease ended, or is another's.

    Messages that are not durable are in the publishers' rings, and go to the next owner.
    """

    topic: str
    epoch: int
    newest: int
    reason: str


DurableEvent = (
    DiskRefused
    | DiskBack
    | TornTail
    | FileDamaged
    | QueueUnreadable
    | RecordsLeftOut
    | SegmentsDeleted
    | PublisherWaits
    | ProducerFenced
    | ProducerHole
    | ProducersExpired
    | RingDrained
    | RingDropped
    | RingStranded
    | QueuesTaken
    | QueuesReleased
    | QueuesLost
)
