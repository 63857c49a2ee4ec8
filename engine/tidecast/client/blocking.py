"""The blocking client: `tidecast.sync`. The steps are those of the cores; here they wait."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, ClassVar, Self

from tidecast import codecs
from tidecast.api.link import Link
from tidecast.api.start import Latest, Start
from tidecast.client import compiled, durable_waits
from tidecast.client.consumer.blocking import Consumers
from tidecast.client.core.connection import CLOSED, DRAINING
from tidecast.client.core.message import Batch, Message
from tidecast.client.core.metadata import Headers
from tidecast.client.core.outgoing import BatchResult, reject
from tidecast.client.core.producer import check_ack
from tidecast.client.core.publisher import CLOSE_TIMEOUT_S, COLLECTED_MAX, PublisherCore
from tidecast.client.core.subscription import (
    ITERATE_MESSAGES,
    SubscriptionCore,
    check_concurrency,
    check_handler,
    check_max_messages,
)
from tidecast.client.links.open import open_link
from tidecast.client.waiting import Backoff, Deadline, FillPace, InlinePace
from tidecast.errors import BackPressure, Closed, ForkedProcess, TidecastError, Timeout
from tidecast.events import Event

_NEVER, _SPINS = Deadline(None), 16


class Publisher(durable_waits.BlockingWaits, PublisherCore):
    """Publishes to one topic. Safe from several threads; see `tidecast.client.core.publisher`."""

    _QUICK: ClassVar[dict[str, object]] = {"try_publish": True, "publish": None}

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
        ack: str | None = None,
    ) -> None:
        """Publish one message: bytes, or what the codec encodes.

        ``to``: name of the only node that shall have it; ``subscriber``: id of the only subscriber.
        ``timestamp``: True = now, or ns since 1970. ``flush``: send at once. ``timeout``: seconds
        to wait for room. Raises CodecError, ConfigError, PayloadTooLarge, NoResponders, Timeout,
        BackPressure or RateLimited (``on_full="error"``), ConnectionLost, Closed.
        ``ack="durable"``: return when it is on disk; raises also Fenced, StorageError. ``engine``
        and ``none`` are what happens without: return when the ring has it.
        """
        if ack is not None and check_ack(self, ack):
            self.publish(payload, key, headers, timestamp, to, subscriber, flush, timeout)
            self.wait_durable(timeout=timeout)
            return
        plain = key is headers is timestamp is to is subscriber is None  # type: ignore[comparison-overlap]
        if plain and type(payload) is self._plain:
            if len(payload) <= self._collected_bytes_max and not flush:
                collected = self._collected
                if len(collected) < COLLECTED_MAX or self._room(timeout):
                    collected.append(payload)
                    if self._collected_bytes_max < 0:
                        self._finish_collecting(timeout)
                return
            if self._collects:
                self.note_call()
            if not flush and self.attempt_plain(payload):
                return
        message = self.prepare(payload, key, headers, timestamp, to, subscriber, flush)
        if not self.attempt(message):
            if not self._wait(lambda: self.attempt(message), timeout):
                self.drop(1)
        elif flush and self._connection.link.inline:
            self._connection.link.work()

    def publish_batch(
        self, messages: Any, *, flush: bool = False, timeout: float | None = None,
        ack: str | None = None,
    ) -> BatchResult:  # fmt: skip
        """Publish many messages: a list of bytes, a NumPy array, an Arrow array or column.

        Rows of a two-dimensional array are messages, items of a one-dimensional one. A column's
        values are not copied on the way into the ring. Returns what became of them: what stops a
        batch half way (no room, too large) is in the result's ``error``. Other threads' messages
        may come between. ``ack="durable"``: return when all is on disk, or say in ``error`` why
        not. Raises CodecError before anything is published, Closed.
        """
        if ack is not None and check_ack(self, ack):
            result = self.publish_batch(messages, flush=flush, timeout=timeout)
            return self.settle_batch(result, timeout)
        appended, runs = self.begin_batch(messages, flush)
        requested = appended + sum(run.n for run in runs)
        for run in runs:
            error: TidecastError | None = None
            done = False
            try:
                done = self.attempt_run(run, flush) or self._wait(
                    partial(self.attempt_run, run, flush), timeout
                )
            except (Closed, ForkedProcess):
                raise
            except TidecastError as problem:
                error = problem
            appended += run.done
            if not done:
                dropped = 0 if error is not None else requested - appended
                self.drop(dropped)
                return BatchResult(requested, appended, dropped, error)
        return BatchResult(requested, appended)

    def run_compiled(
        self,
        fn: Callable[..., Any],
        state: Any,
        count: int,
        *,
        message_bytes_max: int,
        flush: bool = True,
        timeout: float | None = None,
    ) -> int:
        """Publish up to ``count`` messages that a compiled function writes in place.

        ``fn(buf: uint8[:], i: int, state) -> int``: write message ``i`` into ``buf`` (at most
        ``message_bytes_max`` bytes), return its length; 0 stops. Numba compiles it once. One
        commit a packet. Returns how many were published. Raises ConfigError, Timeout, Closed.
        """
        producer = compiled.Producer(self, fn, state, count, message_bytes_max)
        while not producer.step(self.lock):
            if not self._wait(producer.may_go_on, timeout):
                break
        if flush:
            self.flush(timeout=timeout)
        return producer.done

    def flush(self, timeout: float | None = None) -> None:
        """Hand over what was collected and send the open packet. Raises Timeout, Closed."""
        if not self.attempt_hand_over(seal=True):
            self._until(lambda: self.attempt_hand_over(seal=True), timeout)
        if self._connection.link.inline:
            self._connection.link.work()

    def close(self, timeout: float | None = CLOSE_TIMEOUT_S) -> None:
        """Hand over what was collected, then end the publication. Idempotent.

        Raises BackPressure when messages found no room within ``timeout`` seconds.
        """
        if self._refusal is not None:
            return
        with contextlib.suppress(Timeout):
            if not self.waits_in_vain:
                self.flush(timeout)
        left = self._detach()
        if left:
            raise BackPressure(
                f"topic {self.topic}: {left} messages were not published: the ring stayed full "
                f"for {timeout} s"
            )

    def _room(self, timeout: float | None) -> bool:
        """Room for one more collected message. False: it is to be dropped, and is counted."""
        attempt = partial(self.attempt_hand_over, seal=False)
        if attempt() or self._wait(attempt, timeout):
            return True
        self.drop(1)
        return False

    def _finish_collecting(self, timeout: float | None) -> None:
        """The burst ended while we collected: nobody else will hand this over."""
        attempt = partial(self.attempt_hand_over, seal=False)
        if not attempt() and not self._lost:
            self._until(attempt, timeout)

    def _wait(self, attempt: Callable[[], bool], timeout: float | None) -> bool:
        """Repeat ``attempt`` as ``on_full`` says. True: done; False: drop it."""
        if self._connection.link.inline and self._connection.link.work() > 0 and attempt():
            return True
        if self.on_full == "drop":
            return False
        if self.on_full == "error":
            raise self.full_error()
        self._until(attempt, timeout)
        return True

    def _until(self, attempt: Callable[[], bool], timeout: float | None) -> None:
        deadline, backoff = Deadline(timeout), Backoff(self._connection.link)
        while not attempt():
            if deadline.passed:
                raise self.timeout_error(timeout)
            backoff.pause(deadline)
            if self._connection.rung:
                self._connection.pump()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Subscription(SubscriptionCore):
    """Receives what matches one pattern; a context manager and an iterator of messages."""

    def open(self) -> Self:
        """Subscribe now; `with` does it too. Granted when this returns."""
        self._open()
        return self

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def messages(self) -> Iterator[Message]:
        """Messages as they come, until closed or drained.

        Raises GapError by policy; iterate again to go on behind the gap.
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

        A batch holds up to ``max_messages`` of one publication; one that is not full waits up to
        ``max_wait`` seconds for more. Raises GapError by policy, ConfigError.
        """
        self.check()
        return self._batches(check_max_messages(max_messages), max_wait)

    def _batches(self, limit: int, max_wait: float) -> Iterator[Batch]:
        while (batch := self._wait_batch(limit, _NEVER)) is not None:
            yield batch if len(batch) >= limit else self._fill(batch, limit, max_wait)

    def next(self, timeout: float | None = None) -> Message:
        """The next message, valid until the call after. Raises Timeout, GapError, Closed."""
        self.check()
        walk = self.rest()
        if walk is None:
            batch = self._wait_batch(ITERATE_MESSAGES, Deadline(timeout))
            if batch is None:
                self.check()
                raise Timeout(f"no message on {self.pattern} within {timeout} s")
            walk = self.start_walk(batch)
        return next(walk)

    def poll(self, max_messages: int = 256) -> Batch:
        """What is there now, up to ``max_messages``; an empty batch when nothing is.

        Raises GapError by policy, Closed, ConfigError.
        """
        if self._connection.link.inline:
            self._connection.link.work()
        return self._poll(max_messages)

    def run(self, handler: Callable[[Message], Any], concurrency: int = 1) -> int:
        """Call ``handler`` with every message until closed or drained; how many there were.

        With ``concurrency`` above 1 that many threads call it, each with a copy of its own. The
        first exception of a handler ends the run, after those that still run. Raises ConfigError
        for what is not a function of one message.
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

    def run_compiled(
        self,
        fn: Callable[..., Any],
        state: Any,
        *,
        max_messages: int | None = None,
        duration_s: float | None = None,
        until: Callable[[], bool] | threading.Event | None = None,
    ) -> int:
        """Run a compiled function over every message, in place; how many there were.

        ``fn(data: uint8[:], state)`` or ``fn(data, meta, state)`` with ``meta`` a
        `tidecast.client.compiled.Meta`. Numba compiles it once. Ends after ``max_messages``, after
        ``duration_s`` seconds, when ``until`` says so (asked between batches), when closed or
        drained. Raises GapError by policy, ConfigError.
        """
        self.check()
        consumer = compiled.Consumer(self, fn, state, max_messages, until)
        deadline, pace = Deadline(duration_s), InlinePace()
        self.running += 1
        try:
            while not (consumer.ended or self.ended or deadline.passed):
                if not consumer.step():
                    self._idle(deadline, pace)
        finally:
            self.running -= 1
        if self.ended:
            self.raise_end()
        return consumer.done

    def drain(self, timeout: float | None = None) -> None:
        """Take nothing new: iteration ends behind what is in the rings; then waits for handlers.

        Raises Timeout when handlers run on for longer than ``timeout`` seconds.
        """
        self._start_drain()
        self._connection.bell.ring()
        deadline, backoff = Deadline(timeout), Backoff(self._connection.link)
        while self.running:
            if deadline.passed:
                raise Timeout(f"handlers of {self.pattern} still run after {timeout} s")
            backoff.pause(deadline)

    def close(self) -> None:
        """End the subscription; whoever waits for it is woken. Idempotent."""
        self._shut()
        if not self._connection.closed:
            self._connection.bell.ring()

    def _wait_batch(self, limit: int, deadline: Deadline) -> Batch | None:
        """The next batch; None when the time is over, or closed or drained."""
        pace = InlinePace()
        spins = 0
        while True:
            batch = self.step(limit)
            if batch is not None:
                return batch
            if self.ended:
                self.raise_end()
                return None
            if deadline.passed:
                return None
            spins += 1
            if spins > _SPINS or self._connection.link.inline:
                self._idle(deadline, pace)

    def _idle(self, deadline: Deadline, pace: InlinePace) -> None:
        link = self._connection.link
        if link.inline:
            pause_s = pace.pause_s(link.work())
            if pause_s:
                self._connection.bell.wait(self._connection.bell.word, deadline.left_s(pause_s))
            return
        word = self.arm()
        if word is not None and self._connection.bell.wait(word, deadline.left_s(1.0)) == word:
            self.look_unrung()

    def _fill(self, batch: Batch, limit: int, max_wait: float) -> Batch:
        deadline, pace = Deadline(max_wait), FillPace()
        bell, link = self._connection.bell, self._connection.link
        while len(batch) < limit and not deadline.passed:
            self._await_more(batch, limit)
            grown = self.grow(batch, limit)
            if grown is None:
                return batch
            if len(grown) == len(batch):
                if link.inline:
                    link.work()
                elif (word := self.arm(batch)) is not None:
                    bell.wait(word, deadline.left_s(1.0))
            elif len(grown) < limit and not link.inline:
                pace.pause(deadline)
            batch = grown
        return batch


