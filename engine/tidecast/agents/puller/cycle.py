"""The puller: one agent that serves every cursor (subscription in a queue) of a node.

One duty cycle reads acks and free room of members, notes queues that grew, and checks timers. Then
it serves each ready cursor: redeliveries first, then new records, up to a budget. Cursors that
cannot continue wait in chains, so a cycle costs only its work. When a cursor needs a log, a file
or a decision, the shell gets an event; that cursor waits meanwhile, and the others continue.
"""

from __future__ import annotations

from tidecast.agents.events import A_EVENTS, EVENTS_MAX, emit
from tidecast.agents.puller.delivery import (
    announce_dead,
    bury,
    credit_of,
    deliver_again,
    deliver_run,
    fail,
    leave_member,
    make_room,
    owner_of,
    share_of,
    skip_to_stream,
    waits_until,
)
from tidecast.agents.puller.fetch import ask_shell, fetch_here, read_ahead
from tidecast.agents.puller.state import (
    DEAD_ATTEMPTS,
    DEAD_TERM,
    DEAD_TIMEOUT,
    E_HOSTILE,
    NEVER_NS,
    P_CURSORS,
    P_CYCLE,
    P_DISCARD,
    P_DUE_NS,
    P_ROTATE,
    P_TIMER_NS,
    P_TOUCHED,
    PULLER,
    SAMPLES,
)
from tidecast.agents.puller.stream_scan import scan_streams
from tidecast.buffers.member_ring import HOSTILE, NOTHING, next_ack, pass_ack, publish, set_wake
from tidecast.layout import member as lay
from tidecast.native.atomics import (
    exchange,
    load_acquire,
    load_relaxed,
    store_release,
)
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    address_of,
    bytes_at,
    copy,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i64,
    store_u8,
)
from tidecast.queues.cache import cursors, window
from tidecast.queues.cache.cache import UNKNOWN, drop_block_of
from tidecast.queues.filters.filters import STREAM

puller_of = PULLER.of
BUDGET = 4096
"""Records that a cursor may pass in one turn."""
TIMER_GRAIN_NS, TIMER_CURSOR_NS, TIMER_ENTRY_NS = 2_000_000, 1_000, 16
"""Time between two checks of all timers; more time for each cursor, and for each entry checked: a
check costs some 15 ns a cursor and 1 ns an entry."""
ACKS_MAX = 4096
_ACKS_AHEAD = 2
NAK_DELAY_NS_MAX = 7 * 24 * 3600 * 1_000_000_000

# --- members ------------------------------------------------------------------------------------


@inlined
def _note_taken(S, member, ring, now):
    """See how far the client has taken records; keep some history of it for time-outs."""
    m = S.members[member]
    taken = load_acquire(ring, lay.MEM_TAKEN_AT)
    if taken <= m.taken or taken > m.head + 1:
        return
    last = S.samples[member, (m.sample - 1) % SAMPLES, 1] if m.sample > 0 else -m.sample_ns
    if now - last >= m.sample_ns or m.sample == 0:
        S.samples[member, m.sample % SAMPLES, 0] = taken
        S.samples[member, m.sample % SAMPLES, 1] = now
        m.sample += 1
    m.taken, m.taken_ns = taken, now


@inlined
def _taken_since(S, member, position):
    """When the client took the record at ``position`` (32 bits), never too early; -1: not yet.

    The client does not process a record that it has not taken, so `ack_wait` does not run yet.
    """
    m = S.members[member]
    if ((m.taken - position) & 0xFFFFFFFF) - 1 >= 1 << 31:
        return -1
    for k in range(max(0, m.sample - SAMPLES), m.sample):
        sample = S.samples[member, k % SAMPLES, 0]
        if ((sample - position) & 0xFFFFFFFF) - 1 < 1 << 31:
            return S.samples[member, k % SAMPLES, 1]
    return m.taken_ns


@inlined
def _ack(S, C, win, first, end, member):
    """ACK: complete all delivered records in [first, end). Returns how many."""
    n = 0
    w = window.first_at_or_behind(C, win, first)
    while w < C.w_next:
        e = window.entry_at(C, w)
        if load_i64(win, e + window.W_TOKEN) >= end:
            break
        state = window.state_of(win, e)
        if state == window.OUT:
            leave_member(S, C, win, e)
            n += 1
        elif (state == window.WAIT or state == window.READY) and load_u8(
            win, e + window.W_ATTEMPTS
        ) > 0:
            window.delist(C, win, e)  # it was given up on, but was worked at after all
            window.set_state(win, e, window.DONE)
            n += 1
        w += 1
    if n > 0:
        C.settled += n
        C.dirty = 1
        window.pop_done(C, win)
    S.members[member].acked += n
    return n


