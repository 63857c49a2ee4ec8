"""How a puller delivers: runs of records from blocks into member rings, new ones and again.

A run is records with contiguous tokens for one member: one copy, one frame. Whatever holds a record
back (its key waits, its share of keys moves, its member has no credit while another has) makes it a
HELD entry of the window, so that the cursor goes on past it, as far as the window reaches.
"""

from __future__ import annotations

from tidecast.agents.events import emit
from tidecast.agents.puller.state import (
    DEAD_ATTEMPTS,
    E_DEAD,
    E_HOSTILE,
    E_WINDOW,
    P_CYCLE,
    P_DUE_NS,
    P_STAMP,
    P_TOUCHED,
)
from tidecast.buffers.member_ring import HOSTILE, put_frame, reserve, room
from tidecast.layout import member as lay
from tidecast.layout import segment as seg
from tidecast.log.redriven import is_redriven
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    bytes_at,
    copy,
    load_i64,
    load_u8,
    load_u16,
    load_u32,
    store_i64,
    store_u8,
    store_u16,
    store_u32,
)
from tidecast.queues.cache import cursor as cu
from tidecast.queues.cache import window as wi
from tidecast.queues.cache.blocks import data_of, next_of_stream, record_at
from tidecast.queues.cache.cache import find_block, touch
from tidecast.queues.filters.filters import passes

SKIP, HOLD, STOP = -1, -2, -3
"""What becomes of a record that goes to no member now."""
STUCK = -1
_FRAME = lay.FRAME_HEADER_BYTES
_U32 = (1 << 32) - 1
_NEVER = (1 << 62) - 1


@inlined
def due(S, L, when_ns):
    """Look at the lane's timers at ``when_ns``, at the latest."""
    if L.timer_ns == 0 or when_ns < L.timer_ns:
        L.timer_ns = when_ns
    if when_ns < S.misc[P_DUE_NS]:
        S.misc[P_DUE_NS] = when_ns


@inlined
def credit_of(m, lane):
    """Records that may go to a member now; hysteresis: a full one stays full for a while."""
    if m.active == 0 or (m.fragment_lane >= 0 and m.fragment_lane != lane):
        return 0
    if m.full:
        low = m.in_flight_max - max(1, m.in_flight_max >> 3)
        low_bytes = m.in_flight_bytes_max - (m.in_flight_bytes_max >> 3)
        if m.in_flight > 0 and (m.in_flight > low or m.in_flight_bytes > low_bytes):
            return 0
        m.full = 0
    left = m.in_flight_max - m.in_flight
    if left <= 0 or (m.in_flight > 0 and m.in_flight_bytes >= m.in_flight_bytes_max):
        m.full = 1
        return 0
    return left


@inlined
def owner_of(S, L, lane, token, key_hash, keyed):
    """Which member gets a record; NOBODY, MOVING."""
    if L.owner >= 0:
        return L.owner
    if keyed:
        return S.owners[lane, share_of(key_hash)]
    best = cu.NOBODY
    for k in range(cu.SHARES):
        m = S.owners[lane, (token + k) & (cu.SHARES - 1)]
        if m < cu.MOVING:
            if credit_of(S.members[m], lane) > 0:
                return m
            best = m
    return best


@inlined
def share_of(key_hash):
    """The share of a lane's keys that a key belongs to."""
    return ((key_hash * 0x9E3779B1) >> 20) & (cu.SHARES - 1)


@inlined
def _anybody_has_credit(S, L, lane):
    for k in range(cu.SHARES):
        m = S.owners[lane, k]
        if m < cu.MOVING and credit_of(S.members[m], lane) > 0:
            return True
    return False


@inlined
def _restored(L, token):
    """What the saved position says of a token: -1 settled, 0 nothing, else its attempts."""
    rows = bytes_at(L.restored_address, L.restored_n * 24)
    while L.restored_left > 0:
        at = (L.restored_n - L.restored_left) * 24
        if load_i64(rows, at + 8) > token:
            return load_i64(rows, at + 16) if load_i64(rows, at) <= token else 0
        L.restored_left -= 1
    return 0


