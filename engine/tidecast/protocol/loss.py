"""Loss detection of one image: its missing packets, and when to ask for them, all gaps at once.

Gaps are kept sorted in a table of records. A new gap is always the last, because only a packet
beyond the highest opens a gap. Each gap has its own timer: first a grace for reordering, then a
NAK, then repeats that back off. Source of the idea: Aeron's loss detector and aioquic's range set;
unlike in Aeron, every gap is active at once.
"""

from __future__ import annotations

import math

import numpy as np

from tidecast.native.jit import inlined
from tidecast.protocol.random import random_below

GAPS_MAX = 1024
GAP = np.dtype(
    [
        ("first", np.int64),  # first missing packet
        ("end", np.int64),  # behind the last missing packet
        ("due_ns", np.int64),  # when to send the next NAK
        ("asked_ns", np.int64),  # when the last NAK was sent
        ("tries", np.int64),  # NAKs sent so far
    ]
)
BACKOFF_DOUBLINGS_MAX = 6
RETRY_NS_MAX = 100_000_000
JITTER_STEPS = 1024
FEW_RECEIVERS = 8
"""So few receivers may all ask for a packet: waiting for each other would cost more than NAKs."""
BACKOFF_STEPS = 1 << 20
BACKOFF_ROUND_TRIPS = 8
BACKOFF_GRACES_MIN, BACKOFF_NS_MAX = 16, 100_000_000


@inlined
def find_gap(gaps, n, seq):
    """Index of the gap that holds ``seq``, or -1. Binary search."""
    low, high = 0, n
    while low < high:
        middle = (low + high) >> 1
        if gaps[middle].end <= seq:
            low = middle + 1
        else:
            high = middle
    if low < n and gaps[low].first <= seq:
        return low
    return -1


@inlined
def open_gap(gaps, n, first, end, due_ns):
    """Append the gap [first, end) behind all others. Returns the new count, or -1: table full."""
    if n >= GAPS_MAX:
        return -1
    gaps[n].first = first
    gaps[n].end = end
    gaps[n].due_ns = due_ns
    gaps[n].asked_ns = 0
    gaps[n].tries = 0
    return n + 1


@inlined
def _move(gaps, to, source):
    gaps[to].first = gaps[source].first
    gaps[to].end = gaps[source].end
    gaps[to].due_ns = gaps[source].due_ns
    gaps[to].asked_ns = gaps[source].asked_ns
    gaps[to].tries = gaps[source].tries


@inlined
def fill_gap(gaps, n, i, seq):
    """Packet ``seq`` of gap ``i`` has come. Returns the new count, or -1: no room to split."""
    first, end = gaps[i].first, gaps[i].end
    if first == seq and end == seq + 1:
        for k in range(i, n - 1):
            _move(gaps, k, k + 1)
        return n - 1
    if first == seq:
        gaps[i].first = seq + 1
        return n
    if end == seq + 1:
        gaps[i].end = seq
        return n
    if n >= GAPS_MAX:
        return -1
    for k in range(n, i, -1):
        _move(gaps, k, k - 1)
    gaps[i].end = seq
    gaps[i + 1].first = seq + 1
    return n + 1


@inlined
def drop_before(gaps, n, seq):
    """Forget missing packets before ``seq``. Returns the new count of gaps."""
    gone = 0
    while gone < n and gaps[gone].end <= seq:
        gone += 1
    for k in range(gone, n):
        _move(gaps, k - gone, k)
    n -= gone
    if n > 0 and gaps[0].first < seq:
        gaps[0].first = seq
    return n


@inlined
def drop_from(gaps, n, seq):
    """Forget missing packets from ``seq`` on. Returns the new count of gaps."""
    while n > 0 and gaps[n - 1].first >= seq:
        n -= 1
    if n > 0 and gaps[n - 1].end > seq:
        gaps[n - 1].end = seq
    return n


@inlined
def next_due(gaps, n, none):
    """When the earliest gap wants a NAK; ``none`` when there is no gap."""
    due = none
    for i in range(n):
        due = min(due, gaps[i].due_ns)
    return due


@inlined
def first_delay_ns(grace_ns, group, round_trip_ns, draw):
    """Wait before the first NAK of a gap that a whole group of receivers may have.

    The repair goes to all, so one NAK is enough, but receivers hear no NAK of others: they wait at
    random for its repair. Few draw evenly. Many draw from the truncated exponential distribution of
    RFC 5401 (3.2.2): most wait long, and about one receiver asks early, whatever their number.

    ``draw``: 0 to BACKOFF_STEPS - 1, uniform. ``round_trip_ns``: the sender's, 0: not known.
    """
    if group <= 1:
        return grace_ns
    if group <= FEW_RECEIVERS:
        return grace_ns + grace_ns * group * draw // BACKOFF_STEPS
    longest_ns = max(BACKOFF_ROUND_TRIPS * round_trip_ns, BACKOFF_GRACES_MIN * grace_ns)
    longest_ns = min(longest_ns, BACKOFF_NS_MAX)
    share = math.log(group) + 1.0
    early = math.log1p((draw / BACKOFF_STEPS) * (math.e * group - 1.0))
    return grace_ns + int(longest_ns * early / share)


@inlined
def retry_delay_ns(base_ns, tries, jitter):
    """Wait before the NAK behind ``tries`` NAKs: doubling, capped, with up to 1/4 jitter.

    ``jitter``: 0 to JITTER_STEPS, drawn once a NAK: gaps asked for together stay together.
    """
    delay = base_ns << min(tries, BACKOFF_DOUBLINGS_MAX)
    delay = min(delay, RETRY_NS_MAX)
    return delay + (delay >> 2) * jitter // JITTER_STEPS


@inlined
def take_due(gaps, n, now_ns, retry_ns, overtaken_ns, seed, ranges, ranges_max):
    """Choose the gaps whose NAK is due, at most ``ranges_max``; restart their timers.

    A gap asked for before ``overtaken_ns`` is due as well: repairs that were requested later have
    come already, so its own repair was lost (the idea of RACK, RFC 8985, for NAKs).

    Writes {first, packets} rows to ``ranges``; returns their count.
    """
    taken = 0
    jitter = random_below(seed, JITTER_STEPS + 1)
    for i in range(n):
        overtaken = gaps[i].tries > 0 and gaps[i].asked_ns < overtaken_ns
        if gaps[i].due_ns > now_ns and not overtaken:
            continue
        if taken == ranges_max:
            break
        ranges[taken, 0] = gaps[i].first
        ranges[taken, 1] = gaps[i].end - gaps[i].first
        gaps[i].due_ns = now_ns + retry_delay_ns(retry_ns, gaps[i].tries, jitter)
        gaps[i].asked_ns = now_ns
        gaps[i].tries += 1
        taken += 1
    return taken
