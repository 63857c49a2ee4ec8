"""The puller: one agent that serves every lane (subscription in a queue) of a node.

One duty cycle: what members wrote (acks, room), which queues grew, timers, then each ready lane in
turn: what is to be delivered again, then new records, up to a budget. Lanes that cannot go on wait
in chains, so the cost of a cycle is that of its work. What needs a log, a file or a decision goes
to the shell as an event; the lanes concerned wait meanwhile, the others go on.
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
    grow_window,
    leave_member,
    owner_of,
    share_of,
    skip_to_stream,
)
from tidecast.agents.puller.fetch import ask_shell, fetch_here, read_ahead
from tidecast.agents.puller.scouting import scout
from tidecast.agents.puller.state import (
    DEAD_ATTEMPTS,
    DEAD_TERM,
    DEAD_TIMEOUT,
    E_HOSTILE,
    NEVER_NS,
    P_CYCLE,
    P_DISCARD,
    P_DUE_NS,
    P_LANES,
    P_ROTATE,
    P_TIMER_NS,
    P_TOUCHED,
    PULLER,
    SAMPLES,
)
from tidecast.buffers.member_ring import HOSTILE, NOTHING, next_ack, pass_ack, publish
from tidecast.layout import member as lay
from tidecast.native.atomics import (
    exchange,
    load_acquire,
    load_relaxed,
    store_relaxed,
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
from tidecast.queues.cache import cursor as cu
from tidecast.queues.cache import window as wi
from tidecast.queues.cache.cache import UNKNOWN, drop_block_of
from tidecast.queues.filters.filters import STREAM

puller_of = PULLER.of
BUDGET = 4096
"""Records that one lane may pass in its turn."""
TIMER_GRAIN_NS, TIMER_LANE_NS = 2_000_000, 1_000
"""Between two looks at all lanes' timers, and more of it a lane: a look costs some 15 ns a lane."""
ACKS_MAX = 4096
_ACKS_AHEAD = 2
NAK_DELAY_NS_MAX = 7 * 24 * 3600 * 1_000_000_000
BUSY, BACKOFF, BLOCK = 0, 1, 2
SPINS, YIELDS = 200, 20
PARK_NS_MAX = 20_000_000

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
def _taken_since(S, member, position, now):
    """When the client took the record at ``position`` (32 bits), rather late; -1: not yet.

    A record that lies in the ring untaken is not being worked at, so its `ack_wait` does not run.
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
def _settle(S, L, win, first, end, member):
    """ACK: settle all that is delivered in [first, end). How many were."""
    n = 0
    w = wi.first_at_or_behind(L, win, first)
    while w < L.w_next:
        e = wi.entry_at(L, w)
        if load_i64(win, e + wi.W_TOKEN) >= end:
            break
        state = wi.state_of(win, e)
        if state == wi.OUT:
            leave_member(S, L, win, e)
            n += 1
        elif (state == wi.WAIT or state == wi.READY) and load_u8(win, e + wi.W_ATTEMPTS) > 0:
            wi.delist(L, win, e)  # it was given up on, but was worked at after all
            wi.set_state(win, e, wi.DONE)
            n += 1
        w += 1
    if n > 0:
        L.settled += n
        L.dirty = 1
        wi.pop_settled(L, win)
    S.members[member].acked += n
    return n


@inlined
def _one_ack(S, lane, L, ring, at, member, now):
    """Apply one ack frame to its lane. Tokens that are not outstanding at this member are late."""
    m = S.members[member]
    kind = load_u16(ring, at + lay.ACK_KIND_AT)
    first, end = load_i64(ring, at + lay.ACK_FIRST_AT), load_i64(ring, at + lay.ACK_END_AT)
    time_ns = min(max(load_i64(ring, at + lay.ACK_TIME_AT), 0), NAK_DELAY_NS_MAX)
    win = wi.window_of(L)
    if kind == lay.ACK:
        if _settle(S, L, win, first, end, member) == 0:
            m.late += 1
        return
    w = wi.first_at_or_behind(L, win, first)
    while w < L.w_next:
        e = wi.entry_at(L, w)
        if load_i64(win, e + wi.W_TOKEN) >= end:
            break
        w += 1
        if wi.state_of(win, e) != wi.OUT or load_u16(win, e + wi.W_MEMBER) != member:
            m.late += 1
            continue
        if kind == lay.EXTEND:
            deadline = now + (time_ns if time_ns > 0 else L.ack_wait_ns)
            store_i64(win, e + wi.W_DEADLINE, deadline)
            continue
        leave_member(S, L, win, e)
        if kind == lay.NAK:
            L.naks += 1
            wi.recall_key(L, win, e)
            fail(S, L, lane, win, e, now, now + time_ns if time_ns > 0 else 0, DEAD_ATTEMPTS)
        elif kind == lay.RETURN:
            attempts = load_u8(win, e + wi.W_ATTEMPTS)
            store_u8(win, e + wi.W_ATTEMPTS, max(0, attempts - 1))
            wi.recall_key(L, win, e)
            wi.enlist(L, win, e, wi.READY, 0)
            L.dirty = 1
        else:
            events = S.attention[A_EVENTS]
            if events < EVENTS_MAX:
                n = min(load_u16(ring, at + lay.ACK_REASON_BYTES_AT), lay.ACK_REASON_BYTES_MAX - 2)
                reason = bytes_at(address_of(S.reasons[events]), lay.ACK_REASON_BYTES_MAX)
                store_u8(reason, 0, n & 255)
                store_u8(reason, 1, n >> 8)
                copy(reason, 2, ring, at + lay.ACK_FRAME_BYTES, n)
            bury(S, L, lane, win, e, now, DEAD_TERM)


@inlined
def _after_acks(S, lane, L):
    """A lane's entries changed: go on with what waited for that."""
    if L.owner < 0 and L.moving > 0:
        finish_moves(S, lane, L)
    if L.reason == cu.WINDOW_FULL or (L.again_n > 0 and L.again_dirty > 0):
        cu.make_ready(S, lane)


