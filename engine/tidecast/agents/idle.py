"""An agent without work: it spins, then yields, then parks.

`busy` only spins, `block` parks at once, `backoff` does all three. Parking is the agent's own: it
knows what can wake it.
"""

from __future__ import annotations

from tidecast.native.atomics import pause
from tidecast.native.jit import inlined
from tidecast.native.system import syscalls as sys

BUSY, BACKOFF, BLOCK, ONCE = 0, 1, 2, 3
"""ONCE: one duty cycle, for agents that run inline."""
IDLE_NAMES = {"busy": BUSY, "backoff": BACKOFF, "block": BLOCK}
SPINS, YIELDS = 200, 20
PARK_NS_MAX = 20_000_000


@inlined
def time_to_park(idle, quiet):
    """Spin or yield as the strategy says after ``quiet`` cycles without work; True: park."""
    if idle == BUSY or (idle == BACKOFF and quiet < SPINS):
        pause()
        return False
    if idle == BACKOFF and quiet < SPINS + YIELDS:
        sys.sched_yield()
        return False
    return True