@inlined
def _one_ack(S, cursor, C, ring, at, member, now):
    """Apply an ack frame to its cursor. Tokens that are not outstanding here count as late."""
    m = S.members[member]
    kind = load_u16(ring, at + lay.ACK_KIND_AT)
    first, end = load_i64(ring, at + lay.ACK_FIRST_AT), load_i64(ring, at + lay.ACK_END_AT)
    time_ns = min(max(load_i64(ring, at + lay.ACK_TIME_AT), 0), NAK_DELAY_NS_MAX)
    win = window.window_of(C)
    if kind == lay.ACK:
        if _ack(S, C, win, first, end, member) == 0:
            m.late += 1
        return
    w = window.first_at_or_behind(C, win, first)
    while w < C.w_next:
        e = window.entry_at(C, w)
        if load_i64(win, e + window.W_TOKEN) >= end:
            break
        w += 1
        if window.state_of(win, e) != window.OUT or load_u16(win, e + window.W_MEMBER) != member:
            m.late += 1
            continue
        if kind == lay.EXTEND:
            deadline = now + (time_ns if time_ns > 0 else C.ack_wait_ns)
            store_i64(win, e + window.W_DEADLINE, deadline)
            continue
        leave_member(S, C, win, e)
        if kind == lay.NAK:
            C.naks += 1
            window.recall_key(C, win, e)
            fail(S, C, cursor, win, e, now, now + time_ns if time_ns > 0 else 0, DEAD_ATTEMPTS)
        elif kind == lay.RETURN:
            attempts = load_u8(win, e + window.W_ATTEMPTS)
            store_u8(win, e + window.W_ATTEMPTS, max(0, attempts - 1))
            window.recall_key(C, win, e)
            window.enlist(C, win, e, window.READY, 0)
            C.dirty = 1
        else:
            events = S.attention[A_EVENTS]
            if events < EVENTS_MAX:
                n = min(load_u16(ring, at + lay.ACK_REASON_BYTES_AT), lay.ACK_REASON_BYTES_MAX - 2)
                reason = bytes_at(address_of(S.reasons[events]), lay.ACK_REASON_BYTES_MAX)
                store_u8(reason, 0, n & 255)
                store_u8(reason, 1, n >> 8)
                copy(reason, 2, ring, at + lay.ACK_FRAME_BYTES, n)
            bury(S, C, cursor, win, e, now, DEAD_TERM)


@inlined
def _after_acks(S, cursor, C):
    """A cursor's entries changed: move shares and make the cursor ready, if either waited."""
    if C.owner < 0 and C.moving > 0:
        finish_moves(S, cursor, C)
    if C.reason == cursors.WINDOW_FULL or (C.again_n > 0 and C.again_dirty > 0):
        cursors.make_ready(S, cursor)


@inlined
def _ask_ahead(S, m, ring, at):
    """Prefetch the cursor of an ack some frames ahead, and the window of a nearer ack.

    The bytes there may be no ack: they are only used for the prefetch.
    """
    near = at + _ACKS_AHEAD * lay.ACK_FRAME_BYTES + lay.ACK_CURSOR_AT
    far = near + _ACKS_AHEAD * lay.ACK_FRAME_BYTES
    if far + 8 > lay.MEMBER_HEADER_BYTES + m.deliveries_bytes + m.acks_bytes:
        return
    cursor = load_u32(ring, near)
    if cursor < cursors.CURSORS_MAX:
        C = S.cursors[cursor]
        window.ask_for_window(C, C.w_first)
    cursor = load_u32(ring, far)
    if cursor < cursors.CURSORS_MAX:
        cursors.ask_for_cursor(S, cursor)


