"""The blocking client: `tidecast.sync`. The steps are those of the cores; here they wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, ClassVar, Generic, Self, TypeVar, Unpack

from tidecast import codecs
from tidecast.api.link import Link
from tidecast.api.words import Ack, PublishOptions
from tidecast.client.admin.blocking import Subscriptions, Topics
from tidecast.client.columns.batch import (
    BatchOptions,
    Messages,
)
from tidecast.client.consumer.blocking import Consumer
from tidecast.client.core.message import Batch, Message
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import BatchResult, reject
from tidecast.client.core.public import Public
from tidecast.client.core.publisher import COLLECTED_MAX
from tidecast.client.core.subscription import (
    ITERATE_MESSAGES,
    check_concurrency,
    check_handler,
    check_max_messages,
)
from tidecast.client.flows.connection import ConnectionFlows
from tidecast.client.flows.publisher import PublisherFlows
from tidecast.client.flows.shells import waits
from tidecast.client.flows.steps import Blocking, BlockingDriver
from tidecast.client.flows.subscription import SubscriptionFlows
from tidecast.client.links.open import ConnectOptions, open_link
from tidecast.client.log.blocking import Records
from tidecast.client.requests.connection import (
    TIMEOUT_S,
    Gathering,
    known_requester,
    make_requester,
)
from tidecast.client.requests.requester import Pending, Requester
from tidecast.client.requests.responder import Request, ResponderFlows
from tidecast.client.requests.wire import Return
from tidecast.client.typed.blocking import TypedConsumer
from tidecast.client.typed.core import MessagesCore, TopicCore, TypedMessage, check_invalid
from tidecast.client.typed.options import ConsumeOptions, Invalid, InvalidLive, SubscribeOptions
from tidecast.client.waiting import Deadline
from tidecast.errors import TidecastError
from tidecast.events import Event

T = TypeVar("T")
_NEVER, _SPINS, _REPLY_SPINS = Deadline(None), 16, 16


class Publisher(Public, Blocking, PublisherFlows):
    """Publishes to one topic. Safe from several threads; see `tidecast.client.core.publisher`."""

    PUBLIC = (
        "close closed durable durable_position flush flush_to_ring position publish "
        "publish_batch run_compiled session stats topic try_publish wait_durable"
    )

    _FAST: ClassVar[dict[str, object]] = {"try_publish": True, "publish": None}

    def publish(
        self,
        payload: Any,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        timestamp: bool | int | None = None,
        to: str | int | None = None,
        subscriber: int | None = None,
        flush: bool = False,
        timeout: float | None = None,
        ack: Ack | None = None,
        deliver_at: datetime | int | None = None,
        deliver_in: float | None = None,
    ) -> None:
        """Publish one message: bytes, or a value that the codec encodes.

        ``to``: name of the only node that shall have it; ``subscriber``: id of the only subscriber.
        ``timestamp``: True = now, or ns since 1970. ``flush``: send at once. ``timeout``: seconds
        to wait for room. Raises CodecError, ConfigError, PayloadTooLarge, NoResponders, Timeout,
        BackPressure or RateLimited (``on_full="error"``), ConnectionLost, Closed.
        ``ack="durable"``: return when it is on disk; raises also Fenced, StorageError. ``engine``
        and ``none``, as without ``ack``: return when the ring has it. ``deliver_at`` (a
        datetime with a time zone, or ns since 1970) or ``deliver_in`` (seconds from now), of a
        durable topic: no subscription gets the message before, see docs/CONSUMING.md.
        """
        plain = key is headers is timestamp is to is subscriber is ack is None  # type: ignore[comparison-overlap]
        plain = plain and deliver_at is deliver_in is None
        if plain and type(payload) is self._plain and not flush:
            collected = self._collected
            if len(payload) <= self._collected_bytes_max and len(collected) < COLLECTED_MAX:
                collected.append(payload)
                if self._collected_bytes_max < 0:
                    self._drive(self.end_burst_flow(timeout))
                return
        flow = self.publish_flow(
            payload,
            key,
            headers,
            timestamp,
            to,
            subscriber,
            flush,
            timeout,
            ack,
            deliver_at,
            deliver_in,
        )
        if flow is not None:
            self._drive(flow)

    publish_batch = waits(PublisherFlows.publish_batch_flow)
    run_compiled = waits(PublisherFlows.run_compiled_flow)
    flush = waits(PublisherFlows.flush_flow)
    close = waits(PublisherFlows.close_flow)
    wait_durable = waits(PublisherFlows.wait_durable_flow)
    flush_to_ring = waits(PublisherFlows.flush_to_ring_flow)

    hand_over = flush_to_ring
    """The name of `flush_to_ring` in older versions; the next version has it no more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Subscription(Public, Blocking, SubscriptionFlows):
    """Receives the messages of a pattern; a context manager and an iterator of messages."""

    PUBLIC = (
        "batches close closed drain images lag messages next open pattern poll run "
        "run_compiled stats subscriber_id"
    )

    def open(self) -> Self:
        """Subscribe now; `with` does it too. Granted when this returns."""
        self._drive(self.open_flow())
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def messages(self) -> Iterator[Message]:
        """Messages as they come, until closed or drained.

        Raises GapError by policy; iterate again to continue behind the gap.
        """
        self.check()
        return chain.from_iterable(self._walks())

    __iter__ = messages

    def _walks(self) -> Iterator[Iterator[Message]]:
        batch: Batch | None = None
        while True:
            walk = self.rest()
            if walk is None:
                self._keep_back(batch)
                batch = self._wait_batch(ITERATE_MESSAGES, _NEVER)
                if batch is None:
                    return
                walk = self.start_walk(batch)
            yield walk

    def batches(self, max_messages: int = 256, max_wait: float = 0.01) -> Iterator[Batch]:
        """Batches as they come, until closed or drained.

        A batch holds up to ``max_messages`` of one publication. A batch that is not full waits up
        to ``max_wait`` seconds for more. Raises GapError by policy, ConfigError.
        """
        self.check()
        return self._batches(check_max_messages(max_messages), max_wait)

    def _batches(self, limit: int, max_wait: float) -> Iterator[Batch]:
        while (batch := self._wait_batch(limit, _NEVER)) is not None:
            if len(batch) < limit:
                batch = self._drive(self.fill_flow(batch, limit, max_wait))
            yield batch

    def next(self, timeout: float | None = None) -> Message:
        """The next message, valid until the call after. Raises Timeout, GapError, Closed."""
        self.check()
        walk = self.rest()
        return next(walk) if walk is not None else self._drive(self.next_flow(timeout))

    def run(self, handler: Callable[[Message], Any], concurrency: int = 1) -> int:
        """Call ``handler`` with every message until closed or drained; how many there were.

        With ``concurrency`` above 1 that many threads call it, each with a copy of its own. The
        first exception of a handler ends the run, after the handlers that still run. Raises
        ConfigError unless ``handler`` is a function of one message.
        """
        if check_handler(handler):
            raise reject("handler", handler, "is a plain function: this client does not await")
        check_concurrency(concurrency)
        self.check()
        self.running += 1
        try:
            if concurrency > 1:
                return self._run_in_threads(handler, concurrency)
            n = 0
            for n, message in enumerate(self.messages(), 1):  # noqa: B007 - the count
                handler(message)
            return n
        finally:
            self.running -= 1

    def _run_in_threads(self, handler: Callable[[Message], Any], concurrency: int) -> int:
        n = 0
        pending: set[Future[Any]] = set()
        with ThreadPoolExecutor(concurrency, thread_name_prefix="tidecast-handler") as pool:
            for message in self.messages():
                n += 1
                pending.add(pool.submit(handler, message.copy()))
                if len(pending) >= concurrency:
                    done, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for each in done:
                        each.result()
        for each in pending:
            each.result()
        return n

    run_compiled = waits(SubscriptionFlows.run_compiled_flow)
    drain = waits(SubscriptionFlows.drain_flow)
    close = waits(SubscriptionFlows.close_flow)

    def _wait_batch(self, limit: int, deadline: Deadline) -> Batch | None:
        """The next batch; None when the time is over, or closed or drained."""
        for _ in range(1 if self.inline else _SPINS):
            batch = self.step(limit)
            if batch is not None:
                return batch
            if self.ended or deadline.passed:
                break
        return self._drive(self.batch_flow(limit, deadline))


