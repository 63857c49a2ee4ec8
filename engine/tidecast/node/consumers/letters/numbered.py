"""Dead letters that another engine keeps, or may keep: each is stored once, whatever crashes.

The letters of one subscription in the queues of one topic are one producer, and each has a number:
its sequence. Number, place and reason are saved with the positions before the letter is published.
After a crash the next engine, here or where the queues are then, opens the producer's session
behind the last number that is known to be durable and sends the later letters again: the keeper of
the dead letters drops letters that it has. Nothing here waits, so that a keeper that is away delays
no other letters.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidecast.agents.puller.observer import Dead
from tidecast.agents.puller.state import DEAD_ATTEMPTS, DEAD_TERM, DEAD_TIMEOUT
from tidecast.api.words import ChannelName
from tidecast.errors import Closed, ConnectionLost, Fenced, NotFound, SequenceGap, TidecastError
from tidecast.node.consumers.state import ConsumersState, CursorState, SubscriptionState
from tidecast.queues.subscription_store import LetterNumbers, SentLetter

CAUSES = {DEAD_ATTEMPTS: "delivered too often", DEAD_TERM: "refused", DEAD_TIMEOUT: "not acked"}
HISTORY_BYTES = 1 << 20
"""Size of a producer's ring; a longer letter gets a longer ring."""
META_BYTES_MAX = 64 * 1024
PRODUCERS_OPEN_MAX = 64
"""Sessions that are kept open; an idle session gives way."""

Letter = tuple[SubscriptionState, CursorState, Dead]
_Place = tuple[int, int]
"""Queue, token."""


class NumberedPublisher(Protocol):
    """A publisher of the blocking client, with a session of a producer."""

    @property
    def payload_bytes_max(self) -> int:
        """The longest payload that its ring holds."""

    @property
    def position(self) -> int:
        """Sequence of the last message."""

    @property
    def durable_position(self) -> int:
        """All messages up to this sequence are durable."""

    @property
    def closed(self) -> bool:
        """Whether it accepts no more messages: for example, the topic was deleted."""

    @property
    def producer_session(self) -> Any:
        """The session: `tidecast.client.core.producer.ProducerSession`."""

    def prepare(
        self,
        payload: bytes,
        key: bytes | None,
        headers: Any,
        timestamp: int | None,
        to: None,
        subscriber: None,
        flush: bool,
        /,
    ) -> Any:
        """Encode a message. Raises PayloadTooLarge."""

    def attempt(self, message: Any) -> bool:
        """Append an encoded message if there is room."""

    def close(self) -> None:
        """End the session; messages in its ring are still sent."""


class NumberedClient(Protocol):
    """A connection of the blocking client to this node."""

    def hear(self) -> None:
        """Read the node's events."""

    def publisher(
        self,
        topic: str,
        *,
        channel: ChannelName,
        history_bytes: int,
        producer: str,
        first_seq: int | None,
    ) -> NumberedPublisher:
        """Open a publisher for a producer."""


Record = dict[str, Any]
Read = Callable[[CursorState, int], Record]
"""Reads a record by its token. Raises NotFound: it is deleted."""
Encode = Callable[[NumberedPublisher, SubscriptionState, CursorState, SentLetter, Record], Any]
"""Builds the message of a letter."""
Say = Callable[[str, Letter, TidecastError], None]
"""Report why a letter of a topic cannot be stored."""


@dataclass(slots=True)
class _Producer:
    """The letters of one subscription in one topic: its open session, and the letters that wait."""

    subscription: SubscriptionState
    topic: str
    numbers: LetterNumbers
    letters: dict[_Place, Letter] = field(default_factory=dict)
    publisher: NumberedPublisher | None = None

    def close(self) -> None:
        """End the session."""
        publisher, self.publisher = self.publisher, None
        if publisher is not None:
            with contextlib.suppress(TidecastError):
                publisher.close()