@inlined
def serve_member(S, member, now):
    """Read a member's ring: acks, taken position, released room. Returns acks read."""
    m = S.members[member]
    if m.active == 0:
        return 0
    ring = bytes_at(m.ring_address, m.ring_bytes)
    _note_taken(S, member, ring, now)
    n = 0
    last = -1
    while n < ACKS_MAX:
        at = next_ack(ring, m)
        if at == NOTHING:
            break
        if at == HOSTILE:
            if m.hostile == 0:
                m.hostile = 1
                emit(S.events, S.attention, E_HOSTILE, member)
            break
        if S.attention[A_EVENTS] >= EVENTS_MAX - 8:
            break  # each may bring an event: let the shell take those first
        _ask_ahead(S, m, ring, at)
        word = load_i64(ring, at + lay.ACK_CURSOR_AT)
        cursor = word & 0xFFFFFFFF
        if (
            cursor < cursors.CURSORS_MAX
            and S.cursors[cursor].active
            and (S.cursors[cursor].generation == word >> 32 and S.cursors[cursor].sub == m.sub)
        ):
            if last >= 0 and last != cursor:
                _after_acks(S, last, S.cursors[last])
            last = cursor
            _one_ack(S, cursor, S.cursors[cursor], ring, at, member, now)
        else:
            m.stale += 1
        pass_ack(ring, m, at)
        n += 1
    if last >= 0:
        _after_acks(S, last, S.cursors[last])
    if n > 0:
        store_release(ring, lay.MEM_ACKS_READ_AT, m.acks_read)
    if m.ring_full:
        released = load_acquire(ring, lay.MEM_RELEASED_AT)
        used = m.head - released
        if used <= m.deliveries_bytes - (m.deliveries_bytes >> 2):
            m.ring_full = 0
    if m.ring_full == 0 and credit_of(m, m.fragment_cursor) > 0:
        cursors.wake_chain(S, cursors.FOR_CREDIT, cursors.CREDIT_CHAINS + m.sub)
    if n == ACKS_MAX or S.attention[A_EVENTS] >= EVENTS_MAX - 8:
        set_wake(S.wakes, lay.WAKE_MEMBERS_AT, member)
    return n


@inlined
def finish_moves(S, cursor, C):
    """Hand over shares whose old owner has nothing outstanding any more."""
    busy = 0
    win = window.window_of(C)
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        if window.state_of(win, e) == window.OUT:
            if load_u8(win, e + window.W_STATE) & window.KEYED:
                busy |= 1 << share_of(load_u32(win, e + window.W_HASH))
    for share in range(cursors.SHARES):
        if S.owners[cursor, share] == cursors.MOVING and (busy >> share) & 1 == 0:
            S.owners[cursor, share] = S.heirs[cursor, share]
            C.moving -= 1
            C.again_dirty = 1
    note_owners(S, cursor, C)
    cursors.make_ready(S, cursor)


@inlined
def note_owners(S, cursor, C):
    """Recompute ``owner`` (the member that owns all shares, or -1) and ``owners`` (shares)."""
    first = S.owners[cursor, 0]
    same = True
    others = 0
    for share in range(cursors.SHARES):
        owner = S.owners[cursor, share]
        if owner != first:
            same = False
        if owner < cursors.MOVING:
            others += 1
    C.owner = first if same and first < cursors.MOVING else -1
    C.owners = others


# --- timers -------------------------------------------------------------------------------------


@inlined
def _would_get_it(S, C, cursor, win, e, member):
    """Whether an entry would go to ``member`` again, which has it: a second copy is useless."""
    keyed = load_u8(win, e + window.W_STATE) & window.KEYED != 0
    token = load_i64(win, e + window.W_TOKEN)
    return owner_of(S, C, cursor, token, load_u32(win, e + window.W_HASH), keyed) == member


