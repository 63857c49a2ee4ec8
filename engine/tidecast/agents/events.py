"""Reports of agents to the conductor: a small ring of fixed records, drained in Python.

The agent's run kernel returns to Python when there are events or commands; the Python shell of the
agent hands events to the conductor. Nothing here is on the path of messages.
"""

from __future__ import annotations

import numpy as np

from tidecast.native.jit import inlined

EVENTS_MAX, EVENT_FIELDS = 512, 8
E_RECEIVER_JOINED, E_RECEIVER_TIMEOUT, E_RECEIVER_LEFT = 1, 2, 3
E_SETUP, E_SESSION_ENDED, E_PEER_TIMEOUT = 10, 11, 12
E_EVICTED, E_PUBLICATION_DRAINED = 14, 15
E_RECEIVER_NAME, E_FOREIGN, E_KEY, E_FORGERY = 16, 17, 18, 19

A_STOP, A_EVENTS, A_LOST = 0, 1, 2
ATTENTION_FIELDS = 8
"""Words the agent looks at every cycle: stop asked, events waiting, events that did not fit."""


def event_ring() -> np.ndarray:
    """Room for events: int64[EVENTS_MAX, EVENT_FIELDS], column 0 = kind."""
    return np.zeros((EVENTS_MAX, EVENT_FIELDS), dtype=np.int64)


@inlined
def emit(events, attention, kind, a, b=0, c=0, d=0, e=0):
    """Add an event; when the ring is full it is only counted. Returns 1 if it was kept."""
    n = attention[A_EVENTS]
    if n >= EVENTS_MAX:
        attention[A_LOST] += 1
        return 0
    events[n, 0], events[n, 1], events[n, 2] = kind, a, b
    events[n, 3], events[n, 4], events[n, 5] = c, d, e
    attention[A_EVENTS] = n + 1
    return 1