class NumberedLetters:
    """See module. In the thread of dead letters."""

    def __init__(
        self,
        state: ConsumersState,
        save: Callable[[SubscriptionState], None],
        connect: Callable[[], NumberedClient],
        read: Read,
        encode: Encode,
        say: Say,
        drop: Say,
    ) -> None:
        """``save``: a subscription, now; raises StorageError. ``drop``: it cannot be stored."""
        self._state, self._save, self._connect = state, save, connect
        self._read, self._encode, self._say, self._drop = read, encode, say, drop
        self._producers: dict[tuple[tuple[str, str], str], _Producer] = {}

    @property
    def waiting(self) -> bool:
        """Whether letters wait until they are durable."""
        return any(one.letters for one in self._producers.values())

    def add(self, dead_letter: str, letters: Iterable[Letter]) -> list[Letter]:
        """Number more letters of a topic, and save that. Returns letters already stored."""
        groups: dict[tuple[tuple[str, str], str], list[Letter]] = {}
        for one in letters:
            groups.setdefault((one[0].key, one[1].here.topic), []).append(one)
        stored: list[Letter] = []
        for (_, topic), those in groups.items():
            try:
                stored += self._number(dead_letter, topic, those)
            except TidecastError as problem:
                self._say(dead_letter, those[0], problem)
        return stored

    def _number(self, dead_letter: str, topic: str, letters: list[Letter]) -> list[Letter]:
        subscription = letters[0][0]
        with self._state.lock:
            numbers = subscription.saved.letters_of.get(topic)
            if numbers is None or numbers.dead_letter != dead_letter:
                producer = f"letters {self._state.ctx.random_id(62):x}"
                numbers = LetterNumbers(dead_letter=dead_letter, producer=producer)
            there, before = set(numbers.stored), numbers.next_seq
            known = there | {each.place for each in numbers.sent}
            stored = [one for one in letters if _place(one) in there]
            fresh = [one for one in letters if _place(one) not in known]
            for one in fresh:
                if self._is_there(dead_letter, one):
                    numbers.add(*_place(one), one[2].attempts, reason_of(one[2]))
            subscription.saved.letters_of[topic] = numbers
            if numbers.next_seq != before:
                try:
                    self._save(subscription)
                except TidecastError:
                    numbers.give_back(before)
                    raise
            here = self._state.topics.get(topic)
            if here is None or not here.owned():
                return []  # the next owner numbers them
        producer_of = self._producer(subscription, topic, numbers)
        sent = {each.place for each in numbers.sent}
        producer_of.letters |= {_place(one): one for one in letters if _place(one) in sent}
        return stored

    def _is_there(self, dead_letter: str, letter: Letter) -> bool:
        try:
            self._read(letter[1], letter[2].token)
        except NotFound as problem:
            self._drop(dead_letter, letter, problem)
            return False
        return True

    def _producer(
        self, subscription: SubscriptionState, topic: str, numbers: LetterNumbers
    ) -> _Producer:
        key = (subscription.key, topic)
        found = self._producers.get(key)
        if found is None or found.numbers is not numbers or found.subscription is not subscription:
            if found is not None:
                found.close()
            found = self._producers[key] = _Producer(subscription, topic, numbers)
        return found

    def advance(self) -> list[Letter]:
        """Send waiting letters, as far as there is room. Returns letters that became durable."""
        stored: list[Letter] = []
        for key, one in list(self._producers.items()):
            if not self._is_here(one):
                one.close()
                del self._producers[key]
                continue
            if not one.letters:
                continue
            try:
                self._send(one)
                stored += self._durable(one)
            except TidecastError as problem:
                if isinstance(problem, Fenced | Closed | ConnectionLost):
                    one.close()
                first = next(iter(one.letters.values()))
                self._say(one.numbers.dead_letter, first, problem)
        self._close_idle()
        return stored

    def _is_here(self, one: _Producer) -> bool:
        state = self._state
        return (
            state.subscriptions.get(one.subscription.key) is one.subscription
            and one.topic in state.topics
            and one.subscription.saved.letters_of.get(one.topic) is one.numbers
        )

    def _close_idle(self) -> None:
        for key, one in list(self._producers.items()):
            if len(self._producers) <= PRODUCERS_OPEN_MAX:
                return
            if not one.letters:
                one.close()
                del self._producers[key]

    # --- sending ----------------------------------------------------------------------------------

    def _send(self, one: _Producer) -> None:
        publisher = self._opened(one)
        for sent in [each for each in one.numbers.sent if each.seq > publisher.position]:
            cursor = one.subscription.cursors.get((one.topic, sent.queue))
            if cursor is None:
                return
            try:
                record = self._read(cursor, sent.token)
            except NotFound:
                self._begin_behind(one)
                return
            size = len(record["payload"]) + META_BYTES_MAX
            if size > publisher.payload_bytes_max:
                if publisher.durable_position < publisher.position:
                    return
                one.close()
                publisher = self._open(one, publisher.position + 1, size)
            message = self._encode(publisher, one.subscription, cursor, sent, record)
            if not publisher.attempt(message):
                return

    def _opened(self, one: _Producer) -> NumberedPublisher:
        """The open session; a producer that the topic has forgotten begins again."""
        if one.publisher is not None:
            self._connect().hear()  # nothing else does: the topic may be deleted, and created again
            problem = one.publisher.producer_session.problem("block")
            if problem is None and not one.publisher.closed:
                return one.publisher
            one.close()
            if isinstance(problem, SequenceGap):
                self._begin_again(one)
            elif problem is not None:
                raise problem
        try:
            return self._open(one, one.numbers.durable_seq + 1, 0)
        except SequenceGap:
            self._begin_again(one)
            return self._open(one, 1, 0)

    def _open(self, one: _Producer, first_seq: int | None, size: int) -> NumberedPublisher:
        large = 5 * size > HISTORY_BYTES
        one.publisher = self._connect().publisher(
            one.numbers.dead_letter,
            channel="large" if large else "ordinary",
            history_bytes=max(HISTORY_BYTES, 5 * size),
            producer=one.numbers.producer,
            first_seq=first_seq,
        )
        return one.publisher

    def _begin_again(self, one: _Producer) -> None:
        """The keeper of the letters has forgotten the producer, or the topic was recreated."""
        with self._state.lock:
            one.numbers.renumber(f"letters {self._state.ctx.random_id(62):x}")
            self._save(one.subscription)

    def _begin_behind(self, one: _Producer) -> None:
        """Retention deleted a record whose letter may not be stored: ask for the last number."""
        one.close()
        publisher = self._open(one, None, 0)
        with self._state.lock:
            one.numbers.resume_behind(publisher.position)
            self._save(one.subscription)

    def _durable(self, one: _Producer) -> list[Letter]:
        """Letters that are durable, and whose records are not acknowledged yet."""
        if one.publisher is None:
            return []
        with self._state.lock:
            one.numbers.note_durable(int(one.publisher.durable_position))
            places = set(one.numbers.stored)
            return [one.letters.pop(place) for place in list(one.letters) if place in places]

    def close(self) -> None:
        """Close all sessions: the engine stops."""
        for one in self._producers.values():
            one.close()
        self._producers.clear()


def _place(letter: Letter) -> _Place:
    return letter[1].here.queue, letter[2].token


def reason_of(dead: Dead) -> str:
    """Why a record was given up."""
    return dead.reason or CAUSES[dead.cause]