class Responder(ResponderFlows, Subscription):
    """Responds to the requests on one topic; a context manager and an iterator of requests."""

    PUBLIC = "close closed drain group messages next pattern poll serve stats topic"

    def messages(self) -> Iterator[Request]:
        """Requests as they come, until closed or drained."""
        return super().messages()  # type: ignore[return-value]

    def __iter__(self) -> Iterator[Request]:
        return self.messages()

    def next(self, timeout: float | None = None) -> Request:
        """The next request. Raises Timeout, Closed."""
        return super().next(timeout)  # type: ignore[return-value]

    def serve(self, handler: Callable[[Request], Any], concurrency: int = 1) -> int:
        """Call ``handler`` with every request until closed or drained; how many there were.

        The handler responds, or its result is the reply (None: an empty reply). When it raises,
        its requester gets RequestFailed, and a RequestRefused event reports it here. With
        ``concurrency`` above 1 that many threads call it. Raises ConfigError.
        """
        if check_handler(handler):
            raise reject("handler", handler, "is a plain function: this client does not await")
        return self.run(partial(self.answer, handler), concurrency)

    def answer(self, handler: Callable[[Request], Any], request: Any) -> None:
        """Call ``handler`` with one request, as `serve` does with each."""
        try:
            value = handler(request)
            if not request.answered:
                request.respond(b"" if value is None else value)
        except Exception as problem:
            kind, text = self.handler_failed(problem)
            if request.answered:
                raise
            request.refuse(kind, text)

    def reply(self, to: Return, payload: Any, headers: Headers | None) -> None:
        """Send a reply: see `Request.respond`."""
        flow = self.reply_flow(to, payload, headers, None)
        if flow is not None:
            self._drive(flow)

    def refuse(self, to: Return, kind: str, text: str) -> None:
        """Send an error in place of a reply: see `Request.refuse`."""
        flow = self.reply_flow(to, b"", None, (kind, text))
        if flow is not None:
            self._drive(flow)


