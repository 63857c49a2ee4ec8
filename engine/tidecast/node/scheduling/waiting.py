"""Finds the records of a topic that wait for their delivery time, a page at a time.

A record waits in the windows of the cursors that have passed it, and in the log for cursors that
have yet to reach it. A page reads at most SCANNED_MAX records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tidecast.agents.puller import cancelling
from tidecast.agents.puller.runtime import Puller
from tidecast.errors import ConfigError, NotFound
from tidecast.layout import segment as seg
from tidecast.layout.header_names import DELIVER_AT
from tidecast.log.queue_log import QueueLog
from tidecast.native.packing import unpack_from
from tidecast.node.consumers.checks import keeper
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.consumers.state import CursorState, QueueState, SubscriptionState
from tidecast.queues.filters.scheduled import due_ns_of
from tidecast.queues.filters.where import where_of
from tidecast.queues.filters.where_kernels import keeps_record
from tidecast.queues.records import PEEK_PAYLOAD_BYTES_MAX, decoded, records_from

SCANNED_MAX, PAGE_BYTES_MAX = 100_000, 16 << 20
_NEAR = 512
"""A record that is so few behind the last is read with those between them."""


class Found(NamedTuple):
    """A record with a delivery time."""

    queue: int
    token: int
    due_ns: int
    """Since 1970."""
    raw: bytes


@dataclass(frozen=True, slots=True)
class Choice:
    """Which records are meant; checked by `choice_of`."""

    key: bytes | None
    program: np.ndarray | None
    """Of a filter as text."""

    def means(self, raw: bytes) -> bool:
        """Is the record meant?"""
        if self.key is not None and decoded(raw)["key"] != self.key:
            return False
        if self.program is None:
            return True
        return bool(keeps_record(self.program, np.frombuffer(bytearray(raw), dtype=np.uint8), 0))


def choice_of(key: str | bytes | None, where: str | None) -> Choice:
    """Records of this key, and for which this filter holds. Raises ConfigError."""
    if not isinstance(key, str | bytes | None):
        raise ConfigError(f"key: {key!r}: allowed are text and bytes")
    if not isinstance(where, str | None):
        raise ConfigError(f"where: {where!r}: allowed is the text of a filter")
    text = where_of(where or "").program
    return Choice(
        key.encode() if isinstance(key, str) else key,
        np.frombuffer(bytearray(text), np.uint8) if text else None,
    )


@dataclass(slots=True)
class Waiter:
    """A subscription's cursor in a queue, as it was when it was looked at."""

    subscription: SubscriptionState
    cursor: CursorState
    waiting: cancelling.Waiting
    keeps: Callable[[bytes, dict[str, Any]], bool]

    def gets(self, one: Found) -> bool:
        """Does the subscription wait for the record?"""
        return self.waiting.holds(one.token) and self.keeps(one.raw, decoded(one.raw))


@dataclass(slots=True)
class Waiters:
    """Subscriptions of a topic, by queue."""

    topic: str
    queues: list[QueueState]
    by_queue: dict[int, list[Waiter]] = field(default_factory=dict)

    def of(self, one: Found) -> list[Waiter]:
        """Subscriptions that wait for a record."""
        return [each for each in self.by_queue[one.queue] if each.gets(one)]


def waiters(subs: DurableSubscriptions, topic: str, name: str | None) -> Waiters:
    """All subscriptions of a topic, or those called ``name``. With the lock held.

    Raises NotFound.
    """
    subs.state.check_open(topic)
    here = subs.topics.get(topic)
    puller = subs.puller
    if here is None or puller is None:
        subs.durable.topic(topic)  # raises an error that names the owner
        raise NotFound(f"no durable topic {topic} here")
    found = Waiters(topic, list(here.queues), {one.queue: [] for one in here.queues})
    named = False
    for subscription in subs.subscriptions.values():
        if name not in (None, subscription.saved.name):
            continue
        for one in here.queues:
            cursor = subscription.cursors.get((topic, one.queue))
            if cursor is not None:
                named = True
                state = puller.call(cancelling.look, puller, cursor.number)
                keeps = keeper(subscription.saved)
                found.by_queue[one.queue].append(Waiter(subscription, cursor, state, keeps))
    if name is not None and not named:
        raise NotFound(f"no subscription {name} of topic {topic}: see `tidecast subscription list`")
    return found


