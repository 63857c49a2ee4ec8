"""A connection to a node, the part that never waits: its publishers, subscriptions and events.

The blocking and the asyncio connection add the waiting. Three helper threads may exist, each
started when first needed: the flusher (collected messages), the waker (asyncio only) and the keeper
(engine processes only), which notices that the engine went away and brings everything back.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from tidecast.api.connecting import Backoff
from tidecast.api.frames.common import Failure, error_of
from tidecast.api.link import Link, PublicationOptions
from tidecast.client.core.opened import ImageEvent, OpenConsumer, OpenPublisher, OpenSubscription
from tidecast.client.core.outgoing import checked
from tidecast.client.waiting import Bell, Flusher
from tidecast.codecs import TopicCodecs
from tidecast.config.internal import is_internal
from tidecast.errors import (
    Closed,
    ConnectionLost,
    Fenced,
    ForkedProcess,
    NotFound,
    TidecastError,
    Timeout,
    fenced,
)
from tidecast.events import (
    ConsumerExpelled,
    ConsumerRejoined,
    EngineBack,
    EngineFault,
    EngineLost,
    Event,
    GatewayBack,
    GatewayLost,
    ImageAvailable,
    ImageGone,
    MessagesUnsent,
    PeerJoined,
    PeerTimeout,
    ProducerFenced,
    PublicationEnded,
    ReceiverJoined,
    SubscriptionEnded,
    field_of,
)

EVENTS_KEPT_MAX = 10_000
"""Events that wait for `events()`; beyond it the oldest are dropped: ``events_missed``."""
_EARLY_MAX = 10_000
_KEEPER_PERIOD_S = 0.25
_RECONNECT_MIN_S, _RECONNECT_MAX_S = 0.05, 1.0

CONNECTED, RECONNECTING, DRAINING, CLOSED = "connected", "reconnecting", "draining", "closed"
REFUSED = "refused"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How a connection is.

    ``healthy``: connected, nothing dropped, unsent or lost, no engine fault. ``status``:
    `connected`; `reconnecting`; `refused`: the gateway lets this client in no more, and the client
    does not try again; `draining`; `closed`.
    """

    healthy: bool
    status: str
    node: str
    publishers: int
    subscriptions: int
    images: int
    behind_packets: int
    collected: int
    dropped: int
    gaps: int
    events_missed: int
    unsent: int = 0
    """Messages of live publishers that no engine sent: see `MessagesUnsent`."""
    engine_faults: int = 0
    """`EngineFault` events since this connection began."""


class Requests(Protocol):
    """The requests of a connection on one topic; see `client.requests`."""

    def fail(self, problem: TidecastError) -> None:
        """All of them fail. Takes no lock."""

    def stats(self) -> dict[str, Any]:
        """Counts since the first request."""