@inlined
def _choose(S, L, lane, data, p, token):
    """(the member that gets the record at ``p``, attempts before) or (SKIP, HOLD or STOP, 0)."""
    attempts = 0
    if L.restored_left > 0:
        attempts = _restored(L, token)
        if attempts < 0:
            return SKIP, 0
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    if (L.filter != 0 or word & seg.REC_ENGINE) and not passes(L, data, p):
        return SKIP, 0
    key_hash = load_u32(data, p + seg.REC_KEY_HASH_AT)
    keyed = word & seg.REC_KEY != 0
    if keyed and (L.again_n > 0 or L.counting > 0) and wi.key_is_held(L, key_hash):
        return HOLD, attempts
    member = owner_of(S, L, lane, token, key_hash, keyed)
    if member == cu.MOVING:
        return HOLD, attempts
    if member == cu.NOBODY:
        return STOP, 0
    if L.owner < 0 and credit_of(S.members[member], lane) == 0:
        if _anybody_has_credit(S, L, lane):
            return HOLD, attempts
        return STOP, 0
    return member, attempts


@inlined
def _hold(L, data, p, token, attempts):
    """Let the cursor pass a record that must wait."""
    win = wi.window_of(L)
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    keyed = wi.KEYED if word & seg.REC_KEY else 0
    key_hash = load_u32(data, p + seg.REC_KEY_HASH_AT)
    e = wi.entry_at(L, L.w_next)
    wi.push(
        L, win, token, 0, key_hash, word & seg.REC_LENGTH_MASK, wi.DONE | keyed, attempts,
        wi.NO_MEMBER, 0,
    )  # fmt: skip
    wi.enlist(L, win, e, wi.HELD, 0)
    L.held += 1


@inlined
def wait_for_credit(S, L, lane, reason):
    """The lane rests until a member of its subscription settles or makes room."""
    L.reason = reason
    cu.link(S, lane, cu.FOR_CREDIT, cu.CREDIT_CHAINS + L.sub)
    cu.park(S, L)


@inlined
def _touched(S, member):
    m = S.members[member]
    if m.touched == 0:
        m.touched = 1
        S.touched[S.misc[P_TOUCHED]] = member
        S.misc[P_TOUCHED] += 1


@inlined
def _no_room(S, L, lane, member, hostile):
    m = S.members[member]
    m.ring_full = 1
    if hostile and m.hostile == 0:
        m.hostile = 1
        emit(S.events, S.attention, E_HOSTILE, member, 0, 0, 0, 0)
    wait_for_credit(S, L, lane, cu.NO_ROOM)


@inlined
def lane_word(L, lane):
    """What frames call a lane."""
    return (L.generation << 32) | lane


@inlined
def _fragments(S, L, lane, member, data, p, size, token, attempts):
    """Send a large record piece by piece. True: all of it is out; its position is the head."""
    m = S.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    if m.fragment_lane == lane and m.fragment_token != token:
        _no_room(S, L, lane, member, False)
        return False
    if m.fragment_lane < 0:
        m.fragment_lane, m.fragment_token = lane, token
        L.fragment_at = 0
    most = m.deliveries_bytes >> 2
    while L.fragment_at < size:
        part = min(min(most, room(ring, m) - _FRAME), size - L.fragment_at)
        if part < size - L.fragment_at:
            part &= ~7
        if part <= 0:
            _no_room(S, L, lane, member, False)
            return False
        n = (_FRAME + part + 7) & ~7
        at = reserve(ring, m, n)
        if at < 0:
            _no_room(S, L, lane, member, at == HOSTILE)
            return False
        copy(ring, at + _FRAME, data, p + L.fragment_at, part)
        put_frame(
            ring, m, at, n, lay.FRAME_FRAGMENT, attempts, token, size, part, L.fragment_at,
            lane_word(L, lane),
        )  # fmt: skip
        _touched(S, member)
        L.fragment_at += part
    L.fragment_at = 0
    m.fragment_lane = -1
    return True


