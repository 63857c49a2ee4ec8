"""A connection where it waits: for events, for unsent packets, for its publishers to close."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from tidecast import codecs
from tidecast.api.link import ConsumerOptions, Link
from tidecast.api.start import Earliest, Latest, Start
from tidecast.api.words import ChannelName, OnFull, OnGap, StartWord
from tidecast.client.consumer.core import Filter, filter_options, start_options
from tidecast.client.core.connection import CLOSED, DRAINING, ConnectionCore
from tidecast.client.flows.consumer import ConsumerFlows
from tidecast.client.flows.publisher import CLOSE_TIMEOUT_S, PublisherFlows
from tidecast.client.flows.steps import Ask, BlockingDriver, Flow, LoopDriver, Pause, idle
from tidecast.client.flows.subscription import SubscriptionFlows
from tidecast.client.log.core import ReadCore
from tidecast.client.waiting import Backoff, Deadline, InlinePace
from tidecast.errors import TidecastError
from tidecast.events import Event

PublisherT = TypeVar("PublisherT", bound=PublisherFlows)
SubscriptionT = TypeVar("SubscriptionT", bound=SubscriptionFlows)
ConsumerT = TypeVar("ConsumerT", bound=ConsumerFlows)
OpenedT = TypeVar("OpenedT")
RecordsT = TypeVar("RecordsT", bound=ReadCore)
_T = TypeVar("_T")


class ConnectionFlows(
    ConnectionCore, ABC, Generic[PublisherT, SubscriptionT, ConsumerT, OpenedT, RecordsT]
):
    """Common to blocking and asyncio connections: opening, and the flows that the shells run.

    ``OpenedT``: the result of `consumer`, a consumer or an awaitable.
    """

    driver: BlockingDriver | LoopDriver

    def __init__(
        self,
        link: Link,
        name: str,
        topic_codecs: codecs.TopicCodecs | None,
        publisher: type[PublisherT],
        subscription: type[SubscriptionT],
        consumer: type[ConsumerT],
        records: type[RecordsT],
    ) -> None:
        super().__init__(link, name, topic_codecs)
        self._kinds = publisher, subscription, consumer, records
        self._kept: dict[str, PublisherT] = {}

    # --- opening ----------------------------------------------------------------------------------

    def publisher(
        self,
        topic: str,
        *,
        channel: ChannelName = "ordinary",
        on_full: OnFull | None = None,
        linger_us: int | None = None,
        history_bytes: int | None = None,
        rate_packets_per_s: int | None = None,
        rate_bytes_per_s: int | None = None,
        codec: codecs.Codec | str | None = None,
        buffer: bool = False,
        producer: str | None = None,
        first_seq: int | None = None,
    ) -> PublisherT:
        """Open a publication of ``topic``. Raises NotFound, ConfigError, SharedMemoryError.

        Asks the node and waits for its answer, in the asyncio client too: about a millisecond.
        ``on_full`` (None: the setting of the topic): ``block`` waits for room, ``error`` raises
        BackPressure or RateLimited, ``drop`` counts and reports by a MessagesDropped event.
        ``linger_us``: how long a packet may wait for more messages. ``buffer=True``: calls in quick
        succession are collected and handed over together. Durable topics: ``producer`` names the
        session, a newer session of that name fences this; ``first_seq``: sequence of the first
        message, so that repeated messages are dropped (None: behind the last known message). Raises
        also SequenceGap.
        """
        self.check()
        options = self._options(
            channel=channel,
            linger_us=linger_us,
            history_bytes=history_bytes,
            rate_packets_per_s=rate_packets_per_s,
            rate_bytes_per_s=rate_bytes_per_s,
            producer=producer,
            first_seq=first_seq,
        )
        losses = self.losses
        publisher = self._kinds[0](
            self, topic, options, on_full=on_full, codec=codec, buffer=buffer
        )
        self.add_publisher(publisher, losses)
        return publisher

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start | StartWord = Latest(),  # noqa: B008 - immutable
        on_gap: OnGap | None = None,
        tethered: bool | None = None,
        receive_bytes: int | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> SubscriptionT:
        """Subscribe to topics: a name, or with ``*`` for one token and ``>`` for all that follow.

        Blocking client: granted when this returns. asyncio: use it with ``async with`` or
        ``await``; granted when that returns. ``on_gap``: ``raise`` a GapError, put a Gap into the
        ``event`` stream, or ``skip``; the default is ``raise``, for unreliable topics ``event``.
        ``tethered=False``: never holds a publisher back and may be lapped. Raises ConfigError.
        """
        self.check()
        subscription = self._kinds[1](
            self,
            pattern,
            start=start,
            on_gap=on_gap,
            tethered=tethered,
            receive_bytes=receive_bytes,
            codec=codec,
        )
        self._subscribed(subscription)
        return subscription

    def consumer(
        self,
        topic: str,
        name: str,
        *,
        start: Start | StartWord = Earliest(),  # noqa: B008 - immutable
        ack_wait: float | None = None,
        max_in_flight: int = 500,
        max_bytes_in_flight: int = 64 << 20,
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        key: str | None = None,
        headers: dict[str, str] | None = None,
        where: Filter | None = None,
        ring_bytes: int = 1 << 20,
        codec: codecs.Codec | str | None = None,
    ) -> OpenedT:
        """Join the durable subscription ``name`` of a topic (or pattern), or create it.

        asyncio: await it, or use it with ``async with``. Its position is fixed then. Members of
        one subscription share its queues, or its keys. None: as the subscription has it; a new one
        gets 30 s, 5 deliveries, no dead-letter topic. ``key``: a pattern that keys must match;
        ``headers``: that records must have; ``where``: a text such as
        ``'size > 100 and headers["kind"] == "trade"'``, or ``fn(key, value, timestamp) -> bool``,
        compiled by Numba and run in an embedded engine on every record. Raises NotFound, Conflict
        (the subscription has other settings), ConfigError.
        """
        self.check()
        options = ConsumerOptions(
            **start_options(start),
            ack_wait_s=ack_wait,
            max_deliver=max_deliver,
            dead_letter=dead_letter,
            key_pattern=key,
            headers=headers,
            max_in_flight=max_in_flight,
            max_bytes_in_flight=max_bytes_in_flight,
            ring_bytes=ring_bytes,
            **filter_options(self.link, where),
        )
        return self._joined(lambda: self._kinds[2](self, topic, name, options, codec))

    def read(
        self,
        topic: str,
        *,
        start: Start | StartWord = Earliest(),  # noqa: B008 - immutable
        end: Start | StartWord = Latest(),  # noqa: B008 - immutable
        queues: Iterable[int] | None = None,
        keys: Iterable[bytes | str] | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> RecordsT:
        """Read a durable topic without a subscription: records, batches, or an Arrow table.

        From ``start`` to ``end``, which is left out: positions as of `consumer`. `Latest` is the
        end of each queue at the time of the call; with asyncio, when the first record is read.
        ``queues``: None: all. ``keys``: only records of these, 64 at most. Records that this client
        published are there once they are durable. Retention may delete records before they are
        read: a `RecordsGone` event. Through a gateway it needs the right ``read_payloads``. Raises
        NotFound (no such topic, a live topic, kept by another node), ConfigError, AuthError.
        """
        self.check()
        return self._kinds[3](
            self, topic, start=start, end=end, queues=queues, keys=keys, codec=codec
        )

    def publisher_after(
        self, failed: PublisherT | None, topic: str, codec: codecs.Codec | str | None = None
    ) -> PublisherT:
        """Open the publisher that is kept for a topic, in place of a publisher that failed."""
        if failed is not None:
            failed.discard()
        return self.publisher(topic, codec=codec)

    def _subscribed(self, subscription: SubscriptionT) -> None:
        """Hook: open it now, if the shell does."""

    @abstractmethod
    def _joined(self, join: Callable[[], ConsumerT]) -> OpenedT:
        """Join now, or later."""

    def work(self) -> int:
        """Run an inline node's agents once; how much they did. Elsewhere nothing."""
        self.check()
        return self.link.work()

    # --- flows ------------------------------------------------------------------------------------

    def event_flow(self, timeout: float | None) -> Flow[Event | None]:
        """The next event; None when none came in time, or the connection is closed."""
        deadline, pace = Deadline(timeout, self.link.now_s), InlinePace()
        while self.is_open():
            event = self.take_event()
            if event is not None or deadline.passed:
                return event
            yield from idle(self, self._arm_events, deadline, pace)
        return None

    def _arm_events(self) -> int | None:
        word = self.bell.word
        self.pump()
        return None if self._events else word

    def _drive(self, flow: Flow[Any]) -> Any:
        return self.driver.run(flow)

    def flush_flow(self, timeout: float | None = None) -> Flow[None]:
        """Flush all publishers. Raises Timeout."""
        self.check()
        for publisher in _of(PublisherFlows, self._publishers):
            yield from publisher.flush_flow(timeout)

    def drain_flow(self, timeout: float | None = 30.0) -> Flow[None]:
        """Send all published messages, wait for handlers of arrived messages, then close.

        Raises Timeout, and closes all the same.
        """
        self.check()
        deadline = Deadline(timeout, self.link.now_s)
        self.status = DRAINING
        try:
            yield from self.flush_flow(timeout)
            for subscription in _of(SubscriptionFlows, self._subscriptions.values()):
                yield from subscription.drain_flow(deadline.left_s(1e9))
            backoff = Backoff(self.link)
            while any(each.stats().unsent_packets for each in list(self._publishers)):
                if deadline.passed:
                    raise self.unsent_error(timeout)
                yield Pause(deadline.left_s(backoff.next_s()))
        finally:
            yield from self.close_flow()

    def close_flow(self) -> Flow[None]:
        """Close publishers (collected messages go to their rings) and subscriptions. Idempotent."""
        if self.status == CLOSED or os.getpid() != self._pid:
            return
        problem: TidecastError | None = None
        for publisher in _of(PublisherFlows, self._publishers):
            try:
                yield from publisher.close_flow(CLOSE_TIMEOUT_S)
            except TidecastError as raised:
                problem = raised
        for subscription in _of(SubscriptionFlows, self._subscriptions.values()):
            yield from subscription.close_flow()
        for consumer in _of(ConsumerFlows, self._consumers):
            yield from consumer.close_flow()
        yield Ask(self.driver.stop)
        yield Ask(self._finish)
        if problem is not None:
            raise problem


def _of(kind: type[_T], every: Iterable[Any]) -> list[_T]:
    return [each for each in list(every) if isinstance(each, kind)]