class ConnectionCore:
    """One session with a node. Safe for use from any thread."""

    def __init__(self, link: Link, name: str = "", topic_codecs: TopicCodecs | None = None) -> None:
        self.link, self.name = link, name
        self.topic_codecs = topic_codecs or TopicCodecs()
        """Codecs for calls that name none."""
        self.bell = Bell(link)
        self.flusher = Flusher()
        self.status = CONNECTED
        self._pid = os.getpid()
        self._refusal: TidecastError | None = None
        self._lock = threading.RLock()
        self._publishers: list[OpenPublisher] = []
        self._subscriptions: dict[int, OpenSubscription] = {}
        self._consumers: list[OpenConsumer] = []
        self._requests: dict[str, Requests] = {}
        """By topic."""
        self._early: dict[int, list[ImageEvent]] = {}
        """Events of subscriptions that are being opened, until their ids are known."""
        self._subscribing = 0
        """Subscriptions that are being opened."""
        self.losses = 0
        """How often the engine was lost: an object that was asked for before is of that engine."""
        self._half_reopened = False
        """An engine ended while all was opened there."""
        self._events: deque[Event] = deque()
        self._events_missed = 0
        self._engine_faults = 0
        self._seen_word = self.bell.word - 1
        self._dropped_before = self._unsent_before = 0
        self._stop = threading.Event()
        self._kick = threading.Event()
        self._keeper: threading.Thread | None = None
        if link.reconnects:
            link.on_lost(self._kick.set)
            self._keeper = threading.Thread(target=self._keep, name="tidecast-keeper", daemon=True)
            self._keeper.start()
        _open.add(self)

    # --- checks -----------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise Closed or ForkedProcess when this connection may not be used."""
        if self._refusal is not None:
            raise self._refusal
        if os.getpid() != self._pid:
            self.forked()
            raise ForkedProcess("this connection was made by the parent process: connect again")

    def is_open(self) -> bool:
        """It is not closed. Raises ForkedProcess in a child of the process that made it."""
        if isinstance(self._refusal, ForkedProcess):
            raise self._refusal
        return self._refusal is None

    def forked(self) -> None:
        """This is a child process: refuse everything, touch nothing that is shared."""
        self._refusal = ForkedProcess(
            "this connection was made by the parent process: connect again in the child"
        )
        self.status = CLOSED
        self._lock = threading.RLock()
        for publisher in self._publishers:
            publisher.forked()
        for subscription in list(self._subscriptions.values()):
            subscription.forked()
        for consumer in self._consumers:
            consumer.forked()
        self._publishers, self._subscriptions, self._consumers = [], {}, []
        self._events.clear()

    # --- events -----------------------------------------------------------------------------------

    @property
    def reconnecting(self) -> bool:
        """The engine is lost, and the next one not found yet."""
        return self.status == RECONNECTING

    @property
    def rung(self) -> bool:
        """The doorbell rang since the last `pump`: there may be events."""
        return self.bell.word != self._seen_word

    def pump(self) -> None:
        """Take the node's events, and call their handlers. Never waits long."""
        with self._lock:
            if self._refusal is not None:
                return
            self.hear()
            for publisher in self._publishers:
                dropped = publisher.take_dropped()
                if dropped is not None:
                    self.emit(dropped)

    def hear(self) -> None:
        """`pump` without the publishers: their dropped messages are reported by a later event."""
        with self._lock:
            if self._refusal is not None:
                return
            self._seen_word = self.bell.word
            for event in self.link.take_events():
                self._dispatch(event)

    def emit(self, event: Event) -> None:
        """Keep an event for `events`."""
        if len(self._events) >= EVENTS_KEPT_MAX:
            self._events.popleft()
            self._events_missed += 1
        self._events.append(event)

    def take_event(self) -> Event | None:
        """The oldest event that was not taken, or None."""
        if not self._events:
            self.pump()
        try:
            return self._events.popleft()
        except IndexError:
            return None

    def _dispatch(self, event: Event) -> None:
        if not event.at_ns:
            event = msgspec.structs.replace(event, at_ns=time.time_ns())
        handle = HANDLERS.get(type(event))
        if handle is not None:
            handle(self, event)
        self._show(event)

    def _show(self, event: Event) -> None:
        """Emit an event, unless it is of an internal topic."""
        if not is_internal(field_of(event, "topic") or field_of(event, "pattern")):
            self.emit(event)

    # --- handlers of events: see HANDLERS ---------------------------------------------------------

    def on_image(self, event: ImageEvent) -> None:
        """Images of a subscription changed."""
        subscription = self._subscriptions.get(event.subscription_id)
        if subscription is not None:
            subscription.notice(event)
        elif self._subscribing and len(self._early) < _EARLY_MAX:
            # It may come before the grant's answer. Else its subscription is closed.
            self._early.setdefault(event.subscription_id, []).append(event)

    def _publishers_of(self, session: int) -> list[OpenPublisher]:
        return [each for each in self._publishers if each.session == session]

    def on_publication_ended(self, event: PublicationEnded) -> None:
        """The engine ended a publication."""
        for publisher in self._publishers_of(event.session):
            publisher.end(error_of(Failure(code=event.code, message=event.reason)))
            self._give_back(publisher.publication_id)

    def on_fenced(self, event: ProducerFenced) -> None:
        """A newer session of a producer began."""
        for publisher in self._publishers_of(event.session):
            publisher.fail(fenced(event.topic, event.epoch))

    def on_unsent(self, event: MessagesUnsent) -> None:
        """An engine ended before it had sent all messages of a publisher."""
        for publisher in self._publishers_of(event.session):
            publisher.note_unsent(event.messages)

    def on_expelled(self, event: ConsumerExpelled) -> None:
        """A consumer lost its place."""
        for consumer in self._consumers:
            if consumer.consumer_id == event.consumer_id:
                consumer.fail(Fenced(f"{event.topic}/{event.subscription}: {event.reason}"))

    def on_rejoined(self, event: ConsumerRejoined) -> None:
        """A consumer has a new place."""
        for consumer in self._consumers:
            if consumer.consumer_id == event.consumer_id:
                consumer.rejoined(self.link.consumer_grant(event.consumer_id))

    def on_engine_fault(self, _event: EngineFault) -> None:
        """Count it, for `health`."""
        self._engine_faults += 1

    def on_engine_lost(self, event: EngineLost) -> None:
        """See `_engine_lost`."""
        self._engine_lost(event.reason)

    def on_nodes(self, _event: Event) -> None:
        """Names of nodes may have new ids."""
        for publisher in self._publishers:
            publisher.forget_nodes()

    def on_gateway_lost(self, event: GatewayLost) -> None:
        """Replies that are on their way do not come any more."""
        self._fail_requests(ConnectionLost(f"the gateway is lost: {event.reason}"))

    def on_gateway_back(self, _event: GatewayBack) -> None:
        """It knows subscriptions by new ids; replies went to the old ids."""
        for subscription in list(self._subscriptions.values()):
            subscriber_id = self.link.subscriber_of(subscription.subscription_id)
            if subscriber_id is not None:
                subscription.renumber(subscriber_id)

    def _give_back(self, publication_id: int) -> None:
        """Release a publication that the engine ended; the engine counts late messages.

        It may take a link seconds, and `pump` runs on event loops.
        """

        def close() -> None:
            with contextlib.suppress(TidecastError):
                self.link.close_publication(publication_id)

        if self.link.inline:
            close()
        else:
            threading.Thread(target=close, name="tidecast-closer", daemon=True).start()

    # --- publishers and subscriptions -------------------------------------------------------------

    def add_publisher(self, publisher: OpenPublisher, losses: int) -> None:
        """A publisher was opened. ``losses``: before the node was asked for it."""
        with self._lock:
            self._publishers.append(publisher)
            if losses != self.losses:
                publisher.lose()
                if self.status != RECONNECTING:
                    _retry(publisher.reopen, publisher.end)

    def remove_publisher(self, publisher: OpenPublisher, *, notify_node: bool) -> None:
        """A publisher was closed; ``notify_node``: a node that is gone needs no notice."""
        try:
            if notify_node:
                # NotFound: its topic was deleted or recreated, and it ended with it.
                with contextlib.suppress(ConnectionLost, Closed, NotFound):
                    self.link.close_publication(publisher.publication_id)
        finally:
            self.pump()  # events of the link about its end count, too
            with self._lock:
                if publisher in self._publishers:
                    self._publishers.remove(publisher)
                self._dropped_before += publisher.stats().dropped
                self._unsent_before += publisher.stats().unsent
                dropped = publisher.take_dropped()
                if dropped is not None:
                    self.emit(dropped)

    @contextlib.contextmanager
    def opening(self) -> Iterator[int]:
        """While a subscription is opened: keep events that come before its answer; `losses`."""
        with self._lock:
            self._subscribing += 1
        try:
            yield self.losses
        finally:
            with self._lock:
                self._subscribing -= 1
                if not self._subscribing:
                    self._early.clear()

    def add_subscription(self, subscription: OpenSubscription, losses: int) -> None:
        """A subscription was granted. ``losses``: before the node was asked for it."""
        with self._lock:
            early = self._early.pop(subscription.subscription_id, [])
            if losses != self.losses:
                early = []  # of the engine that is gone
                if self.status != RECONNECTING:
                    _retry(subscription.reopen, subscription.fail)
            self._subscriptions[subscription.subscription_id] = subscription
            for event in early:
                subscription.notice(event)

    def remove_subscription(self, subscription: OpenSubscription) -> None:
        """A subscription was closed."""
        with self._lock:
            known = self._subscriptions.pop(subscription.subscription_id, None)
        if known is not None and self.status != RECONNECTING:
            with contextlib.suppress(ConnectionLost, Closed, NotFound):
                self.link.close_subscription(subscription.subscription_id)

    def flush_to_rings(self) -> None:
        """Put collected messages of publishers into their rings, as far as there is room."""
        for publisher in list(self._publishers):
            with contextlib.suppress(TidecastError):
                publisher.attempt_flush(seal=False)

    def add_consumer(self, consumer: OpenConsumer, losses: int) -> None:
        """A durable consumer was opened. ``losses``: before the node was asked for it."""
        with self._lock:
            self._consumers.append(consumer)
            if losses != self.losses:
                consumer.lose()
                if self.status != RECONNECTING:
                    _retry(consumer.reopen, consumer.fail)

    def remove_consumer(self, consumer: OpenConsumer) -> None:
        """A durable consumer was closed."""
        with self._lock:
            known = consumer in self._consumers
            if known:
                self._consumers.remove(consumer)
        if known and self.status != RECONNECTING:
            consumer.leave()

    def release_image(self, subscription_id: int, image_id: int) -> None:
        """A ring is drained and unmapped."""
        with contextlib.suppress(ConnectionLost, Closed):
            self.link.release_image(subscription_id, image_id)

    # --- losing the engine and finding it again ---------------------------------------------------

    def _engine_lost(self, reason: str) -> None:
        if self.status in (RECONNECTING, CLOSED):
            return
        self.status = RECONNECTING
        self.losses += 1
        self._fail_requests(ConnectionLost(f"the engine is lost: {reason}"))
        for publisher in self._publishers:
            publisher.lose()
        for subscription in self._subscriptions.values():
            subscription.lose(reason)
        for consumer in self._consumers:
            consumer.lose()
        if self._keeper is None:
            self._refuse_all(self.link.refusal or ConnectionLost(f"the engine is lost: {reason}"))
            for publisher in self._publishers:
                self._give_back(publisher.publication_id)

    def _fail_requests(self, problem: TidecastError) -> None:
        """Their replies went to an engine that is gone."""
        for requests in list(self._requests.values()):
            requests.fail(problem)

    def _refuse_all(self, problem: TidecastError) -> None:
        for subscription in self._subscriptions.values():
            subscription.fail(problem)
        for publisher in self._publishers:
            publisher.end(problem)
        for consumer in self._consumers:
            consumer.fail(problem)

    def _keep(self) -> None:
        """The keeper: looks for events now and then, and opens again all that a dead engine had.

        At once when the engine is lost: publishers stop to write for it.
        """
        while True:
            self._kick.wait(_KEEPER_PERIOD_S)
            self._kick.clear()
            if self._stop.is_set():
                return
            try:
                self.pump()
                if self.status == RECONNECTING:
                    self._restore()
            except TidecastError:
                continue  # the next round finds the cause
            except Exception as problem:
                with self._lock:  # no other thread brings the engine back
                    self._refuse_all(ConnectionLost(f"the client failed: {problem!r}"))
                raise

    def _restore(self) -> None:
        backoff = Backoff(_RECONNECT_MIN_S, _RECONNECT_MAX_S)
        while not self._stop.is_set():
            try:
                self.link.reconnect()
                self.pump()  # losses that were reported before change nothing: all is lost now
                if self.link.connected:
                    self._reopen()
                    return
            except ConnectionLost:
                if self._stop.wait(backoff.next_s()):
                    return
            except TidecastError as problem:
                if not problem.retryable:
                    with self._lock:
                        self._refuse_all(problem)
                    raise
                self._stop.wait(backoff.next_s())

    def _reopen(self) -> None:
        with self._lock:
            self.bell = Bell(self.link)
            self._seen_word = self.bell.word - 1
            self._early.clear()
            if self._half_reopened:  # its events have come: `pump` was called since
                for subscription in self._subscriptions.values():
                    subscription.lose("the engine ended again")
            try:
                self._reopen_all()
            except ConnectionLost:
                self._half_reopened = True
                for publisher in self._publishers:
                    publisher.lose()  # publishers that were opened already lost this engine, too
                raise
            self._half_reopened = False
            self.status = CONNECTED
        self.pump()
        self.bell.ring()

    def _reopen_all(self) -> None:
        subscriptions = list(self._subscriptions.values())
        for subscription in subscriptions:
            _retry(subscription.reopen, subscription.fail)
        self._subscriptions = {each.subscription_id: each for each in subscriptions}
        for publisher in list(self._publishers):
            _retry(publisher.reopen, publisher.end)
        for consumer in list(self._consumers):
            _retry(consumer.reopen, consumer.fail)

    def unsent_error(self, timeout: float | None) -> Timeout:
        """The error for unsent packets: names the network when it refused them."""
        text = f"packets are still unsent after {timeout} s"
        with contextlib.suppress(TidecastError):
            ours = {each.session for each in list(self._publishers)}
            rows = self.link.stats().get("publication", ())
            refused = sum(r.get("send_errors", 0) for r in rows if r["session"] in ours)
            if refused:
                text += (
                    f": the network refused them {refused} times: `tidecast doctor` and "
                    "`tidecast recorder --section alert` say why"
                )
        return Timeout(text)

    # --- status for users -------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """The node's counters, under ``client`` this connection's own. Raises ConnectionLost."""
        self.check()
        client = {
            "publishers": [msgspec.structs.asdict(each.stats()) for each in self._publishers],
            "subscriptions": [
                {"pattern": each.pattern, **each.stats()}
                for each in list(self._subscriptions.values())
                if not each.internal
            ],
            "requests": [each.stats() for each in list(self._requests.values())],
            "consumers": [each.stats() for each in list(self._consumers)],
        }
        return {**self.link.stats(), "client": client}

    def health(self) -> Health:
        """The state of this connection. It sends no request: the engine may be away."""
        publishers = [each.stats() for each in list(self._publishers)]
        subscriptions = [each for each in list(self._subscriptions.values()) if not each.internal]
        dropped = self._dropped_before + sum(each.dropped for each in publishers)
        connected = self.link.connected
        status = self.status
        if status in (CONNECTED, RECONNECTING) and not connected:  # its event may be on the way
            status = RECONNECTING if self.link.refusal is None else REFUSED
        unsent = self._unsent_before + sum(each.unsent for each in publishers)
        gaps = sum(each.stats().get("gaps", 0) for each in subscriptions)
        return Health(
            healthy=status == CONNECTED
            and connected
            and dropped == 0
            and gaps == 0
            and unsent == 0
            and self._engine_faults == 0,
            status=status,
            node=self.link.node_name,
            publishers=len(publishers),
            subscriptions=len(subscriptions),
            images=sum(len(each.images()) for each in subscriptions),
            behind_packets=sum(each.lag() for each in subscriptions),
            collected=sum(each.collected for each in publishers),
            dropped=dropped,
            gaps=gaps,
            unsent=unsent,
            events_missed=self._events_missed,
            engine_faults=self._engine_faults,
        )

    @property
    def closed(self) -> bool:
        """It may not be used any more."""
        return self._refusal is not None

    def _options(self, **given: Any) -> PublicationOptions:
        return checked(PublicationOptions, **{k: v for k, v in given.items() if v is not None})

    # --- the end ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Stop the helpers, end the session. Idempotent; the publishers are closed already."""
        with self._lock:
            if self._refusal is not None:
                return
            self._refusal = Closed("the connection is closed")
            self.status = CLOSED
            subscriptions = list(self._subscriptions.values())
            consumers = list(self._consumers)
        _open.discard(self)
        self._stop.set()
        self._kick.set()
        self.flusher.stop()
        self._fail_requests(Closed("the connection is closed"))
        for consumer in consumers:
            consumer.flush_acks()
        for subscription in subscriptions:
            subscription.fail(Closed("the connection is closed"))
        for consumer in consumers:
            consumer.fail(Closed("the connection is closed"))
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(1.0)
        with contextlib.suppress(ValueError, IndexError):
            self.bell.ring()
        self.link.close()

    def abandon(self) -> None:
        """Its node is gone for good: let go of all, without a goodbye."""
        for publisher in list(self._publishers):
            publisher.fail(Closed("the connection is closed"))
        self._finish()

    def close_at_exit(self) -> None:
        """The process ends: put collected messages into the rings, end the session."""
        for publisher in list(self._publishers):
            with contextlib.suppress(TidecastError):
                publisher.attempt_flush(seal=True)
        if self.link.inline:
            with contextlib.suppress(TidecastError):
                self.link.work()
        self._finish()


