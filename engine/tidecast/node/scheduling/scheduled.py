"""Lists and cancels records with a delivery time: actions of `Link.administer`.

Each subscription holds a record back by itself, so each cancels by itself. The positions are saved
before the answer: an engine that is killed after it does not deliver cancelled records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tidecast import events
from tidecast.agents.puller import cancelling
from tidecast.agents.puller.cancelling import Outcome
from tidecast.errors import ConfigError, Conflict, NotFound, StorageError
from tidecast.node.consumers.service import DurableSubscriptions
from tidecast.node.consumers.state import SubscriptionState
from tidecast.node.scheduling.waiting import (
    Found,
    Waiter,
    Waiters,
    choice_of,
    due_of,
    page_of,
    read_records,
    shown,
    waiters,
)
from tidecast.queues.records import decoded

LISTED_MAX, CANCELLED_MAX, PAGES_MAX = 1000, 10_000, 10


def listed(
    subs: DurableSubscriptions,
    topic: str,
    *,
    subscription: str | None = None,
    key: str | bytes | None = None,
    where: str | None = None,
    limit: int = 100,
    after: list[list[int]] | None = None,
) -> dict[str, Any]:
    """Records of a topic that wait for their delivery time, by queue and token.

    ``subscription``: records that wait for it; ``key``, ``where``: records that match. ``after``:
    ``next`` of the page before; None: it was the last. Raises ConfigError, NotFound.
    """
    if not 1 <= limit <= LISTED_MAX:
        raise ConfigError(f"limit: {limit}: allowed 1 to {LISTED_MAX}")
    choice = choice_of(key, where)
    subs.await_appends()
    with subs.lock:
        there = waiters(subs, topic, subscription)
    page = page_of(subs, there, choice, limit, after)
    return {
        "records": [shown(topic, *each) for each in page.found],
        "scanned": page.scanned,
        "next": page.next,
    }


def cancel(
    subs: DurableSubscriptions,
    topic: str,
    *,
    records: list[list[int]] | None = None,
    key: str | bytes | None = None,
    where: str | None = None,
    everything: bool = False,
    subscription: str | None = None,
    limit: int = CANCELLED_MAX,
    after: list[list[int]] | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Cancel records before their delivery time, for all subscriptions or the named one.

    ``records``: (queue, token) of each; or all of ``key``, or all for which ``where`` holds, or
    ``everything``. ``dry_run``: only count. A row a subscription: how many records it has
    ``cancelled``, how many are ``too_late`` (due, or delivered), how many it had ``acked`` or
    cancelled before. Raises ConfigError, NotFound, Conflict, StorageError.
    """
    if not 1 <= limit <= CANCELLED_MAX:
        raise ConfigError(f"limit: {limit}: allowed 1 to {CANCELLED_MAX}")
    chosen = key is not None or where is not None
    if (records is not None) + chosen + everything != 1:
        raise ConfigError("records: give records, or key and where, or everything")
    choice = choice_of(key, where)
    subs.await_appends()
    with subs.lock:
        there = waiters(subs, topic, subscription)
    if records is not None:
        found, scanned, following = _named(subs, there, records, limit), len(records), None
    else:
        page = page_of(subs, there, choice, limit, after)
        found = [_meant(one, waiting) for one, waiting in page.found]
        scanned, following = page.scanned, page.next
    with subs.lock:
        there = waiters(subs, topic, subscription)  # they may have moved meanwhile
        rows = _cancel(subs, there, found, dry_run=dry_run)
    return {
        "dry_run": dry_run,
        "records": len(found),
        "scanned": scanned,
        "next": following,
        "subscriptions": rows,
    }


class Meant(NamedTuple):
    """A record to cancel, without its bytes."""

    queue: int
    token: int
    due_ns: int
    subscriptions: frozenset[tuple[str, str]]
    """Keys of the subscriptions that it is for."""


def _meant(one: Found, there: list[Waiter]) -> Meant:
    keys = frozenset(each.subscription.key for each in there)
    return Meant(one.queue, one.token, one.due_ns, keys)


def _named(
    subs: DurableSubscriptions, there: Waiters, records: list[list[int]], limit: int
) -> list[Meant]:
    """The records with these places. Raises ConfigError, NotFound for a missing record."""
    assert subs.puller is not None
    if len(records) > limit:
        raise ConfigError(f"records: {len(records)}: allowed at most {limit} at once")
    by_queue: dict[int, set[int]] = {}
    queues = {one.queue: one for one in there.queues}
    for place in records:
        queue, token = _place(place)
        if queue not in queues:
            raise ConfigError(
                f"records: queue {queue}: {there.topic} has queues 0 to {max(queues)}"
            )
        log = queues[queue].log
        if not log.earliest_token <= token < log.next_token:
            raise ConfigError(
                f"records: offset {token} of queue {queue}: allowed {log.earliest_token} to "
                f"{log.next_token - 1}"
            )
        by_queue.setdefault(queue, set()).add(token)
    found: list[Meant] = []
    for queue, tokens in sorted(by_queue.items()):
        for token, raw in read_records(subs.puller, queues[queue], sorted(tokens)):
            one = Found(queue, token, due_of(raw), raw)
            if one.due_ns == 0:
                raise ConfigError(
                    f"records: offset {token} of queue {queue}: it has no delivery time"
                )
            parts = decoded(raw)
            mine = [each for each in there.by_queue[queue] if each.keeps(raw, parts)]
            found.append(_meant(one, mine))
            tokens.discard(token)
        if tokens:
            raise NotFound(f"records: offset {min(tokens)} of queue {queue}: it is deleted")
    return found


