"""Responding to requests: a subscription that announces itself, and a publication of replies.

A responder gets the requests that are addressed to it, and nothing else of its topic. It announces
itself by a publication of its own, which ends with it, however it ends: so requesters on all nodes
know at once which responders exist.
"""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from tidecast import codecs
from tidecast.api.start import Earliest
from tidecast.client.core.message import Batch, EmptyBatch, Message, Origin
from tidecast.client.core.metadata import NONE, Headers
from tidecast.client.core.outgoing import Outgoing, check_text, payload_bytes, reject
from tidecast.client.core.subscription import ITERATE_MESSAGES, check_max_messages
from tidecast.client.flows.publisher import CLOSE_TIMEOUT_S, PublisherFlows
from tidecast.client.flows.steps import Ask, Flow
from tidecast.client.flows.subscription import SubscriptionFlows
from tidecast.client.requests import wire
from tidecast.client.requests.wire import GROUP_CHARS_MAX, Announcement, Return, return_of
from tidecast.client.waiting import Deadline
from tidecast.config.internal import REPLIES, RESPONDERS
from tidecast.config.topology import is_pattern
from tidecast.errors import (
    BackPressure,
    CodecError,
    ConfigError,
    Conflict,
    PayloadTooLarge,
    TidecastError,
    Timeout,
)
from tidecast.events import RequestRefused

if TYPE_CHECKING:
    from tidecast.client.core.connection import ConnectionCore

UNFIT = PayloadTooLarge, CodecError, ConfigError
"""Errors of a reply that cannot be sent as it is: the requester gets the error in its place."""
_ANNOUNCEMENT_RING_BYTES = 64 * 1024
_ORIGINS_MAX = 1024
_GROUP = re.compile(r"[A-Za-z0-9_.-]+")


class Replies(Protocol):
    """The methods of a responder that a request needs."""

    def reply(self, to: Return, payload: Any, headers: Headers | None) -> Any:
        """Send a reply. Raises CodecError, ConfigError, PayloadTooLarge, Closed."""

    def refuse(self, to: Return, kind: str, text: str) -> Any:
        """Send an error in place of a reply."""


class Answering:
    """Where a request's reply goes, and whether it was sent."""

    __slots__ = ("done", "replies", "to")

    def __init__(self, replies: Replies, to: Return) -> None:
        self.replies, self.to, self.done = replies, to, False

    def begin(self, topic: str) -> None:
        """A reply is about to be sent. Raises Conflict when there was one."""
        if self.done:
            raise Conflict(f"topic {topic}: this request has its reply already")
        self.done = True


class Request(Message, frozen=True, gc=False, eq=False):
    """A request. All its fields are yours; `respond` once, when you like, from any thread."""

    _answering: Answering

    @property
    def answered(self) -> bool:
        """It has its reply."""
        return self._answering.done

    def respond(self, payload: Any, headers: Headers | None = None) -> Any:
        """Send the reply: bytes, or a value that the responder's codec encodes. asyncio: await it.

        Raises Conflict when there was one, CodecError, ConfigError, PayloadTooLarge, Closed.
        """
        answering = self._answering
        answering.begin(self.topic)
        try:
            return answering.replies.reply(answering.to, payload, headers)
        except UNFIT:
            answering.done = False
            raise

    def refuse(self, kind: str, text: str = "") -> Any:
        """Send an error: the requester gets RequestFailed with this kind. asyncio: await it."""
        answering = self._answering
        answering.begin(self.topic)
        return answering.replies.refuse(answering.to, kind, text)

    def copy(self) -> Request:
        """Itself: nothing of it is in the ring."""
        return self

    def __repr__(self) -> str:
        return f"Request(topic={self.topic!r}, size={self.size}, node={self.node!r})"


