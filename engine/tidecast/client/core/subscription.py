"""Subscribing, the part that never waits: rings come and go, batches are taken in turn.

The blocking and the asyncio subscription add the waiting.
"""

from __future__ import annotations

import contextlib
import heapq
import inspect
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import numpy as np

from tidecast import codecs
from tidecast.api.frames.common import Failure, error_of
from tidecast.api.link import AGE_S_MAX, RESUME_MAX, SubscriptionOptions
from tidecast.api.start import Earliest, Latest, Start, start_of
from tidecast.api.words import OnGap
from tidecast.buffers import reader
from tidecast.client.core.image import (
    AWAIT_SPINS,
    BATCH_MESSAGES_MAX,
    Copied,
    Image,
    ReadPosition,
)
from tidecast.client.core.message import Batch, EmptyBatch, Message
from tidecast.client.core.opened import ImageEvent
from tidecast.client.core.outgoing import check_text, checked, reject
from tidecast.client.kernels import ports
from tidecast.client.kernels.ports import Port
from tidecast.client.kernels.warm import compile_reading
from tidecast.config.topology import is_pattern
from tidecast.errors import (
    Closed,
    ForkedProcess,
    GapError,
    NotFound,
    SharedMemoryError,
    TidecastError,
)
from tidecast.events import Gap, ImageAvailable, ImageGone, SubscriptionEnded
from tidecast.layout import ring as ring_layout
from tidecast.native.memory import address

if TYPE_CHECKING:
    from tidecast.client.core.connection import ConnectionCore

ON_GAP = get_args(OnGap)
ITERATE_MESSAGES = 512
"""Messages that an iteration takes at a time."""
_FEW_MESSAGES, _KEEP_BACK_SPINS = 64, 25
_ENGINE_LOST = -1
MAY_COME_BACK = ("timeout", "restarted", "failed")
"""Why a session ends that its publisher, or its engine, may continue."""


class ImageStats(msgspec.Struct, frozen=True, kw_only=True):
    """One publication that a subscription reads; counts since it was found."""

    topic: str
    node: str
    session: int
    messages: int
    bytes: int
    gaps: int
    lost_packets: int
    malformed: int
    behind_packets: int


