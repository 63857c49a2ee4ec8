"""Events of adapters, and of storages outside the engine."""

from __future__ import annotations

from tidecast.events.base import Event


class AdapterWaits(Event, frozen=True):
    """The system of an adapter cannot be reached: the engine tries again, at most each 2 s.

    Reported when the wait begins, then each minute with the newest failure; also to clients that
    connect meanwhile. Subscriptions to the topic get its records when the adapter is open.
    """

    topic: str
    adapter: str
    detail: str


class AdapterOpened(Event, frozen=True):
    """An adapter that waited for its system is open, or its topic has more queues than before."""

    topic: str
    adapter: str
    queues: int
    added: int


class StorageWaits(Event, frozen=True):
    """The storage of a durable topic takes no records: publishers get no acks.

    Records wait in the log and in publishers' rings; it is tried again, at most each 2 s. Reported
    when the wait begins, then each minute; also to clients that connect meanwhile. ``final``: it is
    not tried again, because another engine writes the topic now.
    """

    topic: str
    detail: str
    final: bool


class StorageBack(Event, frozen=True):
    """The storage of a durable topic takes records again. Nothing was lost."""

    topic: str


StorageEvent = AdapterWaits | AdapterOpened | StorageWaits | StorageBack
