"""Kernels that the puller's shell calls: cycles, fetches, members, pause, seek, completion.

All of them run in the puller's thread, between two cycles.
"""

from __future__ import annotations

from tidecast.agents.events import A_EVENTS
from tidecast.agents.idle import (
    CONTINUE,
    ONCE,
    PARK_NS_MAX,
    STOP,
    bell_of,
    park_at_bell,
    quiet_cycles,
    returns,
    time_to_park,
)
from tidecast.agents.puller.cycle import (
    ACKS_MAX,
    finish_moves,
    note_owners,
    pull_cycle,
    puller_of,
    serve_member,
)
from tidecast.agents.puller.delivery import fail, leave_member
from tidecast.agents.puller.fetch import (
    DEFER,
    EXTEND,
    FRESH,
    NOTHING_WANTED,
    extensible,
    finish_fetch,
)
from tidecast.agents.puller.state import (
    DEAD_ATTEMPTS,
    P_BELL,
    P_CURSORS,
    P_CYCLE,
    P_DUE_NS,
    P_TIMER_NS,
    P_WALL_NS,
)
from tidecast.buffers.member_ring import take_back
from tidecast.layout import member as lay
from tidecast.native.atomics import (
    fence_seq_cst,
    load_relaxed,
    store_relaxed,
    store_release,
)
from tidecast.native.jit import held_kernel, inlined, kernel
from tidecast.native.memory import (
    bytes_at,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_u8,
)
from tidecast.native.system import syscalls as sys
from tidecast.queues.cache import cursors, window
from tidecast.queues.cache.cache import UNKNOWN, drop_block_of, drop_blocks, evict, give_block

UNSAVED_MAX = 10_000
"""Records of other streams that a waiting cursor may pass before its position is saved again."""

# --- running ------------------------------------------------------------------------------------


@inlined
def _anything(S):
    """Was anything said while we armed?"""
    for at in range(lay.WAKE_MEMBERS_AT, lay.WAKES_BYTES, 8):
        if load_relaxed(S.wakes, at) != 0:
            return True
    for i in range(S.ready.shape[0]):
        if S.ready[i] != 0:
            return True
    return False


@inlined
def _sleep_ns(S, now):
    """Time until the next check of timers, PARK_NS_MAX at most."""
    return max(min(PARK_NS_MAX, max(S.misc[P_DUE_NS], S.misc[P_TIMER_NS]) - now), 0)


@kernel
def run_puller(words, idle, scratch, now_ns):
    """Run the puller until it is stopped or has events. Returns 1 for events, else 0.

    ``now_ns`` other than 0: also until that time. With ``idle`` ONCE: one duty cycle at ``now_ns``,
    which returns the amount of work done, or -1 when events wait.
    """
    S = puller_of(words)
    quiet = 0
    while True:
        now = now_ns
        if idle != ONCE:
            now = sys.clock_ns(sys.CLOCK_MONOTONIC, scratch)
            S.misc[P_WALL_NS] = sys.clock_ns(sys.CLOCK_REALTIME, scratch) - now
        work = pull_cycle(S, now)
        if idle == ONCE:
            return -1 if S.attention[A_EVENTS] > 0 else work
        if returns(S.attention) != CONTINUE:
            return returns(S.attention)
        if 0 < now_ns <= now:
            return STOP
        quiet = quiet_cycles(quiet, work)
        if not time_to_park(idle, quiet):
            continue
        line = S.misc[P_BELL]
        seen = bell_of(S.bells, line)
        store_relaxed(S.wakes, lay.WAKE_ARMED_AT, 1)
        fence_seq_cst()
        if not _anything(S):
            wait = _sleep_ns(S, now)
            if now_ns > 0:
                wait = min(wait, now_ns - now)
            park_at_bell(S.bells, line, seen, wait, S.attention, scratch)
        store_relaxed(S.wakes, lay.WAKE_ARMED_AT, 0)


# --- fetching -----------------------------------------------------------------------------------


