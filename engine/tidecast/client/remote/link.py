"""`RemoteLink`: a `Link` to a gateway on another host, over a websocket. See docs/GATEWAY.md.

The client's rings are in this process, so publishers and subscriptions work as in local clients.
Two threads move messages: the *reader* takes frames from the gateway and writes the rings that
subscriptions read; the *pump* ships messages of publishers, returns credit, and puts messages that
found no room. When the connection breaks, both continue: the reader connects again and resumes the
session; messages that were published meanwhile wait in the rings.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from tidecast.api.connecting import Backoff
from tidecast.api.frames.common import Failure, Frame, Goodbye, Reply, Working, error_of
from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    Link,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.api.logs import Logs, Report
from tidecast.api.rpc import Calls
from tidecast.client.kernels import ports
from tidecast.client.log.sources import RemoteLogs
from tidecast.client.remote import frames
from tidecast.client.remote.arrivals import Arrivals, Subscribed
from tidecast.client.remote.consumers import RemoteConsumers, ReplicaRing
from tidecast.client.remote.dial import dial
from tidecast.client.remote.frames import BadFrame
from tidecast.client.remote.rings import OutgoingRing, RingDirectory, make_directory, with_local_ids
from tidecast.client.waiting import Deadline
from tidecast.config.internal import is_internal
from tidecast.errors import (
    AuthError,
    Closed,
    ConnectionLost,
    Fenced,
    ForkedProcess,
    TidecastError,
    Timeout,
)
from tidecast.events import (
    ConsumerExpelled,
    ConsumerRejoined,
    EngineLost,
    Event,
    Gap,
    GatewayBack,
    GatewayLost,
    ImageAvailable,
    ImageGone,
    MessagesDropped,
    MessagesUnsent,
    PublicationEnded,
    SubscriptionEnded,
)
from tidecast.layout import ring as ring_layout
from tidecast.native.mapped import Bytes, MappedFile

PORT, EVENTS_MAX = 7400, 10_000
REQUEST_TIMEOUT_S, CLOSE_TIMEOUT_S = 30.0, 10.0
RETRY_MIN_S, RETRY_MAX_S = 0.05, 2.0
NEEDED_EVENTS = (
    ImageAvailable,
    ImageGone,
    EngineLost,
    ConsumerRejoined,
    ConsumerExpelled,
    PublicationEnded,
    SubscriptionEnded,
)
_IDLE_S, _PENDING_S = 0.1, 0.001
_links: weakref.WeakSet[RemoteLink] = weakref.WeakSet()


class RemoteLink(Link):
    """See the module, and `Link` for the methods."""

    remote: bool = True

    def __init__(self, url: str, name: str, token: str | None, *, tls: bool = False) -> None:
        """``url``: ``HOST:PORT``. Raises EngineNotRunning, AuthError, ConfigError, Conflict."""
        self._where, self._token, self._tls = url, token, tls
        self._dial = partial(dial, url, name, token or "", tls=tls)
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._events: deque[Event] = deque()
        self._events_missed = 0
        self._numbers = itertools.count(1)
        self._calls = Calls(url)
        self._out: dict[int, OutgoingRing] = {}
        self._socket: ClientConnection | None = None
        self._welcome, self._socket = self._dial("", "")
        self._directory, self._directory_lock = make_directory()
        self._bells = MappedFile.create(
            self._directory / "bells", ring_layout.DOORBELLS_MAX * ring_layout.DOORBELL_BYTES
        )
        self.bells: Bytes = self._bells.array
        self.doorbell = ring_layout.DOORBELL_FIRST_CLIENT
        self._home = RingDirectory(self._directory, self.bells, self.doorbell, self.doorbell + 1)
        self.arrivals = Arrivals(
            self._home,
            self._numbers,
            self._push,
            lambda: ports.ring_line(self.bells, self._home.pump_line),
            self.now_s,
        )
        self._greeted(self._welcome)
        self.consumers = RemoteConsumers(
            self._home, self._push, self._ask, self._ask_then, self._hang_up
        )
        self._reader = self._thread(self._read, "tidecast-remote-in")
        self._pump = self._thread(self._ship, "tidecast-remote-out")
        self._reader.start()
        self._pump.start()
        _links.add(self)

    # --- connecting -------------------------------------------------------------------------------

    def _greeted(self, welcome: frames.Welcome) -> None:
        self._welcome = welcome
        self.client_id, self.incarnation = welcome.client_id, welcome.incarnation
        self.node_id, self.node_name = welcome.node_id, welcome.node_name
        home = self._home
        home.node_id, home.node_name = welcome.node_id, welcome.node_name
        home.incarnation = welcome.incarnation
        self.arrivals.greeted(resumes=welcome.resumes)

    @property
    def connected(self) -> bool:
        """The gateway was there a moment ago."""
        return self._socket is not None

    def drop_inherited(self) -> None:
        """In a forked child: an inherited socket would hide the parent's death."""
        if self._socket is not None:
            self._socket.socket.close()

    def _send(self, data: bytes) -> None:
        socket = self._socket
        if socket is None:
            raise ConnectionLost(f"{self._where}: not connected; the client tries again")
        try:
            socket.send(data)
        except (ConnectionClosed, OSError) as problem:
            raise ConnectionLost(f"{self._where}: {problem}") from None

    def _ask(
        self, make: Callable[[int], Frame], kind: Any, undo: Callable[[], Frame] | None = None
    ) -> Any:
        """``make(id)`` is the question. Raises the gateway's error, ConnectionLost, Timeout.

        ``undo``: a frame to send if the answer comes too late.
        """
        self._check()
        late = None if undo is None else lambda _: self._send(frames.encode(undo()))
        name = type(make(0)).__name__
        return self._calls.ask(
            lambda number: self._send(frames.encode(make(number))),
            kind,
            REQUEST_TIMEOUT_S,
            name,
            late,
        )

    def _ask_then(
        self, make: Callable[[int], Frame], kind: Any, then: Callable[[Any], None]
    ) -> None:
        """Ask, and have the reader call ``then`` with the answer, or with the error."""
        self._calls.ask_then(lambda number: self._send(frames.encode(make(number))), kind, then)

    def _check(self) -> None:
        if self._pid != os.getpid():
            raise ForkedProcess("this connection was made by the parent process: connect again")
        if self._closing.is_set():
            raise Closed("the connection is closed")
        if self.refusal is not None:
            raise self.refusal

    # --- the reader's thread ----------------------------------------------------------------------

    def _thread(self, work: Callable[[], None], name: str) -> threading.Thread:
        return threading.Thread(target=self._guarded, args=(work,), name=name, daemon=True)

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread that dies closes the connection, so that no call waits for it in vain."""
        try:
            work()
        except BaseException as problem:
            self._give_up(ConnectionLost(f"{self._where}: the client failed: {problem!r}"))
            raise

    def _read(self) -> None:
        while not self._closing.is_set():
            reason = "the gateway closed the connection"
            try:
                assert self._socket is not None
                for data in self._socket:
                    frame, body = frames.from_gateway(data)
                    if isinstance(frame, Goodbye):
                        reason = frame.reason
                    else:
                        self._take(frame, body)
            except (ConnectionClosed, OSError, BadFrame) as problem:
                reason = str(problem)
            self._disconnect(reason)
            if not self._closing.is_set() and not self._reconnect():
                return

    def _disconnect(self, reason: str) -> None:
        with self._lock:
            socket, self._socket = self._socket, None
            self.consumers.pause()
        if socket is not None:
            with contextlib.suppress(Exception):
                socket.close()
        self._calls.lose(ConnectionLost(f"{self._where}: {reason}"))
        if not self._closing.is_set():
            self._push(GatewayLost(reason=reason))

    def _reconnect(self) -> bool:
        """Until it succeeds. False: closed, or the gateway wants us no more."""
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        while not self._closing.wait(backoff.next_s()):
            try:
                welcome, socket = self._dial(self._welcome.session, self._welcome.key)
                try:
                    self._resume(welcome, socket)
                except BaseException:
                    with contextlib.suppress(Exception):
                        socket.close()
                    raise
            except AuthError as problem:
                self._give_up(problem)
                return False
            except TidecastError:
                continue
            return True
        return False

    def _give_up(self, problem: TidecastError) -> None:
        """Never connect again: publishers cannot send the messages that they hold."""
        self.refusal = problem
        with self._lock:
            self.consumers.pause()
            for out in [out for out in self._out.values() if out.failed is None]:
                self._report_lost(out, engine_lives=False)
                out.fail(str(problem))
        self._push(EngineLost(reason=str(problem)))

    def _resume(self, welcome: frames.Welcome, socket: ClientConnection) -> None:
        with self._lock:
            if self._closing.is_set():  # meanwhile: the gateway would keep this session
                raise Closed("the connection is closed")
            self._greeted(welcome)
            openings: list[Frame] = [
                frames.ClosePublication(id=0, number=number)
                for number in welcome.accepted
                if number not in self._out
            ]
            for out in self._out.values():
                if out.failed is not None:
                    continue
                if welcome.resumed and out.number in welcome.accepted:
                    out.resume(welcome.accepted[out.number])
                else:
                    openings.append(self._opening_again(out))
            subscribed = self.arrivals.disconnected()
            back = GatewayBack(resumed=welcome.resumed)
            outstanding = {each.number for each in subscribed}
            for each in subscribed:
                reopened = self._when_reopened(each, outstanding, back)
                openings.append(
                    self.arrivals.opening(
                        each, self._calls.begin(frames.SubscriptionOpened, reopened)
                    )
                )
            try:
                for frame in openings:
                    socket.send(frames.encode(frame))
            except (ConnectionClosed, OSError) as problem:
                raise ConnectionLost(str(problem)) from None
            self._socket = socket
            for replica in list(self.consumers.replicas.values()):
                self.consumers.resume(replica)
        if not outstanding:
            self._push(back)
        ports.ring_line(self.bells, self._home.pump_line)

    def _opening_again(self, out: OutgoingRing) -> frames.OpenPublication:
        """The gateway has forgotten a publication: open it, from the first unconfirmed batch on."""

        def opened(answer: Any) -> None:
            if not isinstance(answer, TidecastError):
                out.begun_again(answer)
            elif not answer.retryable:
                self._fail(out, answer, engine_lives=False)
            elif not isinstance(answer, ConnectionLost):
                self._hang_up()

        number = self._calls.begin(frames.PublicationOpened, opened)
        return msgspec.structs.replace(out.begin_again(), id=number)

    def _hang_up(self) -> None:
        """The gateway cannot do it now: connect again, and ask again."""
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(Exception):
                socket.close()

    def _when_reopened(
        self, each: Subscribed, outstanding: set[int], back: GatewayBack
    ) -> Callable[[Any], None]:
        """The gateway is back when all subscriptions are: messages published then arrive."""

        def opened(answer: Any) -> None:
            if isinstance(answer, ConnectionLost):
                return  # it is asked again
            if isinstance(answer, frames.SubscriptionOpened):
                each.renumber(answer.subscriber_id)
                self.arrivals.reopened(each)
            elif answer.retryable:
                self._hang_up()
                return
            else:
                failure = Failure(code=answer.code, message=str(answer))
                self.arrivals.failed(each.number, failure)
            outstanding.discard(each.number)
            if not outstanding:
                self._push(back)

        return opened

    def _take(self, frame: frames.FromGateway, body: memoryview) -> None:
        match frame:
            case frames.Deliver():
                self.arrivals.delivered(frame, body)
            case frames.Accepted():
                out = self._out.get(frame.number)
                if out is not None:
                    out.accepted(frame.batch)
                    ports.ring_line(self.bells, self._home.pump_line)
            case Reply():
                # Without the lock: a sender holds it, and may wait for the gateway to read.
                self._calls.answer(frame)
            case Working():
                self._calls.hear(frame)
            case frames.Delivered() | frames.TakenBack():
                self.consumers.received(frame, body)
            case frames.Sent():
                out = self._out.get(frame.number)
                if out is not None:
                    out.sent(frame.batch)
                    ports.ring_line(self.bells, self._home.pump_line)
            case frames.Durable():
                out = self._out.get(frame.number)
                if out is not None:
                    out.durable(frame.seq, frame.state)
                    ports.ring_line(self.bells, self.doorbell)
                    ports.ring_line(self.bells, self._home.pump_line)
            case frames.ImageOpened():
                self.arrivals.opened(frame)
            case frames.ImageEnded() | frames.GapReported():
                self.arrivals.reported(frame)
            case frames.EventsReported():
                self._push(
                    *(with_local_ids(event, list(self._out.values())) for event in frame.events)
                )
            case frames.Ended():
                self._failed(frame)

    def _failed(self, frame: frames.Ended) -> None:
        """The node ended it, for example because its topic was deleted."""
        if not frame.publication:
            self.arrivals.failed(frame.number, frame.failure)
        elif (out := self._out.get(frame.number)) is not None:
            self._fail(out, error_of(frame.failure), engine_lives=True)

    def _fail(self, out: OutgoingRing, problem: BaseException, *, engine_lives: bool) -> None:
        """A publisher cannot send the messages that it still has.

        ``engine_lives``: the engine that accepted the others sends them.
        """
        code = problem.code if isinstance(problem, TidecastError) else "error"
        if code == Fenced.code:
            out.durable(0, ring_layout.ACK_FENCED)
        with self._lock:
            if out.freed:
                return  # its publisher was closed meanwhile
            self._report_lost(out, engine_lives=engine_lives)
            out.fail(str(problem))
        self._push(
            PublicationEnded(code=code, reason=str(problem), topic=out.topic, session=out.session)
        )

    def _report_lost(self, out: OutgoingRing, *, engine_lives: bool) -> None:
        """Report the messages of a publisher that stay unsent; the caller holds the lock."""
        messages, n_bytes = out.give_up(engine_lives=engine_lives)
        about: Any = {"topic": out.topic, "session": out.session, "messages": messages}
        if messages:
            dropped = out.opened.durable
            self._push(
                MessagesDropped(**about) if dropped else MessagesUnsent(bytes=n_bytes, **about)
            )

    def _push(self, *events: Event) -> None:
        for event in events:
            needed = isinstance(event, NEEDED_EVENTS)
            if len(self._events) < EVENTS_MAX or needed:
                self._events.append(event)
            else:
                self._events_missed += 1
        ports.ring_line(self.bells, self.doorbell)

    # --- the pump's thread ------------------------------------------------------------------------

    def _ship(self) -> None:
        scratch = np.zeros(16, dtype=np.uint8)
        line, at = self._home.pump_line, self._home.pump_line * ring_layout.DOORBELL_BYTES
        word = self.bells.data[at : at + 4].cast("i")
        while not self._closing.is_set():
            seen = word[0]
            if self._round():
                continue
            pending = self.arrivals.waiting
            with self._lock:
                ready = [out for out in self._out.values() if out.failed is None]
                armed = [self.consumers.arm(), *(out.arm() for out in ready)]
                more = self.connected and any(armed)
            if not more:
                pause_s = _PENDING_S if pending else _IDLE_S
                ports.wait_line(self.bells, line, seen, int(pause_s * 1e9), scratch)

    def _round(self) -> int:
        """Ship as much as credit and room allow, once around; the amount of work."""
        did = self.arrivals.drain()
        if not self.connected:
            for out in list(self._out.values()):
                self._note_done(out)
            return did
        with contextlib.suppress(ConnectionLost):
            for number, n_bytes in self.arrivals.credits():
                self._send(frames.encode(frames.Credit(number=number, n_bytes=n_bytes)))
                did += 1
            for replica in list(self.consumers.replicas.values()):
                did += self._send_acks(replica)
            for out in list(self._out.values()):
                did += self._ship_one(out)
        return did

    def _send_last_acks(self, leaving: list[ReplicaRing]) -> None:
        """Send the last acks of consumers that leave, once the gateway takes acks of them."""
        patience = Deadline(CLOSE_TIMEOUT_S)
        for replica in leaving:
            if threading.current_thread() is not self._reader:
                replica.answered.wait(patience.left_s(CLOSE_TIMEOUT_S))
            self._send_acks(replica)

    def _send_acks(self, replica: ReplicaRing) -> int:
        """Send the acks of a consumer, and how far it took deliveries."""
        with self._lock:
            socket = self._socket
            data = replica.next_frame() if socket is not None else None
            if data is None or socket is None:
                return 0
            with contextlib.suppress(ConnectionClosed, OSError):
                socket.send(data)
        return 1

    def _ship_one(self, out: OutgoingRing) -> int:
        with self._lock:  # a resume must not come between the choice of a frame and its sending
            under_way = sum(each.under_way_bytes for each in self._out.values())
            gone = out.number not in self._out or out.failed is not None
            if gone or under_way >= frames.SESSION_WINDOW_BYTES:
                return 0
            socket, data = self._socket, out.next_frame()
        self._note_done(out)
        if data is None or socket is None:
            return 0
        with contextlib.suppress(ConnectionClosed, OSError):
            socket.send(data)
        return 1

    def _note_done(self, out: OutgoingRing) -> None:
        with self._lock:
            if out.number in self._out and out.is_done():
                out.done.set()

    # --- Link -------------------------------------------------------------------------------------

    def open_publication(self, topic: str, options: PublicationOptions) -> PublicationGrant:
        """See `Link`."""
        publication = next(self._numbers)
        question = frames.OpenPublication(
            id=0,
            number=publication,
            topic=topic,
            options=options,
            keeps_unsent=not is_internal(topic),
        )
        opened = self._ask(
            lambda number: msgspec.structs.replace(question, id=number),
            frames.PublicationOpened,
            lambda: frames.ClosePublication(id=0, number=publication),
        )
        out = OutgoingRing(self._home, question, opened)
        with self._lock:
            self._out[publication] = out
        return out.grant()

    def close_publication(self, publication_id: int) -> None:
        """See `Link`. Waits until the gateway has all of it. Raises Timeout when it does not.

        Two threads may close one publication: its user's, and the thread that releases ended
        publications.
        """
        with self._lock:
            out = self._out.get(publication_id)
        if out is None:
            return
        ports.ring_line(self.bells, self._home.pump_line)
        done = out.done.wait(CLOSE_TIMEOUT_S)
        with self._lock:
            left = out.lost + out.unconfirmed
            was_open = self._out.pop(publication_id, None) is not None
            if was_open:
                if out.failed is not None or not (done and self.connected):
                    self._report_lost(out, engine_lives=out.failed is not None)
                out.close()
        if out.failed is not None:
            raise ConnectionLost(
                f"topic {out.topic}: the gateway ended the publication, with {left} messages not "
                f"confirmed: {out.failed}"
            )
        if not done:
            raise Timeout(
                f"topic {out.topic}: the gateway did not confirm the newest messages within "
                f"{CLOSE_TIMEOUT_S:g} s ({left} messages, and what was in the ring): it is not "
                "reached, or the topic is full"
            )
        if was_open:
            self._ask(
                lambda number: frames.ClosePublication(id=number, number=publication_id), None
            )

    def open_subscription(self, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        """See `Link`."""
        each = Subscribed(next(self._numbers), pattern, options, self.now_s)
        self.arrivals.add(each)
        try:
            opened = self._ask(
                lambda question: self.arrivals.opening(each, question),
                frames.SubscriptionOpened,
                lambda: frames.CloseSubscription(id=0, number=each.number),
            )
        except BaseException:
            self.arrivals.remove(each.number)
            raise
        each.renumber(opened.subscriber_id)
        return SubscriptionGrant(
            subscription_id=each.number, subscriber_id=opened.subscriber_id, pattern=pattern
        )

    def close_subscription(self, subscription_id: int) -> None:
        """See `Link`."""
        self.arrivals.remove(subscription_id)
        self._ask(lambda number: frames.CloseSubscription(id=number, number=subscription_id), None)

    def subscriber_of(self, subscription_id: int) -> int | None:
        """See `Link`: a gateway that is back knows subscriptions by new ids."""
        return self.arrivals.subscriber_of(subscription_id)

    def release_image(self, subscription_id: int, image_id: int) -> None:
        """See `Link`."""
        self.arrivals.release(subscription_id, image_id)

    def true_gap(self, subscription_id: int, image_id: int, gap: Gap) -> Gap:
        """See `Link`: the gateway's rings number packets from 0 again."""
        return self.arrivals.true_gap(subscription_id, image_id, gap)

    def take_events(self) -> list[Event]:
        """See `Link`."""
        taken: list[Event] = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._events.popleft())
        return taken

    def open_consumer(self, pattern: str, name: str, options: ConsumerOptions) -> ConsumerGrant:
        """See `Link`."""
        return self.consumers.open(next(self._numbers), pattern, name, options)

    def consumer_grant(self, consumer_id: int) -> ConsumerGrant:
        """See `Link`."""
        return self.consumers.grant_of(consumer_id)

    def close_consumer(self, consumer_id: int) -> None:
        """See `Link`. Acks are sent before."""
        replica = self.consumers.replicas.get(consumer_id)
        if replica is not None:
            self._send_last_acks([replica])
            self.consumers.close(consumer_id)

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link`."""
        return self._ask(
            lambda number: frames.Administer(id=number, action=action, arguments=arguments), Any
        )

    def sync(self) -> None:
        """See `Link`: it does not wait."""

    def open_logs(self, topic: str, report: Report) -> Logs:
        """See `Link`: over connections of their own, which need the right `read_payloads`."""
        self._check()
        scheme = "tidecast+tls" if self._tls else "tidecast"
        return RemoteLogs(f"{scheme}://{self._where}", self._token, topic, report)

    def node_id_of(self, name: str) -> int:
        """See `Link`."""
        return int(self._ask(lambda number: frames.NodeIdOf(id=number, node=name), int))

    def stats(self) -> dict[str, Any]:
        """See `Link`; under ``gateway`` its counts of this session."""
        found: dict[str, Any] = self._ask(lambda number: frames.Stats(id=number), dict[str, Any])
        found["gateway"]["events_missed"] = self._events_missed
        return found

    def close(self) -> None:
        """See `Link`. Publications are closed before; unconfirmed messages are lost."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._pid != os.getpid():
            return
        ports.ring_line(self.bells, self._home.pump_line)
        self._send_last_acks(list(self.consumers.replicas.values()))
        with self._lock:  # a resume that has begun may end
            socket = self._socket
        if socket is not None:
            with contextlib.suppress(ConnectionClosed, OSError):
                socket.send(frames.encode(frames.Bye()))
            with contextlib.suppress(Exception):
                socket.close()
        for thread in (self._reader, self._pump):
            if thread is not threading.current_thread():
                thread.join(2.0)
        with self._lock:
            for out in self._out.values():
                out.close()
            self._out.clear()
        shutil.rmtree(self._directory, ignore_errors=True)
        os.close(self._directory_lock)


def _in_child() -> None:
    for link in list(_links):
        link.drop_inherited()


os.register_at_fork(after_in_child=_in_child)