@inlined
def look_at_timers(S, cursor, C, now):
    """Time out entries that members hold too long; note entries that are due. Sets the timer."""
    win = window.window_of(C)
    soonest = UNKNOWN
    for w in range(C.w_first, C.w_next):
        e = window.entry_at(C, w)
        state = window.state_of(win, e)
        if state == window.DONE or state == window.READY or state == window.HELD:
            continue
        deadline = load_i64(win, e + window.W_DEADLINE)
        if load_u8(win, e + window.W_STATE) & window.SCHEDULED:
            deadline = waits_until(S, now, deadline)
            if deadline == 0:
                window.begin_scheduled(C, win, e)
                continue
        if deadline > now:
            soonest = min(soonest, deadline)
            continue
        if state == window.WAIT:
            window.set_state(win, e, window.READY)
            C.again_dirty = 1
            continue
        if state == window.DEAD:
            if S.attention[A_EVENTS] < EVENTS_MAX:  # the first report has the reason
                store_u8(bytes_at(address_of(S.reasons[S.attention[A_EVENTS]]), 2), 0, 0)
                store_u8(bytes_at(address_of(S.reasons[S.attention[A_EVENTS]]), 2), 1, 0)
            announce_dead(S, C, cursor, win, e, now, load_u32(win, e + window.W_POSITION))
            soonest = min(soonest, now + 1_000_000_000)
            continue
        member = load_u16(win, e + window.W_MEMBER)
        m = S.members[member]
        _note_taken(S, member, bytes_at(m.ring_address, m.ring_bytes), now)
        taken_ns = _taken_since(S, member, load_u32(win, e + window.W_POSITION))
        since = m.taken_ns if taken_ns < 0 else taken_ns
        if since + C.ack_wait_ns > now:
            store_i64(win, e + window.W_DEADLINE, since + C.ack_wait_ns)
            soonest = min(soonest, since + C.ack_wait_ns)
            continue
        if taken_ns < 0 and _would_get_it(S, C, cursor, win, e, member):
            store_i64(win, e + window.W_DEADLINE, now + C.ack_wait_ns)
            soonest = min(soonest, now + C.ack_wait_ns)
            continue
        leave_member(S, C, win, e)
        C.timeouts += 1
        if taken_ns < 0:  # it never was in the user's hands: that was no attempt
            store_u8(win, e + window.W_ATTEMPTS, max(0, load_u8(win, e + window.W_ATTEMPTS) - 1))
            window.enlist(C, win, e, window.READY, 0)
        else:
            fail(S, C, cursor, win, e, now, 0, DEAD_TIMEOUT)
    C.timer_ns = 0 if soonest == UNKNOWN else soonest
    if C.moving > 0:
        finish_moves(S, cursor, C)
    if C.again_dirty > 0:
        cursors.make_ready(S, cursor)


@inlined
def _timers(S, now):
    work = 0
    S.misc[P_DUE_NS] = NEVER_NS
    for k in range(S.misc[P_CURSORS]):
        cursor = S.index[k]
        C = S.cursors[cursor]
        if C.timer_ns != 0 and C.timer_ns <= now:
            S.misc[P_TIMER_NS] += (C.w_next - C.w_first) * TIMER_ENTRY_NS
            look_at_timers(S, cursor, C, now)
            window.pop_done(C, window.window_of(C))
            work += 1
        if C.timer_ns != 0:
            S.misc[P_DUE_NS] = min(S.misc[P_DUE_NS], C.timer_ns)
    return work


# --- cursors --------------------------------------------------------------------------------------


@inlined
def serve_cursor(S, cursor, now):
    """Serve a cursor. Returns records passed; the cursor stays ready when it can pass more."""
    C = S.cursors[cursor]
    if C.active == 0:
        return 0
    cursors.unpark(S, C)
    if C.paused != 0:
        C.reason = cursors.PAUSED
        if S.misc[P_DISCARD] and C.block >= 0:
            drop_block_of(S, C.queue, C.block)
        cursors.park(S, C)
        return 0
    if C.owners == 0 and C.moving == 0:
        C.reason = cursors.NO_MEMBER
        cursors.park(S, C)
        return 0
    cursors.catch_up(S, C, cursor)
    cursors.unlink(S, cursor, cursors.FOR_QUEUE)
    cursors.unlink(S, cursor, cursors.FOR_CREDIT)
    C.reason = cursors.FLOWING
    done = 0
    if C.again_n > 0 and C.again_dirty > 0:
        done += deliver_again(S, C, cursor, now)
    cycle = S.misc[P_CYCLE]
    while done < BUDGET:
        if window.window_room(C) == 0 and not make_room(S, C, cursor):
            return done
        if C.next >= S.queues[C.queue].end:
            cursors.want(S, C, cursor, C.next)
            return done
        b = cursors.block_of(S, C, cycle)
        if b < 0:
            if C.filter == STREAM and cursors.may_follow(S, C):
                cursors.follow(S, C, cursor)
            else:
                cursors.want(S, C, cursor, C.next)
            return done
        if C.filter == STREAM and not skip_to_stream(S, C, b):
            done += 1
            if cursors.may_follow(S, C):
                cursors.follow(S, C, cursor)
                return done
            continue
        n = deliver_run(S, C, cursor, b, now, BUDGET - done)
        if n <= 0:
            return done
        done += n
        if S.queues[C.queue].reader_address == 0 and S.misc[P_DISCARD] == 0:
            read_ahead(S, C)
    if C.block >= 0:
        S.blocks[C.block].hot = cycle + 1
    cursors.make_ready(S, cursor)
    return done


