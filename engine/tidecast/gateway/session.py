"""One remote client at the gateway: its publications, its subscriptions, and their limits.

The session outlives its connection for a while: publications stay open, with their messages, so
that a client that comes back resumes where it was. Durable consumers keep their place for some
seconds. Subscriptions end with the connection: an absent client must not hold a publisher back.
Its gaps are reported when it subscribes again.

Nothing here grows without a limit. A client that reads slowly has no credit; then its subscription
reads no more, and the topic's flow control treats it as any slow subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tidecast.access import Access
from tidecast.agents import warmup
from tidecast.api.frames.common import Frame, Working
from tidecast.api.operations import (
    EVERY_TOPIC,
    Operation,
    Operations,
    failure_of_any,
    nothing,
    reply_to,
)
from tidecast.api.progress import with_news
from tidecast.api.start import Earliest, Latest
from tidecast.buffers import reader
from tidecast.client.aio import Connection, Publisher, Subscription
from tidecast.client.core.image import BATCH_MESSAGES_MAX, Image, ReadPosition, position_of
from tidecast.client.core.message import Batch
from tidecast.client.core.opened import ImageEvent
from tidecast.client.kernels import ports
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame
from tidecast.client.waiting import Deadline
from tidecast.config.internal import REPLIES, RESPONDERS, is_internal
from tidecast.errors import AuthError, Closed, ConfigError, Conflict, NotFound, TidecastError
from tidecast.events import (
    AccessDenied,
    ConsumerExpelled,
    Gap,
    ImageAvailable,
    ImageGone,
    SubscriptionEnded,
)
from tidecast.gateway.consumers import RING_BYTES_MAX, RemoteConsumer
from tidecast.gateway.life import State
from tidecast.gateway.publications import RemotePublication
from tidecast.gateway.quotas import Quotas
from tidecast.layout import packet as wire
from tidecast.layout.counters import GatewayCounter
from tidecast.node.access import rights
from tidecast.version import VERSION

PUBLICATIONS_MAX, SUBSCRIPTIONS_MAX, CONSUMERS_MAX = 256, 256, 64
OUTBOX_MAX, REFUSED_MAX = 10_000, 10_000
_PER_MESSAGE = wire.PACKET_HEADER_BYTES + wire.MESSAGE_HEADER_BYTES


class _ImagesChanged(Exception):
    """Ends a wait: the client must get an event about an image before the next batch."""


class _Relay(Subscription):
    """A subscription that notes the events of its images in order: new, gap, ended.

    When its client opens it again, sessions begin at the places that the client knows. The client
    compares: packets between its place and the beginning are a gap.
    """

    def __init__(self, session: RemoteSession, frame: frames.OpenSubscription) -> None:
        asked = frame.options
        super().__init__(
            session.connection,
            frame.pattern,
            tethered=asked.tethered,
            start=Earliest() if asked.start == "earliest" else Latest(),
            receive_bytes=asked.receive_bytes,
            on_gap="event",
        )
        places = {} if is_internal(frame.pattern) else frame.places
        self._places = {each: position_of(*place) for each, place in places.items()}
        self._count = session.count
        self._options = msgspec.structs.replace(
            self._options,
            resume={each: place.seq for each, place in self._places.items()},
            age_s=0.0 if is_internal(frame.pattern) else asked.age_s,
        )
        self.news: deque[tuple[str, Image, Any]] = deque()
        self.current: Image | None = None

    async def take(self) -> Batch | None:
        """The next batch, of image ``current``; None at the end. Raises _ImagesChanged."""
        return await self._wait_batch(BATCH_MESSAGES_MAX, Deadline(None))

    def take_in_all(self) -> None:
        """Take in all present images."""
        self._connection.pump()
        self._take_in_all()

    def step(self, limit: int) -> Batch | None:
        if self.news:
            raise _ImagesChanged
        batch = super().step(limit)
        if self._held is not None and self._held.misplaced:
            self._count("bad_places", self._held.take_misplaced())
        if batch is None and self.news:
            raise _ImagesChanged
        self.current = self._held if batch is not None else None
        return batch

    def _take_in(self, event: ImageEvent) -> None:
        n = len(self._images)
        super()._take_in(event)
        if len(self._images) > n:
            image = self._images[-1]
            self.news.append(("opened", image, image.place))

    def _resume_image(self, image: Image, place: ReadPosition | None) -> None:
        asked = self._places.pop(image.session, None)
        if asked is None or place is not None:
            super()._resume_image(image, place)
        else:
            image.resume_at(asked)
            self._count("bad_places", image.take_misplaced())

    def _on_gap(self, image: Image, gap: Gap) -> None:
        self.news.append(("gap", image, gap))

    def _drop(self, image: Image) -> None:
        super()._drop(image)
        self._count("bad_places", image.take_misplaced())
        self.news.append(("ended", image, image.gone))


def _end_of(columns: ports.Port, rows: ports.Port | None, i: int) -> int:
    """Offset of the end of message ``i``, in the memory of its batch."""
    if rows is None:
        return int(columns[1, i])
    return int(rows[i, reader.OUT_AT] + rows[i, reader.OUT_LENGTH])


class _Subscription:
    """A remote subscriber: it sends batches of its images, as far as its credit allows."""

    def __init__(self, session: RemoteSession, number: int, relay: _Relay, credit: int) -> None:
        self.number, self.relay = number, relay
        self._session, self._credit = session, credit
        self._credited = asyncio.Event()
        self._images: dict[int, int] = {}
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to deliver."""
        self.task = self._session.spawn(self._run())

    def add_credit(self, n_bytes: int) -> None:
        """The client has room for more."""
        if n_bytes <= 0:
            raise BadFrame(f"credit: {n_bytes}: more than 0")
        self._credit = min(self._credit + n_bytes, frames.CREDIT_BYTES_MAX)
        self._credited.set()

    async def _run(self) -> None:
        relay = self.relay
        try:
            while True:
                batch = None
                with contextlib.suppress(_ImagesChanged):
                    batch = await relay.take()
                    if batch is None:
                        return
                for frame in self.news():
                    await self._session.send(frame)
                if batch is not None:
                    await self._deliver(batch)
        except Exception as problem:  # noqa: BLE001 - reported to the client, whatever it is
            failure = failure_of_any(problem, "gateway")
            await self._session.send(
                frames.Ended(number=self.number, publication=False, failure=failure)
            )

    def news(self) -> Iterator[Frame]:
        """Events of images that the client has not got."""
        while self.relay.news:
            what, image, about = self.relay.news.popleft()
            if what == "opened":
                number = self._images[id(image)] = self._session.next_image()
                seq, at = about
                yield frames.ImageOpened(
                    number=self.number,
                    image=number,
                    topic=image.topic,
                    node=image.node,
                    session=image.session,
                    reliability=image.reliability,
                    seq=seq,
                    at=at,
                )
                continue
            number = self._images.get(id(image), 0)
            if what == "gap":
                yield self._gap(number, about.first, about.end, about.reason)
            else:
                self._images.pop(id(image), None)
                yield frames.ImageEnded(number=self.number, image=number, reason=str(about))

    def _gap(self, image: int, first: int, end: int, reason: str) -> frames.GapReported:
        self._session.count("gaps")
        return frames.GapReported(
            number=self.number, image=image, first=first, end=end, reason=reason
        )

    async def _deliver(self, batch: Batch) -> None:
        image = self.relay.current
        assert image is not None
        number = self._images[id(image)]
        memory, columns, rows, n = batch.parts
        ahead = image.ahead()
        for first, end, mixed, body in frames.bodies(memory, columns, rows, n):
            seq, at = image.place
            if end < n and ahead:
                seq = -1  # the batch is not in the order of packets
            elif end < n:
                seq, at = image.place_behind(_end_of(columns, rows, end - 1))
            if not image.whole():
                gap = image.torn()
                await self._session.send(self._gap(number, gap.first, gap.end, gap.reason))
                return
            if not body.size:
                await self._session.send(self._gap(number, seq - 1, seq, "too large for a gateway"))
                continue
            while self._credit <= 0:
                self._credited.clear()
                self._session.count("credit_waits")
                await self._credited.wait()
            self._credit -= body.size
            self._session.count("messages_out", end - first)
            await self._session.send(
                frames.Deliver(
                    number=self.number,
                    image=number,
                    n=end - first,
                    mixed=mixed,
                    seq=seq,
                    at=at,
                    ahead=ahead if end == n else b"",
                ),
                body,
            )

    async def close(self) -> None:
        """End it at once."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        with contextlib.suppress(TidecastError):
            await self.relay.close()


class RemoteSession:
    """See the module. All methods run in the gateway's loop."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        access: Access,
        digest: str,
        *,
        keep_s: float,
        counters: np.ndarray[Any, np.dtype[np.int64]],
        denied: Callable[[RemoteSession, str, str], None],
        failed: Callable[[RemoteSession, BaseException], None],
        quotas: Quotas,
    ) -> None:
        """``failed``: ends the session after an unexpected failure of a task."""
        self.connection, self.name, self.keep_s = connection, name, keep_s
        self.access, self.digest = access, digest
        """The rights of its key, and the hash of its token."""
        self._counters, self._denied, self._failed = counters, denied, failed
        self._quotas = quotas
        self._held: dict[int, int] = {}
        """Publication -> bytes of its ring."""
        self.id, self.key = secrets.token_hex(8), secrets.token_hex(16)
        self.queued_bytes = 0
        self.counts = dict.fromkeys(
            (
                "messages_in",
                "messages_out",
                "bytes_in",
                "bytes_out",
                "gaps",
                "credit_waits",
                "consumers_given_up",
                "resumed",
                "bad_places",
            ),
            0,
        )
        self._socket: ServerConnection | None = None
        self._free = asyncio.Lock()
        self._publications: dict[int, RemotePublication] = {}
        self._subscriptions: dict[int, _Subscription] = {}
        self._consumers: dict[int, RemoteConsumer] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._refused: set[int] = set()
        """Publications that could not be opened."""
        self._outbox: deque[tuple[Frame, Callable[[], None] | None]] = deque()
        self._posted = asyncio.Event()
        self._image = 0
        self._newest: ServerConnection | None = None
        self._hears_news = False
        self.state = State.SERVED

    @property
    def connected(self) -> bool:
        """Whether the client has a connection now."""
        return self._socket is not None

    def connect(self, socket: ServerConnection, *, hears_news: bool) -> None:
        """A connection comes: an older one no longer counts, and is cut off by `serve`.

        ``hears_news``: its client understands `Working`.
        """
        self._newest, self._hears_news = socket, hears_news

    def is_newest(self, socket: ServerConnection) -> bool:
        """Whether no later connection of the client came."""
        return self._newest is socket

    def enter(self, state: State) -> None:
        """See `gateway.server.TRANSITIONS`."""
        self.state = state

    def next_image(self) -> int:
        """A number for an image."""
        self._image += 1
        return self._image

    def reply_homes(self) -> set[int]:
        """Its subscriptions to replies, by the ids that messages name."""
        return {
            each.relay.subscriber_id
            for each in self._subscriptions.values()
            if each.relay.pattern.startswith(REPLIES)
        }

    def welcome(self, *, resumed: bool, level: int) -> frames.Welcome:
        """The first answer."""
        link = self.connection.link
        return frames.Welcome(
            session=self.id,
            key=self.key,
            resumed=resumed,
            client_id=link.client_id,
            node_id=link.node_id,
            node_name=link.node_name,
            incarnation=link.incarnation,
            accepted={number: each.accepted for number, each in self._publications.items()},
            version=VERSION,
            level=level,
            resumes=True,
        )

    def count(self, name: str, n: int = 1) -> None:
        """Count for this session and for the gateway."""
        self.counts[name] += n
        self._counters[GatewayCounter[name.upper()]] += n

    def need(self, right: str, pattern: str) -> None:
        """Raise AuthError when the key lacks a right, and have it reported."""
        if not self.access.may(right, pattern):
            self.deny(right, pattern)
            self.access.need(right, pattern)

    def deny(self, right: str, pattern: str) -> None:
        """Report and count that the client lacks a right."""
        self._denied(self, right, pattern)

    async def send(self, frame: Frame, body: Any = None) -> None:
        """Send a frame; without a client, frames that must arrive are sent at the next welcome."""
        if body is not None:
            self.count("bytes_out", body.nbytes)
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await socket.send(frames.encode(frame, body))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work of the session beside it; a defect there ends the session: its client knows."""
        task = asyncio.create_task(work)
        task.add_done_callback(self._spawned)
        return task

    def _spawned(self, task: asyncio.Task[None]) -> None:
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, ConnectionClosed):
            self._failed(self, problem)

    def post(self, frame: Frame, then: Callable[[], None] | None = None) -> None:
        """Have it sent; without waiting, as a client that is sending does not read.

        ``then``: called once this frame, and all frames posted before it, are on their way.
        """
        if len(self._outbox) >= OUTBOX_MAX:
            raise BadFrame(f"{OUTBOX_MAX} answers wait: it asks and does not read")
        self._outbox.append((frame, then))
        self._posted.set()

    async def _send_posted(self) -> None:
        while True:
            self._posted.clear()
            while self._outbox:
                frame, then = self._outbox.popleft()
                await self.send(frame)
                if then is not None:
                    then()
            await self._posted.wait()

    async def serve(self, socket: ServerConnection, *, resumed: bool, level: int) -> bool:
        """Serve one connection to its end; a second connection of the client ends the first.

        True: the client closed the session. Raises BadFrame.
        """
        if self._socket is not None:
            self._socket.transport.abort()
        async with self._free:
            if self.state is State.ENDED:  # meanwhile, for example because its key was revoked
                raise Closed("the session has ended")
            self._socket = socket
            self.counts["resumed"] += resumed
            helpers: list[asyncio.Task[None]] = []
            self._outbox.clear()
            try:
                await self.send(self.welcome(resumed=resumed, level=level))
                for publication in list(self._publications.values()):
                    await publication.report()
                helpers.append(self.spawn(self._report_events()))
                helpers.append(self.spawn(self._send_posted()))
                async for data in socket:
                    frame, body = frames.from_client(data)
                    if isinstance(frame, frames.Bye):
                        return True
                    await self._handle(frame, body)
            finally:
                self._socket = None
                for helper in helpers:
                    helper.cancel()
                for subscription in self._subscriptions.values():
                    await subscription.close()
                self._subscriptions.clear()
                await self._end_announcements()
                for consumer in self._consumers.values():
                    consumer.pause(self.keep_s)
        return False

    async def _end_announcements(self) -> None:
        """The client is away: withdraw its responders, so that requesters choose others."""
        for number, publication in list(self._publications.items()):
            if publication.core.topic.startswith(RESPONDERS):
                del self._publications[number]
                await publication.close()
                self._give_publication(number)

    def give_up(self, consumer: RemoteConsumer) -> None:
        """The client did not come back in time: other members get its records."""
        if self._consumers.get(consumer.number) is consumer:
            del self._consumers[consumer.number]
        self.count("consumers_given_up")
        task = self.spawn(self._close_consumer(consumer))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _report_events(self) -> None:
        private = ImageAvailable, ImageGone, Gap, AccessDenied, SubscriptionEnded
        async for event in self.connection.events():
            if not rights.may_hear(self.access, event):
                continue
            if isinstance(event, ConsumerExpelled):
                await self.send(frames.EventsReported(events=[self._expelled(event)]))
            elif not isinstance(event, private):
                await self.send(frames.EventsReported(events=[event]))  # type: ignore[list-item]

    def _expelled(self, event: ConsumerExpelled) -> ConsumerExpelled:
        """The same event with the client's number of the consumer, which is gone."""
        for number, consumer in list(self._consumers.items()):
            if consumer.grant.consumer_id == event.consumer_id:
                del self._consumers[number]
                consumer.pause(None)
                self._give_consumer(consumer)
                return msgspec.structs.replace(event, consumer_id=number)
        return event

    async def _handle(self, frame: frames.FromClient, body: memoryview) -> None:
        self.count("bytes_in", body.nbytes)
        operation = OPERATIONS.of(frame)
        if operation.answered:
            await self._answer(operation, frame)
        else:
            operation.handler(self, frame, body)

    def publish(self, frame: frames.Publish, body: memoryview) -> None:
        """Append messages to a publication. Raises BadFrame."""
        publication = self._publications.get(frame.number)
        if publication is None and frame.number in self._refused:
            return  # the answer with the refusal is on its way
        if publication is None:
            raise BadFrame(f"publication {frame.number}: it is not open")
        publication.offer(frame, body)
        self.count("messages_in", frame.n)

    def add_credit(self, frame: frames.Credit, _body: memoryview) -> None:
        """The client has room for more messages of a subscription. Raises BadFrame."""
        subscription = self._subscriptions.get(frame.number)
        if subscription is not None:
            subscription.add_credit(frame.n_bytes)

    def take_acks(self, frame: frames.Acks, body: memoryview) -> None:
        """Acks of a consumer. Raises BadFrame."""
        consumer = self._consumers.get(frame.number)
        if consumer is not None:
            consumer.take_acks(frame, body)

    def refuse_hello(self, _frame: frames.Hello, _body: memoryview) -> None:
        """Refuse a second Hello: a session begins once. Raises BadFrame."""
        raise BadFrame("a second Hello")

    async def _answer(self, operation: Operation, frame: Any) -> None:
        passed = BadFrame, ConnectionClosed
        reply = await reply_to(frame.id, self._perform(operation, frame), "gateway", passed=passed)
        refused = reply.failure is not None and isinstance(frame, frames.OpenPublication)
        if refused and len(self._refused) < REFUSED_MAX:
            self._refused.add(frame.number)
        opened = None
        if reply.failure is None and isinstance(frame, frames.OpenSubscription):
            opened = self._subscriptions[frame.number].start  # its client knows the images then
        self.post(reply, opened)

    async def _perform(self, operation: Operation, frame: Any) -> Any:
        operation.allow(self, frame, self.need)
        say = partial(self._say_working, frame.id)
        return await with_news(operation.handler(self, frame), warmup.news, say)

    def _say_working(self, question: int, reason: str) -> None:
        if self._hears_news:
            self.post(Working(id=question, reason=reason))

    async def refuse(self, frame: Any) -> None:
        """Refuse a frame that no operation serves. Raises BadFrame."""
        raise BadFrame(f"{type(frame).__name__} is no question")

    async def stats(self, _frame: frames.Stats) -> dict[str, Any]:
        """Counters of this session; of the node for a key that manages all topics."""
        all_ = self.access.may("manage", EVERY_TOPIC)
        found = await asyncio.to_thread(self.connection.link.stats) if all_ else {}
        return {**found, "gateway": self.counts}

    async def node_id_of(self, frame: frames.NodeIdOf) -> int:
        """See `Link.node_id_of`."""
        return await asyncio.to_thread(self.connection.link.node_id_of, frame.node)

    async def administer(self, frame: frames.Administer) -> Any:
        """See `Link.administer`."""
        perform = self.connection.link.administer
        found = await asyncio.to_thread(perform, frame.action, frame.arguments)
        if frame.action == "seek":
            for consumer in self._consumers.values():
                for report in consumer.taken_back():
                    self.post(report)  # before the answer
        return rights.shown(self.access, frame.action, found)

    # --- publications -----------------------------------------------------------------------------

    async def open_publication(self, frame: frames.OpenPublication) -> frames.PublicationOpened:
        """See `Link.open_publication`. An open publication is continued."""
        publication = self._publications.get(frame.number)
        if publication is None:
            if len(self._publications) >= PUBLICATIONS_MAX:
                raise Conflict(f"a remote client has at most {PUBLICATIONS_MAX} publications")
            losses, core = self.connection.losses, await self._open_ring(frame)
            self.connection.add_publisher(core, losses)
            publication = RemotePublication(self, core, frame)
            self._publications[frame.number] = publication
        core = publication.core
        per_packet = core.packet_room_bytes
        opened = frames.PublicationOpened(
            session=core.session,
            on_full=core.on_full,
            slot_bytes=per_packet + _PER_MESSAGE,
            slots=2 * ((core.payload_bytes_max + 8) // per_packet),
            reports_sent=publication.reports_sent,
        )
        durable = core.producer_session
        if durable is None:
            return opened
        return msgspec.structs.replace(
            opened,
            durable=True,
            producer_id=durable.producer_id,
            epoch=durable.epoch,
            first_seq=durable.first_seq,
            acked_seq=durable.acked_seq,
            last_seq=durable.last_seq,
        )

    async def close_publication(self, frame: frames.ClosePublication) -> None:
        """See `Link.close_publication`."""
        publication = self._publications.pop(frame.number, None)
        if publication is not None:
            await publication.close()
            self._give_publication(frame.number)

    async def _open_ring(self, frame: frames.OpenPublication) -> Publisher:
        """Open the publisher at this node, within the quota of the key."""
        self._quotas.take(self.access, self.id, publications=1)
        try:
            core = await asyncio.to_thread(
                lambda: Publisher(self.connection, frame.topic, frame.options)
            )
        except BaseException:
            self._quotas.give(self.access, self.id, publications=1)
            raise
        try:
            self._quotas.take(self.access, self.id, ring_bytes=core.ring_bytes)
        except Conflict:
            self._quotas.give(self.access, self.id, publications=1)
            with contextlib.suppress(TidecastError):
                await core.close(0.0)
            raise
        self._held[frame.number] = core.ring_bytes
        return core

    def _give_publication(self, number: int) -> None:
        ring_bytes = self._held.pop(number, 0)
        self._quotas.give(self.access, self.id, publications=1, ring_bytes=ring_bytes)

    # --- consumers --------------------------------------------------------------------------------

    async def _close_consumer(self, consumer: RemoteConsumer) -> None:
        await consumer.close()
        self._give_consumer(consumer)

    def _give_consumer(self, consumer: RemoteConsumer) -> None:
        self._quotas.give(self.access, self.id, consumers=1, ring_bytes=consumer.ring_bytes)

    async def resume_consumer(self, frame: frames.ResumeConsumer) -> Any:
        """The client is back, and names its last received frame. Raises NotFound."""
        consumer = self._consumers.get(frame.number)
        if consumer is None:
            raise NotFound(f"consumer {frame.number}: it is not here (any more)")
        return consumer.resume(frame.received)

    async def close_consumer(self, frame: frames.CloseConsumer) -> None:
        """See `Link.close_consumer`."""
        consumer = self._consumers.pop(frame.number, None)
        if consumer is not None:
            await self._close_consumer(consumer)

    async def open_consumer(self, frame: frames.OpenConsumer) -> frames.ConsumerOpened:
        """See `Link.open_consumer`."""
        before = self._consumers.pop(frame.number, None)
        if before is not None:
            await self._close_consumer(before)
        if len(self._consumers) >= CONSUMERS_MAX:
            raise Conflict(f"a remote client has at most {CONSUMERS_MAX} durable consumers")
        if not 0 < frame.options.ring_bytes <= RING_BYTES_MAX:
            raise ConfigError(
                f"ring_bytes: {frame.options.ring_bytes}: allowed 1 to {RING_BYTES_MAX} over a "
                "gateway"
            )
        options = rights.as_allowed(self.access, frame.pattern, frame.options)
        held = {"consumers": 1, "ring_bytes": options.ring_bytes}
        self._quotas.take(self.access, self.id, **held)
        try:
            grant = await asyncio.to_thread(
                self.connection.link.open_consumer, frame.pattern, frame.name, options
            )
            try:
                consumer = RemoteConsumer(self, frame.number, grant, options.ring_bytes)
            except BaseException:  # it would keep its share, and take nothing
                self.connection.link.close_consumer(grant.consumer_id)
                raise
        except BaseException as problem:
            self._quotas.give(self.access, self.id, **held)
            if isinstance(problem, AuthError):
                self.deny("manage", frame.pattern)
            raise
        self._consumers[frame.number] = consumer
        consumer.pause(self.keep_s)  # until the client is ready
        return consumer.opened

    # --- subscriptions ----------------------------------------------------------------------------

    async def close_subscription(self, frame: frames.CloseSubscription) -> None:
        """See `Link.close_subscription`."""
        subscription = self._subscriptions.pop(frame.number, None)
        if subscription is not None:
            await subscription.close()

    async def open_subscription(self, frame: frames.OpenSubscription) -> frames.SubscriptionOpened:
        """See `Link.open_subscription`."""
        if frame.number in self._subscriptions:
            raise Conflict(f"subscription {frame.number} is open")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Conflict(f"a remote client has at most {SUBSCRIPTIONS_MAX} subscriptions")
        options = frame.options
        if options.start not in ("latest", "earliest"):
            raise NotFound(f"start: {options.start!r}: latest or earliest")
        ahead = sum(len(place[2]) for place in frame.places.values())
        if ahead > frames.AHEAD_BYTES_MAX:
            raise ConfigError(
                f"places: {ahead} bytes of packets read ahead: allowed 0 to "
                f"{frames.AHEAD_BYTES_MAX}"
            )
        relay = _Relay(self, frame)
        await relay.open()
        credit = min(max(frame.credit, 0), frames.CREDIT_BYTES_MAX)
        subscription = _Subscription(self, frame.number, relay, credit)
        self._subscriptions[frame.number] = subscription
        relay.take_in_all()
        for report in subscription.news():
            self.post(report)
        return frames.SubscriptionOpened(subscriber_id=relay.subscriber_id)

    async def settle(self) -> None:
        """The engine stops: report how far publications were sent."""
        await asyncio.gather(*(each.settle() for each in list(self._publications.values())))

    async def end(self) -> None:
        """End all publications, subscriptions and consumers of the client, once."""
        if self._socket is not None:
            self._socket.transport.abort()
        async with self._free:
            publications = list(self._publications.values())
            self._publications.clear()
            for consumer in self._consumers.values():
                consumer.pause(None)
            self._consumers.clear()
            await asyncio.gather(*(each.close() for each in publications))
            self._quotas.forget(self.access, self.id)
            with contextlib.suppress(TidecastError):
                await self.connection.close()


OPERATIONS = Operations(
    {
        frames.Hello: Operation(RemoteSession.refuse_hello, nothing, answered=False),
        frames.Bye: Operation(RemoteSession.refuse, nothing),
        frames.Publish: Operation(RemoteSession.publish, nothing, answered=False),
        frames.Credit: Operation(RemoteSession.add_credit, nothing, answered=False),
        frames.Acks: Operation(RemoteSession.take_acks, nothing, answered=False),
        frames.OpenPublication: Operation(
            RemoteSession.open_publication, lambda frame: rights.to_publish(frame.topic)
        ),
        frames.ClosePublication: Operation(RemoteSession.close_publication, nothing),
        frames.OpenSubscription: Operation(
            RemoteSession.open_subscription, lambda frame: rights.to_subscribe(frame.pattern)
        ),
        frames.CloseSubscription: Operation(RemoteSession.close_subscription, nothing),
        frames.OpenConsumer: Operation(
            RemoteSession.open_consumer,
            lambda frame: rights.to_consume(frame.pattern, frame.options),
        ),
        frames.ResumeConsumer: Operation(RemoteSession.resume_consumer, nothing),
        frames.CloseConsumer: Operation(RemoteSession.close_consumer, nothing),
        frames.NodeIdOf: Operation(RemoteSession.node_id_of, nothing),
        frames.Administer: Operation(
            RemoteSession.administer,
            lambda frame: rights.to_administer(frame.action, frame.arguments),
        ),
        frames.Stats: Operation(RemoteSession.stats, nothing),
    },
    RemoteSession.refuse,
)
"""`serve` ends at a `Bye`: it is never asked."""
