"""Flow control of one publication: its receivers, their positions, and how far we may send.

`rate`: receivers never hold back. `min`: the slowest does; `max`: only the fastest does. A receiver
that is silent, or stuck while it holds us back, is dropped after a time-out, with an event.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout.packet import SAMPLING_MAX
from tidecast.layout.ring import FLOW_MAX, FLOW_RATE
from tidecast.native.jit import inlined

RECEIVERS_MAX = 128
RECEIVER = np.dtype(
    [
        ("id", np.int64),  # random id of the image; 0 = free entry
        ("node", np.int64),
        ("consumed", np.int64),  # first packet it has not consumed
        ("contiguous", np.int64),  # first packet it has not received
        ("window", np.int64),  # packets it takes from `consumed` on
        ("heard_ns", np.int64),  # last STATUS
        ("progress_ns", np.int64),  # last time `consumed` moved
        ("lost", np.int64),  # packets it found missing
        ("excluded", np.int64),  # 1: was stuck too long; counts again once it moves
        ("named", np.int64),  # 1: the conductor knows the name of its node
        ("tables", np.int64),  # 1: it reads COMPACT
        ("address_a", np.int64),  # 16 bytes: where it is; only from there it is believed
        ("address_b", np.int64),
        ("credit", np.int64),  # packets that it may ask for again
        ("credit_sent", np.int64),  # packets sent when that was last increased
        ("credit_ns", np.int64),  # when that was
    ]
)
RECEIVERS_AN_ADDRESS_MAX = 8
JOINS_A_SECOND = 16
SAMPLING_NS = 2_000_000_000
"""The sample is made larger at most so often: receivers have to hear of it and to report."""
FEW_REPORTERS = RECEIVERS_MAX >> 3
REPAIRS_A_PACKET = 4
"""Packets that a receiver may ask for again for each that is sent: 80 % of all may be lost."""
NO_LIMIT = 1 << 62


@inlined
def limits(receivers, flow):
    """(first packet that must not be sent, lowest consumed). NO_LIMIT where nothing holds back."""
    lowest = NO_LIMIT
    lowest_end = NO_LIMIT
    highest_end = -1
    for i in range(RECEIVERS_MAX):
        if receivers[i].id == 0 or receivers[i].excluded != 0:
            continue
        end = receivers[i].consumed + receivers[i].window
        lowest = min(lowest, receivers[i].consumed)
        lowest_end = min(lowest_end, end)
        highest_end = max(highest_end, end)
    if highest_end < 0 or flow == FLOW_RATE:
        return NO_LIMIT, lowest
    if flow == FLOW_MAX:
        return highest_end, lowest
    return lowest_end, lowest


@inlined
def place_for(receivers, identity):
    """Index of a receiver's entry, or of a free entry for it (with id 0); -1: the table is full."""
    free = -1
    for i in range(RECEIVERS_MAX):
        if receivers[i].id == identity:
            return i
        if free < 0 and receivers[i].id == 0:
            free = i
    return free


@inlined
def may_join(receivers, joins, joins_ns, address_a, address_b, now_ns):
    """Whether one more receiver may join from this address; joins left, and since when.

    A node has one or two receivers. All receivers may join at the begin; afterwards their rate is
    limited, since each new receiver may hold `min` flow back until its time-out.
    """
    earned = (now_ns - joins_ns) * JOINS_A_SECOND // 1_000_000_000
    if earned > 0:
        joins, joins_ns = min(joins + earned, RECEIVERS_MAX), now_ns
    here = 0
    for i in range(RECEIVERS_MAX):
        r = receivers[i]
        here += int(r.id != 0 and r.address_a == address_a and r.address_b == address_b)
    if joins <= 0 or here >= RECEIVERS_AN_ADDRESS_MAX:
        return False, joins, joins_ns
    return True, joins - 1, joins_ns


@inlined
def reports(identity, sampling):
    """Whether a receiver of this random id belongs to the sample that sends STATUS.

    The sender reads the size of the group from the sample, as RFC 2762 does for RTP.
    """
    return identity & ((1 << sampling) - 1) == 0


@inlined
def halve_sample(receivers, sampling):
    """Forget the receivers that the next smaller sample leaves out: (sampling, how many)."""
    if sampling >= SAMPLING_MAX:
        return sampling, 0
    sampling += 1
    dropped = 0
    for i in range(RECEIVERS_MAX):
        if receivers[i].id != 0 and not reports(receivers[i].id, sampling):
            receivers[i].id = 0
            dropped += 1
    return sampling, dropped


@inlined
def earn_credit(entry, slots, sent, now_ns):
    """Increase the repairs that a receiver may request: by packets sent, and one history a second.

    A NAK costs its sender nothing, and its repairs go to all receivers: a receiver can have lost
    packets that were sent, and some of their repairs, but no more.
    """
    timely = min(now_ns - entry.credit_ns, 1_000_000_000) * slots // 1_000_000_000
    earned = min(sent - entry.credit_sent, slots) * REPAIRS_A_PACKET + timely
    entry.credit = min(entry.credit + earned, 2 * slots)
    entry.credit_sent = sent
    if timely > 0:
        entry.credit_ns = now_ns


@inlined
def note_pause(receivers, pause_ns):
    """The sender did not run for ``pause_ns``: it could hear of no receiver in that time."""
    for i in range(RECEIVERS_MAX):
        if receivers[i].id != 0:
            receivers[i].heard_ns += pause_ns
            receivers[i].progress_ns += pause_ns


@inlined
def note_status(receivers, i, consumed, contiguous, window, lost, now_ns):
    """Take a receiver's STATUS. Positions never go back."""
    receivers[i].heard_ns = now_ns
    receivers[i].lost = lost
    if contiguous >= receivers[i].contiguous:  # a late STATUS has an older window
        receivers[i].contiguous = contiguous
        receivers[i].window = window
    if consumed > receivers[i].consumed:
        receivers[i].consumed = consumed
        receivers[i].progress_ns = now_ns
        receivers[i].excluded = 0