class PendingReply:
    """A request that was sent; its reply may have come. Made by `Connection.begin_request`."""

    __slots__ = ("_connection", "_pending", "_requester")

    def __init__(self, connection: Connection, requester: Requester, pending: Pending) -> None:
        self._connection, self._requester, self._pending = connection, requester, pending

    @property
    def done(self) -> bool:
        """`result` returns, or raises, at once. Looks at nothing: see `poll`."""
        return self._pending.done

    def poll(self) -> bool:
        """Take the replies that came; is it done? Never waits."""
        if not self._pending.done:
            if self._connection.link.inline:
                self._connection.link.work()
            self._requester.pump()
        return self._pending.done

    def result(self, timeout: float | None = None) -> Message:
        """The reply. Raises RequestTimeout, RequestFailed, ResponderLost, ConnectionLost, Closed.

        ``timeout``: seconds; None: until it came, or its responder ended.
        """
        return self.result_by(Deadline(timeout, self._connection.link.now_s), timeout)

    def result_by(self, deadline: Deadline, timeout: float | None) -> Message:
        """`result`, until a deadline; ``timeout`` is for its error."""
        pending, requester = self._pending, self._requester
        for _ in range(_REPLY_SPINS):
            if pending.done or requester.pump():
                break
        if not pending.done:
            flow = requester.wait_flow(lambda: pending.done, deadline)
            if not self._connection.driver.run(flow):
                raise requester.expire(pending, timeout)
        return pending.reply()

    def cancel(self) -> None:
        """Wait no more: a reply that comes yet is counted as late."""
        self._requester.forget(self._pending)


class Replies:
    """Replies of several responders to one request: iterate, until all have replied.

    ``asked``: responders that have the request; ``failures``: errors that came in place of
    replies; ``missing``: responders that have neither replied nor failed.
    """

    def __init__(self, connection: Connection, gathering: Gathering) -> None:
        self._connection, self._gathering = connection, gathering

    @property
    def asked(self) -> int:
        """Responders that have the request."""
        return self._gathering.asked

    @property
    def failures(self) -> list[TidecastError]:
        """Errors that came in place of replies, so far."""
        return self._gathering.failures

    @property
    def missing(self) -> int:
        """Responders that have neither replied nor failed, so far."""
        return self._gathering.missing

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        reply = self._connection.driver.run(self._gathering.next_flow())
        if reply is None:
            raise StopIteration
        return reply