@held_kernel
def plan_fetch(words, q):
    """Where the next fetch of queue ``q`` is stored: (plan, token, block).

    EXTEND: behind the records of ``block``. FRESH: into ``block``, which was just evicted, or into
    a new block when it is -1. DEFER: ready cursors use all blocks, try again. NOTHING_WANTED.
    """
    S = puller_of(words)
    Q = S.queues[q]
    token = Q.want
    if token < 0:
        Q.fetching = 0
        return NOTHING_WANTED, token, -1
    b = extensible(S, q, token)
    if b >= 0:
        return EXTEND, token, b
    if Q.blocks < Q.blocks_max:
        return FRESH, token, -1
    b = evict(S, q, S.misc[P_CYCLE] + 1)
    if b < 0:
        return DEFER, token, -1
    return FRESH, token, b


@held_kernel
def steal_block(words, q):
    """Evict a block of another queue than ``q``, when none is spare; -1: all are in use.

    Takes the first queue behind ``q`` that has a block without ready cursors.
    """
    S = puller_of(words)
    for k in range(lay.QUEUES_MAX):
        other = (q + 1 + k) & (lay.QUEUES_MAX - 1)
        if S.queues[other].blocks > 0:
            b = evict(S, other, S.misc[P_CYCLE] + 1)
            if b >= 0:
                return b
    return -1


@held_kernel
def evict_block(words, q):
    """Give up one block of queue ``q``; -1: all are in use."""
    S = puller_of(words)
    return evict(S, q, S.misc[P_CYCLE] + 1)


@held_kernel
def end_fetch(words, q, b, fetched_bytes, records, end, fresh):
    """A fetch of queue ``q`` ended: wake waiting cursors. ``end``: behind its newest record."""
    finish_fetch(puller_of(words), q, b, fetched_bytes, records, end, fresh)
    return 0


@held_kernel
def jump_gap(words, q, token, first, out):
    """Records [token, first) of queue ``q`` are gone (retention): cursors there jump.

    ``out``: int64[n, 3] rows of cursor, first token, end: of records that it did not deliver yet,
    or was to deliver again. Returns how many; when ``out`` is full, call again for the others.
    """
    S = puller_of(words)
    n = 0
    for k in range(S.misc[P_CURSORS]):
        cursor = S.index[k]
        C = S.cursors[cursor]
        if C.queue != q:
            continue
        n = _drop_lost(C, cursor, token, first, out, n)
        if n == out.shape[0]:
            return n
        if token <= C.next and C.next < first:
            out[n, 0], out[n, 1], out[n, 2] = cursor, C.next, first
            C.next = first
            C.dirty = 1
            n += 1
        cursors.make_ready(S, cursor)
    return n


@held_kernel
def pass_hole(words, q, token, first, out):
    """No record of queue ``q`` has a token in [token, first): cursors there go to ``first``.

    ``out``: int64[n, 3] rows of cursor, token, the next: of records that were to be delivered again
    and are deleted. Returns how many there are; when it is full, call again for the others.
    """
    S = puller_of(words)
    n = 0
    for k in range(S.misc[P_CURSORS]):
        cursor = S.index[k]
        C = S.cursors[cursor]
        if C.queue != q:
            continue
        n = _drop_lost(C, cursor, token, first, out, n)
        if n == out.shape[0]:
            return n
        if token <= C.next < first:
            C.next, C.dirty = first, 1
        cursors.make_ready(S, cursor)
    return n


@inlined
def _waits(win, e):
    """Whether an entry waits for delivery (the first time, or again)."""
    state = window.state_of(win, e)
    return state == window.WAIT or state == window.READY or state == window.HELD


@inlined
def _drop_lost(C, cursor, token, first, out, n):
    """Complete waiting entries in [token, first), whose records are gone: ranges into ``out``.

    ``out`` has ``n`` rows; returns how many it has then. When it is full, entries may be left.
    """
    win = window.window_of(C)
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        lost = load_i64(win, e + window.W_TOKEN)
        if lost < token or lost >= first or not _waits(win, e):
            continue
        if n > 0 and out[n - 1, 0] == cursor and out[n - 1, 2] == lost:
            out[n - 1, 2] = lost + 1
        elif n == out.shape[0]:
            break
        else:
            out[n, 0], out[n, 1], out[n, 2] = cursor, lost, lost + 1
            n += 1
        window.delist(C, win, e)
        window.set_state(win, e, window.DONE)
        C.dirty = 1
    window.pop_done(C, win)
    return n


