"""The steps of an agent's loop between two duty cycles: return for events, spin, yield, park.

`busy` only spins, `block` parks at once, `backoff` does all three. An agent parks at its doorbell
or its sockets. The agent chooses how long it parks, because it knows its timers, and arms its
wake-ups before.
"""

from __future__ import annotations

from tidecast.agents.events import A_EVENTS, A_STOP
from tidecast.layout import ring as lay
from tidecast.native.atomics import load_acquire_i32, pause
from tidecast.native.jit import inlined
from tidecast.native.memory import address_of
from tidecast.native.system import syscalls as sys

BUSY, BACKOFF, BLOCK, ONCE = 0, 1, 2, 3
"""ONCE: one duty cycle, for agents that run inline."""
IDLE_NAMES = {"busy": BUSY, "backoff": BACKOFF, "block": BLOCK}
SPINS, YIELDS = 200, 20
PARK_NS_MAX = 20_000_000
CONTINUE, STOP, EVENTS = -1, 0, 1
"""Whether a loop returns to Python, and the value that it returns then."""


@inlined
def returns(attention):
    """EVENTS: the shell handles them. STOP: a command waits, or the end. CONTINUE: next cycle."""
    if attention[A_EVENTS] > 0:
        return EVENTS
    if attention[A_STOP] != 0:
        return STOP
    return CONTINUE


@inlined
def quiet_cycles(quiet, work):
    """Number of cycles without work in a row, after a cycle that did ``work``."""
    return 0 if work > 0 else quiet + 1


@inlined
def bell_of(bells, line):
    """The value of a doorbell. Read it before you look for work: see `park_at_bell`."""
    return load_acquire_i32(bells, line * lay.DOORBELL_BYTES)


@inlined
def park_at_bell(bells, line, seen, wait_ns, attention, scratch):
    """Sleep until the doorbell's value is no longer ``seen``. False: no sleep was due."""
    if wait_ns <= 0 or attention[A_STOP] != 0:
        return False
    sys.futex_wait(address_of(bells) + line * lay.DOORBELL_BYTES, seen, wait_ns, scratch)
    return True


@inlined
def time_to_park(idle, quiet):
    """Spin or yield as the strategy says after ``quiet`` cycles without work; True: park."""
    if quiet == 0:
        return False
    if idle == BUSY or (idle == BACKOFF and quiet < SPINS):
        pause()
        return False
    if idle == BACKOFF and quiet < SPINS + YIELDS:
        sys.sched_yield()
        return False
    return True
