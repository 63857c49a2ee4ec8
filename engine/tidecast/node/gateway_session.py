"""One remote client at the gateway: its publications, its subscriptions, and their limits.

The session outlives its connection for a while: publications stay open, with what they hold, so
that a client that comes back goes on where it was. Subscriptions end with the connection: a client
that is not there must not hold a publisher back. It is told what it missed when it subscribes
anew.

Nothing here grows without a limit. A client that reads slowly has no credit; then its subscription
reads no more, and the topic's flow control treats it as any slow subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed

from tidecast.buffers import reader as rd
from tidecast.client import kernels
from tidecast.client import remote_frames as rf
from tidecast.client.aio import Connection, Publisher, Subscription
from tidecast.client.images import BATCH_MESSAGES_MAX, Image
from tidecast.client.message import Batch
from tidecast.client.remote_frames import BadFrame, Block, Frame
from tidecast.client.socket_frames import failure_of
from tidecast.client.start import Earliest, Latest
from tidecast.client.waiting import Deadline
from tidecast.errors import Conflict, NotFound, PayloadTooLarge, TidecastError
from tidecast.events import Gap, ImageAvailable, ImageGone
from tidecast.layout import packet as wire

PUBLICATIONS_MAX, SUBSCRIPTIONS_MAX = 256, 256
CLOSE_TIMEOUT_S = 5.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 100e-6, 5e-3
_PER_MESSAGE = wire.PACKET_HEADER_BYTES + wire.MESSAGE_HEADER_BYTES


class _News(Exception):
    """Ends a wait: the client must hear of an image before the next batch."""


class _Relay(Subscription):
    """A subscription that notes in order what happens to its images: new, gap, ended."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.news: deque[tuple[str, Image, Any]] = deque()
        self.current: Image | None = None

    async def take(self) -> Batch | None:
        """The next batch, of image ``current``; None at the end. Raises _News."""
        return await self._wait_batch(BATCH_MESSAGES_MAX, Deadline(None))

    def settle(self) -> None:
        """Find the images that are there."""
        self._connection.pump()
        self._settle()

    def step(self, limit: int) -> Batch | None:
        if self.news:
            raise _News
        batch = super().step(limit)
        if batch is None and self.news:
            raise _News
        self.current = self._images[self._turn - 1] if batch is not None else None
        return batch

    def _take_in(self, event: ImageAvailable | ImageGone) -> None:
        n = len(self._images)
        super()._take_in(event)
        if len(self._images) > n:
            image = self._images[-1]
            self.news.append(("opened", image, (int(image.port[rd.R_SEQ]), _offset(image))))

    def _on_gap(self, image: Image, gap: Gap) -> None:
        self.news.append(("gap", image, gap))

    def _drop(self, image: Image) -> None:
        super()._drop(image)
        self.news.append(("ended", image, image.gone))


def _offset(image: Image) -> int:
    return int(image.port[rd.R_AT])