@inlined
def _account(S, L, member, n, size, deadline):
    m = S.members[member]
    m.in_flight += n
    m.in_flight_bytes += size
    m.delivered += n
    L.out += n
    L.delivered += n
    L.delivered_bytes += size
    S.queues[L.queue].consumed_bytes += size
    due(S, L, deadline)
    L.dirty = 1


@inlined
def _run_length(S, L, lane, B, data, i, limit, member, attempts, simple):
    """How many records from ``i`` on one frame takes, and their bytes."""
    m = S.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    limit = min(limit, credit_of(m, lane))
    half = (m.deliveries_bytes >> 1) - _FRAME
    space = min(room(ring, m) - _FRAME, half)
    few = m.deliveries_bytes >> 2
    allowed = m.in_flight_bytes_max - m.in_flight_bytes
    start = record_at(B, i)
    p = start
    n = 0
    while n < limit:
        if n > 0 and (record_at(B, i + n) != p or p - start >= few):
            break
        word = load_u32(data, p + seg.REC_LENGTH_AT)
        size = word & seg.REC_LENGTH_MASK
        if p - start + size > space:
            break
        if simple and n > 0 and word & seg.REC_ENGINE and is_redriven(data, p):
            break
        if p - start + size > allowed and (n > 0 or m.in_flight > 0):
            m.full = 1
            break
        if n > 0 and not simple:
            other, before = _choose(S, L, lane, data, p, L.next + n)
            if other != member or before + 1 != attempts:
                break
        n += 1
        p += size
    return n, p - start


@inlined
def deliver_run(S, L, lane, b, now, limit):
    """Deliver, hold back or pass over records at the cursor. How many it passed, or STUCK."""
    B = S.blocks[b]
    data = data_of(B)
    i = L.next - B.first
    p = record_at(B, i)
    limit = min(limit, min(B.end - L.next, wi.window_room(L)))
    simple = L.owner >= 0 and L.filter == 0 and L.restored_left == 0
    if L.again_n > 0 or L.counting > 0:
        simple = False
    if load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_ENGINE and is_redriven(data, p):
        simple = False
    member = L.owner
    attempts = 0
    if not simple:
        member, attempts = _choose(S, L, lane, data, p, L.next)
        if member == SKIP:
            L.filtered += 1
            L.next += 1
            L.dirty = 1
            return 1
        if member == HOLD:
            _hold(L, data, p, L.next, attempts)
            L.next += 1
            return 1
        if member == STOP:
            wait_for_credit(S, L, lane, cu.NO_CREDIT if L.owners > 0 else cu.NO_MEMBER)
            return STUCK
    m = S.members[member]
    if credit_of(m, lane) == 0:
        wait_for_credit(S, L, lane, cu.NO_CREDIT)
        return STUCK
    size = load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_LENGTH_MASK
    if size + _FRAME > m.deliveries_bytes >> 1:
        if not _fragments(S, L, lane, member, data, p, size, L.next, attempts + 1):
            return STUCK
        _enter(S, L, data, p, 1, member, attempts + 1, m.head - 1, now)
        L.next += 1
        return 1
    n, used = _run_length(S, L, lane, B, data, i, limit, member, attempts + 1, simple)
    if n == 0:
        if m.full:
            wait_for_credit(S, L, lane, cu.NO_CREDIT)
        else:
            _no_room(S, L, lane, member, False)
        return STUCK
    if not _send(S, L, lane, member, data, p, n, used, L.next, attempts + 1):
        return STUCK
    _enter(S, L, data, p, n, member, attempts + 1, m.head - _padded(used), now)
    L.next += n
    return n


@inlined
def _padded(used):
    return (used + 7) & ~7


@inlined
def _send(S, L, lane, member, data, p, n, used, token, attempts):
    """One frame of ``n`` records that lie at ``p``. False: no room."""
    m = S.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    frame = _FRAME + _padded(used)
    at = reserve(ring, m, frame)
    if at < 0:
        _no_room(S, L, lane, member, at == HOSTILE)
        return False
    copy(ring, at + _FRAME, data, p, used)
    put_frame(
        ring, m, at, frame, lay.FRAME_RECORDS, attempts, token, n, used, 0, lane_word(L, lane)
    )
    _touched(S, member)
    return True