@held_kernel
def spare_block(words, b):
    """Block ``b``, which no queue holds, may be taken by any."""
    give_block(puller_of(words), b)


@held_kernel
def drop_queue_blocks(words, q):
    """Give up all blocks of a queue. Returns how many."""
    return drop_blocks(puller_of(words), q)


@held_kernel
def drop_one_block(words, q, b):
    """Give up one block whose bytes are damaged."""
    drop_block_of(puller_of(words), q, b)


# --- cursors and members --------------------------------------------------------------------------


@held_kernel
def cursor_ready(words, cursor):
    """Make a cursor ready, so that it checks its entries again."""
    S = puller_of(words)
    S.cursors[cursor].again_dirty = 1
    cursors.make_ready(S, cursor)


@held_kernel
def pause_cursor(words, cursor, bits):
    """Pause (bits not 0) or resume a cursor. Its block and its window stay."""
    S = puller_of(words)
    S.cursors[cursor].paused = bits
    S.cursors[cursor].again_dirty = 1
    cursors.make_ready(S, cursor)


@held_kernel
def share_cursor(words, cursor, heirs):
    """Give a cursor's shares of keys to ``heirs`` (uint16[64]).

    A share whose owner is alive and has outstanding records moves once they are completed.
    """
    S = puller_of(words)
    C = S.cursors[cursor]
    C.moving = 0
    for share in range(cursors.SHARES):
        old, new = S.owners[cursor, share], heirs[share]
        S.heirs[cursor, share] = new
        alive = old == cursors.MOVING or (old < cursors.MOVING and S.members[old].active != 0)
        if old != new and alive:
            S.owners[cursor, share] = cursors.MOVING
            C.moving += 1
        else:
            S.owners[cursor, share] = new
    C.again_dirty = 1
    finish_moves(S, cursor, C)