class Topic(Public, TopicCore[T], Generic[T]):
    """A topic whose payloads are values of one type."""

    PUBLIC = "codec consumer kind name publish publish_batch publisher subscribe"

    def __init__(
        self, connection: Connection, name: str, kind: type[T], codec: codecs.Codec | str
    ) -> None:
        super().__init__(connection, name, kind, codec)
        self._lock = threading.Lock()
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        """The publisher of this topic, opened by the first use."""
        with self._lock:
            if self._publisher is None or self._publisher.closed:
                failed, open_one = self._publisher, self._connection.publisher_after
                self._publisher = open_one(failed, self.name, self.codec)
            return self._publisher

    def publish(self, value: T, **options: Unpack[PublishOptions]) -> None:
        """Publish a value; arguments as `Publisher.publish`. Raises CodecError, as it does."""
        self.publisher.publish(value, **options)

    def publish_batch(self, values: Sequence[T], **options: Unpack[BatchOptions]) -> BatchResult:
        """Publish many values; arguments as `Publisher.publish_batch`."""
        payloads: Any = values
        return self.publisher.publish_batch(payloads, **options)

    def subscribe(
        self, *, invalid: InvalidLive = "raise", **options: Unpack[SubscribeOptions]
    ) -> TypedSubscription[T]:
        """Subscribe, as `Connection.subscribe`. ``invalid``: ``raise`` or ``skip`` them."""
        check_invalid(invalid, InvalidLive)
        plain = self._connection.subscribe(self.name, **options)
        return TypedSubscription(self, plain, invalid)

    def consumer(
        self, name: str, *, invalid: Invalid = "term", **options: Unpack[ConsumeOptions]
    ) -> TypedConsumer[T]:
        """Join the durable subscription ``name``, as `Connection.consumer`.

        ``invalid``, of records that cannot be decoded: ``term`` (dead letters, with the error as
        their reason), ``nak`` (delivered again, up to ``max_deliver``), or ``raise``.
        """
        check_invalid(invalid, Invalid)
        plain = self._connection.consumer(self.name, name, **options)
        return TypedConsumer(self, plain, invalid)