@inlined
def _enter(S, L, data, p, n, member, attempts, position, now):
    """Note ``n`` records as outstanding; the first lies at ``position`` of the member's ring."""
    win = wi.window_of(L)
    deadline = now + L.ack_wait_ns
    start = p
    if L.counting > 0:
        wi.room_for_keys(L, win, n)
    for k in range(n):
        word = load_u32(data, p + seg.REC_LENGTH_AT)
        size = word & seg.REC_LENGTH_MASK
        keyed = wi.KEYED if word & seg.REC_KEY else 0
        wi.push(
            L, win, L.next + k, deadline, load_u32(data, p + seg.REC_KEY_HASH_AT), size,
            wi.OUT | keyed, attempts, member, (position + p - start) & _U32,
        )  # fmt: skip
        p += size
    if L.counting > 0:
        for w in range(L.w_next - n, L.w_next):
            wi.count_out(L, win, wi.entry_at(L, w), 1)
        wi.passed(L, n)
    _account(S, L, member, n, p - start, deadline)


# --- a stream's cursor --------------------------------------------------------------------------


@inlined
def skip_to_stream(S, L, b):
    """Move a stream's cursor to its next record in this block, or behind the block."""
    B = S.blocks[b]
    i = L.next - B.first
    found = next_of_stream(B, L.stream_hash, i)
    L.next = B.end if found < 0 else B.first + found
    return found >= 0


# --- again --------------------------------------------------------------------------------------


@inlined
def _met(S, key_hash):
    """Was this key met in this walk?"""
    mask = S.stamps.shape[0] - 1
    i = (key_hash * 0x9E3779B1) & mask
    stamp = S.misc[P_STAMP]
    while S.stamps[i, 1] == stamp:
        if S.stamps[i, 0] == key_hash:
            return True
        i = (i + 1) & mask
    return False


@inlined
def _meet(S, key_hash):
    mask = S.stamps.shape[0] - 1
    i = (key_hash * 0x9E3779B1) & mask
    stamp = S.misc[P_STAMP]
    while S.stamps[i, 1] == stamp:
        if S.stamps[i, 0] == key_hash:
            return
        i = (i + 1) & mask
    S.stamps[i, 0], S.stamps[i, 1] = key_hash, stamp


@inlined
def _again(S, L, lane, win, e, now):
    """Deliver one entry again (or the first time, if it was held back). True: it is out."""
    token = load_i64(win, e + wi.W_TOKEN)
    keyed = load_u8(win, e + wi.W_STATE) & wi.KEYED != 0
    member = owner_of(S, L, lane, token, load_u32(win, e + wi.W_HASH), keyed)
    if member >= cu.MOVING:
        if member == cu.NOBODY:
            wait_for_credit(S, L, lane, cu.NO_MEMBER)
        return False
    m = S.members[member]
    if credit_of(m, lane) == 0:
        wait_for_credit(S, L, lane, cu.NO_CREDIT)
        return False
    b = find_block(S, L.queue, token)
    if b < 0:
        cu.want(S, L, lane, token)
        return False
    touch(S, b, S.misc[P_CYCLE])
    B = S.blocks[b]
    data = data_of(B)
    p = record_at(B, token - B.first)
    size = load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_LENGTH_MASK
    attempts = min(load_u8(win, e + wi.W_ATTEMPTS) + 1, wi.ATTEMPTS_MAX)
    if size + _FRAME > m.deliveries_bytes >> 1:
        if not _fragments(S, L, lane, member, data, p, size, token, attempts):
            return False
        position = m.head - 1
    else:
        if not _send(S, L, lane, member, data, p, 1, size, token, attempts):
            return False
        position = m.head - _padded(size)
    if load_u8(win, e + wi.W_ATTEMPTS) > 0:
        L.redelivered += 1
    wi.set_state(win, e, wi.OUT)
    store_u8(win, e + wi.W_ATTEMPTS, attempts)
    store_u16(win, e + wi.W_MEMBER, member)
    store_u32(win, e + wi.W_POSITION, position & _U32)
    store_u32(win, e + wi.W_BYTES, size)
    store_i64(win, e + wi.W_DEADLINE, now + L.ack_wait_ns)
    wi.delist(L, win, e)
    if L.counting > 0:
        wi.count_out(L, win, e, 1)
    _account(S, L, member, 1, size, now + L.ack_wait_ns)
    return True