def _place(place: Any) -> tuple[int, int]:
    numbers = place if isinstance(place, list | tuple) and len(place) == 2 else ()
    if not numbers or not all(type(one) is int and 0 <= one < 1 << 62 for one in numbers):
        raise ConfigError(f"records: {place!r}: allowed are pairs of queue and offset")
    return numbers[0], numbers[1]


def _cancel(
    subs: DurableSubscriptions, there: Waiters, found: list[Meant], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Let each subscription cancel, and save it. With the lock held. A row a subscription."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    touched: dict[tuple[str, str], SubscriptionState] = {}
    cancelled: list[events.RecordsCancelled] = []
    _check_room(subs, there, found)
    for one in there.queues:
        mine = [each for each in found if each.queue == one.queue]
        for waiter in there.by_queue[one.queue] if mine else ():
            outcome = _cancel_here(subs, waiter, mine, dry_run=dry_run)
            key = waiter.subscription.key
            outcomes[key] = outcomes.get(key, Outcome()).plus(outcome)
            touched[key] = waiter.subscription
            if outcome.cancelled:
                cancelled.append(
                    events.RecordsCancelled(
                        topic=there.topic,
                        queue=one.queue,
                        subscription=key[1],
                        records=outcome.cancelled,
                    )
                )
    if not dry_run:
        _save(subs, there.topic, touched)
        for event in cancelled:
            subs.ctx.notify_all(event)
    return [
        {"pattern": key[0], "name": key[1], **outcome._asdict()}
        for key, outcome in sorted(outcomes.items())
    ]


def _check_room(subs: DurableSubscriptions, there: Waiters, found: list[Meant]) -> None:
    """Raise Conflict before anything is changed."""
    puller = subs.puller
    assert puller is not None
    for queue, waiting in there.by_queue.items():
        count = sum(each.queue == queue for each in found)
        for waiter in waiting if count else ():
            puller.call(cancelling.check_room, puller, waiter.cursor.number, count)


def _cancel_here(
    subs: DurableSubscriptions, waiter: Waiter, found: list[Meant], *, dry_run: bool
) -> Outcome:
    assert subs.puller is not None
    mine = [one for one in found if waiter.subscription.key in one.subscriptions]
    tokens = np.array([one.token for one in mine], dtype=np.int64)
    due_ns = np.array([one.due_ns for one in mine], dtype=np.int64)
    puller = subs.puller
    outcome: Outcome = puller.call(
        cancelling.cancel, puller, waiter.cursor.number, tokens, due_ns, dry_run=dry_run
    )
    return outcome


def _save(
    subs: DurableSubscriptions, topic: str, touched: dict[tuple[str, str], SubscriptionState]
) -> None:
    """Save all positions, also for records cancelled before. Raises StorageError, Conflict."""
    problems: list[StorageError] = []
    for (pattern, name), subscription in touched.items():
        try:
            subs.save_now(subscription)
        except StorageError as problem:
            problems.append(problem)
            event = events.PositionsNotSaved(pattern=pattern, name=name, detail=str(problem))
            subs.ctx.notify_all(event)
    if problems:
        raise StorageError(
            f"topic {topic}: the cancelled records are held back only until the engine stops, "
            f"because positions cannot be saved: {problems[0]}: cancel them again",
            problems[0].errno,
        )
    if not subs.topics[topic].owned():
        raise Conflict(
            f"topic {topic}: another engine has taken the queues: cancel the records there"
        )


def cancel_pages(subs: DurableSubscriptions, arguments: dict[str, Any]) -> dict[str, Any]:
    """`cancel` with ``arguments``, PAGES_MAX pages at most; ``next``: None when it did all."""
    whole = cancel(subs, **arguments)
    rows = {(row["pattern"], row["name"]): row for row in whole["subscriptions"]}
    for _ in range(PAGES_MAX - 1):
        if whole["next"] is None:
            break
        page = cancel(subs, **arguments, after=whole["next"])
        for field in ("records", "scanned"):
            whole[field] += page[field]
        for row in page["subscriptions"]:
            before = rows.setdefault((row["pattern"], row["name"]), row)
            if before is not row:
                for field in Outcome._fields:
                    before[field] += row[field]
        whole["next"] = page["next"]
    return whole | {"subscriptions": [rows[key] for key in sorted(rows)]}
