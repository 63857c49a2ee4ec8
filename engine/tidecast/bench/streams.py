"""`bench streams`: one key's records in a queue of very many keys, each with a subscription.

The cost of a record must not depend on how many subscriptions wait for other keys: the records are
appended while all of them wait at the end of the queue.
"""

from __future__ import annotations

import time

import numpy as np

from tidecast.bench.consuming import BATCH, fill
from tidecast.bench.durable import MESSAGE_BYTES, Note
from tidecast.bench.measure import Result, machine
from tidecast.bench.pulling import Stand, stand_of
from tidecast.bench.pulling_kernels import drain_members
from tidecast.buffers.member_ring import wake_queue
from tidecast.errors import TidecastError
from tidecast.queues.cursor import SHARES

_APPENDED = 40
"""Batches between two rounds of the puller."""


def _case(stand: Stand, keys: int, records: int) -> float:
    """Nanoseconds of the puller (and of taking and acking) a record, with a lane for each key."""
    log = stand.logs[0]
    puller, (q,) = stand.puller(blocks=64)
    member, k = stand.member(puller, 0, in_flight_max=100_000)
    for i in range(keys):
        lane = puller.add_lane(0, q, log.next_token, key_pattern=f"stream-{i}")
        puller.share(lane, [member] * SHARES)
    rows, runs = np.zeros((4096, 4), dtype=np.int64), np.zeros((4096, 6), dtype=np.int64)
    found, scratch = np.zeros(1, dtype=np.int64), np.zeros(512, dtype=np.uint8)
    members, states = np.array([member]), np.array([k])
    arguments = (puller.words, members, states, rows, runs, scratch)
    done, spent_s = 0, 0.0
    rounds = records // (_APPENDED * BATCH)
    for round_ in range(-1, rounds):  # the first touches the memory of each lane
        fill(log, _APPENDED * BATCH, keys)
        wake_queue(puller.state.wakes, puller.state.bells, q)
        n, idle, began = 0, 0, time.perf_counter()
        while idle < 3:
            some = int(drain_members(*arguments, 4, found))
            n += some
            idle = idle + 1 if some == 0 else 0
            puller.work()
        if round_ >= 0:
            done, spent_s = done + n, spent_s + time.perf_counter() - began
    wanted = records // (_APPENDED * BATCH) * _APPENDED * BATCH
    if done != wanted:
        raise TidecastError(f"bench streams: {keys} keys: {done} of {wanted} records")
    return spent_s / done * 1e9


def streams(note: Note, *, records: int = 200_000, streams: int = 10_000) -> Result:
    """A record's cost with one stream in the queue, with 100, and with very many, a lane for each.

    With one, many records go out in one frame; with more, each is a frame and an ack of its own: it
    is the third beside the second that tells what a stream more costs.
    """
    records = max(records, _APPENDED * BATCH)
    result = Result(
        "streams",
        {"records": records, "streams": streams, "message_bytes": MESSAGE_BYTES, **machine()},
    )
    for name, keys in (("one", 1), ("hundred", 100), ("many", streams)):
        note(f"{keys} streams")
        with stand_of(1, 0, MESSAGE_BYTES) as stand:
            cost_ns = _case(stand, keys, records)
        result.metrics[f"{name}_ns_per_record"] = round(cost_ns, 1)
        result.metrics[f"{name}_msgs_per_s"] = round(1e9 / cost_ns)
    result.floor["many_msgs_per_s"] = result.metrics["hundred_msgs_per_s"]
    result.compare("many_msgs_per_s")
    result.ratio["many_beside_one"] = round(
        result.metrics["many_msgs_per_s"] / result.metrics["one_msgs_per_s"], 4
    )
    return result
