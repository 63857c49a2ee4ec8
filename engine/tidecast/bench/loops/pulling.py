"""Loops of the consumers' benches: poll one record with queues paused at random, drain members."""

from __future__ import annotations

from typing import Any

from tidecast.agents.events import A_EVENTS
from tidecast.agents.puller.cycle import pull_cycle, puller_of
from tidecast.buffers import member_ring
from tidecast.layout import member as lay
from tidecast.native.atomics import fetch_or
from tidecast.native.jit import kernel
from tidecast.native.memory import bytes_at
from tidecast.native.system import syscalls as sys
from tidecast.queues.cache import cursors as cursor_table


@kernel
def poll_one_by_one(
    words: Any,
    cursors: Any,
    k: Any,
    member: Any,
    rows: Any,
    runs: Any,
    seed: Any,
    scratch: Any,
    until_ns: Any,
    found: Any,
) -> Any:
    """Leave one random cursor unpaused, poll one record, ack it; again and again.

    ``found``: records, polls that had to wait. Returns when events or commands need the shell (the
    same cursor stays unpaused), or the time is over.
    """
    s = puller_of(words)
    m = s.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    while now < until_ns:
        if seed[1] == 0:
            seed[0] = (seed[0] * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
            chosen = (seed[0] >> 33) % cursors.size
            for i in range(cursors.size):
                cursor = cursors[i]
                paused = 0 if i == chosen else 1
                if s.cursors[cursor].paused != paused:
                    s.cursors[cursor].paused = paused
                    cursor_table.make_ready(s, cursor)
            seed[1] = 1
        pull_cycle(s, now)
        n, r = member_ring.take_into(ring, k, scratch, rows, runs, 1)
        if n == 1:
            member_ring.ack_all_into(ring, k, runs, r, scratch)
            fetch_or(s.wakes, lay.WAKE_MEMBERS_AT + (member >> 6) * 8, 1 << (member & 63))
            found[0] += 1
            seed[1] = 0
        else:
            found[1] += 1
        if s.attention[A_EVENTS] > 0:
            return 1
        now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        if n != 1:
            return 1
    return 0


@kernel
def drain_members(
    words: Any,
    members: Any,
    states: Any,
    rows: Any,
    runs: Any,
    scratch: Any,
    rounds: Any,
    found: Any,
) -> Any:
    """Cycle, and let each of the members take and ack all it has; records by member in ``found``.

    Returns how many were taken; comes back early when events need the shell.
    """
    s = puller_of(words)
    taken = 0
    for _ in range(rounds):
        pull_cycle(s, sys.clock_ns(sys.CLOCK_MONOTONIC, scratch))
        for i in range(members.size):
            member = members[i]
            m = s.members[member]
            ring = bytes_at(m.ring_address, m.ring_bytes)
            k = states[i]
            n, r = member_ring.take_into(ring, k, scratch, rows, runs, rows.shape[0])
            if n > 0:
                member_ring.mark_taken(ring, rows, n)
                member_ring.ack_all_into(ring, k, runs, r, scratch)
                found[i] += n
                taken += n
            at = lay.WAKE_MEMBERS_AT + (member >> 6) * 8
            fetch_or(s.wakes, at, 1 << (member & 63))
        if s.attention[A_EVENTS] > 0:
            return taken
    return taken
