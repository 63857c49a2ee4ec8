"""What telemetry says of queues and durable subscriptions: fill, lag, cursors, why they wait.

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
    from tidecast.node.consumers.state import LaneHere, QueueHere, SubscriptionHere
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
class _Lane:
    """A lane as it was between two cycles."""

    position: int
    cursor: int
    earliest: int
    end: int
    lag: int
    """Records that are not acknowledged."""
    reason: str
    out: int
    counts: Json
    age_s: float | None = None


_COUNTS = ("delivered", "settled", "redelivered", "naks", "timeouts", "dead")


def samples(node: Node, times: Times, at_ns: int | None = None) -> Json:
    """``queues`` and ``durable_subscriptions`` of a node, now."""
    now_ns = time.time_ns() if at_ns is None else at_ns
    subs = node.consumers
    with subs.lock:
        lanes = _lanes(subs, times, now_ns)
        subscriptions = [
            _subscription(s, lanes) for _, s in sorted(subs.subscriptions.items())
            if not stands_by(subs.state, s)
        ]  # fmt: skip
        queues = [one for topic in subs.topics.values() for one in topic.queues]
        caches = {one.row: _cache(subs.puller, one) for one in queues} if subs.puller else {}
        paused = {name for name, topic in subs.topics.items() if topic.paused}
        shown = [_queue(node, one, caches[one.row], paused) for one in queues[:QUEUES_MAX]]
    behind: dict[Place, list[_Lane]] = defaultdict(list)
    for place_of_lane, lane in lanes.values():
        behind[place_of_lane].append(lane)
    for row in shown:
        _add_readers(row, behind[row["topic"], row["number"]])
    return {
        "queues": shown,
        "queues_left_out": max(0, len(queues) - len(shown)),
        "durable_subscriptions": subscriptions,
    }


# --- lanes ----------------------------------------------------------------------------------------


def _lanes(subs: DurableSubscriptions, times: Times, now_ns: int) -> dict[int, tuple[Place, _Lane]]:
    """All lanes by their number."""
    puller = subs.puller
    if puller is None:
        return {}
    here = [
        (key, lane) for s in subs.subscriptions.values() for key, lane in s.lanes.items()
    ]  # fmt: skip

    def read() -> dict[int, tuple[Place, _Lane]]:
        found = {lane.lane: (place, _lane(puller, lane)) for place, lane in here}
        _read_times(puller, here, found, times)
        return found

    found: dict[int, tuple[Place, _Lane]] = puller.call(read)
    for (topic, queue), lane in found.values():
        if lane.lag == 0:
            lane.age_s = 0.0
        else:
            stamp = times.known.get((topic, queue, lane.position))
            lane.age_s = None if stamp is None else max(0.0, (now_ns - stamp) / 1e9)
    return found


def _lane(puller: Puller, lane: LaneHere) -> _Lane:
    record = puller.state.lanes[lane.lane]
    found = lag_here(puller, lane, _COUNTS)
    return _Lane(
        position=found.position, cursor=found.cursor, end=found.end, lag=found.records,
        earliest=lane.here.log.earliest_token, reason=reason_of(lane, record),
        out=found.figures["out"], counts={name: found.figures[name] for name in _COUNTS},
    )  # fmt: skip


def _read_times(
    puller: Puller,
    here: list[tuple[Place, LaneHere]],
    found: dict[int, tuple[Place, _Lane]],
    times: Times,
) -> None:
    """Times of the records that the lanes rest at; some are left for the next sample."""
    kept: dict[tuple[str, int, int], int] = {}
    reads = 0
    for (topic, queue), lane in here:
        position, lag = found[lane.lane][1].position, found[lane.lane][1].lag
        mark = (topic, queue, position)
        if lag == 0 or mark in kept:
            continue
        stamp = times.known.get(mark)
        if stamp is None and reads < TIMES_READ_MAX:
            reads += 1
            stamp = since_ns(puller, lane, position)
        if stamp is not None:
            kept[mark] = stamp
    times.known = kept


# --- rows -----------------------------------------------------------------------------------------


def _subscription(subscription: SubscriptionHere, lanes: dict[int, tuple[Place, _Lane]]) -> Json:
    saved, members = subscription.saved, subscription.members
    mine = [lanes[lane.lane] for lane in subscription.lanes.values() if lane.lane in lanes]
    worst = sorted(mine, key=lambda each: -each[1].lag)[:CURSORS_MAX]
    row: Json = {
        "name": saved.name,
        "topic": saved.pattern,
        "state": "paused" if saved.paused else "active" if members else "idle",
        "members": len(members),
        "lag_messages": sum(lane.lag for _, lane in mine),
        "lag_s": _oldest([lane for _, lane in mine]),
        "outstanding": sum(lane.out for _, lane in mine),
        "dead_open": saved.dead_open,
        "pressure": _pressure([lane for _, lane in worst]),
        "cursors": {f"{topic}:{queue}": _cursor(lane) for (topic, queue), lane in worst},
    }
    return row | {name: sum(lane.counts[name] for _, lane in mine) for name in _COUNTS}


def _cursor(lane: _Lane) -> Json:
    return {
        "earliest": lane.earliest, "acked": lane.position, "delivered": lane.cursor,
        "latest": lane.end, "lag_messages": lane.lag, "lag_s": lane.age_s,
        "outstanding": lane.out, "pressure": "" if lane.reason in CALM else lane.reason,
    }  # fmt: skip


def _oldest(lanes: list[_Lane]) -> float | None:
    known = [lane.age_s for lane in lanes if lane.age_s is not None]
    return max(known) if known else None if lanes else 0.0


def _pressure(lanes: list[_Lane]) -> str:
    """Why the first of these that waits does; "" = none has anything to wait for."""
    reasons = (lane.reason for lane in lanes if lane.lag)
    return next((reason for reason in reasons if reason not in CALM), "")


def _cache(puller: Puller, here: QueueHere) -> Json:
    state = puller.state
    record = state.queues[here.row]
    n = int(record["blocks"])
    used = state.blocks["used"][state.held[here.row, :n]]
    return {
        "cache_bytes": int(used.sum()), "cache_max": int(record["blocks_max"]) * BLOCK_BYTES,
        "cache_fill": round(n / max(1, int(record["blocks_max"])), 4),
        "evicted": int(record["evicted"]), "spilled": int(record["spilled"]),
        "fetched_bytes": int(record["fetched_bytes"]),
        "consumed_bytes": int(record["consumed_bytes"]),
    }  # fmt: skip


def _queue(node: Node, here: QueueHere, cache: Json, paused: set[str]) -> Json:
    log, values = here.log, _counters(node, here)
    stopped = here.paused or here.topic in paused
    refused = int(values[QueueCounter.ERRNO]) if values is not None else 0
    owner = node.durable.topics.get(here.topic)
    adapter = node.consumers.attached.adapters.get(here.topic)
    return {
        "name": f"{here.topic}:{here.queue}",
        "topic": here.topic,
        "number": here.queue,
        "adapter": adapter.name if adapter is not None else "",
        "state": "full" if refused else "paused" if stopped else "open",
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


def _counters(node: Node, here: QueueHere) -> Any:
    try:
        return node.counters.values[node.durable.registry.row_of(here.topic, here.queue)]
    except KeyError:  # the topic is being closed
        return None


def _add_readers(row: Json, lanes: list[_Lane]) -> None:
    """What the queue's slowest subscription is at."""
    slowest = max(lanes, key=lambda lane: (lane.lag, -lane.position), default=None)
    row |= {
        "subscriptions": len(lanes),
        "settled": sum(lane.counts["settled"] for lane in lanes),
        "lag_messages": slowest.lag if slowest else 0,
        "lag_s": _oldest(lanes),
        "cursor": slowest.position if slowest else None,
        "pressure": _pressure([slowest]) if slowest else "",
    }
