"""The checks that each history must pass, whatever happened. They read the history alone.

A check returns complaints; `tests/simulation/test_swarm.py` plants a violation for each of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from tests.swarm import history as swarm_history
from tests.swarm.due import LATE_NS, DueTimes
from tests.swarm.script import NODES

OWNER = NODES[0]

REDELIVERED_NS_MAX = 105_000_000
"""Positions are saved every 100 ms: what was acked longer before a crash does not come again."""
ACK_WAIT_NS_LONG = 30_000_000_000
"""No delivery times out within the steps of a world."""
ACKED = ("ack", "late")
HANDLED = (*ACKED, "term")

E = TypeVar("E", bound=NamedTuple)


class Complaint(NamedTuple):
    """A check that failed, and how."""

    check: str
    text: str


Check = Callable[[swarm_history.History], Iterator[str]]


def _all(history: swarm_history.History, kind: type[E]) -> list[E]:
    return [entry for entry in history if isinstance(entry, kind)]


def ends(history: swarm_history.History) -> Iterator[str]:
    """All comes to rest once everything is healed."""
    for entry in _all(history, swarm_history.Stuck):
        yield entry.what


def _records(history: swarm_history.History) -> list[swarm_history.Stored]:
    """All that the queues ever kept, by queue and token: stored at the end, or deleted before.

    A file that retention deleted may be there again after a loss of power.
    """
    deleted = (swarm_history.Stored(*entry) for entry in _all(history, swarm_history.Deleted))
    return sorted({*deleted, *_all(history, swarm_history.Stored)}, key=lambda e: e[:2])


def acked_is_stored(history: swarm_history.History) -> Iterator[str]:
    """A message that its producer knew to be durable is in the log, or retention deleted it."""
    stored = {entry.payload for entry in _records(history)}
    sent: dict[str, list[swarm_history.Published]] = defaultdict(list)
    for entry in _all(history, swarm_history.Published):
        sent[entry.producer].append(entry)
    last: dict[str, int] = {}
    for acked in _all(history, swarm_history.Acked):
        last[acked.producer] = acked.seq
    for producer, seq in last.items():
        known = len(sent[producer])
        if seq > known:
            yield f"{producer}: {seq} are durable, {known} were published"
        for each in sent[producer][:seq]:
            if each.payload not in stored:
                yield f"{producer}: sequence {each.seq} was acked and is not in the log"


def stored_once(history: swarm_history.History) -> Iterator[str]:
    """Each message is in the log once, under the sequence that its producer gave it."""
    records = _records(history)
    count = Counter(entry.payload for entry in records)
    for payload, n in count.items():
        if n > 1:
            yield f"{payload[:20]!r} is in the log {n} times"
    for entry in records:
        seq = int(entry.payload.split(b":")[1])
        if seq != entry.seq:
            yield f"{entry.payload[:20]!r} is stored as sequence {entry.seq}"


def log_keeps_key_order(history: swarm_history.History) -> Iterator[str]:
    """In the log, each producer's records of a key stand in the order of their sequences."""
    last: dict[tuple[bytes, bytes | None], tuple[int, int]] = {}
    for entry in _records(history):
        who = entry.payload.split(b":")[0]
        before = last.get((who, entry.key))
        if before is not None and before[0] == entry.queue and entry.seq < before[1]:
            yield f"{who!r} key {entry.key!r}: {entry.seq} behind {before[1]} in {entry.queue}"
        last[who, entry.key] = (entry.queue, entry.seq)


def tokens_are_contiguous(history: swarm_history.History) -> Iterator[str]:
    """A queue's tokens have no holes."""
    last: dict[int, int] = {}
    for entry in _records(history):
        if entry.queue in last and entry.token != last[entry.queue] + 1:
            yield f"queue {entry.queue}: token {entry.token} behind {last[entry.queue]}"
        last[entry.queue] = entry.token