def due_of(raw: bytes) -> int:
    """Delivery time of a record, ns since 1970; 0: it has none."""
    has_headers = unpack_from("<I", raw, 0)[0] & seg.REC_HEADERS
    return due_ns_of(raw) if has_headers else 0


def read_records(
    puller: Puller, one: QueueState, tokens: Iterable[int]
) -> Iterator[tuple[int, bytes]]:
    """The records of a queue with these tokens, in order; deleted records are left out."""
    if not isinstance(one.log, QueueLog):
        for token in tokens:
            try:
                yield token, puller.call(puller.record, one.row, token)
            except NotFound:
                continue
        return
    records: Iterator[tuple[int, bytes]] = iter(())
    there, raw = -_NEAR, b""
    for token in tokens:
        if token - there >= _NEAR:
            records = records_from(one.log, token)
        while there < token:
            there, raw = next(records, (1 << 62, b""))
        if there == token:
            yield token, raw
        elif there == 1 << 62:
            return


@dataclass(slots=True)
class Page:
    """The finds of one page."""

    found: list[tuple[Found, list[Waiter]]] = field(default_factory=list)
    following: dict[int, int] = field(default_factory=dict)
    """By queue, where the next page begins."""
    scanned: int = 0
    bytes: int = 0
    more: bool = False

    def full(self, limit: int) -> bool:
        """No more fits: the answer has to fit a frame."""
        return (
            len(self.found) >= limit or self.scanned >= SCANNED_MAX or self.bytes >= PAGE_BYTES_MAX
        )

    def add(self, one: Found, there: list[Waiter]) -> None:
        """A record, and the subscriptions that wait for it."""
        self.found.append((one, there))
        self.bytes += min(len(one.raw), 2 * PEEK_PAYLOAD_BYTES_MAX)

    @property
    def next(self) -> list[list[int]] | None:
        """``after`` of the next page; None: there is none."""
        return [list(one) for one in self.following.items()] if self.more else None


def starts_of(after: Any) -> dict[int, int]:
    """Where a page begins, by queue. Raises ConfigError."""
    try:
        return {int(queue): int(token) for queue, token in after or []}
    except (TypeError, ValueError):
        raise ConfigError(f"after: {after!r}: allowed is what a page called next") from None


def page_of(
    subs: DurableSubscriptions, there: Waiters, choice: Choice, limit: int, after: Any
) -> Page:
    """At most ``limit`` records that wait for a subscription, by queue and token. No lock held."""
    assert subs.puller is not None
    page, starts, now_ns = Page(), starts_of(after), subs.ctx.wall_ns()
    for one in there.queues:
        start = max(one.log.earliest_token, starts.get(one.queue, 0))
        page.following[one.queue] = start
        for token, raw in _candidates(subs.puller, one, there.by_queue[one.queue], start):
            if page.full(limit):
                page.more = True
                break
            page.scanned += 1
            page.following[one.queue] = token + 1
            due_ns = due_of(raw)
            if due_ns <= now_ns or not choice.means(raw):
                continue
            found = Found(one.queue, token, due_ns, raw)
            if waiting := there.of(found):
                page.add(found, waiting)
    return page


def _candidates(
    puller: Puller, one: QueueState, there: list[Waiter], start: int
) -> Iterator[tuple[int, bytes]]:
    """Records that windows hold, then all from the last cursor on."""
    if not there:
        return
    held = np.unique(np.concatenate([each.waiting.tokens for each in there]))
    held = held[held >= start]
    last = min(each.waiting.next_token for each in there)
    if not isinstance(one.log, QueueLog):
        yield from read_records(puller, one, held.tolist())
        return
    yield from read_records(puller, one, held[held < last].tolist())
    yield from records_from(one.log, max(start, last))


def shown(topic: str, one: Found, there: list[Waiter]) -> dict[str, Any]:
    """A record as clients get it."""
    parts = decoded(one.raw)
    parts["headers"] = {k: v for k, v in parts["headers"].items() if k != DELIVER_AT}
    return {
        "topic": topic,
        "queue": one.queue,
        "token": one.token,
        "deliver_at_ns": one.due_ns,
        "subscriptions": [list(each.subscription.key) for each in there],
        **parts,
    }
