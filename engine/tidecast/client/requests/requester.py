"""Requests of one client on one topic: which responder gets each, and the replies that come back.

Two subscriptions to internal topics do the work. One reads the announcements of responders, which
live as long as their publications; the other reads replies. A responder may be chosen once both its
publications are read here: no reply can be missed. A request names one responder, so that exactly
this one gets it; when that one ends, its requests fail at once.

`pump` reads arrived messages and completes requests. The waiting side calls it: a thread, or the
single task of an event loop that does so for all.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tidecast import codecs
from tidecast.api.start import Earliest, Latest
from tidecast.client.core.image import Copied, Image
from tidecast.client.core.message import Message, Origin
from tidecast.client.core.metadata import NONE, Headers
from tidecast.client.core.opened import ImageEvent
from tidecast.client.core.outgoing import Outgoing, payload_bytes
from tidecast.client.core.subscription import SubscriptionCore
from tidecast.client.flows.publisher import PublisherFlows
from tidecast.client.flows.steps import TURN, Ask, Flow, idle
from tidecast.client.kernels import ports
from tidecast.client.requests import wire
from tidecast.client.requests.wire import Announcement
from tidecast.client.waiting import Deadline, InlinePace
from tidecast.config.internal import REPLIES, RESPONDERS
from tidecast.errors import (
    BackPressure,
    Closed,
    NoResponders,
    RequestFailed,
    RequestTimeout,
    ResponderLost,
    TidecastError,
)
from tidecast.events import Gap, RepliesDropped

IN_FLIGHT_MAX = 65_536
"""Requests of one client on one topic that wait for their replies."""
DISCOVERY_S = 0.5
"""Responders of other nodes are known so long after the first request, at the latest: they repeat
that they are there every 100 ms (`heartbeat_ms`)."""
SETTLING_S = 5.0
"""A responder that is there can be chosen so long after that, at the latest: its announcement and
its publication of replies have arrived by then, also on a machine that has much else to do."""
_BATCH, _PUMP_MAX = 512, 4096
_ANNOUNCED_MAX = 4096
_LOOK_S = 1e-3
"""A look at announcements takes some us: one in this time will do while requests succeed."""
_COUNTS = ("sent", "replies", "failed", "timeouts", "lost", "late", "foreign", "lapped")


class Responder:
    """A responder as the requester knows it. ``outstanding``: requests that it has."""

    __slots__ = ("about", "lead", "origin", "outstanding")

    def __init__(self, about: Announcement, origin: Origin) -> None:
        """``origin``: of its replies that have no headers."""
        self.about, self.origin = about, origin
        self.lead = wire.request_lead(about.subscriber)
        self.outstanding = 0


class Pending:
    """A request that was sent, and its outcome."""

    __slots__ = ("codec", "done", "message", "number", "problem", "responder", "sink")

    def __init__(self, number: int, responder: Responder, codec: codecs.Codec | None) -> None:
        self.number, self.responder, self.codec = number, responder, codec
        self.message: Message | None = None
        self.problem: TidecastError | None = None
        self.sink: Callable[[Pending], None] | None = None
        """Called once it is done."""
        self.done = False

    def when_done(self, sink: Callable[[Pending], None]) -> None:
        """Call ``sink`` once it is done."""
        self.sink = sink

    def reply(self) -> Message:
        """The reply. Raises RequestFailed, ResponderLost, ConnectionLost, Closed."""
        if self.problem is not None:
            raise self.problem
        assert self.message is not None, "it is not done"
        return self.message


class _Internal(SubscriptionCore):
    """Reads an internal topic, and notes that its publications changed."""

    internal = True

    def __init__(self, connection: Any, pattern: str, start: Earliest | Latest) -> None:
        super().__init__(connection, pattern, start=start, on_gap="skip", tethered=False)
        self.changed = True
        self.gone: list[int] = []
        """Sessions that were read to their end."""
        self.lapped = 0
        """Packets that were overwritten before they were read."""

    def sessions(self) -> dict[int, str]:
        """Sessions of the publications that are there, and the nodes that they are on."""
        self.changed = False
        return {image.session: image.node for image in list(self._images) if image.gone is None}

    def has_news(self) -> bool:
        """Something came, or went."""
        if self.changed or self._incoming:
            return True
        with self.reading:
            n = len(self._images)
            return n > 0 and ports.find_ready(self._table(), 0, n) >= 0

    def settle(self) -> None:
        """See which publications came and went."""
        self._take_in_all()

    def shut(self) -> None:
        """End it."""
        self._shut()

    def open(self) -> None:
        """See `SubscriptionCore._open`."""
        self._open()

    def _take_in(self, event: ImageEvent) -> None:
        super()._take_in(event)
        self.changed = True

    def _drop(self, image: Image) -> None:
        super()._drop(image)
        self.gone.append(image.session)
        self.changed = True

    def _on_gap(self, image: Image, gap: Gap) -> None:
        del image
        self.lapped += gap.end - gap.first


class Requester:
    """See the module. ``publisher``: of the topic itself. Safe from any thread."""

    def __init__(self, connection: Any, publisher: PublisherFlows) -> None:
        """Opens its subscriptions. Raises ConfigError for a durable topic, AuthError."""
        self.topic, self.publisher = publisher.topic, publisher
        self._connection = connection
        self._lock = threading.RLock()
        self._problem: TidecastError | None = None
        self._announced: dict[int, Announcement | None] = {}
        """By session of their announcement, also of responders that are gone and may come back.
        None: the session published no announcement."""
        self._responders: dict[int, Responder] = {}
        """By session of their replies."""
        self._ready: list[Responder] = []
        self._settling = False
        """A responder is there that cannot be chosen yet."""
        self._turn = random.randrange(1 << 16)
        self._pending: dict[int, Pending] = {}
        self._number, self._token = 0, wire.new_token()
        self._home, self._home_of = b"", -1
        """Where replies go, as bytes, and the id of the subscription that this names."""
        self._look_at_s = 0.0
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._reported = {"late": 0, "foreign": 0, "lapped": 0}
        self.waiters = 0
        """Threads that wait for replies."""
        self._announcements = _Internal(connection, RESPONDERS + self.topic, Earliest())
        self._inbox = _Internal(connection, REPLIES + self.topic, Latest())
        try:
            self._inbox.open()
            self._announcements.open()
        except BaseException:
            self.close()
            raise
        self.now_s = connection.link.now_s
        self._opened_s = self._changed_s = self.now_s()

    # --- the end ----------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """It takes no more requests: its engine was lost, or its topic or client ended."""
        return self._problem is not None or self.publisher.closed

    def fail(self, problem: TidecastError) -> None:
        """All requests fail. Takes no lock: waiting threads see it."""
        if self._problem is None:
            self._problem = problem
        self._connection.bell.ring()

    def close(self) -> None:
        """Give the subscriptions up."""
        if self._problem is None:
            self._problem = Closed(f"requests on {self.topic}: the connection is closed")
        self._inbox.shut()
        self._announcements.shut()

    # --- sending ----------------------------------------------------------------------------------

    def begin(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
    ) -> Pending | None:
        """Send a request now. None: no responder is known yet, or the ring has no room.

        Raises ConfigError, CodecError, PayloadTooLarge, BackPressure, ConnectionLost, Closed.
        """
        now_s = self.now_s()
        if now_s >= self._look_at_s or self._connection.rung:
            self._look_at_s = now_s + _LOOK_S
            self._find()
        prepared = self._prepare(payload, key, headers, codec)
        if prepared is None:
            return None
        pending, message = prepared
        try:
            if self.publisher.append_flow(message, 0.0) is None:
                return pending
        except BaseException:
            self.forget(pending)
            raise
        self.forget(pending)
        return None

    def begin_flow(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
        timeout: float | None,
    ) -> Flow[Pending]:
        """Send a request: wait for a responder to be known, and for room.

        Raises also NoResponders, Timeout.
        """
        deadline = Deadline(timeout, self.now_s)
        while True:
            yield from self.discover_flow(deadline)
            prepared = self._prepare(payload, key, headers, codec)
            if prepared is not None:
                break
        pending, message = prepared
        try:
            flow = self.publisher.append_flow(message, _left_s(deadline, timeout))
            if flow is not None:
                yield from flow
        except BaseException:
            self.forget(pending)
            raise
        return pending

    def begin_all_flow(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
        timeout: float | None,
        sink: Callable[[Pending], None],
    ) -> Flow[list[Pending]]:
        """Send a request to each responder, and to one member of each group."""
        deadline = Deadline(timeout, self.now_s)
        yield from self.discover_flow(deadline, all_=True)
        payload = self._payload(payload, codec)
        sent = self._address_all(payload, key, headers, codec, sink)
        try:
            for _, message in sent:
                flow = self.publisher.append_flow(message, _left_s(deadline, timeout))
                if flow is not None:
                    yield from flow
        except BaseException:
            for pending, _ in sent:
                self.forget(pending)
            raise
        return [pending for pending, _ in sent]

    def discover_flow(self, deadline: Deadline, *, all_: bool = False) -> Flow[None]:
        """Wait until a responder is known; with ``all_`` until all are that were there before.

        Raises NoResponders as soon as it is sure that there is none.
        """
        pace = InlinePace()
        self._find()
        if all_ or not self._ready:
            yield Ask(self._connection.link.sync)  # a responder may have come a moment ago
            self._find()
        while all_ or not self._ready:
            self._check()
            left_s = self._discovery_left_s()
            if left_s <= 0 or deadline.passed:
                break
            yield from idle(self._connection, self._arm, deadline, pace, min(left_s, 1.0))
            self._find()
        if not self._ready:
            raise self._nobody()

    def _nobody(self) -> NoResponders:
        return NoResponders(
            f"topic {self.topic}: no responder is there: start one "
            f"(client.serve, tidecast reply {self.topic})"
        )

    def _find(self) -> None:
        self.pump()
        self._look_if_news()

    def _discovery_left_s(self) -> float:
        """So long a responder may yet be found; below 0 once all that are there are known."""
        now = self.now_s()
        far = self.publisher.has_network or self._connection.link.remote
        left = self._opened_s + DISCOVERY_S - now if far else 0.0
        return max(left, self._changed_s + SETTLING_S - now) if self._settling else left

    def _prepare(
        self,
        payload: Any,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
    ) -> tuple[Pending, Outgoing] | None:
        self._check()
        if not self._ready:
            return None
        payload = self._payload(payload, codec)
        with self._lock:  # the end of the chosen one comes behind its request
            responder = self._choose()
            if responder is None:
                return None
            return self._address(responder, payload, key, headers, codec)

    def _payload(self, payload: Any, codec: codecs.Codec | None) -> bytes:
        if codec is not None:
            return codecs.encode(codec, payload, self.topic)
        return payload if type(payload) is bytes else payload_bytes(payload, self.topic)

    def _choose(self) -> Responder | None:
        """In turn; of two responders the responder that has fewer requests."""
        ready = self._ready
        n = len(ready)
        if n < 2:
            return ready[0] if n else None
        self._turn += 1
        one, other = ready[self._turn % n], ready[(self._turn + 1) % n]
        return other if other.outstanding < one.outstanding else one

    def _one_each(self) -> list[Responder]:
        """Each responder that is in no group, and of each group one member."""
        found: dict[str, list[Responder]] = {}
        for each in self._ready:
            found.setdefault(each.about.group, []).append(each)
        alone = found.pop("", [])
        self._turn += 1
        return alone + [members[self._turn % len(members)] for members in found.values()]

    def _address_all(
        self,
        payload: bytes,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
        sink: Callable[[Pending], None],
    ) -> list[tuple[Pending, Outgoing]]:
        """A request to each responder that is known now. Raises NoResponders, BackPressure."""
        made: list[tuple[Pending, Outgoing]] = []
        with self._lock:
            try:
                for responder in self._one_each():
                    made.append(self._address(responder, payload, key, headers, codec))
                    made[-1][0].when_done(sink)
            except BaseException:
                for pending, _ in made:
                    self.forget(pending)
                raise
        if not made:
            raise self._nobody()
        return made

    def _address(
        self,
        responder: Responder,
        payload: bytes,
        key: bytes | str | None,
        headers: Headers | None,
        codec: codecs.Codec | None,
    ) -> tuple[Pending, Outgoing]:
        """A request to a responder that is ready: its end, when it comes, fails the request."""
        with self._lock:
            if len(self._pending) >= IN_FLIGHT_MAX:
                raise BackPressure(
                    f"topic {self.topic}: {IN_FLIGHT_MAX} requests wait for replies already"
                )
            self._number += 1
            number = self._number
            if self._home_of != self._inbox.subscriber_id:
                self._home_of = self._inbox.subscriber_id
                self._home = wire.home_tail(
                    self._token, self._connection.link.node_id, self._home_of
                )
            to = number.to_bytes(8, "little") + self._home
            about = responder.about
            if key is None and not headers:
                meta, flags = responder.lead + to, wire.PLAIN_FLAGS
            else:
                meta, flags = wire.request_meta(to, about.subscriber, key, headers)
            message = self.publisher.addressed(payload, meta, flags, about.node)
            pending = self._pending[number] = Pending(number, responder, codec)
            responder.outstanding += 1
            self._counts["sent"] += 1
        return pending, message

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem
        self._connection.check()

    # --- replies ----------------------------------------------------------------------------------

    def pump(self) -> int:
        """Read announcements, replies and ends that arrived; how many requests they complete."""
        with self._lock:
            before = len(self._pending)
            if self._problem is None:
                inbox = self._inbox
                if inbox.changed or self._announcements.changed:
                    self._look()
                taken = 0
                while taken < _PUMP_MAX and (found := inbox.step_copies(_BATCH)) is not None:
                    self._take(*found)
                    taken += len(found[1])
                if inbox.gone:
                    self._responders_gone()
                if self._inbox.ended or self._announcements.ended:
                    self._problem = Closed(f"topic {self.topic}: it was deleted or recreated")
            if self._problem is not None:
                for pending in list(self._pending.values()):
                    self._complete(pending, None, self._problem)
            self._report()
            done = before - len(self._pending)
        if done and self.waiters > 1:
            self._connection.bell.ring()  # the other threads: their replies were taken here
        return done

    def _look_if_news(self) -> None:
        with self._lock:
            if self._problem is None and self._announcements.has_news():
                self._look()

    def _look(self) -> None:
        """Read announcements, and see which responders can be chosen."""
        inbox, announcements = self._inbox, self._announcements
        while (batch := announcements.step(_BATCH)) is not None:
            for payload in batch.payloads():
                about = wire.announcement_of(payload)
                about = about or self._announced.get(batch.session)
                while len(self._announced) >= _ANNOUNCED_MAX:
                    del self._announced[next(iter(self._announced))]
                self._announced[batch.session] = about
        self._connection.pump()
        inbox.settle()
        announcements.gone.clear()
        alive, nodes = announcements.sessions(), inbox.sessions()
        known = [self._announced[each] for each in alive if each in self._announced]
        ready = [each for each in known if each is not None and each.replies in nodes]
        settling = len(ready) < len(alive) - known.count(None)
        if settling and not self._settling:
            self._changed_s = self.now_s()
        self._settling = settling
        before = self._responders
        self._responders = {
            each.replies: self._responder(before, each, nodes[each.replies]) for each in ready
        }
        self._ready = [self._responders[each] for each in sorted(self._responders)]

    def _responder(self, before: dict[int, Responder], about: Announcement, node: str) -> Responder:
        known = before.get(about.replies)
        if known is not None and known.about == about:
            return known
        return Responder(about, Origin(self.topic, node, about.replies, None, NONE))

    def _take(self, image: Image, messages: list[Copied]) -> None:
        counts, pendings, token = self._counts, self._pending, self._token
        for message in messages:
            found = wire.answer_of(message)
            if found is None or found[0].token != token:
                counts["foreign"] += 1
                continue
            answer, fields = found
            pending = pendings.get(answer.number)
            if pending is None:
                counts["late"] += 1
                continue
            if answer.failure is not None:
                kind, text = answer.failure
                problem = RequestFailed(f"topic {self.topic}: {kind}: {text}", kind)
                self._complete(pending, None, problem)
                counts["failed"] += 1
                continue
            origin = pending.responder.origin
            if fields is not NONE or pending.codec is not None:
                origin = Origin(self.topic, image.node, image.session, pending.codec, fields)
            self._complete(pending, Message(message.raw[message.lead :], origin, 0), None)
            counts["replies"] += 1

    def _responders_gone(self) -> None:
        """Publications of replies were read to their end: their requests get no reply."""
        gone, self._inbox.gone = self._inbox.gone, []
        ended = set(gone) - self._inbox.sessions().keys()
        self._look()  # their end is reported once: they must get no more requests
        for pending in [p for p in self._pending.values() if p.responder.about.replies in ended]:
            self._counts["lost"] += 1
            problem = ResponderLost(
                f"topic {self.topic}: the responder ended before it replied; it may have handled "
                "the request"
            )
            self._complete(pending, None, problem)

    def _complete(
        self, pending: Pending, message: Message | None, problem: TidecastError | None
    ) -> None:
        self._pending.pop(pending.number, None)
        pending.responder.outstanding -= 1
        pending.message, pending.problem, pending.done = message, problem, True
        if pending.sink is not None:
            pending.sink(pending)

    def forget(self, pending: Pending) -> None:
        """The caller waits no longer; a reply is late from now on."""
        with self._lock:
            if self._pending.pop(pending.number, None) is not None:
                pending.responder.outstanding -= 1

    def expire(self, pending: Pending, timeout: float | None) -> RequestTimeout:
        """The time of a request is over: the error for it."""
        self.forget(pending)
        self._counts["timeouts"] += 1
        return RequestTimeout(f"topic {self.topic}: no reply within {timeout:g} s")

    def _report(self) -> None:
        """An event for replies that were dropped since the last one."""
        self._counts["lapped"] = self._inbox.lapped
        for reason, before in self._reported.items():
            n = self._counts[reason] - before
            if n:
                self._reported[reason] += n
                self._connection.emit(
                    RepliesDropped(at_ns=time.time_ns(), topic=self.topic, replies=n, reason=reason)
                )

    # --- waiting ----------------------------------------------------------------------------------

    def wait_flow(self, arrived: Callable[[], bool], deadline: Deadline) -> Flow[bool]:
        """Wait until ``arrived``. False: the time is over."""
        pace = InlinePace()
        self.waiters += 1
        try:
            while not arrived():
                self.pump()
                if arrived():
                    break
                if deadline.passed:
                    return False
                yield from idle(self._connection, partial(self._arm_for, arrived), deadline, pace)
        finally:
            self.waiters -= 1
        return True

    def pump_flow(self) -> Flow[None]:
        """Complete requests until none waits."""
        pace = InlinePace()
        self.waiters += 1
        try:
            while self._pending:
                if self.pump():
                    yield TURN
                else:
                    yield from idle(self._connection, self._arm, Deadline(None), pace)
        finally:
            self.waiters -= 1

    def _arm_for(self, arrived: Callable[[], bool]) -> int | None:
        with self._lock:  # the thread that takes our reply rings behind it
            return None if arrived() else self._arm()

    def _arm(self) -> int | None:
        with self._lock:
            word = self._connection.bell.word
            if self._problem is not None:
                return None
            self._look_if_news()
            armed = self._announcements.arm(), self._inbox.arm()
            return None if None in armed else word

    # --- status for users -------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Counts since the first request."""
        if self._problem is None:
            self._find()
        return {
            "topic": self.topic,
            "responders": len(self._ready),
            "in_flight": len(self._pending),
            **self._counts,
        }


def _left_s(deadline: Deadline, timeout: float | None) -> float | None:
    return None if timeout is None else deadline.left_s(timeout)