def delivered_is_stored(history: swarm_history.History) -> Iterator[str]:
    """A delivered message equals the record at its token in the log."""
    stored = {(e.queue, e.token): e for e in _records(history)}
    for entry in _all(history, swarm_history.Delivered):
        kept = stored.get((entry.queue, entry.token))
        if kept is not None and (kept.payload, kept.key) != (entry.payload, entry.key):
            yield f"{entry.queue}/{entry.token}: {entry.payload[:20]!r}, log {kept.payload[:20]!r}"


def all_is_handled(history: swarm_history.History) -> Iterator[str]:
    """Each record is handled by each subscription, or reported as gone."""
    handled: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for entry in _all(history, swarm_history.Settled):
        if entry.how in HANDLED:
            handled[entry.subscription].add((entry.queue, entry.token))
    gone = _all(history, swarm_history.Gone)
    names = {each.subscription for each in _all(history, swarm_history.Disposed)}
    ends_at: dict[int, int] = {}
    for stored in _records(history):
        ends_at[stored.queue] = stored.token + 1
        for name in names:
            place = (stored.queue, stored.token)
            if place in handled[name]:
                continue
            if any(
                g.subscription == name and g.queue == place[0] and g.first <= place[1] < g.end
                for g in gone
            ):
                continue
            yield f"{name}: {place} was never handled"
    for last in _all(history, swarm_history.Disposed):
        if last.acked < ends_at.get(last.queue, 0):
            yield (
                f"{last.subscription}: queue {last.queue} is acked to {last.acked} of "
                f"{ends_at[last.queue]} at the end"
            )


class _Refusal(NamedTuple):
    """A member refused a record."""

    member: str
    at_ns: int
    """In time that the owner ran."""
    payload: bytes


class _Refused:
    """Records that were refused and not delivered since; which records may pass them.

    One with a delivery time lets two kinds pass. When its engine crashes before the position is
    saved, and the clock lies before its time then, it waits for its time again. A copy of a later
    record that another member got before that time, and that timed out there, is handled when that
    member comes to it.
    """

    def __init__(self, history: swarm_history.History) -> None:
        begun = _all(history, swarm_history.Begun)
        self._ack_wait_ns = begun[0].ack_wait_ns if begun else 0
        self._times = DueTimes(history)
        self._open: dict[tuple[str, int, bytes, int], dict[int, _Refusal]] = defaultdict(dict)
        self._asleep_ns = 0
        self._unsaved: set[_Refusal] = set()
        """The engine that crashed may not have saved these."""

    def take(self, entry: swarm_history.Entry) -> None:
        """The next entry of the history."""
        self._times.take(entry)
        if isinstance(entry, swarm_history.Frozen) and entry.node == OWNER:
            self._asleep_ns += entry.until_ns - entry.at_ns
        elif isinstance(entry, swarm_history.Crashed) and entry.node == OWNER:
            since_ns = entry.at_ns - self._asleep_ns - REDELIVERED_NS_MAX
            every = [one for refused in self._open.values() for one in refused.values()]
            self._unsaved.update(one for one in every if one.at_ns > since_ns)
            self._forget(entry.at_ns)
        elif isinstance(entry, swarm_history.ClockSet):
            self._forget(entry.at_ns)

    def _forget(self, at_ns: int) -> None:
        """Those that wait for their time again."""
        again = {one for one in self._unsaved if self._times.is_ahead(one.payload, at_ns)}
        for refused in self._open.values():
            for token in [token for token, one in refused.items() if one in again]:
                del refused[token]

    def add(
        self, cursor: tuple[str, int, bytes, int], entry: swarm_history.Settled, payload: bytes
    ) -> None:
        """A member refused a record."""
        at_ns = entry.at_ns - self._asleep_ns
        self._open[cursor][entry.token] = _Refusal(entry.member, at_ns, payload)

    def drop(self, cursor: tuple[str, int, bytes, int], token: int) -> None:
        """It was delivered again, or is acked."""
        one = self._open[cursor].pop(token, None)
        if one is not None:
            self._unsaved.discard(one)

    def before(
        self, cursor: tuple[str, int, bytes, int], entry: swarm_history.Delivered
    ) -> list[int]:
        """Tokens that a record must not pass."""
        return [
            token
            for token, one in self._open[cursor].items()
            if token < entry.token and not self._is_old_copy(entry, one)
        ]

    def _is_old_copy(self, entry: swarm_history.Delivered, one: _Refusal) -> bool:
        if entry.member == one.member or not self._times.may_pass(entry.payload, one.payload):
            return False
        since_ns = self._times.published[entry.payload].at_ns
        return entry.at_ns - since_ns >= self._ack_wait_ns