class SubscriptionCore:
    """One subscription: all publications that its pattern covers. For one thread at a time.

    Only `close` and `drain` may be called from another thread.
    """

    internal = False
    """It reads an internal topic, for the client itself."""

    def __init__(
        self,
        connection: ConnectionCore,
        pattern: str,
        *,
        start: Start | str,
        on_gap: str | None = None,
        tethered: bool | None = None,
        receive_bytes: int | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> None:
        if on_gap is not None and on_gap not in ON_GAP:
            raise reject("on_gap", on_gap, f"are {', '.join(ON_GAP)}")
        start = start_of(start)
        if not isinstance(start, Earliest | Latest):
            raise reject("start", start, "are Latest() and Earliest()")
        check_text("pattern", pattern)
        self.pattern, self.on_gap = pattern, on_gap
        self._connection = connection
        one = codec is not None or not is_pattern(pattern)
        self._codec = connection.topic_codecs.of(pattern, codec) if one else None
        self._options = checked(
            SubscriptionOptions, start=start.word, receive_bytes=receive_bytes, tethered=tethered
        )
        self._images: list[Image] = []
        self._incoming: deque[ImageEvent] = deque()
        self._taking_in = threading.Lock()
        self.reading = threading.RLock()
        """Held while the rings are read, and while `close`, which may come from another thread,
        takes them away. Taken before the locks of the connection."""
        self._ports: Port | None = None
        """Of `_images`, as `kernels.find_ready` takes them. None: to be rebuilt."""
        self._leaving: list[Image] = []
        """Images whose publications are gone."""
        self._turn = 0
        self._held: Image | None = None
        """The image that was read last: its messages stay in place until the next look."""
        self._rest: tuple[Batch, Iterator[Message]] | None = None
        self._refusal: TidecastError | None = None
        self._end: TidecastError | None = None
        """The reason why nothing comes behind the messages in the rings."""
        self._targets: dict[int, int] | None = None
        self._past: dict[str, int] = {"missed_wakes": 0}
        self._positions: dict[int, ReadPosition] = {}
        """How far sessions were read that may come back: RESUME_MAX at most."""
        self._reads = 0
        self._missed: deque[tuple[Image, Gap]] = deque()
        """Gaps between two rings of a session that are not reported yet."""
        self._since_s = 0.0
        """Since this time it has kept the place of every session: it was opened then, or it last
        evicted places."""
        self._opened = False
        self.subscription_id = self.subscriber_id = 0
        self.running = 0
        """Handlers' runs in progress."""

    # --- opening, losing, closing -----------------------------------------------------------------

    def _open(self) -> None:
        """Ask the node; it has granted when this returns. Raises NotFound, ConfigError, Closed."""
        self._connection.check()
        if self._refusal is not None:
            raise self._refusal
        if self._opened:
            return
        compile_reading()  # now, not while the first messages wait
        self._since_s = self._connection.link.now_s()
        with self._connection.opening() as losses:
            grant = self._connection.link.open_subscription(self.pattern, self._options)
            self.subscription_id, self.subscriber_id = grant.subscription_id, grant.subscriber_id
            self._opened = True
            self._connection.add_subscription(self, losses)

    def reopen(self) -> None:
        """Subscribe again at the engine that is back, from where this was. Raises as opening."""
        if self._refusal is None and self._end is None and self._opened:
            places = self._kept_places()
            resume = {session: place.seq for session, place in self._read_last(places).items()}
            age_s = min(self._connection.link.now_s() - self._since_s, AGE_S_MAX)
            options = msgspec.structs.replace(self._options, resume=resume, age_s=age_s)
            grant = self._connection.link.open_subscription(self.pattern, options)
            self.subscription_id, self.subscriber_id = grant.subscription_id, grant.subscriber_id

    def _kept_places(self) -> dict[int, ReadPosition]:
        """How far each session was read, while another thread may read on.

        Its lock would be taken out of order here. A session is in `_positions` before it leaves
        `_images` and until it is there again, so one of three looks finds it.
        """
        places = dict(self._positions)
        images = list(self._images)
        places |= dict(self._positions)
        for image in images:
            place = image.position()
            if place is not None:
                places[image.session] = place
        return places

    def _read_last(self, places: dict[int, ReadPosition]) -> dict[int, ReadPosition]:
        """The RESUME_MAX sessions of ``places`` whose last messages were read last."""
        if len(places) <= RESUME_MAX:
            return places
        self._since_s = self._connection.link.now_s()
        return dict(heapq.nlargest(RESUME_MAX, places.items(), key=lambda each: each[1].read_no))

    def fail(self, problem: TidecastError) -> None:
        """Nothing can be received any more: the next call raises ``problem``."""
        if self._refusal is None:
            self._refusal = problem

    def renumber(self, subscriber_id: int) -> None:
        """The node knows this subscription by another id now; messages name that."""
        self.subscriber_id = subscriber_id
        for image in list(self._images):
            image.port[reader.R_SUBSCRIBER] = subscriber_id

    def forked(self) -> None:
        """This is a child process: refuse everything."""
        self._refusal = ForkedProcess(
            f"subscription to {self.pattern}: made by the parent process: connect again in the "
            "child"
        )
        self._rest = None

    def notice(self, event: ImageEvent) -> None:
        """From any thread: a publication came or went."""
        self._incoming.append(event)

    def lose(self, reason: str) -> None:
        """The engine is gone: the rest of the rings can be read, and nothing follows."""
        # rings that were not looked at yet: the next engine removes their files
        with contextlib.suppress(SharedMemoryError):
            self._take_in_all()
        for image in list(self._images):
            self._incoming.append(
                ImageGone(
                    subscription_id=_ENGINE_LOST,
                    image_id=image.image_id,
                    topic=image.topic,
                    node=image.node,
                    session=image.session,
                    reason=reason,
                )
            )

    def abandon(self) -> None:
        """Close it: the caller that opened it has given up."""
        with contextlib.suppress(TidecastError):
            self._shut()

    def _shut(self) -> None:
        """Give all rings back; idempotent."""
        with self.reading:
            opened, self._opened = self._opened, False
            self.fail(Closed(f"subscription to {self.pattern}: it is closed"))
            self._rest = None
            images, self._images = self._images, []
            self._ports = self._held = None
            self._leaving = []
            for image in images:  # before the engine gives their places to others
                self._count_and_close(image)
        if opened:
            self._connection.remove_subscription(self)
        for image in images:
            self._release(image)

    # --- steps ------------------------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Nothing more will come: closed, or drained."""
        if self._refusal is not None:
            return True
        if self._targets is None:
            return False
        with self.reading:
            return not any(map(self._wanted, self._images))

    def raise_end(self) -> None:
        """Nothing more will come: raise why, unless it was closed or drained here."""
        if self._end is not None and self._refusal is None:
            self.fail(self._end)
            self._shut()
        if self._refusal is not None and (
            self._refusal is self._end or not isinstance(self._refusal, Closed)
        ):
            raise self._refusal

    def finished(self) -> bool:
        """Nothing more will come. Raises why, unless it was closed or drained here."""
        if not self.ended:
            return False
        self.raise_end()
        return True

    def check(self) -> None:
        """Raise the error of this subscription, if it has one."""
        if self._refusal is not None:
            raise self._refusal
        if not self._opened:
            raise Closed(
                f"subscription to {self.pattern}: it is not open yet: use it in a `with` block"
            )

    def step(self, limit: int) -> Batch | None:
        """One look at the rings, in turn: a batch, or None. Raises GapError by policy."""
        with self.reading:
            if self._rest is not None:
                rest = self.take_rest(limit)
                if rest is not None:
                    return rest
            if self._connection.rung or self._incoming or self._missed:
                self._look()
            if self._leaving:
                self._drop_finished()
            for _ in range(len(self._images)):
                image = self._next()
                if image is None:
                    break
                found = image.take(limit)
                if isinstance(found, Gap):
                    self._on_gap(image, found)
                elif found is not None:
                    self._note_read(image)
                    return found
            return self.step(limit) if self._leaving and self._drop_finished() else None

    def step_copies(self, limit: int) -> tuple[Image, list[Copied]] | None:
        """One look at the rings, as `step`, for few messages that are kept."""
        with self.reading:
            if self._connection.rung or self._incoming or self._missed:
                self._look()
            if self._leaving:
                self._drop_finished()
            for _ in range(len(self._images)):
                image = self._next()
                if image is None:
                    break
                found = image.take_copies(limit)
                if isinstance(found, Gap):
                    self._on_gap(image, found)
                elif found is not None:
                    self._note_read(image)
                    return image, found
            return self.step_copies(limit) if self._leaving and self._drop_finished() else None

    def _look(self) -> None:
        """Take in new images, and drop images that ended. Raises GapError by policy."""
        self._connection.pump()
        self._take_in_all()
        while self._missed:
            self._on_gap(*self._missed.popleft())

    def _next(self) -> Image | None:
        """A ring that has something, in turn, or the only one. The one before gives back."""
        images = self._images
        image = None
        if len(images) == 1 and self._targets is None:
            image = images[0]
        else:
            k = ports.find_ready(self._table(), self._turn, len(images))
            if k >= 0:
                image, self._turn = images[k], k + 1
        held, self._held = self._held, image
        if held is not None and held is not image:
            held.release()
        return image

    def _note_read(self, image: Image) -> None:
        self._reads += 1
        image.note_read(self._reads)

    def _table(self) -> Port:
        """The ports of all rings that may be read now, 0 for others."""
        if self._targets is not None:
            return self._addresses(self._wanted)
        if self._ports is None or self._ports.size != len(self._images):
            self._ports = self._addresses(lambda image: image.after is None)
        return self._ports

    def _addresses(self, readable: Callable[[Image], bool]) -> Port:
        found = [address(each.port) if readable(each) else 0 for each in self._images]
        return np.array(found, dtype=np.int64)

    def _drop_finished(self) -> bool:
        """Drop rings that are gone and read to their end. True: some were."""
        if self._targets is not None:
            return False
        grows = self._connection.reconnecting
        found = [
            each
            for each in self._leaving
            if each.after is None and each.finished() and not (grows and each.may_grow)
        ]
        for image in found:
            self._drop(image)
        self._positions = self._read_last(self._positions)
        return bool(found)

    def next_image(self) -> tuple[Image | None, bool]:
        """A ring that has something, in turn, for a compiled handler; is it the only one?

        The only ring is returned even when nothing is there yet: the kernel looks itself.
        """
        if self._connection.rung or self._incoming or self._missed:
            self._look()
        images = self._images
        if len(images) == 1 and self._targets is None and images[0].gone is None:
            self._note_read(images[0])
            return images[0], True
        image = self._next()
        if image is not None and (len(images) > 1 or image.has_more()):
            self._note_read(image)
            return image, False
        if self._leaving:
            self._drop_finished()
        return None, False

    def report(self, image: Image) -> None:
        """A compiled handler met a gap. Raises GapError by policy."""
        self._on_gap(image, image.gap())

    @property
    def connection(self) -> Any:
        """The connection it was opened by."""
        return self._connection

    @property
    def link_agents(self) -> tuple[Any, Any] | None:
        """(kernel, arguments) of inline agents, for compiled loops."""
        return self._connection.link.agents

    @property
    def inline(self) -> bool:
        """Agents run only while this client waits or polls."""
        return self._connection.link.inline

    def grow(self, batch: Batch, limit: int) -> Batch | None:
        """``batch`` with more messages behind it, as they are there; None: it must not grow."""
        with self.reading:
            image = batch.image
            if self.closed or not isinstance(image, Image) or self._targets is not None:
                return None
            if image.gone is not None:
                return None
            others = len(self._images) - 1
            if others:
                behind = self._images.index(image) + 1
                if ports.find_ready(self._table(), behind, others) >= 0:
                    return None
            grown = image.extend(batch, limit)
            if isinstance(grown, Gap):
                self._on_gap(image, grown)
                return None
            return grown

    def arm(self, batch: Batch | None = None) -> int | None:
        """Prepare to sleep: the doorbell's word to wait on, or None when there is something.

        With ``batch``, its slots stay held.
        """
        with self.reading:
            word = self._connection.bell.word
            self._connection.pump()
            if self._incoming or self._missed or self._refusal is not None:
                return None
            keep = -1
            if batch is None:
                held, self._held = self._held, None
                if held is not None:
                    held.release()
            elif isinstance(batch.image, Image) and batch.image in self._images:
                keep = self._images.index(batch.image)
            return None if ports.arm_ports(self._table(), keep) else word

    def look_unrung(self) -> None:
        """The doorbell did not ring during a sleep. If the writer failed to ring it: count it."""
        with self.reading:
            if any(image.has_more() for image in self._images):
                self._past["missed_wakes"] += 1

    def start_walk(self, batch: Batch) -> Iterator[Message]:
        """Walk over a batch; the next caller gets the rest."""
        walk = iter(batch)
        self._rest = (batch, walk)
        return walk

    def rest(self) -> Iterator[Message] | None:
        """The walk that was left unfinished."""
        if self._rest is None:
            return None
        _, walk = self._rest
        if operator.length_hint(walk) == 0:
            self._rest = None
            return None
        return walk

    def _await_more(self, batch: Batch, limit: int, spins: int = AWAIT_SPINS) -> None:
        """Give the writer some time to fill ``batch`` up; see `Image.await_more`."""
        with self.reading:
            if isinstance(batch.image, Image) and not self.inline and not self.closed:
                batch.image.await_more(len(batch), limit, spins)

    def _keep_back(self, batch: Batch | None) -> None:
        """On the heels of a writer let it get ahead for some 5 us: few messages a look are slow.

        Not behind one message alone, which may be waited for.
        """
        if batch is not None and 1 < len(batch) < _FEW_MESSAGES:
            self._await_more(batch, len(batch) + _FEW_MESSAGES, _KEEP_BACK_SPINS)

    def take_rest(self, limit: int) -> Batch | None:
        """Messages that were taken and not walked over, up to ``limit``."""
        if self._rest is None:
            return None
        batch, walk = self._rest
        left = operator.length_hint(walk)
        self._rest = None
        if left == 0:
            return None
        tail = batch.tail(len(batch) - left)
        if left <= limit:
            return tail
        self.start_walk(tail.tail(limit))
        return tail.head(limit)

    def _take_in_all(self) -> None:
        with self._taking_in:
            while self._incoming:
                self._take_in(self._incoming[0])  # where it raises, the next look tries again
                self._incoming.popleft()

    def _take_in(self, event: ImageEvent) -> None:
        if isinstance(event, ImageAvailable):
            try:
                codec = self._codec or self._connection.topic_codecs.of(event.topic)
                made = Image(event, self.subscriber_id, codec)
                before = [i for i in self._images if i.session == made.session]
                made.follow(before[-1] if before else None)
                if made.after is None:
                    self._resume_image(made, self._positions.get(made.session))
                self._images.append(made)
                self._ports = None
                if made.after is None:
                    self._positions.pop(made.session, None)
            except NotFound:  # it came and went before we looked
                self._connection.release_image(event.subscription_id, event.image_id)
            return
        if isinstance(event, SubscriptionEnded):
            self._end = error_of(Failure(code=event.code, message=event.reason))
            self._read_out()
            return
        for image in self._images:
            lost = event.subscription_id == _ENGINE_LOST
            if image.image_id == event.image_id and (
                lost or image.subscription_id == event.subscription_id
            ):
                if image.leave(event.reason):
                    self._leaving.append(image)
                if lost:
                    image.subscription_id = _ENGINE_LOST  # no engine is left to notify of its end

    def _wanted(self, image: Image) -> bool:
        assert self._targets is not None
        if image.after is not None and self._wanted(image.after):
            return False
        return bool(image.port[reader.R_SEQ] < self._targets.get(id(image), 0) and image.has_more())

    def _on_gap(self, image: Image, gap: Gap) -> None:
        gap = self._connection.link.true_gap(image.subscription_id, image.image_id, gap)
        policy = self.on_gap or (
            "event" if image.reliability == ring_layout.UNRELIABLE else "raise"
        )
        if policy == "event":
            self._connection.emit(msgspec.structs.replace(gap, at_ns=time.time_ns()))
        elif policy == "raise":
            raise GapError(
                f"topic {gap.topic}: packets {gap.first} to {gap.end} of {gap.node or 'a node'} "
                f"are lost for good ({gap.reason})",
                (gap.first, gap.end),
            )

    def _drop(self, image: Image) -> None:
        comes_back = image.gone in MAY_COME_BACK or image.subscription_id == _ENGINE_LOST
        place = image.position() if comes_back else None
        for later in self._images:
            if later.after is image:
                later.follow(None)
                self._resume_image(later, place)
                place = None
        if place is not None:  # before it leaves the images, see `_kept_places`
            self._positions[image.session] = place
        self._images.remove(image)
        self._leaving.remove(image)
        self._ports = None
        if self._held is image:
            self._held = None
        self._count_and_close(image)
        self._release(image)

    def _resume_image(self, image: Image, place: ReadPosition | None) -> None:
        missed = image.resume_from(place) if place is not None else None
        if missed is not None:
            self._missed.append((image, missed))

    def _count_and_close(self, image: Image) -> None:
        for name, n in image.counts().items():
            self._past[name] = self._past.get(name, 0) + n
        image.close()

    def _release(self, image: Image) -> None:
        if image.subscription_id >= 0 and image.gone is not None:
            self._connection.release_image(image.subscription_id, image.image_id)

    def _start_drain(self) -> None:
        """From now on take only the messages that are in the rings already."""
        with self.reading:
            if self._targets is None:
                self._connection.pump()
                self._take_in_all()
                self._read_out()

    def _read_out(self) -> None:
        if self._targets is None:
            self._targets = {id(image): image.newest() for image in self._images}

    # --- status for users -------------------------------------------------------------------------

    def _poll(self, max_messages: int) -> Batch:
        self.check()
        limit = check_max_messages(max_messages)
        batch = self.step(limit)
        if batch is None and self.ended:
            self.raise_end()
        return batch or EmptyBatch(self.pattern)

    def lag(self) -> int:
        """Packets that have arrived and are not read yet, over all publications."""
        with self.reading:
            if self._opened:  # publications that were not looked at yet count, too
                self._connection.pump()
                self._take_in_all()
            return sum(image.behind() for image in self._images)

    def images(self) -> list[ImageStats]:
        """The publications that are being read."""
        with self.reading:
            return [
                ImageStats(
                    topic=image.topic, node=image.node, session=image.session, **image.counts()
                )
                for image in self._images
            ]

    def stats(self) -> dict[str, int]:
        """Counts over all publications, also of publications that are gone.

        ``missed_wakes``: sleeps that ended by their time-out although a message had come.
        """
        with self.reading:
            total = dict(self._past)
            for image in self._images:
                for name, n in image.counts().items():
                    total[name] = total.get(name, 0) + n
        total["behind_packets"] = self.lag()
        return total

    @property
    def closed(self) -> bool:
        """No more can be received."""
        return self._refusal is not None


def check_max_messages(max_messages: Any) -> int:
    """The limit of a batch. Raises ConfigError."""
    if not isinstance(max_messages, int) or not 1 <= max_messages <= BATCH_MESSAGES_MAX:
        raise reject("max_messages", max_messages, f"are 1 to {BATCH_MESSAGES_MAX}")
    return max_messages


def check_concurrency(concurrency: Any) -> int:
    """How many handlers may run at a time. Raises ConfigError."""
    if not isinstance(concurrency, int) or not 1 <= concurrency <= 10_000:
        raise reject("concurrency", concurrency, "are 1 to 10000")
    return concurrency


def check_handler(handler: Callable[..., Any]) -> bool:
    """Can it be called with one message? True: it is asynchronous. Raises ConfigError."""
    if not callable(handler):
        raise reject("handler", handler, "is a function of one message")
    try:
        inspect.signature(handler).bind(None)
    except TypeError as problem:
        raise reject("handler", handler, f"is a function of one message ({problem})") from None
    except ValueError:  # a builtin without a signature
        pass
    inner = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    return inspect.iscoroutinefunction(inner)
