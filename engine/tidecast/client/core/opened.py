"""The registry of publishers, subscriptions and consumers that a connection has opened."""

from __future__ import annotations

from typing import Any, Protocol

from tidecast.api.link import ConsumerGrant
from tidecast.client.core.outgoing import PublisherStats
from tidecast.errors import TidecastError
from tidecast.events import ImageAvailable, ImageGone, MessagesDropped, SubscriptionEnded

ImageEvent = ImageAvailable | ImageGone | SubscriptionEnded
"""Events of one subscription, in the order in which its node reports them."""


class OpenPublisher(Protocol):
    """See `tidecast.client.core.publisher.PublisherCore`."""

    publication_id: int
    session: int

    @property
    def closed(self) -> bool:
        """It publishes no more."""

    def stats(self) -> PublisherStats:
        """Counts since it was opened."""

    def take_dropped(self) -> MessagesDropped | None:
        """Messages that were dropped and not reported."""

    def note_unsent(self, messages: int) -> None:
        """An engine ended and had not sent so many."""

    def attempt_flush(self, *, seal: bool) -> bool:
        """Put collected messages into the ring, without waiting."""

    def forget_nodes(self) -> None:
        """Names of nodes may have new ids."""

    def forked(self) -> None:
        """This process is a fork of its owner."""

    def lose(self) -> None:
        """The engine is gone."""

    def reopen(self) -> None:
        """Open it at the next engine."""

    def fail(self, problem: TidecastError) -> None:
        """Refuse all calls from now on."""

    def end(self, problem: TidecastError) -> None:
        """As `fail`; the ring is closed."""


class OpenSubscription(Protocol):
    """See `tidecast.client.core.subscription.SubscriptionCore`."""

    subscription_id: int
    pattern: str
    internal: bool

    def notice(self, event: ImageEvent) -> None:
        """Something happened to its images."""

    def renumber(self, subscriber_id: int) -> None:
        """Its node knows it by another id."""

    def lag(self) -> int:
        """Packets behind the newest."""

    def images(self) -> list[Any]:
        """The publications that it reads."""

    def stats(self) -> dict[str, int]:
        """Counts since it was opened."""

    def forked(self) -> None:
        """This process is a fork of its owner."""

    def lose(self, reason: str) -> None:
        """The engine is gone."""

    def reopen(self) -> None:
        """Open it at the next engine."""

    def fail(self, problem: TidecastError) -> None:
        """Refuse all calls from now on."""


class OpenConsumer(Protocol):
    """See `tidecast.client.consumer.core.ConsumerCore`."""

    @property
    def consumer_id(self) -> int:
        """Its id at the node."""

    def flush_acks(self) -> None:
        """Send collected acks."""

    def leave(self) -> None:
        """Leave the subscription."""

    def rejoined(self, grant: ConsumerGrant) -> None:
        """The gateway has given it a new ring."""

    def stats(self) -> dict[str, Any]:
        """The figures of its traffic."""

    def forked(self) -> None:
        """This process is a fork of its owner."""

    def lose(self) -> None:
        """The engine is gone."""

    def reopen(self) -> None:
        """Join again, at the next engine."""

    def fail(self, problem: TidecastError) -> None:
        """Refuse all calls from now on."""