def handlers_see_key_order(history: swarm_history.History) -> Iterator[str]:
    """A handler sees the records of a key in order, and none behind one that was refused.

    An ack of any member settles a record, also after its delivery timed out and another member
    refused the record. A `term` then counts for nothing. Later records may pass one that has a
    delivery time (see `keys_wait_for_what_is_due` and `_Refused`).
    """
    newest: dict[tuple[str, int, bytes, int], int] = {}
    seen: set[tuple[str, int, int, int]] = set()
    refused = _Refused(history)
    records: dict[tuple[str, int, int], tuple[bytes, bytes]] = {}
    due = _due(history)
    done: set[tuple[str, int, int, int]] = set()
    for entry in history:
        refused.take(entry)
        if isinstance(entry, swarm_history.Delivered):
            cursor = (entry.subscription, entry.queue, entry.key, entry.round)
            records[entry.subscription, entry.queue, entry.token] = (entry.key, entry.payload)
            place = (entry.subscription, entry.queue, entry.token, entry.round)
            refused.drop(cursor, entry.token)
            earlier = refused.before(cursor, entry)
            if earlier:
                yield (
                    f"{entry.subscription} key {entry.key!r}: {entry.queue}/{entry.token} was "
                    f"delivered to {entry.member} before {earlier[0]}, which was refused"
                )
            in_order = entry.payload not in due
            if in_order and place not in seen and entry.token < newest.get(cursor, -1):
                yield (
                    f"{entry.subscription} key {entry.key!r}: {entry.queue}/{entry.token} came "
                    f"first behind {newest[cursor]} ({entry.member}, attempt {entry.attempt})"
                )
            seen.add(place)
            newest[cursor] = max(newest.get(cursor, -1), entry.token)
        elif isinstance(entry, swarm_history.Settled) and entry.how in (*HANDLED, "nak"):
            place = (entry.subscription, entry.queue, entry.token, entry.round)
            key, payload = records[place[:3]]
            cursor = (entry.subscription, entry.queue, key, entry.round)
            if entry.how in HANDLED:
                done.add(place)
                if entry.how in ACKED:
                    refused.drop(cursor, entry.token)
            elif place not in done:  # else its first delivery timed out, and was acked all the same
                refused.add(cursor, entry, payload)


def _due(history: swarm_history.History) -> dict[bytes, swarm_history.Published]:
    """Messages with a delivery time, by payload."""
    return {e.payload: e for e in _all(history, swarm_history.Published) if e.due_ns}


def never_before_its_time(history: swarm_history.History) -> Iterator[str]:
    """A record is delivered when the clock has reached its delivery time.

    By the clock now or as it was before it was set, since the record was published: it lies in the
    member's ring since then.
    """
    due = _due(history)
    reached: dict[bytes, int] = {}
    for entry in history:
        if isinstance(entry, swarm_history.Published) and entry.due_ns:
            reached[entry.payload] = entry.wall_ns
        elif isinstance(entry, swarm_history.ClockSet):
            reached = {name: max(ns, entry.before_ns) for name, ns in reached.items()}
        elif isinstance(entry, swarm_history.Delivered) and entry.payload in due:
            at_ns = max(entry.wall_ns, reached[entry.payload])
            early_ns = due[entry.payload].due_ns - at_ns
            if early_ns > 0:
                yield (
                    f"{entry.subscription}: {entry.queue}/{entry.token} was delivered "
                    f"{early_ns / 1e6:.3f} ms before its time"
                )