@inlined
def deliver_again(S, L, lane, now):
    """Deliver what is to be delivered (again), in token order, so in order of each key."""
    S.misc[P_STAMP] += 1
    win = wi.window_of(L)
    L.again_dirty = 0
    stalled = 0
    sent = 0
    left = L.again_n
    for w in range(L.w_first, L.w_next):
        if left == 0:
            break
        e = wi.entry_at(L, w)
        word = load_u8(win, e + wi.W_STATE)
        state = word & 7
        if state != wi.WAIT and state != wi.READY and state != wi.HELD:
            continue
        left -= 1
        keyed = word & wi.KEYED != 0
        key_hash = load_u32(win, e + wi.W_HASH)
        if keyed and (wi.key_is_recalled(L, key_hash) or _met(S, key_hash)):
            continue
        if state == wi.WAIT and load_i64(win, e + wi.W_DEADLINE) > now:
            if keyed:
                _meet(S, key_hash)
            continue
        if stalled < 64 and _again(S, L, lane, win, e, now):
            sent += 1
            continue
        stalled += 1
        if keyed:
            _meet(S, key_hash)
    if stalled > 0:
        L.again_dirty = 1
    return sent


# --- settling -----------------------------------------------------------------------------------


@inlined
def give_credit_back(S, win, e):
    """An entry is no longer at its member."""
    member = load_u16(win, e + wi.W_MEMBER)
    if member < lay.MEMBERS_MAX:
        m = S.members[member]
        m.in_flight -= 1
        m.in_flight_bytes -= load_u32(win, e + wi.W_BYTES)


@inlined
def leave_member(S, L, win, e):
    """OUT no more: DONE, unless the caller gives it another state."""
    give_credit_back(S, win, e)
    L.out -= 1
    wi.set_state(win, e, wi.DONE)
    if L.counting > 0:
        wi.count_out(L, win, e, -1)


@inlined
def bury(S, L, lane, win, e, now, reason):
    """No more deliveries: ask the shell to put it into the dead-letter topic."""
    wi.set_state(win, e, wi.DEAD)
    L.dead += 1
    L.dying += 1
    L.dirty = 1
    announce_dead(S, L, lane, win, e, now, reason)


@inlined
def announce_dead(S, L, lane, win, e, now, reason):
    """Tell the shell of a DEAD entry; again after a second, should it not settle it."""
    token = load_i64(win, e + wi.W_TOKEN)
    attempts = load_u8(win, e + wi.W_ATTEMPTS)
    store_i64(win, e + wi.W_DEADLINE, now + 1_000_000_000)
    store_u32(win, e + wi.W_POSITION, reason)
    due(S, L, now + 1_000_000_000)
    emit(S.events, S.attention, E_DEAD, lane, token, attempts, reason, L.generation)


@inlined
def fail(S, L, lane, win, e, now, due_ns, reason):
    """A delivery failed: again at ``due_ns`` (0: now), or no more when it was the last one."""
    attempts = load_u8(win, e + wi.W_ATTEMPTS)
    if L.deliveries_max > 0 and attempts >= L.deliveries_max:
        bury(S, L, lane, win, e, now, reason)
        return
    wi.enlist(L, win, e, wi.WAIT if due_ns > now else wi.READY, due_ns)
    if due_ns > now:
        due(S, L, due_ns)
    L.dirty = 1


@inlined
def grow_window(S, L, lane):
    """The window is full: ask for a larger one, or rest until its front settles."""
    L.reason = cu.WINDOW_FULL
    cu.park(S, L)
    if L.growing == 0 and L.window_mask + 1 < wi.WINDOW_MAX:
        if emit(S.events, S.attention, E_WINDOW, lane, L.generation, 0, 0, 0) > 0:
            L.growing = 1


DEFAULT_DEAD_REASON = DEAD_ATTEMPTS
