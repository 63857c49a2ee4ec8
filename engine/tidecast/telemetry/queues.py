"""Telemetry of queues and durable subscriptions: fill, lag, cursors, why they wait.

All cursors are read in one command to the puller, between two of its cycles; times of records are
read from blocks only when a cursor has moved, and at most `TIMES_READ_MAX` of them a sample.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tidecast.layout.counters import QueueCounter
from tidecast.node.consumers.lag import lag_here, since_ns
from tidecast.node.consumers.state import reason_of
from tidecast.node.consumers.storage import stands_by
from tidecast.queues.cache.blocks import BLOCK_BYTES

if TYPE_CHECKING:
    from tidecast.agents.puller.runtime import Puller
    from tidecast.node.consumers.service import DurableSubscriptions
    from tidecast.node.consumers.state import (
        ConsumersState,
        CursorState,
        QueueState,
        SubscriptionState,
    )
    from tidecast.node.node import Node

QUEUES_MAX, CURSORS_MAX = 4000, 64
TIMES_READ_MAX = 64
CALM = frozenset(("", "flowing", "caught up"))

Json = dict[str, Any]
Place = tuple[str, int]


@dataclass(slots=True)
class Times:
    """Append times of the records that cursors rest at: (topic, queue, token) -> ns."""

    known: dict[tuple[str, int, int], int] = field(default_factory=dict)


@dataclass(slots=True)
class _Cursor:
    """A cursor as it was between two cycles."""

    position: int
    next_token: int
    earliest: int
    end: int
    lag: int
    """Records that are not acknowledged."""
    oldest: int
    late: bool
    """See `Lag`."""
    reason: str
    out: int
    scheduled: int
    counts: Json
    age_s: float | None = None


_COUNTS = ("delivered", "settled", "redelivered", "naks", "timeouts", "dead")


def samples(node: Node, times: Times, at_ns: int | None = None) -> Json:
    """``queues``, ``durable_subscriptions``, ``adapters`` and ``storages`` of a node, now."""
    now_ns = time.time_ns() if at_ns is None else at_ns
    subs = node.consumers
    with subs.lock:
        cursors = _cursors(subs, times, now_ns)
        subscriptions = [
            _subscription(subs.state, s, cursors)
            for _, s in sorted(subs.subscriptions.items())
            if not stands_by(subs.state, s)
        ]
        queues = [one for topic in subs.topics.values() for one in topic.queues]
        caches = {one.row: _cache(subs.puller, one) for one in queues} if subs.puller else {}
        paused = {name for name, topic in subs.topics.items() if topic.paused}
        shown = [_queue(node, one, caches[one.row], paused) for one in queues[:QUEUES_MAX]]
    behind: dict[Place, list[_Cursor]] = defaultdict(list)
    for place_of_cursor, cursor in cursors.values():
        behind[place_of_cursor].append(cursor)
    for row in shown:
        _add_readers(row, behind[row["topic"], row["number"]])
    return {
        "queues": shown,
        "queues_left_out": max(0, len(queues) - len(shown)),
        "durable_subscriptions": subscriptions,
        "adapters": subs.attached.states(),
        "storages": node.durable.storing.states(),
    }


# --- cursors --------------------------------------------------------------------------------------


def _cursors(
    subs: DurableSubscriptions, times: Times, now_ns: int
) -> dict[int, tuple[Place, _Cursor]]:
    """All cursors by their number."""
    puller = subs.puller
    if puller is None:
        return {}
    here = [(key, cursor) for s in subs.subscriptions.values() for key, cursor in s.cursors.items()]

    def read() -> dict[int, tuple[Place, _Cursor]]:
        found = {cursor.number: (place, _cursor(puller, cursor)) for place, cursor in here}
        _read_times(puller, here, found, times)
        return found

    found: dict[int, tuple[Place, _Cursor]] = puller.call(read)
    for (topic, queue), cursor in found.values():
        if not cursor.late:
            cursor.age_s = 0.0
        else:
            stamp = times.known.get((topic, queue, cursor.oldest))
            cursor.age_s = None if stamp is None else max(0.0, (now_ns - stamp) / 1e9)
    return found


def _cursor(puller: Puller, cursor: CursorState) -> _Cursor:
    record = puller.state.cursors[cursor.number]
    found = lag_here(puller, cursor, (*_COUNTS, "scheduled"))
    return _Cursor(
        position=found.position,
        next_token=found.next_token,
        end=found.end,
        lag=found.records,
        oldest=found.oldest,
        late=found.late,
        earliest=cursor.here.log.earliest_token,
        reason=reason_of(cursor, record),
        out=found.figures["out"],
        scheduled=found.figures["scheduled"],
        counts={name: found.figures[name] for name in _COUNTS},
    )


def _read_times(
    puller: Puller,
    here: list[tuple[Place, CursorState]],
    found: dict[int, tuple[Place, _Cursor]],
    times: Times,
) -> None:
    """Times of the records that the cursors rest at; some are left for the next sample."""
    kept: dict[tuple[str, int, int], int] = {}
    reads = 0
    for (topic, queue), cursor in here:
        oldest = found[cursor.number][1].oldest
        mark = (topic, queue, oldest)
        if not found[cursor.number][1].late or mark in kept:
            continue
        stamp = times.known.get(mark)
        if stamp is None and reads < TIMES_READ_MAX:
            reads += 1
            stamp = since_ns(puller, cursor, oldest)
        if stamp is not None:
            kept[mark] = stamp
    times.known = kept


# --- rows -----------------------------------------------------------------------------------------


def _subscription(
    state: ConsumersState,
    subscription: SubscriptionState,
    cursors: dict[int, tuple[Place, _Cursor]],
) -> Json:
    saved, members = subscription.saved, subscription.members
    mine = [
        cursors[cursor.number]
        for cursor in subscription.cursors.values()
        if cursor.number in cursors
    ]
    arriving = state.arriving(subscription)
    worst = sorted(mine, key=lambda each: -each[1].lag)[:CURSORS_MAX]
    row: Json = {
        "name": saved.name,
        "topic": saved.pattern,
        "state": "paused" if saved.paused else "active" if members else "idle",
        "members": len(members),
        "lag_messages": sum(cursor.lag for _, cursor in mine) + arriving,
        "lag_s": _oldest([cursor for _, cursor in mine]),
        "outstanding": sum(cursor.out for _, cursor in mine),
        "scheduled": sum(cursor.scheduled for _, cursor in mine),
        "dead_open": state.dead_open(saved),
        "pressure": _pressure([cursor for _, cursor in worst]),
        "cursors": {f"{topic}:{queue}": _cursor_row(cursor) for (topic, queue), cursor in worst},
    }
    return row | {name: sum(cursor.counts[name] for _, cursor in mine) for name in _COUNTS}


def _cursor_row(cursor: _Cursor) -> Json:
    return {
        "earliest": cursor.earliest,
        "acked": cursor.position,
        "delivered": cursor.next_token,
        "latest": cursor.end,
        "lag_messages": cursor.lag,
        "lag_s": cursor.age_s,
        "outstanding": cursor.out,
        "scheduled": cursor.scheduled,
        "pressure": "" if cursor.reason in CALM else cursor.reason,
    }


def _oldest(cursors: list[_Cursor]) -> float | None:
    known = [cursor.age_s for cursor in cursors if cursor.age_s is not None]
    return max(known) if known else None if cursors else 0.0


def _pressure(cursors: list[_Cursor]) -> str:
    """Why the first of these that waits does; "" = none has anything to wait for."""
    reasons = (cursor.reason for cursor in cursors if cursor.lag)
    return next((reason for reason in reasons if reason not in CALM), "")


def _cache(puller: Puller, here: QueueState) -> Json:
    state = puller.state
    record = state.queues[here.row]
    n = int(record["blocks"])
    used = state.blocks["used"][state.held[here.row, :n]]
    return {
        "cache_bytes": int(used.sum()),
        "cache_max": int(record["blocks_max"]) * BLOCK_BYTES,
        "cache_fill": round(n / max(1, int(record["blocks_max"])), 4),
        "evicted": int(record["evicted"]),
        "spilled": int(record["spilled"]),
        "fetched_bytes": int(record["fetched_bytes"]),
        "consumed_bytes": int(record["consumed_bytes"]),
    }


def _queue(node: Node, here: QueueState, cache: Json, paused: set[str]) -> Json:
    log, values = here.log, _counters(node, here)
    stopped = here.paused or here.topic in paused
    refused = int(values[QueueCounter.ERRNO]) if values is not None else 0
    waits = int(values[QueueCounter.STORAGE_WAITS]) if values is not None else 0
    owner = node.durable.topics.get(here.topic)
    adapter = node.consumers.attached.adapters.get(here.topic)
    return {
        "name": f"{here.topic}:{here.queue}",
        "topic": here.topic,
        "number": here.queue,
        "adapter": adapter.name if adapter is not None else "",
        "state": "full" if refused or waits else "paused" if stopped else "open",
        "reason": owner.storage_waits if waits and owner is not None else "",
        "owner_epoch": owner.owner if owner is not None else 0,
        "owner_since_ns": owner.since_ns if owner is not None else 0,
        "earliest": log.earliest_token,
        "latest": log.next_token,
        "durable": log.durable_token,
        "bytes": log.bytes,
        "segments": len(log.segments),
        "appended": int(values[QueueCounter.RECORDS]) if values is not None else 0,
        "appended_bytes": int(values[QueueCounter.BYTES]) if values is not None else 0,
        "append_failures": int(values[QueueCounter.APPEND_FAILURES]) if values is not None else 0,
        "sync_failures": int(values[QueueCounter.SYNC_FAILURES]) if values is not None else 0,
        **cache,
    }


def _counters(node: Node, here: QueueState) -> Any:
    try:
        return node.counters.values[node.durable.registry.row_of(here.topic, here.queue)]
    except KeyError:  # the topic is being closed
        return None


def _add_readers(row: Json, cursors: list[_Cursor]) -> None:
    """Add the place of the queue's slowest subscription."""
    slowest = max(cursors, key=lambda cursor: (cursor.lag, -cursor.position), default=None)
    row |= {
        "subscriptions": len(cursors),
        "settled": sum(cursor.counts["settled"] for cursor in cursors),
        "lag_messages": slowest.lag if slowest else 0,
        "lag_s": _oldest(cursors),
        "cursor": slowest.position if slowest else None,
        "pressure": _pressure([slowest]) if slowest else "",
    }