def keys_wait_for_what_is_due(history: swarm_history.History) -> Iterator[str]:
    """A record that is published when an earlier one of its key is due comes behind it.

    In one queue, and unless the clock was set since one of the two was published: the engine finds
    that out within some seconds, and times before and after cannot be compared.
    """
    published = {e.payload: e for e in _all(history, swarm_history.Published)}
    due = _due(history)
    set_at = [e.at_ns for e in _all(history, swarm_history.ClockSet)]

    def clock_went_on(since_ns: int, until_ns: int) -> bool:
        return not any(since_ns <= at_ns <= until_ns for at_ns in set_at)

    behind: dict[tuple[str, int, bytes, int], dict[int, swarm_history.Delivered]] = defaultdict(
        dict
    )
    for entry in _all(history, swarm_history.Delivered):
        first = behind[entry.subscription, entry.queue, entry.key, entry.round]
        if entry.token in first:
            continue
        first[entry.token] = entry
        mine = due.get(entry.payload)
        if mine is None or not clock_went_on(mine.at_ns, entry.at_ns):
            continue
        for token, other in first.items():
            later = published[other.payload]
            is_after = later.wall_ns - mine.due_ns > LATE_NS
            if token > entry.token and is_after and clock_went_on(later.at_ns, mine.at_ns):
                yield (
                    f"{entry.subscription} key {entry.key!r}: {entry.queue}/{entry.token}, which "
                    f"was due, came behind {token}, which was published after its time"
                )


def positions_never_go_back(history: swarm_history.History) -> Iterator[str]:
    """An acked watermark grows, unless its subscription seeks or its engine crashed."""
    last: dict[tuple[str, int, int, int], int] = {}
    for entry in _all(history, swarm_history.Position):
        at = (entry.subscription, entry.queue, entry.round, entry.life)
        if entry.token < last.get(at, 0):
            yield f"{entry.subscription}: queue {entry.queue}: {last[at]} -> {entry.token}"
        last[at] = entry.token


def acked_does_not_come_again(history: swarm_history.History) -> Iterator[str]:
    """An acked message comes again only if its engine crashed within the interval of saves.

    Where no delivery times out: a copy that another member got after a time-out is no violation.
    """
    if any(entry.ack_wait_ns < ACK_WAIT_NS_LONG for entry in _all(history, swarm_history.Begun)):
        return
    acked: dict[tuple[str, int, int, int], int] = {}
    crashes: list[int] = []  # in time that the owner ran
    asleep_ns = 0
    for entry in history:
        if isinstance(entry, swarm_history.Frozen) and entry.node == OWNER:
            asleep_ns += entry.until_ns - entry.at_ns
        elif isinstance(entry, swarm_history.Crashed) and entry.node == OWNER:
            crashes.append(entry.at_ns - asleep_ns)
        elif isinstance(entry, swarm_history.Settled) and entry.how == "ack":
            acked[entry.subscription, entry.queue, entry.token, entry.round] = (
                entry.at_ns - asleep_ns
            )
        elif isinstance(entry, swarm_history.Delivered):
            at = acked.pop((entry.subscription, entry.queue, entry.token, entry.round), None)
            if at is not None and not any(at <= c < at + REDELIVERED_NS_MAX for c in crashes):
                yield (
                    f"{entry.subscription}: {entry.queue}/{entry.token} was acked "
                    f"{(entry.at_ns - asleep_ns - at) / 1e6:.0f} ms before it came again"
                )