class TypedSubscription(Public, MessagesCore[T], Generic[T]):
    """A subscription whose messages have a decoded value. ``plain``: the `Subscription`."""

    PUBLIC = "close invalid next plain"

    def __init__(self, topic: Topic[T], plain: Subscription, invalid: InvalidLive) -> None:
        super().__init__(topic, invalid)
        self.plain = plain

    def __iter__(self) -> Iterator[TypedMessage[T]]:
        """Messages as they come, until closed or drained."""
        for message in self.plain:
            typed = self.message(message)
            if typed is not None:
                yield typed

    def next(self, timeout: float | None = None) -> TypedMessage[T]:
        """The next message. Raises Timeout, CodecError, and as `Subscription.next`."""
        deadline = self.deadline(timeout)
        while True:
            typed = self.message(self.plain.next(deadline()))
            if typed is not None:
                return typed

    def close(self) -> None:
        """End the subscription."""
        self.plain.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Connection(Public, ConnectionFlows[Publisher, Subscription, Consumer, Consumer, Records]):
    """A connection to a node; a context manager. Made by `tidecast.sync.connect`."""

    PUBLIC = (
        "begin_request close closed consumer drain events flush health name publish "
        "publish_batch publisher read request request_many responder serve stats status "
        "subscribe subscriptions topic topics work"
    )

    driver: BlockingDriver

    def __init__(
        self, link: Link, name: str = "", topic_codecs: codecs.TopicCodecs | None = None
    ) -> None:
        self.driver = BlockingDriver(lambda: self.bell)
        super().__init__(link, name, topic_codecs, Publisher, Subscription, Consumer, Records)
        self.topics, self.subscriptions = Topics(self), Subscriptions(self)

    def _subscribed(self, subscription: Subscription) -> None:
        subscription.open()

    def _joined(self, join: Callable[[], Consumer]) -> Consumer:
        return join()

    def publish(self, topic: str, payload: Any, **options: Unpack[PublishOptions]) -> None:
        """Publish one message; arguments as `Publisher.publish`. Keeps a publisher a topic."""
        self.kept_publisher(topic).publish(payload, **options)

    def publish_batch(
        self, topic: str, messages: Messages, **options: Unpack[BatchOptions]
    ) -> BatchResult:
        """Publish many messages, see `Publisher.publish_batch`. Keeps a publisher a topic."""
        return self.kept_publisher(topic).publish_batch(messages, **options)

    def kept_publisher(self, topic: str) -> Publisher:
        """The publisher that `publish` keeps for a topic."""
        kept = self._kept.get(topic)
        if kept is None or kept.closed:
            self.check()
            with self._lock:
                kept = self._kept.get(topic)
                if kept is None or kept.closed:
                    kept = self._kept[topic] = self.publisher_after(kept, topic)
        return kept

    def topic(self, name: str, kind: type[T], *, codec: codecs.Codec | str = "json") -> Topic[T]:
        """A topic whose payloads are of the type ``kind``, to publish to and to receive from.

        ``kind``: a builtin type, dataclass, `msgspec.Struct` or pydantic model; `bytes` and `str`
        are payloads as they are. ``codec``: ``json``, ``msgpack``, or an object that encodes and
        decodes it. ``name``: may be a pattern, to receive from. Raises ConfigError.
        """
        return Topic(self, name, kind, codec)

    def request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float | None = TIMEOUT_S,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> Message:
        """Send a request to one responder of a live topic, and wait for its reply.

        ``codec`` encodes the payload, and decodes `Message.value` of the reply. Raises NoResponders
        at once when no responder serves the topic, RequestTimeout after ``timeout`` seconds (None:
        never), RequestFailed when the handler raised, ResponderLost when the responder ended before
        it replied, CodecError, ConfigError, PayloadTooLarge, ConnectionLost, Closed.
        """
        deadline = Deadline(timeout, self.link.now_s)
        pending = self.begin_request(
            topic, payload, timeout=timeout, key=key, headers=headers, codec=codec
        )
        return pending.result_by(deadline, timeout)

    def begin_request(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float | None = TIMEOUT_S,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> PendingReply:
        """Send a request, and do not wait for its reply; many may be under way.

        ``timeout``: seconds to wait for room, and for a first responder to be known. Raises as
        `request`, but for the reply.
        """
        requester = known_requester(self, topic) or self._requester(topic)
        given = self.topic_codecs.of(topic, codec)
        pending = requester.begin(payload, key, headers, given)
        if pending is None:
            pending = self.driver.run(requester.begin_flow(payload, key, headers, given, timeout))
        return PendingReply(self, requester, pending)

    def request_many(
        self,
        topic: str,
        payload: Any,
        *,
        timeout: float | None = TIMEOUT_S,
        max_replies: int | None = None,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> Replies:
        """Send a request to each responder, and to one member of each group; iterate over replies.

        Iteration ends when all have replied, after ``max_replies``, or after ``timeout`` seconds.
        Raises RequestTimeout when no reply came in time; else as `request`.
        """
        requester = known_requester(self, topic) or self._requester(topic)
        gathering = Gathering(requester, timeout, max_replies)
        given = self.topic_codecs.of(topic, codec)
        self.driver.run(gathering.begin_flow(payload, key, headers, given))
        return Replies(self, gathering)

    def responder(
        self, topic: str, *, group: str | None = None, codec: codecs.Codec | str | None = None
    ) -> Responder:
        """Respond to requests on a live topic: iterate over them, or `Responder.serve` them.

        ``group``: `request_many` asks one member of it. Announced when this returns. Raises
        ConfigError, NotFound, AuthError.
        """
        self.check()
        return Responder(self, topic, group=group, codec=codec).open()

    def serve(
        self,
        topic: str,
        handler: Callable[[Request], Any],
        *,
        group: str | None = None,
        concurrency: int = 1,
        codec: codecs.Codec | str | None = None,
    ) -> int:
        """Respond with results of ``handler``, until closed or drained. See `Responder.serve`."""
        with self.responder(topic, group=group, codec=codec) as responder:
            return responder.serve(handler, concurrency)

    def _requester(self, topic: str) -> Requester:
        self.check()
        with self._lock:
            return known_requester(self, topic) or make_requester(self, self.kept_publisher(topic))

    def events(self, timeout: float | None = 0.0) -> Iterator[Event]:
        """Events as they come; ends when none came for ``timeout`` seconds (None: when closed)."""
        while (event := self.driver.run(self.event_flow(timeout))) is not None:
            yield event

    flush = waits(ConnectionFlows.flush_flow)
    drain = waits(ConnectionFlows.drain_flow)
    close = waits(ConnectionFlows.close_flow)

    def __enter__(self) -> Self:
        self.check()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    url: str = "tidecast://",
    *,
    name: str = "",
    token: str | None = None,
    codec: codecs.Codec | str | None = None,
    topic_codecs: Mapping[str, codecs.Codec | str] | None = None,
    link: Link | None = None,
    **options: Unpack[ConnectOptions],
) -> Connection:
    """Connect to a node.

    ``tidecast://`` the engine of the default data directory, ``tidecast:///path`` of another one;
    ``embedded://`` an engine in this process (``topology=`` file or object, ``mode=`` ``threads``
    or ``inline``). ``codec``: of all topics; ``topic_codecs``: by topic or pattern, before it.
    A call with a codec of its own does not use them. Raises
    EngineNotRunning, AuthError, ConfigError.
    """
    found = codecs.TopicCodecs(codec, topic_codecs)
    return Connection(link or open_link(url, name, token, options), name, found)


__all__ = [
    "Connection",
    "PendingReply",
    "Publisher",
    "Records",
    "Replies",
    "Request",
    "Responder",
    "Subscription",
    "connect",
]