class Connection(Consumers):
    """A connection to a node; a context manager. Made by `tidecast.sync.connect`."""

    def __init__(self, link: Link, name: str = "") -> None:
        super().__init__(link, name)
        self._kept: dict[str, Publisher] = {}

    def publisher(
        self,
        topic: str,
        *,
        channel: str = "ordinary",
        on_full: str | None = None,
        linger_us: int | None = None,
        history_bytes: int | None = None,
        rate_packets_per_s: int | None = None,
        rate_bytes_per_s: int | None = None,
        codec: codecs.Codec | str | None = None,
        buffer: bool = False,
        producer: str | None = None,
        first_seq: int | None = None,
    ) -> Publisher:
        """Open a publication of ``topic``. Raises NotFound, ConfigError, SharedMemoryError.

        ``on_full`` (None: as the topic says): ``block`` waits for room, ``error`` raises
        BackPressure or RateLimited, ``drop`` counts and tells by a MessagesDropped event.
        ``linger_us``: how long a packet may wait for more messages. ``buffer=True``: calls in
        quick succession are collected and handed over together. Durable topics: ``producer`` names
        the session, a newer one of that name fences this; ``first_seq``: sequence of the first
        message, so that what is repeated is dropped (None: behind the last one known). Raises also
        SequenceGap.
        """
        self.check()
        options = self._options(
            channel=channel, linger_us=linger_us, history_bytes=history_bytes,
            rate_packets_per_s=rate_packets_per_s, rate_bytes_per_s=rate_bytes_per_s,
            producer=producer, first_seq=first_seq,
        )  # fmt: skip
        publisher = Publisher(self, topic, options, on_full=on_full, codec=codec, buffer=buffer)
        self.add_publisher(publisher)
        return publisher

    def publish(self, topic: str, payload: Any, **options: Any) -> None:
        """Publish one message; arguments as `Publisher.publish`. Keeps a publisher a topic."""
        self.kept_publisher(topic).publish(payload, **options)

    def publish_batch(self, topic: str, messages: Any, **options: Any) -> BatchResult:
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
                    kept = self._kept[topic] = self.publisher(topic)
        return kept

    def subscribe(
        self,
        pattern: str,
        *,
        start: Start | str = Latest(),  # noqa: B008 - immutable
        on_gap: str | None = None,
        tethered: bool | None = None,
        receive_bytes: int | None = None,
        codec: codecs.Codec | str | None = None,
    ) -> Subscription:
        """Subscribe to topics: a name, or with ``*`` for one token and ``>`` for all that follow.

        Granted when this returns. ``on_gap``: ``raise`` a GapError, put a Gap into the ``event``
        stream, or ``skip``; the default is ``raise``, for unreliable topics ``event``.
        ``tethered=False``: never holds a publisher back and may be lapped. Raises ConfigError.
        """
        subscription = Subscription(
            self, pattern, start=start, on_gap=on_gap, tethered=tethered,
            receive_bytes=receive_bytes, codec=codec,
        )  # fmt: skip
        return subscription.open()

    def events(self, timeout: float | None = 0.0) -> Iterator[Event]:
        """Events as they come; ends when none came for ``timeout`` seconds (None: when closed)."""
        deadline = Deadline(timeout)
        pace = InlinePace()
        while self.goes_on():
            word = self.bell.word
            event = self.take_event()
            if event is not None:
                yield event
                deadline = Deadline(timeout)
            elif deadline.passed:
                return
            elif self.link.inline:
                self.bell.wait(word, deadline.left_s(pace.pause_s(self.link.work())))
            else:
                self.bell.wait(word, deadline.left_s(1.0))

    def work(self) -> int:
        """Run an inline node's agents once; how much they did. Elsewhere nothing."""
        self.check()
        return self.link.work()

    def flush(self, timeout: float | None = None) -> None:
        """Flush all publishers. Raises Timeout."""
        self.check()
        for publisher in list(self._publishers):
            publisher.flush(timeout)  # type: ignore[attr-defined]

    def drain(self, timeout: float | None = 30.0) -> None:
        """Send what was published, wait for handlers of what has arrived, then close.

        Raises Timeout, and closes all the same.
        """
        self.check()
        deadline = Deadline(timeout)
        self.status = DRAINING
        try:
            self.flush(timeout)
            for subscription in list(self._subscriptions.values()):
                subscription.drain(deadline.left_s(1e9))  # type: ignore[attr-defined]
            backoff = Backoff(self.link)
            while any(each.stats().unsent_packets for each in list(self._publishers)):
                if deadline.passed:
                    raise self.unsent_error(timeout)
                backoff.pause(deadline)
        finally:
            self.close()

    def close(self) -> None:
        """Close publishers (what was collected is handed over) and subscriptions. Idempotent."""
        if self.status == CLOSED or os.getpid() != self._pid:
            return
        problem: TidecastError | None = None
        for publisher in list(self._publishers):
            try:
                publisher.close()  # type: ignore[attr-defined]
            except TidecastError as raised:
                problem = raised
        for subscription in list(self._subscriptions.values()):
            subscription.close()  # type: ignore[attr-defined]
        for consumer in list(self._consumers):
            consumer.close()  # type: ignore[attr-defined]
        self._finish()
        if problem is not None:
            raise problem

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
    link: Link | None = None,
    **options: Any,
) -> Connection:
    """Connect to a node.

    ``tidecast://`` the engine of the default data directory, ``tidecast:///path`` of another one;
    ``embedded://`` an engine in this process (``topology=`` file or object, ``mode=`` ``threads``
    or ``inline``). Raises EngineNotRunning, AuthError, ConfigError.
    """
    return Connection(link or open_link(url, name, token, options), name)


__all__ = ["Connection", "Publisher", "Subscription", "connect"]