@inlined
def _ask_ahead(S, m, ring, at):
    """Ask for the lane of an ack some frames ahead, and for the window of one less far.

    What lies there may be no ack at all: nothing is done with it.
    """
    near = at + _ACKS_AHEAD * lay.ACK_FRAME_BYTES + lay.ACK_LANE_AT
    far = near + _ACKS_AHEAD * lay.ACK_FRAME_BYTES
    if far + 8 > lay.MEMBER_HEADER_BYTES + m.deliveries_bytes + m.acks_bytes:
        return
    lane = load_u32(ring, near)
    if lane < cu.LANES_MAX:
        L = S.lanes[lane]
        wi.ask_for_window(L, L.w_first)
    lane = load_u32(ring, far)
    if lane < cu.LANES_MAX:
        cu.ask_for_lane(S, lane)


@inlined
def serve_member(S, member, now):
    """Read what a member wrote: acks, how far it has taken, room it made. Acks read."""
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
                emit(S.events, S.attention, E_HOSTILE, member, 0, 0, 0, 0)
            break
        if S.attention[A_EVENTS] >= EVENTS_MAX - 8:
            break  # each may bring an event: let the shell take those first
        _ask_ahead(S, m, ring, at)
        word = load_i64(ring, at + lay.ACK_LANE_AT)
        lane = word & 0xFFFFFFFF
        if (
            lane < cu.LANES_MAX
            and S.lanes[lane].active
            and (S.lanes[lane].generation == word >> 32 and S.lanes[lane].sub == m.sub)
        ):
            if last >= 0 and last != lane:
                _after_acks(S, last, S.lanes[last])
            last = lane
            _one_ack(S, lane, S.lanes[lane], ring, at, member, now)
        else:
            m.stale += 1
        pass_ack(ring, m, at)
        n += 1
    if last >= 0:
        _after_acks(S, last, S.lanes[last])
    if n > 0:
        store_release(ring, lay.MEM_SETTLED_AT, m.settled)
    if m.ring_full:
        released = load_acquire(ring, lay.MEM_RELEASED_AT)
        used = m.head - released
        if used <= m.deliveries_bytes - (m.deliveries_bytes >> 2):
            m.ring_full = 0
    if m.ring_full == 0 and credit_of(m, m.fragment_lane) > 0:
        cu.wake_chain(S, cu.FOR_CREDIT, cu.CREDIT_CHAINS + m.sub)
    if n == ACKS_MAX or S.attention[A_EVENTS] >= EVENTS_MAX - 8:
        _wake_again(S, member)
    return n


@inlined
def _wake_again(S, member):
    at = lay.WAKE_MEMBERS_AT + (member >> 6) * 8
    store_relaxed(S.wakes, at, load_relaxed(S.wakes, at) | 1 << (member & 63))