HANDLERS: dict[type[Event], Callable[[ConnectionCore, Any], None]] = {
    ImageAvailable: ConnectionCore.on_image,
    ImageGone: ConnectionCore.on_image,
    SubscriptionEnded: ConnectionCore.on_image,
    PublicationEnded: ConnectionCore.on_publication_ended,
    ProducerFenced: ConnectionCore.on_fenced,
    MessagesUnsent: ConnectionCore.on_unsent,
    ConsumerExpelled: ConnectionCore.on_expelled,
    ConsumerRejoined: ConnectionCore.on_rejoined,
    EngineFault: ConnectionCore.on_engine_fault,
    EngineLost: ConnectionCore.on_engine_lost,
    EngineBack: ConnectionCore.on_nodes,
    PeerJoined: ConnectionCore.on_nodes,
    PeerTimeout: ConnectionCore.on_nodes,
    ReceiverJoined: ConnectionCore.on_nodes,
    GatewayLost: ConnectionCore.on_gateway_lost,
    GatewayBack: ConnectionCore.on_gateway_back,
}
"""Event -> its handler, which runs before the program gets the event."""


def _retry(reopen: Any, fail: Any) -> None:
    """Reopen; a lost engine ends the round, any other problem is that of the one it meets."""
    try:
        reopen()
    except ConnectionLost:
        raise
    except TidecastError as problem:
        fail(problem)


_open: set[ConnectionCore] = set()
"""Connections that were not closed. They live until they are, or the process ends."""


def _at_exit() -> None:
    for connection in list(_open):
        if connection._pid == os.getpid():  # noqa: SLF001 - of this module
            connection.close_at_exit()


def _in_child() -> None:
    for connection in list(_open):
        connection.forked()
    _open.clear()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_in_child)
