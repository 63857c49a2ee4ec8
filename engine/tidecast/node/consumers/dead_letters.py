"""Dead letters: a record that is given up on lies in a topic of its own, and can be sent again.

A record is stored there, durably, before it is acknowledged; after a stop in between it is stored
again. Its headers give its origin and the reason. A crash may come before the positions are saved:
then its letter is found in that topic when the record is given up again, and it is not stored
twice. Sent again, it is marked for the subscription that refused it
(`queues.filters.FOR_HEADER`), so that no other subscription gets it twice.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from tidecast import events
from tidecast.agents.guard import Guard
from tidecast.agents.puller.observer import Dead
from tidecast.api.words import ChannelName
from tidecast.errors import NotFound, PayloadTooLarge, TidecastError
from tidecast.layout.header_names import DELIVER_AT
from tidecast.log.queue_log import QueueLog
from tidecast.log.redriven import FOR_HEADER, REDRIVEN_HEADER
from tidecast.node.consumers.letters.confirmed import MARK
from tidecast.node.consumers.letters.counts import LOOK_S, LetterCounts
from tidecast.node.consumers.letters.numbered import NumberedLetters, NumberedPublisher, reason_of
from tidecast.node.consumers.state import ConsumersState, CursorState, SubscriptionState
from tidecast.queues.records import decoded, is_of_engine, records_from
from tidecast.queues.subscription_store import SentLetter

STORE_TIMEOUT_S = 10.0
NUMBERED_LOOK_S = 0.01
"""How often to check whether letters at another engine have become durable."""
KNOWN_MAX = 10_000
LETTERS_READ_MAX = 100_000
"""So many of the newest letters of each queue are read after a start."""
_META_BYTES_MAX = 64 * 1024
OURS = (FOR_HEADER, REDRIVEN_HEADER, DELIVER_AT)
"""Headers that a letter does not keep: they were for the delivery that failed."""


T = TypeVar("T")
_Key = tuple[int, int, int]
"""Cursor, generation, token."""
_Place = tuple[str, int, int]
"""Topic, queue, token."""
_Letter = tuple["SubscriptionState", "CursorState", Dead]


def _headers(
    subscription: SubscriptionState, cursor: CursorState, sent: SentLetter, record: dict[str, Any]
) -> dict[str, Any]:
    """The headers of a letter: its origin and the reason."""
    return {
        f"{MARK}topic": cursor.here.topic,
        f"{MARK}queue": sent.queue,
        f"{MARK}token": sent.token,
        f"{MARK}subscription": subscription.saved.name,
        f"{MARK}pattern": subscription.saved.pattern,
        f"{MARK}attempts": sent.attempts,
        f"{MARK}reason": sent.reason,
        f"{MARK}time": record["time_ns"],
    }


def _fitted(record: dict[str, Any], ours: dict[str, Any], build: Callable[[Any], T]) -> T:
    """``build`` with ``ours`` and as many headers of the record as fit beside them."""
    kept = {
        MARK + name if name.startswith(MARK) else name: value
        for name, value in record["headers"].items()
        if name not in OURS
    }
    fit = list(kept)
    while True:
        cut = {f"{MARK}cut": len(kept) - len(fit)} if len(fit) < len(kept) else {}
        try:
            return build(ours | cut | {name: kept[name] for name in fit})
        except PayloadTooLarge:
            if not fit:
                raise
            fit.pop()


def _limit(known: dict[_Key, Any]) -> None:
    """The oldest entry gives way: an open record loses its reason if it is reported again."""
    if len(known) > KNOWN_MAX:
        del known[next(iter(known))]


def _places(records: Iterable[tuple[int, bytes]], pattern: str, name: str) -> Iterator[_Place]:
    """Places of the records whose letters, of one subscription, are among these records."""
    for _, raw in records:
        headers = decoded(raw)["headers"] if is_of_engine(raw) else {}
        mine = headers.get(f"{MARK}pattern") == pattern
        if mine and headers.get(f"{MARK}subscription") == name and FOR_HEADER not in headers:
            yield tuple(headers[f"{MARK}{part}"] for part in ("topic", "queue", "token"))


class Completer(Protocol):
    """Acks dead records once they are stored."""

    def complete_dead(self, dead: Dead) -> None:
        """A dead record is stored, or dropped and reported: ack it."""

    def save_soon(self) -> None:
        """Save the positions soon, before they are due."""

    def save_now(self, subscription: SubscriptionState) -> None:
        """Save a subscription. Raises StorageError."""


class _Deleted(Exception):
    """The source of a record deleted it (compaction): it can no longer be stored."""


class LetterPublisher(Protocol):
    """A publisher of the blocking client."""

    @property
    def payload_bytes_max(self) -> int:
        """The longest payload that its ring holds."""

    def publish(
        self,
        payload: bytes,
        *,
        key: bytes | None,
        headers: Any,
        timestamp: int | None,
        timeout: float,
    ) -> None:
        """Publish a message."""

    def wait_durable(self, *, timeout: float) -> int:
        """Wait until all messages are durable."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *problem: object) -> None: ...


