"""Arrivals at a remote client: subscriptions, their images, and the rings these are put into.

The link's reader calls `opened`, `delivered` and `reported` as frames come; its pump calls `drain`,
which puts messages that found no room, and `credits`, which grants further messages.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import msgspec

from tidecast.api.frames.common import Failure
from tidecast.api.link import AGE_S_MAX, RESUME_MAX, SubscriptionOptions
from tidecast.client.core.subscription import MAY_COME_BACK
from tidecast.client.remote import frames
from tidecast.client.remote.frames import BadFrame, Block, Place
from tidecast.client.remote.rings import Incoming, RingDirectory
from tidecast.config.internal import is_internal
from tidecast.events import Event, Gap, ImageGone, SubscriptionEnded
from tidecast.layout import packet as wire
from tidecast.native.mapped import MappedFile

RETURN_S = 10.0
"""A publisher that the gateway's engine has not heard for so long is gone: `image_timeout_s`."""
BeforeNow = tuple[Incoming | None, tuple[int, int] | None]


class Subscribed:
    """One subscription: how to open it again, and its images."""

    def __init__(
        self, number: int, pattern: str, options: SubscriptionOptions, now_s: Callable[[], float]
    ) -> None:
        self.number, self.pattern, self.options = number, pattern, options
        self._now_s = now_s
        self.images: dict[int, Incoming] = {}
        self.stale: dict[int, Incoming] = {}
        """Images of the connection before, by session of their publisher."""
        self.stale_until_s = math.inf
        """Until then their publishers may be heard by the gateway's engine."""
        self.leaving: list[Incoming] = []
        """Images that ended, with messages that found no room yet."""
        self.asked: dict[int, Place] = {}
        """By session, the places that the gateway was asked to begin at and has not yet."""
        self.ended: dict[int, Place] = {}
        """By session, where images ended whose publishers may come back."""
        self.credit_due = 0
        self.again = False
        """It was opened again: images may begin behind missed messages."""
        self.since_s = self._now_s()
        """Since this time it knows the place of every session that it has read."""
        self.subscriber_id = 0
        """The id by which the gateway knows it now."""
        self.failure: Failure | None = None
        """Why the gateway ended it."""
        self.reported = False
        """Its client knows of the end."""

    def renumber(self, subscriber_id: int) -> None:
        """The gateway has opened it."""
        self.subscriber_id = subscriber_id

    @property
    def resumes(self) -> bool:
        """It asks for missed messages. Missed replies and announcements are of no use."""
        return not is_internal(self.pattern)

    def disconnect(self) -> None:
        """Its connection was lost: note where each session is to begin again."""
        self.again, self.credit_due = True, 0
        self.stale |= {i.opened.session: i for i in self.images.values()}
        self.images, self.stale_until_s = {}, math.inf
        if not self.resumes:
            return
        places = self.asked | self.ended | {s: i.place for s, i in self.stale.items()}
        if len(places) > RESUME_MAX:
            self.since_s = self._now_s()
            places = dict(list(places.items())[-RESUME_MAX:])
        room = frames.AHEAD_BYTES_MAX
        for session, (seq, at, ahead) in places.items():
            room -= len(ahead)
            places[session] = (seq, at, ahead if room >= 0 else b"")
        self.asked, self.ended = places, {}

    def begin(self, frame: frames.ImageOpened, *, gateway_resumes: bool) -> BeforeNow:
        """A session begins: its image of the connection before, and its place, if it has one."""
        incoming = self.stale.pop(frame.session, None)
        known = [
            place[:2]
            for place in (self.asked.pop(frame.session, None), self.ended.pop(frame.session, None))
            if place is not None
        ]
        if not self.again:
            return None, None
        if incoming is not None:
            return incoming, incoming.position
        if known:  # behind a gap that was reported when it ended
            return None, max(known)
        return None, None if gateway_resumes and self.resumes else (0, 0)

    def end(self, incoming: Incoming, *, may_come_back: bool) -> None:
        """No more comes of an image."""
        self.images = {k: i for k, i in self.images.items() if i is not incoming}
        self.leaving.append(incoming)
        if may_come_back:
            while len(self.ended) >= RESUME_MAX:
                del self.ended[next(iter(self.ended))]
                self.since_s = self._now_s()
            self.ended[incoming.opened.session] = incoming.place

    def finish(self, incoming: Incoming) -> None:
        """All of an image that ended is in its ring."""
        self.leaving = [each for each in self.leaving if each is not incoming]

    def opening(self, question: int, *, gateway_resumes: bool) -> frames.OpenSubscription:
        """The request that opens it; an older gateway gets only the fields that it knows."""
        options, places = self.options, self.asked if gateway_resumes else {}
        if self.again and self.resumes and gateway_resumes:
            age_s = min(self._now_s() - self.since_s, AGE_S_MAX)
            options = msgspec.structs.replace(options, age_s=age_s)
        return frames.OpenSubscription(
            id=question,
            number=self.number,
            pattern=self.pattern,
            options=options,
            credit=frames.CREDIT_BYTES,
            places=places,
        )