@inlined
def finish_moves(S, lane, L):
    """Hand over shares whose old owner has nothing outstanding any more."""
    busy = 0
    win = wi.window_of(L)
    for w in range(L.w_first, L.w_next):
        e = wi.entry_at(L, w)
        if wi.state_of(win, e) == wi.OUT:
            if load_u8(win, e + wi.W_STATE) & wi.KEYED:
                busy |= 1 << share_of(load_u32(win, e + wi.W_HASH))
    for share in range(cu.SHARES):
        if S.owners[lane, share] == cu.MOVING and (busy >> share) & 1 == 0:
            S.owners[lane, share] = S.heirs[lane, share]
            L.moving -= 1
            L.again_dirty = 1
    note_owners(S, lane, L)
    cu.make_ready(S, lane)


@inlined
def note_owners(S, lane, L):
    """Recompute the short cuts: is there one owner of everything, how many are there?"""
    first = S.owners[lane, 0]
    same = True
    others = 0
    for share in range(cu.SHARES):
        owner = S.owners[lane, share]
        if owner != first:
            same = False
        if owner < cu.MOVING:
            others += 1
    L.owner = first if same and first < cu.MOVING else -1
    L.owners = others


# --- timers -------------------------------------------------------------------------------------


@inlined
def _would_get_it(S, L, lane, win, e, member):
    """Would an entry go to ``member``, in whose ring it lies? A second copy there helps nobody."""
    keyed = load_u8(win, e + wi.W_STATE) & wi.KEYED != 0
    token = load_i64(win, e + wi.W_TOKEN)
    return owner_of(S, L, lane, token, load_u32(win, e + wi.W_HASH), keyed) == member


@inlined
def look_at_timers(S, lane, L, now):
    """Time out what its member holds too long; notice what is due again. Sets the next time."""
    win = wi.window_of(L)
    soonest = UNKNOWN
    for w in range(L.w_first, L.w_next):
        e = wi.entry_at(L, w)
        state = wi.state_of(win, e)
        if state == wi.DONE or state == wi.READY or state == wi.HELD:
            continue
        deadline = load_i64(win, e + wi.W_DEADLINE)
        if deadline > now:
            soonest = min(soonest, deadline)
            continue
        if state == wi.WAIT:
            wi.set_state(win, e, wi.READY)
            L.again_dirty = 1
            continue
        if state == wi.DEAD:
            if S.attention[A_EVENTS] < EVENTS_MAX:  # who was told of it first has the reason
                store_u8(bytes_at(address_of(S.reasons[S.attention[A_EVENTS]]), 2), 0, 0)
                store_u8(bytes_at(address_of(S.reasons[S.attention[A_EVENTS]]), 2), 1, 0)
            announce_dead(S, L, lane, win, e, now, load_u32(win, e + wi.W_POSITION))
            soonest = min(soonest, now + 1_000_000_000)
            continue
        member = load_u16(win, e + wi.W_MEMBER)
        m = S.members[member]
        _note_taken(S, member, bytes_at(m.ring_address, m.ring_bytes), now)
        taken_ns = _taken_since(S, member, load_u32(win, e + wi.W_POSITION), now)
        since = m.taken_ns if taken_ns < 0 else taken_ns
        if since + L.ack_wait_ns > now:
            store_i64(win, e + wi.W_DEADLINE, since + L.ack_wait_ns)
            soonest = min(soonest, since + L.ack_wait_ns)
            continue
        if taken_ns < 0 and _would_get_it(S, L, lane, win, e, member):
            store_i64(win, e + wi.W_DEADLINE, now + L.ack_wait_ns)
            soonest = min(soonest, now + L.ack_wait_ns)
            continue
        leave_member(S, L, win, e)
        L.timeouts += 1
        if taken_ns < 0:  # it never was in the user's hands: that was no attempt
            store_u8(win, e + wi.W_ATTEMPTS, max(0, load_u8(win, e + wi.W_ATTEMPTS) - 1))
            wi.enlist(L, win, e, wi.READY, 0)
        else:
            fail(S, L, lane, win, e, now, 0, DEAD_TIMEOUT)
    L.timer_ns = 0 if soonest == UNKNOWN else soonest
    if L.moving > 0:
        finish_moves(S, lane, L)
    if L.again_dirty > 0:
        cu.make_ready(S, lane)


