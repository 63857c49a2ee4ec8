"""Flow control of one publication: who receives it, how far each is, how far we may send.

`rate`: receivers never hold back. `min`: the slowest does; `max`: only the fastest does. A receiver
that is silent, or stuck while it holds us back, is dropped after a time-out, with an event.
"""

from __future__ import annotations

import numpy as np

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
        ("named", np.int64),  # 1: the conductor was told the name of its node
    ]
)
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
    """Index of a receiver's entry, or of a free one for it (its id is then 0), or -1: full."""
    free = -1
    for i in range(RECEIVERS_MAX):
        if receivers[i].id == identity:
            return i
        if free < 0 and receivers[i].id == 0:
            free = i
    return free


@inlined
def note_status(receivers, i, consumed, contiguous, window, lost, now_ns):
    """Take a receiver's STATUS. Positions never go back."""
    receivers[i].heard_ns = now_ns
    receivers[i].lost = lost
    if contiguous >= receivers[i].contiguous:  # a belated one knows an older window
        receivers[i].contiguous = contiguous
        receivers[i].window = window
    if consumed > receivers[i].consumed:
        receivers[i].consumed = consumed
        receivers[i].progress_ns = now_ns
        receivers[i].excluded = 0