class Arrivals:
    """See the module."""

    def __init__(
        self,
        home: RingDirectory,
        numbers: Iterator[int],
        push: Callable[..., None],
        ring_pump: Callable[[], None],
        now_s: Callable[[], float],
    ) -> None:
        self._home, self._numbers = home, numbers
        self._push: Callable[..., None] = push
        self._ring_pump, self._now_s = ring_pump, now_s
        self._lock = threading.RLock()
        self._subscribed: dict[int, Subscribed] = {}
        self._rings: dict[tuple[int, int], Incoming] = {}
        """By the image's id that the subscription knows, also of rings that only wait to end."""
        self._old: dict[tuple[int, int], MappedFile] = {}
        """Rings that were replaced by larger rings and are not read to their end yet."""
        self._resumes = False

    def greeted(self, *, resumes: bool) -> None:
        """A gateway is there; ``resumes``: it lets subscriptions begin at their places."""
        self._resumes = resumes

    # --- subscriptions ----------------------------------------------------------------------------

    def opening(self, each: Subscribed, question: int) -> frames.OpenSubscription:
        """The question that opens a subscription at the gateway that is there."""
        return each.opening(question, gateway_resumes=self._resumes)

    def add(self, each: Subscribed) -> None:
        """A subscription is about to be opened."""
        with self._lock:
            self._subscribed[each.number] = each

    def subscriber_of(self, number: int) -> int | None:
        """The id by which the gateway knows a subscription now; None: it has none."""
        each = self._subscribed.get(number)
        return None if each is None else each.subscriber_id

    def remove(self, number: int) -> None:
        """A subscription was closed."""
        with self._lock:
            self._subscribed.pop(number, None)
            rings = [key for key in (*self._rings, *self._old) if key[0] == number]
        for key in rings:
            self.release(*key)

    def release(self, number: int, image_id: int) -> None:
        """A ring was read to its end."""
        with self._lock:
            incoming = self._rings.pop((number, image_id), None)
            old = self._old.pop((number, image_id), None)
        mapped = old if incoming is None else incoming.mapped
        if mapped is not None:
            mapped.unlink()
            mapped.close()

    def disconnected(self) -> list[Subscribed]:
        """The connection was lost: all subscriptions, to be opened again."""
        with self._lock:
            found = [each for each in self._subscribed.values() if each.failure is None]
            for each in found:
                each.disconnect()
            return found

    def reopened(self, each: Subscribed) -> None:
        """Open again: its publishers have RETURN_S to be heard by the gateway's engine.

        Also where the gateway resumes nothing: missed messages are one gap then, up to the begin of
        the image. Replies and announcements end at once: requesters wait for them.
        """
        if each.resumes:
            with self._lock:
                each.stale_until_s = self._now_s() + RETURN_S
        else:
            self._end_stale(each, "reconnect")

    def _end_stale(self, each: Subscribed, reason: str) -> None:
        """Images that are gone end with a gap, because their last messages are unknown."""
        with self._lock:
            stale, each.stale = each.stale, {}
        for incoming in stale.values():
            seq = incoming.position[0]
            incoming.pass_gap(seq + 1)  # if it comes back, the next gap is another gap
            self._put(
                each,
                incoming,
                frames.GapReported(
                    number=each.number, image=0, first=seq, end=seq + 1, reason="reconnect"
                ),
            )
            self._end(each, incoming, reason)

    def failed(self, number: int, failure: Failure) -> None:
        """A subscription ended at the gateway. It learns that behind all that arrived."""
        each = self._subscribed.get(number)
        if each is not None:
            each.failure = failure
            for incoming in list(each.images.values()):
                self._end(each, incoming, failure.code)
            self._end_stale(each, failure.code)
            self._report_end(each)

    def _report_end(self, each: Subscribed) -> None:
        with self._lock:
            if each.failure is None or each.images or each.leaving or each.reported:
                return
            each.reported = True
        self._push(
            SubscriptionEnded(
                subscription_id=each.number,
                pattern=each.pattern,
                code=each.failure.code,
                reason=each.failure.message,
            )
        )

    # --- frames -----------------------------------------------------------------------------------

    def reported(self, frame: frames.ImageEnded | frames.GapReported) -> None:
        """An image ended, or has a gap."""
        each = self._subscribed.get(frame.number)
        incoming = each.images.get(frame.image) if each is not None else None
        if each is None or incoming is None:
            return
        if isinstance(frame, frames.GapReported):
            incoming.pass_gap(frame.end)
            self._put(each, incoming, frame)
        else:
            self._end(each, incoming, frame.reason)

    def opened(self, frame: frames.ImageOpened) -> None:
        """A publication that a subscription reads; if it was known, its gap is reported."""
        each = self._subscribed.get(frame.number)
        if each is None:
            return
        with self._lock:
            incoming, before = each.begin(frame, gateway_resumes=self._resumes)
            if incoming is None:
                incoming = Incoming(self._home, each.number, frame, next(self._numbers))
                self._rings[each.number, incoming.image_id] = incoming
                self._push(incoming.available())
            each.images[frame.image] = incoming
        begun = frame.seq or frame.at > wire.PACKET_HEADER_BYTES
        if before is not None and begun and (frame.seq, frame.at) > before:
            end = max(frame.seq, before[0] + 1)
            reported = frames.GapReported(
                number=each.number, image=0, first=before[0], end=end, reason="reconnect"
            )
            self._put(each, incoming, reported)
        if (frame.seq, frame.at) != incoming.position:
            incoming.reach(frame.seq, frame.at)

    def delivered(self, frame: frames.Deliver, body: memoryview) -> None:
        """Messages of an image. Raises BadFrame."""
        each = self._subscribed.get(frame.number)
        if each is None or each.failure is not None:
            return  # it was closed meanwhile
        incoming = each.images.get(frame.image)
        if incoming is None:  # to drop its messages would lose them: the next connection resumes
            raise BadFrame(f"subscription {frame.number}: image {frame.image} is not open")
        block = Block.parse(frame.n, frame.mixed, body)
        if frame.seq >= 0:
            incoming.reach(frame.seq, frame.at, frame.ahead)
        self._put(each, incoming, block)

    def _put(self, each: Subscribed, incoming: Incoming, what: Block | frames.GapReported) -> None:
        with incoming.lock:
            incoming.waiting.append(what)
        self._drain(each, incoming)
        if incoming.waiting or each.credit_due >= frames.CREDIT_BYTES // 4:
            self._ring_pump()

    def _drain(self, each: Subscribed, incoming: Incoming) -> int:
        """Put waiting messages into the ring, as far as there is room; their bytes."""
        with incoming.lock:
            n_bytes, larger = incoming.put()
            while larger:
                first = incoming.waiting[0]
                self._push(*self._enlarge(incoming))
                more, larger = incoming.put()
                n_bytes += more
                assert not (larger and incoming.waiting[0] is first), "made to hold it"
            finished = incoming.ended is not None and not incoming.waiting and not incoming.finished
            if finished:
                incoming.finish()
                self._push(self._gone(incoming, incoming.ended or ""))
        with self._lock:
            each.credit_due += n_bytes
            if finished:
                each.finish(incoming)
        self._report_end(each)
        return n_bytes

    def _enlarge(self, incoming: Incoming) -> tuple[Event, Event]:
        """Continue in a larger ring; its subscription reads the old one to its end first.

        It learns of the larger one first: at no time is the session without a ring.
        """
        gone, key = self._gone(incoming, "closed"), incoming.subscription
        with self._lock:
            self._rings.pop((key, incoming.image_id), None)
            self._old[key, incoming.image_id] = incoming.mapped
            incoming.enlarge(next(self._numbers))
            self._rings[key, incoming.image_id] = incoming
        return incoming.available(), gone

    def _end(self, each: Subscribed, incoming: Incoming, reason: str) -> None:
        incoming.end(reason)
        with self._lock:
            each.end(incoming, may_come_back=reason in (*MAY_COME_BACK, "reconnect"))
        self._drain(each, incoming)

    @staticmethod
    def _gone(incoming: Incoming, reason: str) -> ImageGone:
        opened = incoming.opened
        return ImageGone(
            subscription_id=incoming.subscription,
            image_id=incoming.image_id,
            topic=opened.topic,
            node=opened.node,
            session=opened.session,
            reason=reason,
        )

    # --- the pump ---------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Something found no room in its ring."""
        return any(incoming.waiting for _, incoming in self._each())

    def drain(self) -> int:
        """Put waiting messages into all rings, as far as there is room; their bytes."""
        now_s = self._now_s()
        for each in list(self._subscribed.values()):
            if each.stale and now_s > each.stale_until_s:
                self._end_stale(each, "reconnect")
        return sum(self._drain(each, one) for each, one in self._each() if one.waiting)

    def credits(self) -> list[tuple[int, int]]:
        """(subscription, bytes) that the gateway may send again; they count as reported."""
        found = []
        with self._lock:
            for each in self._subscribed.values():
                if each.credit_due >= frames.CREDIT_BYTES // 8:
                    found.append((each.number, each.credit_due))
                    each.credit_due = 0
        return found

    def _each(self) -> list[tuple[Subscribed, Incoming]]:
        with self._lock:
            return [
                (each, incoming)
                for each in self._subscribed.values()
                for incoming in (*each.images.values(), *each.stale.values(), *each.leaving)
            ]

    def true_gap(self, number: int, image_id: int, gap: Gap) -> Gap:
        """A gap that a subscription found in a ring of ours, in its publisher's numbers."""
        incoming = self._rings.get((number, image_id))
        return gap if incoming is None else incoming.true_gap(gap)