class _Publication:
    """A remote publisher: batches in order, each into the ring of the node, then confirmed."""

    def __init__(self, session: RemoteSession, number: int, core: Publisher, first: int) -> None:
        self.core, self.number, self.accepted = core, number, first - 1
        self._session = session
        self._queue: deque[tuple[int, Block]] = deque()
        self.queued_bytes = 0
        self._wake, self._drained = asyncio.Event(), asyncio.Event()
        self.task = asyncio.create_task(self._run())

    def offer(self, frame: rf.Publish, body: memoryview) -> None:
        """Queue a batch; one that was here before is not taken again. Raises BadFrame."""
        due = self.accepted + len(self._queue) + 1
        if frame.batch < due:
            return
        if frame.batch > due:
            raise BadFrame(f"publication {self.number}: batch {frame.batch}: due is {due}")
        if (
            self.queued_bytes >= rf.PUBLISH_WINDOW_BYTES
            or self._session.queued_bytes >= rf.SESSION_WINDOW_BYTES
        ):
            raise BadFrame(f"publication {self.number}: more under way than the window allows")
        block = Block.parse(frame.n, frame.mixed, body)
        self.queued_bytes += block.nbytes
        self._session.queued_bytes += block.nbytes
        self._queue.append((frame.receiver, block))
        self._drained.clear()
        self._wake.set()

    async def _run(self) -> None:
        try:
            while True:
                while self._queue:
                    await self._append_first()
                self._wake.clear()
                self._drained.set()
                await self._wake.wait()
        except TidecastError as problem:
            self._drained.set()
            ended = rf.Ended(number=self.number, publication=True, failure=failure_of(problem))
            await self._session.send(ended)

    async def _append_first(self) -> None:
        receiver, block = self._queue[0]
        pause_s = _PAUSE_MIN_S
        while not self._attempt(block, receiver):
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, _PAUSE_MAX_S)
        self._queue.popleft()
        self.queued_bytes -= block.nbytes
        self._session.queued_bytes -= block.nbytes
        self.accepted += 1
        await self._session.send(rf.Accepted(number=self.number, batch=self.accepted))

    def _attempt(self, block: Block, receiver: int) -> bool:
        with self.core.lock:
            port = self.core.port_for_kernel()
            status = rf.FULL if port is None else block.put(port, receiver)
        if status == rf.TOO_LARGE:
            raise PayloadTooLarge(f"topic {self.core.topic}: {block.longest} bytes are too many")
        return status == 0

    async def close(self) -> None:
        """What is queued gets its chance; then the publication ends."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._drained.wait()
        self._session.queued_bytes -= self.queued_bytes
        self.task.cancel()
        with contextlib.suppress(TidecastError):
            await self.core.close(CLOSE_TIMEOUT_S)


class _Subscription:
    """A remote subscriber: batches of its images, as far as its credit goes."""

    def __init__(self, session: RemoteSession, number: int, relay: _Relay, credit: int) -> None:
        self.number, self.relay = number, relay
        self._session, self._credit = session, credit
        self._credited = asyncio.Event()
        self._images: dict[int, int] = {}
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to deliver."""
        self.task = asyncio.create_task(self._run())

    def add_credit(self, n_bytes: int) -> None:
        """The client has room for more."""
        if n_bytes <= 0:
            raise BadFrame(f"credit: {n_bytes}: more than 0")
        self._credit = min(self._credit + n_bytes, rf.CREDIT_BYTES_MAX)
        self._credited.set()

    async def _run(self) -> None:
        relay = self.relay
        try:
            while True:
                batch = None
                with contextlib.suppress(_News):
                    batch = await relay.take()
                    if batch is None:
                        return
                await self.tell_news()
                if batch is not None:
                    await self._deliver(batch)
        except TidecastError as problem:
            await self._session.send(
                rf.Ended(number=self.number, publication=False, failure=failure_of(problem))
            )

    async def tell_news(self) -> None:
        """Send what happened to images."""
        while self.relay.news:
            what, image, about = self.relay.news.popleft()
            if what == "opened":
                number = self._images[id(image)] = self._session.next_image()
                seq, at = about
                await self._session.send(
                    rf.ImageOpened(
                        number=self.number, image=number, topic=image.topic, node=image.node,
                        session=image.session, reliability=image.reliability, seq=seq, at=at,
                    )
                )  # fmt: skip
                continue
            number = self._images.get(id(image), 0)
            if what == "gap":
                await self._tell_gap(number, about.first, about.end, about.reason)
            else:
                self._images.pop(id(image), None)
                ended = rf.ImageEnded(number=self.number, image=number, reason=str(about))
                await self._session.send(ended)

    async def _tell_gap(self, image: int, first: int, end: int, reason: str) -> None:
        self._session.counts["gaps"] += 1
        await self._session.send(
            rf.GapTold(number=self.number, image=image, first=first, end=end, reason=reason)
        )

    async def _deliver(self, batch: Batch) -> None:
        image = self.relay.current
        assert image is not None
        number = self._images[id(image)]
        memory, columns, rows, n = batch.parts
        for first, end, mixed, body in rf.bodies(memory, columns, rows, n):
            seq, at = int(image.port[rd.R_SEQ]), _offset(image)
            if not image.whole():
                await self._tell_gap(number, int(kernels.forget(image.port)), seq, "lapped")
                return
            if not body.size:
                await self._tell_gap(number, seq - 1, seq, "too large for a gateway")
                continue
            while self._credit <= 0:
                self._credited.clear()
                self._session.counts["waits_for_credit"] += 1
                await self._credited.wait()
            self._credit -= body.size
            self._session.counts["messages_out"] += end - first
            await self._session.send(
                rf.Deliver(
                    number=self.number, image=number, n=end - first, mixed=mixed,
                    seq=seq if end == n else -1, at=at,
                ),
                body,
            )  # fmt: skip

    async def close(self) -> None:
        """End it at once."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        with contextlib.suppress(TidecastError):
            await self.relay.close()


class RemoteSession:
    """See the module. All methods run in the gateway's loop."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection, self.name = connection, name
        self.id, self.key = secrets.token_hex(8), secrets.token_hex(16)
        self.queued_bytes = 0
        self.counts = {
            "messages_in": 0, "messages_out": 0, "gaps": 0, "waits_for_credit": 0, "resumed": 0,
        }  # fmt: skip
        self._socket: ServerConnection | None = None
        self._free = asyncio.Lock()
        self._publications: dict[int, _Publication] = {}
        self._subscriptions: dict[int, _Subscription] = {}
        self._image = 0
        self.ended = False

    @property
    def connected(self) -> bool:
        """A client is there."""
        return self._socket is not None

    def next_image(self) -> int:
        """A number for an image."""
        self._image += 1
        return self._image

    def welcome(self, *, resumed: bool) -> rf.Welcome:
        """The first answer."""
        link = self.connection.link
        return rf.Welcome(
            session=self.id, key=self.key, resumed=resumed, client_id=link.client_id,
            node_id=link.node_id, node_name=link.node_name, incarnation=link.incarnation,
            accepted={number: each.accepted for number, each in self._publications.items()},
        )  # fmt: skip

    async def send(self, frame: Frame, body: Any = None) -> None:
        """Send; when nobody is there, what matters is told again at the next welcome."""
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(ConnectionClosed):
                await socket.send(rf.encode(frame, body))

    async def serve(self, socket: ServerConnection, *, resumed: bool) -> bool:
        """Serve one connection to its end; a second one of the same client ends the first.

        True: the client said goodbye. Raises BadFrame.
        """
        if self._socket is not None:
            self._socket.transport.abort()
        async with self._free:
            self._socket = socket
            self.counts["resumed"] += resumed
            events: asyncio.Task[None] | None = None
            try:
                await self.send(self.welcome(resumed=resumed))
                events = asyncio.create_task(self._tell_events())
                async for data in socket:
                    frame, body = rf.from_client(data)
                    if isinstance(frame, rf.Bye):
                        return True
                    await self._handle(frame, body)
            finally:
                self._socket = None
                if events is not None:
                    events.cancel()
                for subscription in self._subscriptions.values():
                    await subscription.close()
                self._subscriptions.clear()
        return False

    async def _tell_events(self) -> None:
        private = ImageAvailable, ImageGone, Gap
        async for event in self.connection.events():
            if not isinstance(event, private):
                await self.send(rf.Told(events=[event]))  # type: ignore[list-item]

    async def _handle(self, frame: rf.FromClient, body: memoryview) -> None:
        match frame:
            case rf.Publish():
                publication = self._publications.get(frame.number)
                if publication is None:
                    raise BadFrame(f"publication {frame.number}: it is not open")
                publication.offer(frame, body)
                self.counts["messages_in"] += frame.n
            case rf.Credit():
                subscription = self._subscriptions.get(frame.number)
                if subscription is not None:
                    subscription.add_credit(frame.n_bytes)
            case rf.Hello():
                raise BadFrame("a second Hello")
            case rf.Bye():
                return
            case _:
                await self._answer(frame)

    async def _answer(self, frame: Any) -> None:
        try:
            result = rf.result_of(await self._ask(frame))
        except TidecastError as problem:
            await self.send(rf.Reply(id=frame.id, failure=failure_of(problem)))
        else:
            await self.send(rf.Reply(id=frame.id, result=result))
        if isinstance(frame, rf.OpenSubscription) and frame.number in self._subscriptions:
            self._subscriptions[frame.number].start()

    async def _ask(self, frame: Any) -> Any:
        link = self.connection.link
        match frame:
            case rf.OpenPublication():
                return await self._open_publication(frame)
            case rf.ClosePublication():
                publication = self._publications.pop(frame.number, None)
                if publication is not None:
                    await publication.close()
                return None
            case rf.OpenSubscription():
                return await self._open_subscription(frame)
            case rf.CloseSubscription():
                subscription = self._subscriptions.pop(frame.number, None)
                if subscription is not None:
                    await subscription.close()
                return None
            case rf.NodeIdOf():
                return await asyncio.to_thread(link.node_id_of, frame.node)
            case rf.Administer():
                return await asyncio.to_thread(link.subscription, frame.action, frame.arguments)
            case rf.Stats():
                return {**await asyncio.to_thread(link.stats), "gateway": self.counts}
        raise BadFrame(f"{type(frame).__name__} is no question")

    async def _open_publication(self, frame: rf.OpenPublication) -> rf.PublicationOpened:
        publication = self._publications.get(frame.number)
        if publication is None:
            if len(self._publications) >= PUBLICATIONS_MAX:
                raise Conflict(f"a remote client has at most {PUBLICATIONS_MAX} publications")
            options = frame.options
            core = await asyncio.to_thread(
                lambda: self.connection.publisher(
                    frame.topic, channel=options.channel, linger_us=options.linger_us,
                    history_bytes=options.history_bytes, buffer=False,
                    rate_packets_per_s=options.rate_packets_per_s,
                    rate_bytes_per_s=options.rate_bytes_per_s,
                )
            )  # fmt: skip
            publication = _Publication(self, frame.number, core, frame.first)
            self._publications[frame.number] = publication
        core = publication.core
        per_packet = core.packet_room_bytes
        return rf.PublicationOpened(
            session=core.session,
            on_full=core.on_full,
            slot_bytes=per_packet + _PER_MESSAGE,
            slots=2 * ((core.payload_bytes_max + 8) // per_packet),
        )

    async def _open_subscription(self, frame: rf.OpenSubscription) -> rf.SubscriptionOpened:
        if frame.number in self._subscriptions:
            raise Conflict(f"subscription {frame.number} is open")
        if len(self._subscriptions) >= SUBSCRIPTIONS_MAX:
            raise Conflict(f"a remote client has at most {SUBSCRIPTIONS_MAX} subscriptions")
        options = frame.options
        if options.start not in ("latest", "earliest"):
            raise NotFound(f"start: {options.start!r}: latest or earliest")
        relay = _Relay(
            self.connection, frame.pattern, tethered=options.tethered,
            start=Earliest() if options.start == "earliest" else Latest(),
            receive_bytes=options.receive_bytes, on_gap="event",
        )  # fmt: skip
        await relay.open()
        credit = min(max(frame.credit, 0), rf.CREDIT_BYTES_MAX)
        subscription = _Subscription(self, frame.number, relay, credit)
        self._subscriptions[frame.number] = subscription
        relay.settle()
        await subscription.tell_news()
        return rf.SubscriptionOpened(subscriber_id=relay.subscriber_id)

    async def end(self) -> None:
        """End everything the client had. Idempotent."""
        if self.ended:
            return
        self.ended = True
        if self._socket is not None:
            self._socket.transport.abort()
        async with self._free:
            publications = list(self._publications.values())
            self._publications.clear()
            await asyncio.gather(*(each.close() for each in publications))
            with contextlib.suppress(TidecastError):
                await self.connection.close()
