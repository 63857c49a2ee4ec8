"""`bench streams`: a record's cost in a queue of few keys beside that in a queue of very many.

Two shapes. One subscription that takes all: it must not notice how many keys there are. And a
subscription for each key, all waiting at the end of the queue while records are appended. Cases
have their turns one after another and CPU time is counted, so that a busy machine changes little.

So measured, two builds in turns, the stream scan's `_look_ahead` is worth 13 % of a record's cost
with a subscription for each of 100 streams, and 15 % with 10,000.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from typing import Any

import numpy as np

from tidecast.bench.consuming import BATCH, fill
from tidecast.bench.durable import MESSAGE_BYTES, Note
from tidecast.bench.loops.pulling import drain_members
from tidecast.bench.measure import Result, machine
from tidecast.bench.pulling import Stand, stand_of
from tidecast.buffers.member_ring import ROW_FIELDS, RUN_FIELDS, wake_queue
from tidecast.errors import TidecastError
from tidecast.queues.cache.cursors import SHARES

_ROUND = 40 * BATCH
"""Records appended between two rounds of the puller."""


class _Case:
    """A queue of ``keys`` keys, and the cursors and members that take its records."""

    def __init__(self, stand: Stand, keys: int, cursors: list[str], members: int) -> None:
        self.keys, self.log = keys, stand.logs[0]
        self.puller, (self.q,) = stand.puller(blocks=64)
        made = [stand.member(self.puller, 0, in_flight_max=100_000) for _ in range(members)]
        owners = [made[share % members][0] for share in range(SHARES)]
        for pattern in cursors:
            cursor = self.puller.add_cursor(0, self.q, self.log.next_token, key_pattern=pattern)
            self.puller.share(cursor, owners)
        self.arguments = (
            self.puller.words,
            np.array([number for number, _ in made]),
            np.array([state for _, state in made]),
            np.zeros((4096, ROW_FIELDS), dtype=np.int64),
            np.zeros((4096, RUN_FIELDS), dtype=np.int64),
            np.zeros(512, dtype=np.uint8),
        )
        self.found = np.zeros(members, dtype=np.int64)
        self.costs_ns: list[float] = []

    def round(self) -> None:
        """Append some records, then deliver, take and ack all of them."""
        fill(self.log, _ROUND, self.keys)
        wake_queue(self.puller.state.wakes, self.puller.state.bells, self.q)
        n, idle, began = 0, 0, time.thread_time_ns()
        while idle < 3:
            some = int(drain_members(*self.arguments, 4, self.found))
            n += some
            idle = idle + 1 if some == 0 else 0
            self.puller.work()
        self.costs_ns.append((time.thread_time_ns() - began) / _ROUND)
        if n != _ROUND:
            raise TidecastError(f"bench streams: {self.keys} keys: {n} of {_ROUND} records")


def streams(note: Note, *, records: int = 200_000, streams: int = 10_000) -> Result:
    """A record's cost by keys in the queue: in one subscription, and with a cursor for each key.

    With a cursor for each key a record is a frame and an ack of its own, as soon as there are two.
    """
    rounds = max(records // _ROUND, 1)
    result = Result(
        "streams",
        {
            "records": rounds * _ROUND,
            "streams": streams,
            "message_bytes": MESSAGE_BYTES,
            **machine(),
        },
    )
    shapes: dict[str, tuple[int, int, bool]] = {
        "one": (1, 1, True),
        "hundred": (100, 1, True),
        "thousand": (1000, 1, True),
        "many": (streams, 1, True),
        "subscription_one": (1, 1, False),
        "subscription_hundred": (100, 1, False),
        "subscription_thousand": (1000, 1, False),
        "subscription_many": (streams, 1, False),
        "members_hundred": (100, 4, False),
        "members_many": (streams, 4, False),
    }
    with contextlib.ExitStack() as stack:
        cases: dict[str, _Case] = {}
        for name, (keys, members, own) in shapes.items():
            note(f"{name}: {keys} streams")
            stand = stack.enter_context(stand_of(1, 0, MESSAGE_BYTES))
            cursors = [f"stream-{i}" for i in range(keys)] if own else [""]
            cases[name] = _Case(stand, keys, cursors, members)
        for k in range(rounds + 1):  # the first touches the memory of each cursor
            note(f"round {k} of {rounds}")
            for case in cases.values():
                case.round()
        costs = {name: statistics.median(case.costs_ns[1:]) for name, case in cases.items()}
    _report(result, costs)
    return result


def _report(result: Result, costs: dict[str, float]) -> None:
    found: dict[str, Any] = result.metrics
    for name, cost_ns in costs.items():
        found[f"{name}_ns_per_record"] = round(cost_ns, 1)
    for name in ("", "subscription_", "members_"):
        few, many = f"{name}hundred_ns_per_record", f"{name}many_ns_per_record"
        result.floor[many] = found[few]
        result.compare(many)