class LetterClient(Protocol):
    """A connection of the blocking client to this node."""

    def hear(self) -> None:
        """Read the node's events."""

    def kept_publisher(self, topic: str) -> LetterPublisher:
        """The publisher that the connection keeps for a topic."""

    def publisher(
        self,
        topic: str,
        *,
        channel: ChannelName,
        history_bytes: int,
        producer: str | None = None,
        first_seq: int | None = None,
    ) -> Any:
        """Open a publisher: `LetterPublisher`, `NumberedPublisher`."""

    def close(self) -> None:
        """End the connection."""


Connect = Callable[[bool], LetterClient]
"""(may it write the engine's reserved headers) -> a client of this node."""


class DeadLetters:
    """Stores dead letters in a thread of its own: a slow dead-letter topic delays nothing else.

    One connection, made when first needed. In an inline node `work` does the work of the thread.
    """

    def __init__(self, state: ConsumersState, completer: Completer, connect: Connect) -> None:
        self._state, self._completer, self._connect = state, completer, connect
        self._waiting: set[_Key] = set()
        self._open: dict[_Key, _Letter] = {}
        self._ended: dict[_Key, None] = {}
        """Settled of late: reports of them that came meanwhile are outdated."""
        self._stored_before: dict[tuple[str, str], set[_Place]] = {}
        """By subscription: records whose letters the engine before had stored when it crashed."""
        self._said: dict[tuple[str, str], str] = {}
        self._clients: dict[bool, LetterClient] = {}
        self._connecting = threading.Lock()
        self._numbered = NumberedLetters(
            state,
            completer.save_now,
            self._connection,
            self._record,
            self._numbered_message,
            self._say,
            self._drop,
        )
        self._counts = LetterCounts(state)
        self._busy = False
        self._inbox: queue.SimpleQueue[_Letter | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Store letters in a thread."""
        self._thread = threading.Thread(target=self._run, name="dead letters", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        guard = Guard("dead letters", self._state.ctx.conductor.agent_failed)
        while True:
            try:
                letter = self._inbox.get(
                    timeout=NUMBERED_LOOK_S if self._numbered.waiting else LOOK_S
                )
            except queue.Empty:
                guard.round(self.work)
                continue
            if letter is None:
                return
            guard.round(partial(self._take, letter), self.work)

    def add(self, subscription: SubscriptionState, cursor: CursorState, dead: Dead) -> None:
        """Add a dead record, or add it again. From any thread."""
        self._inbox.put((subscription, cursor, dead))

    def work(self) -> None:
        """Store the letters that were added."""
        while not self._inbox.empty():
            letter = self._inbox.get()
            if letter is None:
                self._inbox.put(None)
                return
            self._take(letter)
        self.flush()
        while self._counts.advance() and self._inbox.empty():
            pass

    def _take(self, letter: _Letter) -> None:
        """The first report of a letter decides its reason."""
        subscription, cursor, dead = letter
        key = (dead.cursor, dead.generation, dead.token)
        if key not in self._ended:
            self._open.setdefault(key, (subscription, cursor, dead))
            self._waiting.add(key)
            _limit(self._open)

    def flush(self) -> None:
        """Store the waiting letters, with one sync a topic, and acknowledge the stored letters."""
        if self._busy or not (self._waiting or self._numbered.waiting):
            return
        self._busy = True
        waiting, self._waiting = self._waiting, set()
        letters: dict[str, list[_Letter]] = {}
        for key in sorted(waiting):
            one = self._open.get(key)
            if one is None:
                continue  # it was settled since
            subscription, cursor, _ = one
            if subscription.cursors.get((cursor.here.topic, cursor.here.queue)) is cursor:
                letters.setdefault(subscription.saved.dead_letter, []).append(one)
            else:
                del self._open[key]  # its queue is another engine's now, and so is the record
        done = 0
        try:
            for topic, those in letters.items():
                for one in self._stored(topic, those) if topic else those:
                    self._complete(*one)
                    done += 1
            for one in self._numbered.advance():
                self._complete(*one)
                done += 1
        finally:
            self._busy = False
        if done:
            self._completer.save_soon()  # after a crash, newer letters are stored twice

    def _stored(self, topic: str, letters: list[_Letter]) -> list[_Letter]:
        """Letters that are in ``topic`` now. The puller reports the others again after a second."""
        if self._is_numbered(topic):
            return self._numbered.add(topic, letters)
        stored = []
        try:
            for one in letters:
                try:
                    if not self._is_stored(*one):
                        self._store(topic, *one)
                except _Deleted as problem:
                    self._drop(topic, one, NotFound(str(problem)))
                except TidecastError as problem:
                    self._say(topic, one, problem)
                    if problem.retryable:
                        break
                else:
                    stored.append(one)
            if stored:
                self.sent(topic)
        except TidecastError as problem:
            self._say(topic, letters[0], problem)
            return []
        return stored

    def _is_numbered(self, topic: str) -> bool:
        """Whether another engine keeps the topic, or may keep it."""
        config = self._state.ctx.topic_by_name.get(topic)
        return config is not None and config.owner not in ("", self._state.ctx.name)

    def _is_stored(self, subscription: SubscriptionState, cursor: CursorState, dead: Dead) -> bool:
        """Whether an engine stored the letter and crashed before it saved the position."""
        place = (cursor.here.topic, cursor.here.queue, dead.token)
        with self._state.lock:
            before = self._before(subscription)
            found = place in before
            before.discard(place)
        return found

    def _before(self, subscription: SubscriptionState) -> set[_Place]:
        """See `_stored_before`; looked for once, before this engine stores any. Lock held."""
        known = self._stored_before.get(subscription.key)
        if known is not None:
            return known
        saved = subscription.saved
        here = self._state.topics.get(saved.dead_letter)
        if here is None or self._is_numbered(saved.dead_letter):
            return set()  # another engine stores them
        found: set[_Place] = set()
        starts = saved.letters_from.get(saved.dead_letter, {})
        for one in here.queues:
            if one.queue not in starts or not isinstance(one.log, QueueLog):
                continue
            start = max(starts[one.queue], one.log.next_token - LETTERS_READ_MAX)
            with contextlib.suppress(TidecastError):  # damaged: later letters may be stored twice
                found.update(_places(records_from(one.log, start), saved.pattern, saved.name))
        self._stored_before[subscription.key] = found
        return found

    def note_saving(self, subscription: SubscriptionState) -> None:
        """The positions are about to be saved: note which letters they count. Lock held."""
        saved = subscription.saved
        here = self._state.topics.get(saved.dead_letter)
        if self._busy or here is None or self._is_numbered(saved.dead_letter):
            return  # some are stored, and their records not acked
        self._before(subscription)
        ends = {one.queue: one.log.next_token for one in here.queues}
        saved.set_letters_from({saved.dead_letter: ends})

    def forget_stored(self, subscription: SubscriptionState) -> None:
        """The subscription was moved: a record given up again gets a new letter. Lock held."""
        self._before(subscription).clear()
        for numbers in subscription.saved.letters_of.values():
            numbers.stored.clear()

    def _drop(self, topic: str, letter: _Letter, problem: TidecastError) -> None:
        """The source of the record deleted it: it can no longer be stored."""
        self._say(topic, letter, problem)
        self._complete(*letter, stored=False)

    def _say(self, topic: str, letter: _Letter, problem: TidecastError) -> None:
        """Report that a letter cannot be stored: once, while the reason is the same."""
        subscription, cursor, dead = letter
        if self._said.get(subscription.key) == str(problem):
            return
        self._said[subscription.key] = str(problem)
        self._state.ctx.notify_all(
            events.DeadLetterNotStored(
                topic=cursor.here.topic,
                queue=cursor.here.queue,
                token=dead.token,
                subscription=subscription.saved.name,
                dead_letter=topic,
                detail=str(problem),
            )
        )

    def _complete(
        self, subscription: SubscriptionState, cursor: CursorState, dead: Dead, stored: bool = True
    ) -> None:
        """Ack a record that is in the dead-letter topic, or that is dropped."""
        self._completer.complete_dead(dead)
        self._said.pop(subscription.key, None)
        key = (dead.cursor, dead.generation, dead.token)
        self._open.pop(key, None)
        self._ended[key] = None
        _limit(self._ended)
        about: dict[str, Any] = {
            "topic": cursor.here.topic,
            "queue": cursor.here.queue,
            "token": dead.token,
            "subscription": subscription.saved.name,
            "attempts": dead.attempts,
            "reason": reason_of(dead),
        }
        topic = subscription.saved.dead_letter if stored else ""
        with self._state.lock:
            saved = subscription.saved
            saved.set_dead_open(saved.dead_open + bool(topic))
            saved.set_dead_open(self._state.dead_open(saved))
        event = (
            events.MessageDead(dead_letter=topic, **about)
            if topic
            else events.MessageDropped(**about)
        )
        self._state.ctx.notify_all(event)

    def _record(self, cursor: CursorState, token: int) -> dict[str, Any]:
        """Read a record that is given up. Raises NotFound."""
        puller = self._state.puller
        assert puller is not None
        return decoded(puller.call(puller.record, cursor.here.row, token), cut=False)

    def _store(
        self, topic: str, subscription: SubscriptionState, cursor: CursorState, dead: Dead
    ) -> None:
        try:
            record = self._record(cursor, dead.token)
        except NotFound as problem:
            raise _Deleted(str(problem)) from None
        sent = SentLetter(cursor.here.queue, dead.token, 0, dead.attempts, reason_of(dead))
        _fitted(
            record,
            _headers(subscription, cursor, sent, record),
            lambda headers: self._publish(topic, record, headers),
        )

    def _numbered_message(
        self,
        publisher: NumberedPublisher,
        subscription: SubscriptionState,
        cursor: CursorState,
        sent: SentLetter,
        record: dict[str, Any],
    ) -> Any:
        return _fitted(
            record,
            _headers(subscription, cursor, sent, record),
            lambda headers: publisher.prepare(
                record["payload"], record["key"], headers, None, None, None, True
            ),
        )

    def _publish(
        self,
        topic: str,
        record: dict[str, Any],
        headers: Any,
        *,
        plain: bool = False,
        timestamp: int | None = None,
    ) -> None:
        """Publish a letter; a letter too large for the topic's publisher gets its own publisher."""

        def publish(publisher: LetterPublisher) -> None:
            publisher.publish(
                record["payload"],
                key=record["key"],
                headers=headers,
                timestamp=timestamp,
                timeout=STORE_TIMEOUT_S,
            )

        client = self._connection(plain)
        publisher, size = client.kept_publisher(topic), len(record["payload"]) + _META_BYTES_MAX
        if size <= publisher.payload_bytes_max:
            publish(publisher)
            return
        with client.publisher(topic, channel="large", history_bytes=5 * size) as large:
            publish(large)
            large.wait_durable(timeout=STORE_TIMEOUT_S)

    def _connection(self, plain: bool = False) -> LetterClient:
        """The engine's own client; ``plain``: a client without the rights of an engine."""
        with self._connecting:
            if plain not in self._clients:
                self._clients[plain] = self._connect(not plain)
            return self._clients[plain]

    def send(self, topic: str, record: dict[str, Any], name: str | None) -> None:
        """Send a dead letter to a topic again, for one subscription, or for all (None)."""
        kept = {
            key.removeprefix(MARK) if key.startswith(MARK * 2) else key: value
            for key, value in record["headers"].items()
            if not key.startswith(MARK) or key.startswith(MARK * 2)
        }
        stamp = record["headers"].get(f"{MARK}time")
        if name is None:
            self._publish(topic, record, kept, plain=True, timestamp=stamp)
            return
        headers = {FOR_HEADER: name, REDRIVEN_HEADER: self._state.ctx.wall_ns(), **kept}
        self._publish(topic, record, headers, timestamp=stamp)

    def sent(self, topic: str, *, plain: bool = False) -> None:
        """Wait until the letters sent to a topic are durable. Raises TidecastError."""
        publisher = self._connection(plain).kept_publisher(topic)
        publisher.wait_durable(timeout=STORE_TIMEOUT_S)

    def close(self) -> None:
        """End the thread and the connection. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._inbox.put(None)
            thread.join(5.0)
        self._numbered.close()
        with self._connecting:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            with contextlib.suppress(TidecastError):
                client.close()