@inlined
def _lowest_bit(word):
    """Number of the lowest bit set of a word that is not 0."""
    n = 0
    if word & 0xFFFFFFFF == 0:
        n += 32
        word >>= 32
    if word & 0xFFFF == 0:
        n += 16
        word >>= 16
    if word & 0xFF == 0:
        n += 8
        word >>= 8
    while word & 1 == 0:
        n += 1
        word >>= 1
    return n


@inlined
def _ready_cursors(S, now):
    """Serve each ready cursor, beginning behind the cursor that was first in the last cycle.

    Cursors share a member's credit, and the first cursor may use all of it.
    """
    work, first = 0, -1
    words = S.ready.shape[0] if S.misc[P_CURSORS] > 0 else 0
    start = S.misc[P_ROTATE]
    above = -1 << (start & 63)
    for k in range(words + 1 if words > 0 else 0):
        i = (start >> 6) + k
        if i >= words:
            i -= words
        word = S.ready[i]
        if k == 0:
            word &= above
        elif k == words:
            word &= ~above
        if word == 0:
            continue
        S.ready[i] &= ~word
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            if first < 0:
                first = i * 64 + bit
            work += serve_cursor(S, i * 64 + bit, now)
    if first >= 0:
        S.misc[P_ROTATE] = first + 1 if first + 1 < words * 64 else 0
    return work


@inlined
def _woken(S, now):
    """Members and queues whose bits are set."""
    work = 0
    for i in range(lay.MEMBERS_MAX // 64):
        at = lay.WAKE_MEMBERS_AT + i * 8
        if load_relaxed(S.wakes, at) == 0:
            continue
        word = exchange(S.wakes, at, 0)
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            work += serve_member(S, i * 64 + bit, now)
    for i in range(lay.QUEUES_MAX // 64):
        at = lay.WAKE_QUEUES_AT + i * 8
        if load_relaxed(S.wakes, at) == 0:
            continue
        word = exchange(S.wakes, at, 0)
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            cursors.queue_grew(S, i * 64 + bit)
            work += 1
    return work


@inlined
def _scan_streams(S, now):
    """Scan new records of queues whose cursors of one stream wait."""
    work = 0
    for i in range(S.scanning.shape[0]):
        word = S.scanning[i]
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            work += scan_streams(S, i * 64 + bit, now, BUDGET)
    return work


@inlined
def _fetches(S):
    """Fetch the blocks that cursors wait for: once, after all had their turn. Blocks fetched."""
    work = 0
    for i in range(S.wanting.shape[0]):
        word = S.wanting[i]
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            q = i * 64 + bit
            Q = S.queues[q]
            if Q.fetching == 0 and Q.want >= 0:
                Q.grew = 0
                done = fetch_here(S, q) if Q.reader_address != 0 else -1
                if done >= 0:
                    work += done
                    continue
                if not ask_shell(S, q):
                    return work
            S.wanting[i] &= ~(1 << bit)
    return work


@inlined
def pull_cycle(S, now):
    """One duty cycle. Returns the amount of work done."""
    S.misc[P_CYCLE] += 1
    work = _woken(S, now)
    if now >= S.misc[P_TIMER_NS]:
        S.misc[P_TIMER_NS] = now + TIMER_GRAIN_NS + S.misc[P_CURSORS] * TIMER_CURSOR_NS
        if S.misc[P_DUE_NS] <= now:
            work += _timers(S, now)
    work += _scan_streams(S, now)
    work += _ready_cursors(S, now)
    for k in range(S.misc[P_TOUCHED]):
        m = S.members[S.touched[k]]
        m.touched = 0
        if m.active:
            publish(bytes_at(m.ring_address, m.ring_bytes), m, S.bells)
    S.misc[P_TOUCHED] = 0
    return work + _fetches(S)