def dead_letters_are_earned(history: swarm_history.History) -> Iterator[str]:
    """A dead letter was given up by a handler, and each that was given up has one.

    An ack that came before the `term`, of a delivery that timed out, has settled the record.
    """
    given_up, due = set(), set()
    acked: set[tuple[str, int, int, int]] = set()
    for e in _all(history, swarm_history.Settled):
        place = (e.subscription, e.queue, e.token)
        if e.how in ACKED:
            acked.add((*place, e.round))
        elif e.how == "term":
            given_up.add(place)
            if (*place, e.round) not in acked:
                due.add(place)
    letters = Counter(
        (e.subscription, e.queue, e.token) for e in _all(history, swarm_history.DeadLetter)
    )
    for letter in letters:
        if letter not in given_up:
            yield f"{letter}: a dead letter that no handler gave up"
    crashed = any(_all(history, swarm_history.Crashed))
    rounds: dict[tuple[str, int, int], set[int]] = defaultdict(set)
    last: dict[tuple[str, int, int], swarm_history.Settled] = {}
    for e in _all(history, swarm_history.Settled):
        if e.how == "term":
            rounds[e.subscription, e.queue, e.token].add(e.round)
        if e.how in HANDLED:
            last[e.subscription, e.queue, e.token] = e
    for letter, n in letters.items():
        if n > len(rounds[letter]):
            yield f"{letter}: {n} dead letters, given up in {len(rounds[letter])} rounds"
    for letter in due:
        if letter not in letters and (not crashed or last[letter].how == "term"):
            yield f"{letter}: given up, and no dead letter"


def live_order(history: swarm_history.History) -> Iterator[str]:
    """A live subscriber gets each publisher's messages in order, each once."""
    last: dict[tuple[str, str], int] = {}
    for entry in _all(history, swarm_history.LiveGot):
        at = (entry.subscriber, entry.publisher)
        if entry.n <= last.get(at, -1):
            yield f"{at[0]} got {entry.n} of {at[1]} behind {last[at]}"
        last[at] = max(last.get(at, -1), entry.n)


def live_losses_are_reported(history: swarm_history.History) -> Iterator[str]:
    """Each loss of a live subscriber is reported to it or to the publisher: no more, no less."""
    got: dict[tuple[str, str], set[int]] = defaultdict(set)
    told: Counter[tuple[str, str]] = Counter()
    sent: Counter[str] = Counter()
    unsent: Counter[str] = Counter()
    for entry in history:
        if isinstance(entry, swarm_history.LiveGot):
            got[entry.subscriber, entry.publisher].add(entry.n)
        elif isinstance(entry, swarm_history.LiveGap):
            told[entry.subscriber, entry.publisher] += entry.end - entry.first
        elif isinstance(entry, swarm_history.LivePublished):
            sent[entry.publisher] += 1
        elif isinstance(entry, swarm_history.LiveUnsent):
            unsent[entry.publisher] += entry.messages
    for since in _all(history, swarm_history.LiveSince):
        at = (since.subscriber, since.publisher)
        missing = [n for n in range(since.n, sent[at[1]]) if n not in got[at]]
        lost = len(missing) - told[at]
        if lost > unsent[at[1]]:
            yield (
                f"{at[0]} lacks {len(missing)} of {sent[at[1]]} of {at[1]} (first {missing[0]}, "
                f"last {missing[-1]}), {told[at]} were reported, {unsent[at[1]]} as unsent"
            )
        if lost < 0:
            yield f"{at[0]}: {told[at]} of {at[1]} were reported lost, {len(missing)} are"


CHECKS: tuple[Check, ...] = (
    ends,
    acked_is_stored,
    stored_once,
    log_keeps_key_order,
    tokens_are_contiguous,
    delivered_is_stored,
    all_is_handled,
    handlers_see_key_order,
    never_before_its_time,
    keys_wait_for_what_is_due,
    positions_never_go_back,
    acked_does_not_come_again,
    dead_letters_are_earned,
    live_order,
    live_losses_are_reported,
)


def check(history: swarm_history.History) -> list[Complaint]:
    """All complaints about a history; none for a good one."""
    return [Complaint(each.__name__, text) for each in CHECKS for text in each(history)]