@inlined
def _read_acks(S, member, now_ns):
    """Read the acks that a member has written until now: one ring full of acks at most."""
    for _ in range(1 + S.members[member].acks_bytes // (ACKS_MAX * lay.ACK_FRAME_BYTES)):
        if serve_member(S, member, now_ns) == 0:
            break


@held_kernel
def read_acks(words, cursor, now_ns):
    """Read the acks that the members of a cursor's subscription have written until now.

    The last duty cycle may have begun before they wrote them.
    """
    S = puller_of(words)
    for member in range(S.members.shape[0]):
        m = S.members[member]
        if m.active != 0 and m.sub == S.cursors[cursor].sub:
            _read_acks(S, member, now_ns)


@held_kernel
def drop_member(words, member, now_ns):
    """A member is gone: its outstanding records are delivered to other members.

    A record that the member never took does not count as an attempt. A record that it took counts:
    the record may be the reason why the member died.
    """
    S = puller_of(words)
    m = S.members[member]
    _read_acks(S, member, now_ns)  # acks that it wrote before it left are valid
    m.active = 0
    n = 0
    for k in range(S.misc[P_CURSORS]):
        cursor = S.index[k]
        C = S.cursors[cursor]
        if C.sub != m.sub:
            continue
        win = window.window_of(C)
        for w in range(C.w_first, C.w_next):
            e = window.entry_at(C, w)
            if (
                window.state_of(win, e) != window.OUT
                or load_u16(win, e + window.W_MEMBER) != member
            ):
                continue
            leave_member(S, C, win, e)
            untaken = ((m.taken - load_u32(win, e + window.W_POSITION)) & 0xFFFFFFFF) - 1 >= 1 << 31
            if untaken:
                attempts = load_u8(win, e + window.W_ATTEMPTS)
                store_u8(win, e + window.W_ATTEMPTS, max(0, attempts - 1))
                window.enlist(C, win, e, window.READY, 0)
            else:
                fail(S, C, cursor, win, e, now_ns, 0, DEAD_ATTEMPTS)
            C.dirty = 1
            n += 1
        if m.fragment_cursor == cursor:
            C.fragment_at = 0
        cursors.make_ready(S, cursor)
    m.fragment_cursor = -1
    m.touched = 0
    store_release(bytes_at(m.ring_address, m.ring_bytes), lay.MEM_STATE_AT, lay.MEM_DETACHED)
    return n


@held_kernel
def seek_cursor(words, cursor, token):
    """Move a cursor to another token. Returns how many records were at members: all are forgotten.

    Frames that members have not taken are taken back; later acks of the other records are stale.
    """
    S = puller_of(words)
    C = S.cursors[cursor]
    win = window.window_of(C)
    forgotten = C.out
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        state = window.state_of(win, e)
        if state == window.OUT:
            leave_member(S, C, win, e)
        elif state != window.DONE and state != window.DEAD:
            window.delist(C, win, e)
        window.set_state(win, e, window.DONE)
    window.pop_done(C, win)
    for k in range(S.members.shape[0]):
        m = S.members[k]
        if m.active == 0 or m.sub != C.sub:
            continue
        if m.fragment_cursor == cursor:
            m.fragment_cursor = -1
        take_back(bytes_at(m.ring_address, m.ring_bytes), m, S.bells, cursor)
    cursors.unpark(S, C)
    cursors.unlink(S, cursor, cursors.FOR_QUEUE)
    C.generation += 1
    C.next, C.fragment_at, C.timer_ns, C.dirty, C.dying = token, 0, 0, 1, 0
    C.restored_n, C.restored_left = 0, 0
    S.queues[C.queue].end = UNKNOWN
    if C.moving > 0:
        finish_moves(S, cursor, C)  # they waited for acks that will be stale
    cursors.make_ready(S, cursor)
    return forgotten


@held_kernel
def complete_dead(words, cursor, generation, token):
    """Complete a DEAD record: it is in the dead-letter topic, or it was dropped and reported."""
    S = puller_of(words)
    C = S.cursors[cursor]
    if C.active == 0 or C.generation != generation:
        return False
    win = window.window_of(C)
    e = window.entry_at(C, window.first_at_or_behind(C, win, token))
    if load_i64(win, e + window.W_TOKEN) != token or window.state_of(win, e) != window.DEAD:
        return False
    window.set_state(win, e, window.DONE)
    C.dying -= 1
    C.settled += 1
    C.dirty = 1
    window.pop_done(C, win)
    if C.reason == cursors.WINDOW_FULL:
        cursors.make_ready(S, cursor)
    return True


@held_kernel
def remove_cursor(words, cursor):
    """Take a cursor out of every chain and table."""
    S = puller_of(words)
    C = S.cursors[cursor]
    win = window.window_of(C)
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        if window.state_of(win, e) == window.OUT:
            leave_member(S, C, win, e)
    cursors.unlink(S, cursor, cursors.FOR_QUEUE)
    cursors.unlink(S, cursor, cursors.FOR_CREDIT)
    cursors.unpark(S, C)
    S.ready[cursor >> 6] &= ~(1 << (cursor & 63))
    C.active = 0
    C.generation += 1
    n = S.misc[P_CURSORS]
    for k in range(n):
        if S.index[k] == cursor:
            S.index[k] = S.index[n - 1]
            S.misc[P_CURSORS] = n - 1
            return


@held_kernel
def position_of(words, cursor):
    """(watermark, next token to deliver) of a cursor."""
    S = puller_of(words)
    C = S.cursors[cursor]
    if cursors.catch_up(S, C, cursor) >= UNSAVED_MAX:
        C.dirty = 1
    return window.watermark(C, window.window_of(C)), C.next


@held_kernel
def oldest_due(words, cursor):
    """The first token that is not completed and does not wait for its delivery time."""
    S = puller_of(words)
    C = S.cursors[cursor]
    win = window.window_of(C)
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        if window.state_of(win, e) == window.DONE:
            continue
        if load_u8(win, e + window.W_STATE) & window.SCHEDULED == 0:
            return load_i64(win, e + window.W_TOKEN)
    return C.next


@held_kernel
def refresh_owners(words, cursor):
    """Recompute a cursor's short cuts after its owners were written from Python."""
    S = puller_of(words)
    note_owners(S, cursor, S.cursors[cursor])


@held_kernel
def hurry_timers(words):
    """Look at the timers in the next cycle."""
    S = puller_of(words)
    S.misc[P_TIMER_NS], S.misc[P_DUE_NS] = 0, 0
