"""How many dead letters of each subscription are left in a topic from which retention deletes.

`SavedSubscription.dead_open` counts letters when they are stored and when they are sent again.
Retention deletes whole segments and looks at no letter. As soon as it deletes records among which
letters may be, each letter in the topic is read once and its place is kept in memory: then the
number is exact, also where subscriptions share the topic. In the thread of dead letters.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from tidecast.log.queue_log import QueueLog
from tidecast.log.redriven import FOR_HEADER
from tidecast.node.consumers.letters.confirmed import MARK, confirms_of
from tidecast.node.consumers.state import ConsumersState, SubscriptionState, TopicState
from tidecast.queues.records import decoded, is_of_engine, records_from

LOOK_S = 1.0
"""How often it is looked whether retention has deleted more."""
READ_MAX = 2000
"""Records that one look reads of a queue: letters that are to be stored do not wait for long."""
PLACES_MAX = 4_000_000
"""Letters of which the places are kept, in all: 32 MB."""

_Owner = tuple[str, str, str, int]
"""Pattern and name of a subscription; topic and queue of the record."""


@dataclass(slots=True)
class _Letters:
    """The letters of one queue, as far as they were read."""

    log: QueueLog
    next_token: int = 0
    tokens: dict[_Owner, array[int]] = field(default_factory=dict)

    def drop_before(self, earliest: int) -> None:
        """Retention has deleted the records before ``earliest``."""
        for owner, tokens in list(self.tokens.items()):
            del tokens[: bisect_left(tokens, earliest)]
            if not tokens:
                del self.tokens[owner]

    @property
    def count(self) -> int:
        """Places that are kept."""
        return sum(map(len, self.tokens.values()))


class LetterCounts:
    """See module."""

    def __init__(self, state: ConsumersState) -> None:
        self._state = state
        self._queues: dict[tuple[str, int], _Letters] = {}
        self._due_s = 0.0

    def advance(self) -> bool:
        """Count the letters to count. True: there is more to read at once."""
        now_s = self._state.ctx.now_s()
        if now_s < self._due_s:
            return False
        with self._state.lock:
            wanted = list(self._wanted())
        topics = {here.config.name: here for _, here in wanted}
        for gone in [key for key in self._queues if key[0] not in topics]:
            del self._queues[gone]
        more = [self._read(each) for each in topics.values()]
        if any(more):
            return True
        self._due_s = now_s + LOOK_S
        with self._state.lock:
            for subscription, here in wanted:
                self._count(subscription, here)
        return False

    def _wanted(self) -> Iterator[tuple[SubscriptionState, TopicState]]:
        """Subscriptions that may have lost letters, and the topics of these."""
        for subscription in self._state.subscriptions.values():
            saved = subscription.saved
            here = self._state.topics.get(saved.dead_letter)
            if here is None or not here.queues or not saved.dead_open:
                continue
            starts = saved.redrive_start
            if any(one.log.earliest_token > starts.get(one.queue, 0) for one in here.queues):
                yield subscription, here

    def _read(self, here: TopicState) -> bool:
        """Read on in the queues of a topic. True: not to their ends."""
        more = False
        for one in here.queues:
            log = one.log
            if not isinstance(log, QueueLog):
                continue
            known = self._queues.get((here.config.name, one.queue))
            if known is None or known.log is not log:
                known = self._queues[here.config.name, one.queue] = _Letters(log)
            known.drop_before(log.earliest_token)
            end = log.next_token
            for token, raw in islice(records_from(log, known.next_token), READ_MAX):
                known.next_token = token + 1
                self._note(known, token, raw)
            more |= known.next_token < end
        return more

    def _note(self, known: _Letters, token: int, raw: bytes) -> None:
        record = decoded(raw, cut=False)
        owner = _owner_of(record["headers"])
        if owner is None or sum(each.count for each in self._queues.values()) >= PLACES_MAX:
            return
        if not is_of_engine(raw):
            subscription = self._state.subscriptions.get(owner[:2])
            if subscription is None or not confirms_of(self._state, subscription)(record, False):
                return
        known.tokens.setdefault(owner, array("q")).append(token)

    def _count(self, subscription: SubscriptionState, here: TopicState) -> None:
        """Set the number of letters that are left. Lock held."""
        saved, left = subscription.saved, 0
        for one in here.queues:
            known = self._queues.get((here.config.name, one.queue))
            if known is None or known.log is not one.log:
                return
            start = max(one.log.earliest_token, saved.redrive_start.get(one.queue, 0))
            for topic, queue in subscription.cursors:
                tokens = known.tokens.get((saved.pattern, saved.name, topic, queue), array("q"))
                left += len(tokens) - bisect_left(tokens, start)
            left -= sum(queue == one.queue and token >= start for queue, token in saved.redriven)
        saved.set_dead_open(max(0, left))


def _owner_of(headers: dict[str, Any]) -> _Owner | None:
    """The subscription of a letter, as its headers claim; None: the record is no letter."""
    if FOR_HEADER in headers:
        return None  # sent again, to the subscription that gave up a letter
    found = [headers.get(f"{MARK}{part}") for part in ("pattern", "subscription", "topic", "queue")]
    match found:
        case [str(pattern), str(name), str(topic), int(queue)]:
            return pattern, name, topic, queue
    return None