@inlined
def _timers(S, now):
    work = 0
    S.misc[P_DUE_NS] = NEVER_NS
    for k in range(S.misc[P_LANES]):
        lane = S.index[k]
        L = S.lanes[lane]
        if L.timer_ns != 0 and L.timer_ns <= now:
            look_at_timers(S, lane, L, now)
            wi.pop_settled(L, wi.window_of(L))
            work += 1
        if L.timer_ns != 0:
            S.misc[P_DUE_NS] = min(S.misc[P_DUE_NS], L.timer_ns)
    return work


# --- lanes --------------------------------------------------------------------------------------


@inlined
def serve_lane(S, lane, now):
    """One turn of a lane. How many records it passed; it is ready again when it could do more."""
    L = S.lanes[lane]
    if L.active == 0:
        return 0
    cu.unpark(S, L)
    if L.paused != 0:
        L.reason = cu.PAUSED
        if S.misc[P_DISCARD] and L.block >= 0:
            drop_block_of(S, L.queue, L.block)
        cu.park(S, L)
        return 0
    if L.owners == 0 and L.moving == 0:
        L.reason = cu.NO_MEMBER
        cu.park(S, L)
        return 0
    cu.catch_up(S, L, lane)
    cu.unlink(S, lane, cu.FOR_QUEUE)
    cu.unlink(S, lane, cu.FOR_CREDIT)
    L.reason = cu.FLOWING
    done = 0
    if L.again_n > 0 and L.again_dirty > 0:
        done += deliver_again(S, L, lane, now)
    cycle = S.misc[P_CYCLE]
    while done < BUDGET:
        if wi.window_room(L) == 0:
            grow_window(S, L, lane)
            return done
        if L.next >= S.queues[L.queue].end:
            cu.want(S, L, lane, L.next)
            return done
        b = cu.block_of(S, L, cycle)
        if b < 0:
            if L.filter == STREAM and cu.may_follow(S, L):
                cu.follow(S, L, lane)
            else:
                cu.want(S, L, lane, L.next)
            return done
        if L.filter == STREAM and not skip_to_stream(S, L, b):
            done += 1
            if cu.may_follow(S, L):
                cu.follow(S, L, lane)
                return done
            continue
        n = deliver_run(S, L, lane, b, now, BUDGET - done)
        if n <= 0:
            return done
        done += n
        if S.queues[L.queue].reader_address == 0 and S.misc[P_DISCARD] == 0:
            read_ahead(S, L)
    if L.block >= 0:
        S.blocks[L.block].hot = cycle + 1
    cu.make_ready(S, lane)
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
def _ready_lanes(S, now):
    """Give each lane that is ready its turn. First is the next one behind who was it last time.

    Lanes share a member's credit, and the first may get all of it.
    """
    work, first = 0, -1
    words = S.ready.shape[0] if S.misc[P_LANES] > 0 else 0
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
            work += serve_lane(S, i * 64 + bit, now)
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
            work += 1 + serve_member(S, i * 64 + bit, now)
    for i in range(lay.QUEUES_MAX // 64):
        at = lay.WAKE_QUEUES_AT + i * 8
        if load_relaxed(S.wakes, at) == 0:
            continue
        word = exchange(S.wakes, at, 0)
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            cu.queue_grew(S, i * 64 + bit)
            work += 1
    return work


@inlined
def _scouts(S, now):
    """Look at new records for the lanes that follow one stream each."""
    work = 0
    for i in range(S.scouting.shape[0]):
        word = S.scouting[i]
        while word != 0:
            bit = _lowest_bit(word)
            word &= ~(1 << bit)
            work += scout(S, i * 64 + bit, now, BUDGET)
    return work


@inlined
def _fetches(S):
    """Fetch the blocks that lanes wait for: once, after all had their turn. Blocks fetched."""
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
    """One duty cycle. How much was done."""
    S.misc[P_CYCLE] += 1
    work = _woken(S, now)
    if now >= S.misc[P_TIMER_NS]:
        S.misc[P_TIMER_NS] = now + TIMER_GRAIN_NS + S.misc[P_LANES] * TIMER_LANE_NS
        if S.misc[P_DUE_NS] <= now:
            work += _timers(S, now)
    work += _scouts(S, now)
    work += _ready_lanes(S, now)
    for k in range(S.misc[P_TOUCHED]):
        m = S.members[S.touched[k]]
        m.touched = 0
        if m.active:
            publish(bytes_at(m.ring_address, m.ring_bytes), m, S.bells)
    S.misc[P_TOUCHED] = 0
    return work + _fetches(S)