class ResponderFlows(SubscriptionFlows, ABC):
    """A responder of one topic: the flows, and the steps that never wait.

    It is the `Replies` of its requests.
    """

    def __init__(
        self,
        connection: ConnectionCore,
        topic: str,
        *,
        group: str | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> None:
        check_text("topic", topic)
        if is_pattern(topic):
            raise reject("topic", topic, "is the name of one topic, without wildcards")
        if group is not None and (len(group) > GROUP_CHARS_MAX or _GROUP.fullmatch(group) is None):
            raise reject("group", group, f"are 1 to {GROUP_CHARS_MAX} of A-Z a-z 0-9 _ . -")
        # Requests come as soon as this responder is announced: maybe before its node has joined the
        # publication of the requester. Older requests name other responders.
        super().__init__(connection, topic, start=Earliest(), on_gap="event", codec=codec)
        self.topic, self.group = topic, group or ""
        self._replies: PublisherFlows | None = None
        self._presence: PublisherFlows | None = None
        self._announced_as: tuple[int, ...] = ()
        """The id of this subscription and the sessions of both publications, when announced."""
        self._walk: Iterator[Message] = iter(())
        """Requests that were collected and not handed out."""
        self._empty = EmptyBatch(topic)
        self._origins: dict[int, Origin] = {}
        """Of requests without a key and headers, by session of their publisher."""

    # --- coming and going -------------------------------------------------------------------------

    def _open(self) -> None:
        if self._opened:
            return
        connection: Any = self._connection
        connection.check()
        self._replies = connection.publisher(REPLIES + self.topic, on_full="block")
        try:
            super()._open()
            self._announce()
        except BaseException:
            self.abandon()
            raise

    def _announce(self) -> None:
        """Announce the place for requests; the announcement before ends."""
        connection: Any = self._connection
        assert self._replies is not None
        before = self._presence
        self._presence = connection.publisher(
            RESPONDERS + self.topic, history_bytes=_ANNOUNCEMENT_RING_BYTES, linger_us=0
        )
        about = Announcement(
            node=connection.link.node_id,
            subscriber=self.subscriber_id,
            replies=self._replies.session,
            group=self.group,
        )
        payload = wire.encode_announcement(about)
        if not self._presence.attempt(Outgoing(payload, b"", 0, 0, True)):
            raise self._presence.full_error()
        if connection.link.inline:
            connection.link.work()
        self._announced_as = self._place()
        if before is not None:
            before.detach()

    def _place(self) -> tuple[int, ...]:
        replies, presence = self._replies, self._presence
        if replies is None or presence is None:
            return ()
        return self.subscriber_id, replies.session, presence.session

    def _withdraw(self) -> None:
        """Requesters choose this responder no more."""
        presence, self._presence = self._presence, None
        if presence is not None:
            presence.detach()

    def abandon(self) -> None:
        """Close it: it could not be announced, or the caller that opened it has given up."""
        with contextlib.suppress(TidecastError):
            self._withdraw()
        super().abandon()
        replies, self._replies = self._replies, None
        if replies is not None:
            replies.abandon()

    def drain_flow(self, timeout: float | None = None) -> Flow[None]:
        """Get no new requests; wait for the handlers of arrived requests."""
        yield Ask(self._withdraw)
        yield from super().drain_flow(timeout)

    def close_flow(self) -> Flow[None]:
        """End the responder; replies that were given are sent."""
        yield Ask(self._withdraw)
        yield from super().close_flow()
        replies, self._replies = self._replies, None
        if replies is not None and not self._connection.closed:
            with contextlib.suppress(Timeout, BackPressure):
                yield from replies.close_flow(CLOSE_TIMEOUT_S)

    # --- requests ---------------------------------------------------------------------------------

    def step(self, limit: int) -> Batch | None:
        """See `SubscriptionCore.step`: here it collects requests, and returns an empty batch."""
        return self._empty if self.collect(limit) else None

    def start_walk(self, batch: Batch) -> Iterator[Message]:
        """The requests that `step` has collected."""
        del batch
        return self._walk

    def collect(self, limit: int) -> int:
        """One look at the rings: how many requests came. Other messages are for subscriptions."""
        if (
            self._presence is not None
            and self._place() != self._announced_as
            and not self._connection.reconnecting
        ):
            self._announce()  # the engine, or the session at the gateway, is another one now
        found = self.step_copies(limit)
        if found is None:
            return 0
        image, messages = found
        requests: list[Message] = []
        origin = self._origins.get(image.session)
        if origin is None:
            if len(self._origins) >= _ORIGINS_MAX:
                self._origins.clear()
            origin = Origin(self.topic, image.node, image.session, image.codec, NONE)
            self._origins[image.session] = origin
        for message in messages:
            asked = return_of(message)
            if asked is not None:
                to, fields = asked
                about = origin
                if fields is not NONE:
                    about = Origin(self.topic, image.node, image.session, image.codec, fields)
                data = message.raw[message.lead :]
                requests.append(Request(data, about, 0, Answering(self, to)))
        self._walk = iter([*self._walk, *requests])
        return len(messages)

    @abstractmethod
    def reply(self, to: Return, payload: Any, headers: Headers | None) -> Any:
        """Send a reply: see `Request.respond`."""

    @abstractmethod
    def refuse(self, to: Return, kind: str, text: str) -> Any:
        """Send an error in place of a reply: see `Request.refuse`."""

    def rest(self) -> Iterator[Message] | None:
        """Requests that were taken and not handed out."""
        return self._walk if self._walk.__length_hint__() else None  # type: ignore[attr-defined]

    def requests_now(self, limit: int) -> list[Request]:
        """Requests that have arrived, without waiting."""
        self.check()
        if self.rest() is None and not self.collect(limit) and self.ended:
            self.raise_end()
        return list(self._walk)  # type: ignore[arg-type]

    def next_flow(self, timeout: float | None) -> Flow[Message]:
        """The next request."""
        deadline = Deadline(timeout, self._connection.link.now_s)
        while self.rest() is None:
            if (yield from self.batch_flow(ITERATE_MESSAGES, deadline)) is None:
                self.check()
                raise Timeout(f"no request on {self.topic} within {timeout} s")
        return next(self._walk)

    def poll(self, max_messages: int = 256) -> list[Request]:  # type: ignore[override]
        """Requests that have arrived, of up to ``max_messages`` messages. Raises Closed."""
        if self._connection.link.inline:
            self._connection.link.work()
        return self.requests_now(check_max_messages(max_messages))

    def batches(self, max_messages: int = 256, max_wait: float = 0.01) -> NoReturn:
        """Not of a responder. Raises ConfigError."""
        del max_messages, max_wait
        self._refuse_batches()

    def run_compiled_flow(self, *arguments: Any, **options: Any) -> NoReturn:
        """Not of a responder. Raises ConfigError."""
        del arguments, options
        self._refuse_batches()

    def _refuse_batches(self) -> NoReturn:
        """Raise ConfigError: requests come one by one."""
        raise ConfigError(
            f"topic {self.topic}: a responder gives requests: iterate, next, poll or serve"
        )

    # --- replies ----------------------------------------------------------------------------------

    def reply_flow(
        self, to: Return, payload: Any, headers: Headers | None, failure: tuple[str, str] | None
    ) -> Flow[None] | None:
        """Send a reply; None: done without waiting."""
        replies = self._replies
        if replies is None:
            self.check()
            raise Conflict(f"topic {self.topic}: this responder is closed")
        if failure is None:
            if self._codec is not None:
                payload = codecs.encode(self._codec, payload, self.topic)
            elif type(payload) is not bytes:
                payload = payload_bytes(payload, self.topic)
        meta, flags = wire.reply_meta(to, headers, failure)
        return replies.append_flow(replies.addressed(payload, meta, flags, to.node), None)

    def handler_failed(self, problem: BaseException) -> tuple[str, str]:
        """(kind, text) of an exception of a handler, which is reported here, too."""
        kind, text = type(problem).__name__, str(problem)
        self._connection.emit(RequestRefused(topic=self.topic, kind=kind, detail=text))
        self._connection.bell.ring()
        return kind, text
