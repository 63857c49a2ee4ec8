"""The events of a world, as the clients saw them, in order. `checker` reads nothing else."""

from __future__ import annotations

from typing import NamedTuple


class Begun(NamedTuple):
    """The world begins: what checks must know of its settings."""

    ack_wait_ns: int


class Published(NamedTuple):
    """A durable producer's message was accepted by `publish`."""

    at_ns: int
    producer: str
    seq: int
    key: bytes
    payload: bytes
    due_ns: int = 0
    """Delivery time by the world's clock; 0: at once."""
    wall_ns: int = 0
    """The world's clock when it was published."""


class Acked(NamedTuple):
    """A producer learnt that its messages up to ``seq`` are durable."""

    at_ns: int
    producer: str
    seq: int


class Delivered(NamedTuple):
    """A member handed a record to its handler."""

    at_ns: int
    subscription: str
    member: str
    queue: int
    token: int
    attempt: int
    key: bytes
    payload: bytes
    round: int
    """Rounds of a subscription end with a seek."""
    wall_ns: int = 0
    """The world's clock."""


class Settled(NamedTuple):
    """A handler's answer: ack, nak, term, back (given back unhandled), held (kept in hands)."""

    at_ns: int
    subscription: str
    member: str
    queue: int
    token: int
    how: str
    round: int


class Position(NamedTuple):
    """The acked watermark of a queue as the engine reports it. ``life``: starts of the engine."""

    at_ns: int
    subscription: str
    queue: int
    token: int
    outstanding: int
    round: int
    life: int


class Gone(NamedTuple):
    """The engine reported records [first, end) as deleted by retention before a subscription."""

    subscription: str
    queue: int
    first: int
    end: int


class Crashed(NamedTuple):
    """An engine ended without a goodbye."""

    at_ns: int
    node: str


class ClockSet(NamedTuple):
    """The world's clock was set."""

    at_ns: int
    before_ns: int
    after_ns: int


class Frozen(NamedTuple):
    """An engine did nothing for a while."""

    at_ns: int
    until_ns: int
    node: str


class Stored(NamedTuple):
    """A record in the log at the end, in the order of queues and tokens."""

    queue: int
    token: int
    key: bytes | None
    payload: bytes
    seq: int


class Deleted(NamedTuple):
    """A record that retention deleted, as it was in the log before."""

    queue: int
    token: int
    key: bytes | None
    payload: bytes
    seq: int


class LivePublished(NamedTuple):
    """A live publisher's message was accepted by `publish`."""

    at_ns: int
    publisher: str
    n: int


class LiveUnsent(NamedTuple):
    """Messages that a live publisher reported as unsent."""

    publisher: str
    messages: int


class LiveGot(NamedTuple):
    """A live subscriber received a message."""

    at_ns: int
    subscriber: str
    publisher: str
    n: int


class LiveGap(NamedTuple):
    """A live subscriber was told that packets [first, end) of a publisher are lost."""

    at_ns: int
    subscriber: str
    publisher: str
    first: int
    end: int


class LiveSince(NamedTuple):
    """From here on a subscriber is joined to all publishers: message ``n`` of each is due."""

    subscriber: str
    publisher: str
    n: int


class Disposed(NamedTuple):
    """At the end: how far a subscription is in a queue, and what is beyond that, acked or dead."""

    subscription: str
    queue: int
    acked: int


class DeadLetter(NamedTuple):
    """A record in the dead-letter topic at the end."""

    subscription: str
    queue: int
    token: int


class Stuck(NamedTuple):
    """Something did not end in time after all was healed."""

    what: str


Entry = (
    Begun | Published | Acked | Delivered | Settled | Position | Gone | Crashed | ClockSet | Frozen
    | Stored | Deleted | LivePublished | LiveUnsent | LiveGot | LiveGap | LiveSince | Disposed
    | DeadLetter | Stuck
)  # fmt: skip
History = list[Entry]
