"""How sender and receiver run: their loops with idle strategies, and both inline in one call.

A loop returns to Python only for events and commands (`A_STOP`). A parked agent is woken by its
doorbell (new packets, commands) or its sockets, and by its next timer at the latest.
"""

from __future__ import annotations

from tidecast.agents.events import A_EVENTS
from tidecast.agents.idle import (
    CONTINUE,
    PARK_NS_MAX,
    bell_of,
    park_at_bell,
    quiet_cycles,
    returns,
    time_to_park,
)
from tidecast.agents.live.images import M_COUNT as I_COUNT
from tidecast.agents.live.images import M_ROW as I_ROW
from tidecast.agents.live.images import M_SKIP0, M_SKIP1, M_SKIP2, M_UNREPORTED, RECEIVER
from tidecast.agents.live.publications import M_COUNT, M_POLL_SKIP, M_ROW, M_SENDER_BELL, SENDER
from tidecast.agents.live.receiver import receive_cycle
from tidecast.agents.live.sender import make_busy, send_cycle
from tidecast.buffers.slots import control_at, holds, ring_bell
from tidecast.layout import packet as wire
from tidecast.layout import ring as lay
from tidecast.layout.counters import Counter as C
from tidecast.native.atomics import (
    fence_seq_cst,
    fetch_or,
    load_acquire,
    load_relaxed,
)
from tidecast.native.jit import held_kernel, inlined, kernel
from tidecast.native.memory import bytes_at, load_u16
from tidecast.native.system import syscalls as sys
from tidecast.transport.faults import F_HELD

PARK_NS_PENDING = 50_000
PARK_NS_UNREPORTED = 500_000
ERROR_RECENT_NS = 2_000_000_000
sender_of, receiver_of = SENDER.of, RECEIVER.of
"""State from its words, inside a kernel."""
_ARMED = 1 << lay.SENDER_ARMED_BIT


@inlined
def _note_cycle(counters, row, took_ns):
    if took_ns > counters[row, C.DUTY_CYCLE_NS_MAX]:
        counters[row, C.DUTY_CYCLE_NS_MAX] = took_ns


@inlined
def _arm_sender(S, now_ns):
    """Arm every ring; how long we may sleep then (0: there is work)."""
    wait = PARK_NS_MAX
    for k in range(S.misc[M_COUNT]):
        p = S.index[k]
        pub = S.pubs[p]
        ring = bytes_at(pub.ring_address, pub.ring_bytes)
        if load_relaxed(ring, lay.ARMED_AT) & _ARMED == 0:
            fetch_or(ring, lay.ARMED_AT, _ARMED)
        if pub.resends > 0:
            return 0
        wait = min(wait, min(pub.beat_ns, pub.setup_ns, pub.check_ns) - now_ns)
    fence_seq_cst()
    for k in range(S.misc[M_COUNT]):
        p = S.index[k]
        pub = S.pubs[p]
        ring = bytes_at(pub.ring_address, pub.ring_bytes)
        word = load_acquire(ring, control_at(pub.sent, pub.slots - 1))
        if not holds(word, pub.sent):
            continue
        if word & lay.CONTROL_LENGTH_MASK > wire.PACKET_HEADER_BYTES or (
            (word >> lay.STATE_SHIFT) & 0xFF == lay.SEALED
        ):
            if pub.hold_until_ns > now_ns and now_ns - pub.error_ns < ERROR_RECENT_NS:
                wait = min(wait, pub.hold_until_ns - now_ns)
                continue
            if pub.blocked_ns == 0 and pub.quiet < 2:
                return 0
            make_busy(S, p)
            wait = min(wait, PARK_NS_PENDING)  # held back by a limit: look again soon
    return max(wait, 0)


@kernel
def run_sender(words, idle, scratch):
    """Run the sender until it is asked to stop or has events. Returns 1 for events, 0 for stop."""
    S = sender_of(words)
    quiet = 0
    now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    while True:
        work = send_cycle(S, now)
        if returns(S.attention) != CONTINUE:
            return returns(S.attention)
        then = now
        now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        if work > 0:
            _note_cycle(S.counters, S.misc[M_ROW], now - then)
        quiet = quiet_cycles(quiet, work)
        if not time_to_park(idle, quiet):
            continue
        line = S.misc[M_SENDER_BELL]
        seen = bell_of(S.bells, line)
        wait = _arm_sender(S, now)
        if park_at_bell(S.bells, line, seen, wait, S.attention, scratch):
            S.counters[S.misc[M_ROW], C.PARKS] += 1
            S.misc[M_POLL_SKIP] = 0
            now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)


@inlined
def _receiver_wait_ns(S, now_ns):
    wait = PARK_NS_MAX
    if S.misc[M_UNREPORTED] != 0:
        wait = PARK_NS_UNREPORTED
    if S.faults.settings[F_HELD] > 0:
        wait = min(wait, PARK_NS_PENDING)
    for k in range(S.misc[I_COUNT]):
        image = S.images[S.index[k]]
        wait = min(wait, image.status_ns - now_ns)
        if image.gaps > 0:
            wait = min(wait, image.nak_ns - now_ns)
        if image.want_setup_ns != 0:
            wait = min(wait, image.want_setup_ns - now_ns)
    return max(wait, 0)


@kernel
def run_receiver(words, idle, scratch, pollfds, polled, sender_bell):
    """Run the receiver until it is asked to stop or has events. Returns 1 for events, 0 for stop.

    ``pollfds``: struct pollfd of the receiving sockets, a wake-up descriptor, and last the sending
    socket: control packets that come back there are the sender's, so its bell is rung.
    """
    S = receiver_of(words)
    quiet = 0
    now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    while True:
        work = receive_cycle(S, now)
        if returns(S.attention) != CONTINUE:
            return returns(S.attention)
        then = now
        now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        if work > 0:
            _note_cycle(S.counters, S.misc[I_ROW], now - then)
        quiet = quiet_cycles(quiet, work)
        if not time_to_park(idle, quiet):
            continue
        wait = _receiver_wait_ns(S, now)
        if wait > 0:
            S.counters[S.misc[I_ROW], C.PARKS] += 1
            ready = sys.ppoll(pollfds, polled, wait, scratch)
            if ready > 0 and load_u16(pollfds, (polled - 1) * sys.POLLFD_BYTES + 6) != 0:
                ring_bell(S.bells, sender_bell)
                sys.sched_yield()
            now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
        S.misc[M_SKIP0] = 0
        S.misc[M_SKIP1] = 0
        S.misc[M_SKIP2] = 0


@kernel
def inline_agents(agents, now_ns):
    """Both agents once, in the caller's thread. How much was done; -1 when events wait.

    ``agents``: (sender's words, receiver's words, scratch). ``now_ns``: NOW or simulated.
    """
    sender, receiver, scratch = agents
    if now_ns == sys.NOW:
        now_ns = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
    tx_state, rx_state = sender_of(sender), receiver_of(receiver)
    work = send_cycle(tx_state, now_ns)
    work += receive_cycle(rx_state, now_ns)
    if tx_state.attention[A_EVENTS] > 0 or rx_state.attention[A_EVENTS] > 0:
        return -1
    return work


@held_kernel
def ring_bell_line(bells, line):
    """Ring a doorbell from Python."""
    ring_bell(bells, line)
