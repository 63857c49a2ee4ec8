"""How a puller delivers: it copies runs of records from blocks into member rings.

A run is records with contiguous tokens for one member: one copy, one frame. A record that must wait
(for earlier records of its key, for its share of keys to move, for its member's credit while
another member has credit) becomes a HELD entry of the window, so the cursor continues past it, as
far as the window reaches.
"""

from __future__ import annotations

from tidecast.agents.events import emit
from tidecast.agents.puller.state import (
    E_DEAD,
    E_GONE,
    E_HOSTILE,
    E_WINDOW,
    P_CYCLE,
    P_DUE_NS,
    P_STAMP,
    P_TOUCHED,
    P_WALL_NS,
)
from tidecast.buffers.member_ring import HOSTILE, Frame, put_frame, reserve, room
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
from tidecast.queues.cache import cursors, window
from tidecast.queues.cache.blocks import HOLE, data_of, next_of_stream, record_at
from tidecast.queues.cache.cache import find_block, touch
from tidecast.queues.filters.filters import passes
from tidecast.queues.filters.scheduled import deliver_at

SKIP, HOLD, STOP, LATER = -1, -2, -3, -4
"""Why a record goes to no member now."""
STUCK = -1
_FRAME = lay.FRAME_HEADER_BYTES
_U32 = (1 << 32) - 1
STALLED_MAX = 64
"""A walk over waiting entries ends after so many that could not go to their member: a walk over
100,000 entries that were all due cost 92 us, for each record."""
SCHEDULE_LOOK_NS = 10_000_000_000
"""How often delivery times are compared with the clock again, which may have been set."""


@inlined
def due(S, C, when_ns):
    """Check the cursor's timers at ``when_ns``, at the latest."""
    if C.timer_ns == 0 or when_ns < C.timer_ns:
        C.timer_ns = when_ns
    if when_ns < S.misc[P_DUE_NS]:
        S.misc[P_DUE_NS] = when_ns


@inlined
def waits_until(S, now, due_ns):
    """When to check a record again that is due at ``due_ns`` since 1970; 0: it is due now."""
    left = due_ns - S.misc[P_WALL_NS] - now
    return 0 if left <= 0 else now + min(left, SCHEDULE_LOOK_NS)


@inlined
def credit_of(m, cursor):
    """Records that may go to a member now; hysteresis: a full member stays full for a while."""
    if m.active == 0 or (m.fragment_cursor >= 0 and m.fragment_cursor != cursor):
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
def owner_of(S, C, cursor, token, key_hash, keyed):
    """The member that gets a record; or `NOBODY`, `MOVING`."""
    if C.owner >= 0:
        return C.owner
    if keyed:
        return S.owners[cursor, share_of(key_hash)]
    best = cursors.NOBODY
    for k in range(cursors.SHARES):
        m = S.owners[cursor, (token + k) & (cursors.SHARES - 1)]
        if m < cursors.MOVING:
            if credit_of(S.members[m], cursor) > 0:
                return m
            best = m
    return best


@inlined
def share_of(key_hash):
    """The share of a cursor's keys that a key belongs to."""
    return ((key_hash * 0x9E3779B1) >> 20) & (cursors.SHARES - 1)


@inlined
def _anybody_has_credit(S, cursor):
    for k in range(cursors.SHARES):
        m = S.owners[cursor, k]
        if m < cursors.MOVING and credit_of(S.members[m], cursor) > 0:
            return True
    return False


@inlined
def _restored(C, token):
    """State of a token in the saved position: -1 completed, 0 unknown, else its attempts."""
    rows = bytes_at(C.restored_address, C.restored_n * 24)
    while C.restored_left > 0:
        at = (C.restored_n - C.restored_left) * 24
        if load_i64(rows, at + 8) > token:
            return load_i64(rows, at + 16) if load_i64(rows, at) <= token else 0
        C.restored_left -= 1
    return 0


@inlined
def _choose(S, C, cursor, data, p, token, now):
    """(the member that gets the record at ``p``, attempts before), or a number below 0 and 0."""
    attempts = 0
    if C.restored_left > 0:
        attempts = _restored(C, token)
        if attempts < 0:
            return SKIP, 0
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    if (C.filter != 0 or word & seg.REC_ENGINE) and not passes(C, data, p):
        return SKIP, 0
    if attempts == 0 and word & seg.REC_HEADERS and waits_until(S, now, deliver_at(data, p)) > 0:
        return LATER, 0
    key_hash = load_u32(data, p + seg.REC_KEY_HASH_AT)
    keyed = word & seg.REC_KEY != 0
    if keyed and (C.again_n > C.scheduled or C.counting > 0) and window.key_is_held(C, key_hash):
        return HOLD, attempts
    member = owner_of(S, C, cursor, token, key_hash, keyed)
    if member == cursors.MOVING:
        return HOLD, attempts
    if member == cursors.NOBODY:
        return STOP, 0
    if C.owner < 0 and credit_of(S.members[member], cursor) == 0:
        if _anybody_has_credit(S, cursor):
            return HOLD, attempts
        return STOP, 0
    return member, attempts


@inlined
def _hold(C, data, p, token, attempts):
    """Let the cursor pass a record that must wait."""
    win = window.window_of(C)
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    keyed = window.KEYED if word & seg.REC_KEY else 0
    key_hash = load_u32(data, p + seg.REC_KEY_HASH_AT)
    e = window.entry_at(C, C.w_next)
    window.push(
        C,
        win,
        token,
        0,
        key_hash,
        word & seg.REC_LENGTH_MASK,
        window.DONE | keyed,
        attempts,
        window.NO_MEMBER,
        0,
    )
    window.enlist(C, win, e, window.HELD, 0)
    C.held += 1


@inlined
def _schedule(S, C, data, p, token, now):
    """Let the cursor pass a record whose delivery time is to come."""
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    due_ns = deliver_at(data, p)
    window.schedule(
        C,
        window.window_of(C),
        token,
        due_ns,
        load_u32(data, p + seg.REC_KEY_HASH_AT),
        word & seg.REC_LENGTH_MASK,
        word & seg.REC_KEY != 0,
    )
    due(S, C, waits_until(S, now, due_ns))


@inlined
def wait_for_credit(S, C, cursor, reason):
    """The cursor rests until a member of its subscription acks records or frees room."""
    C.reason = reason
    cursors.link(S, cursor, cursors.FOR_CREDIT, cursors.CREDIT_CHAINS + C.sub)
    cursors.park(S, C)


@inlined
def _touched(S, member):
    m = S.members[member]
    if m.touched == 0:
        m.touched = 1
        S.touched[S.misc[P_TOUCHED]] = member
        S.misc[P_TOUCHED] += 1


@inlined
def _no_room(S, C, cursor, member, hostile):
    m = S.members[member]
    m.ring_full = 1
    if hostile and m.hostile == 0:
        m.hostile = 1
        emit(S.events, S.attention, E_HOSTILE, member)
    wait_for_credit(S, C, cursor, cursors.NO_ROOM)


@inlined
def cursor_word(C, cursor):
    """The name of a cursor in frames."""
    return (C.generation << 32) | cursor


@inlined
def _fragments(S, C, cursor, member, data, p, size, token, attempts):
    """Send a large record piece by piece. True: all of it is out; its position is the head."""
    m = S.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    if m.fragment_cursor == cursor and m.fragment_token != token:
        _no_room(S, C, cursor, member, False)
        return False
    if m.fragment_cursor < 0:
        m.fragment_cursor, m.fragment_token = cursor, token
        C.fragment_at = 0
    most = m.deliveries_bytes >> 2
    while C.fragment_at < size:
        part = min(min(most, room(ring, m) - _FRAME), size - C.fragment_at)
        if part < size - C.fragment_at:
            part &= ~7
        if part <= 0:
            _no_room(S, C, cursor, member, False)
            return False
        n = (_FRAME + part + 7) & ~7
        at = reserve(ring, m, n)
        if at < 0:
            _no_room(S, C, cursor, member, at == HOSTILE)
            return False
        copy(ring, at + _FRAME, data, p + C.fragment_at, part)
        word = cursor_word(C, cursor)
        frame = Frame(lay.FRAME_FRAGMENT, attempts, word, token, size, part, C.fragment_at)
        put_frame(ring, m, at, n, frame)
        _touched(S, member)
        C.fragment_at += part
    C.fragment_at = 0
    m.fragment_cursor = -1
    return True


@inlined
def _account(S, C, member, n, size, deadline):
    m = S.members[member]
    m.in_flight += n
    m.in_flight_bytes += size
    m.delivered += n
    C.out += n
    C.delivered += n
    C.delivered_bytes += size
    S.queues[C.queue].consumed_bytes += size
    due(S, C, deadline)
    C.dirty = 1


@inlined
def _run_length(S, C, cursor, B, i, limit, member, attempts, simple, now):
    """How many records from ``i`` on fit into one frame, and their bytes."""
    data = data_of(B)
    m = S.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    limit = min(limit, credit_of(m, cursor))
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
        if simple and n > 0 and _is_special(S, data, p, word, now):
            break
        if p - start + size > allowed and (n > 0 or m.in_flight > 0):
            m.full = 1
            break
        if n > 0 and not simple:
            other, before = _choose(S, C, cursor, data, p, C.next + n, now)
            if other != member or before + 1 != attempts:
                break
        n += 1
        p += size
    return n, p - start


@inlined
def _is_special(S, data, p, word, now):
    """Whether also cursors without a filter check the record at ``p``: redriven, or not due."""
    if word & seg.REC_HEADERS == 0:
        return False
    if word & seg.REC_ENGINE and is_redriven(data, p):
        return True
    return waits_until(S, now, deliver_at(data, p)) > 0


@inlined
def _pass_hole(C, B, i):
    """Advance past a hole: each is followed by a record of the block. Returns tokens passed."""
    k = 1
    while record_at(B, i + k) == HOLE:
        k += 1
    C.next += k
    C.dirty = 1
    return k


@inlined
def deliver_run(S, C, cursor, b, now, limit):
    """Deliver, hold back or skip records at the cursor. Returns tokens passed, or STUCK."""
    B = S.blocks[b]
    data = data_of(B)
    i = C.next - B.first
    p = record_at(B, i)
    if p == HOLE:
        return _pass_hole(C, B, i)
    limit = min(limit, min(B.end - C.next, window.window_room(C)))
    simple = C.owner >= 0 and C.filter == 0 and C.restored_left == 0
    if C.again_n > C.scheduled or C.counting > 0:
        simple = False
    if simple and _is_special(S, data, p, load_u32(data, p + seg.REC_LENGTH_AT), now):
        simple = False
    member = C.owner
    attempts = 0
    if not simple:
        member, attempts = _choose(S, C, cursor, data, p, C.next, now)
        if member == LATER:
            _schedule(S, C, data, p, C.next, now)
            C.next += 1
            return 1
        if member == SKIP:
            C.filtered += 1
            C.next += 1
            C.dirty = 1
            return 1
        if member == HOLD:
            _hold(C, data, p, C.next, attempts)
            C.next += 1
            return 1
        if member == STOP:
            wait_for_credit(S, C, cursor, cursors.NO_CREDIT if C.owners > 0 else cursors.NO_MEMBER)
            return STUCK
    m = S.members[member]
    if credit_of(m, cursor) == 0:
        wait_for_credit(S, C, cursor, cursors.NO_CREDIT)
        return STUCK
    size = load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_LENGTH_MASK
    if size + _FRAME > m.deliveries_bytes >> 1:
        if not _fragments(S, C, cursor, member, data, p, size, C.next, attempts + 1):
            return STUCK
        _enter(S, C, data, p, 1, member, attempts + 1, m.head - 1, now)
        C.next += 1
        return 1
    n, used = _run_length(S, C, cursor, B, i, limit, member, attempts + 1, simple, now)
    if n == 0:
        if m.full:
            wait_for_credit(S, C, cursor, cursors.NO_CREDIT)
        else:
            _no_room(S, C, cursor, member, False)
        return STUCK
    if not _send(S, C, cursor, member, data, p, n, used, C.next, attempts + 1):
        return STUCK
    _enter(S, C, data, p, n, member, attempts + 1, m.head - _padded(used), now)
    C.next += n
    return n


@inlined
def _padded(used):
    return (used + 7) & ~7


@inlined
def _send(S, C, cursor, member, data, p, n, used, token, attempts):
    """Write one frame with the ``n`` records at ``p``. False: no room."""
    m = S.members[member]
    ring = bytes_at(m.ring_address, m.ring_bytes)
    whole = _FRAME + _padded(used)
    at = reserve(ring, m, whole)
    if at < 0:
        _no_room(S, C, cursor, member, at == HOSTILE)
        return False
    copy(ring, at + _FRAME, data, p, used)
    word = cursor_word(C, cursor)
    put_frame(ring, m, at, whole, Frame(lay.FRAME_RECORDS, attempts, word, token, n, used, 0))
    _touched(S, member)
    return True


@inlined
def _enter(S, C, data, p, n, member, attempts, position, now):
    """Note ``n`` records as outstanding; the first is at ``position`` of the member's ring."""
    win = window.window_of(C)
    deadline = now + C.ack_wait_ns
    start = p
    if C.counting > 0:
        window.room_for_keys(C, win, n)
    for k in range(n):
        word = load_u32(data, p + seg.REC_LENGTH_AT)
        size = word & seg.REC_LENGTH_MASK
        keyed = window.KEYED if word & seg.REC_KEY else 0
        window.push(
            C,
            win,
            C.next + k,
            deadline,
            load_u32(data, p + seg.REC_KEY_HASH_AT),
            size,
            window.OUT | keyed,
            attempts,
            member,
            (position + p - start) & _U32,
        )
        p += size
    if C.counting > 0:
        for w in range(C.w_next - n, C.w_next):
            window.count_out(C, win, window.entry_at(C, w), 1)
        window.passed(C, n)
    _account(S, C, member, n, p - start, deadline)


# --- a stream's cursor --------------------------------------------------------------------------


@inlined
def skip_to_stream(S, C, b):
    """Move a stream's cursor to its next record in this block, or behind the block."""
    B = S.blocks[b]
    i = C.next - B.first
    found = next_of_stream(B, C.stream_hash, i)
    C.next = B.end if found < 0 else B.first + found
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
def _note_gone(S, C, cursor, win, e):
    """Complete an entry whose record is deleted (compaction). False: the event table is full."""
    token = load_i64(win, e + window.W_TOKEN)
    if emit(S.events, S.attention, E_GONE, cursor, token, C.generation) == 0:
        return False
    window.delist(C, win, e)
    window.set_state(win, e, window.DONE)
    C.dirty = 1
    return True


@inlined
def _again(S, C, cursor, win, e, now):
    """Deliver an entry again (HELD: the first time). True: delivered, or its record is deleted."""
    token = load_i64(win, e + window.W_TOKEN)
    keyed = load_u8(win, e + window.W_STATE) & window.KEYED != 0
    member = owner_of(S, C, cursor, token, load_u32(win, e + window.W_HASH), keyed)
    if member >= cursors.MOVING:
        if member == cursors.NOBODY:
            wait_for_credit(S, C, cursor, cursors.NO_MEMBER)
        return False
    m = S.members[member]
    if credit_of(m, cursor) == 0:
        wait_for_credit(S, C, cursor, cursors.NO_CREDIT)
        return False
    b = find_block(S, C.queue, token)
    if b < 0:
        cursors.want(S, C, cursor, token)
        return False
    touch(S, b, S.misc[P_CYCLE])
    B = S.blocks[b]
    data = data_of(B)
    p = HOLE if token < B.first else record_at(B, token - B.first)
    if p == HOLE:
        return _note_gone(S, C, cursor, win, e)
    size = load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_LENGTH_MASK
    attempts = min(load_u8(win, e + window.W_ATTEMPTS) + 1, window.ATTEMPTS_MAX)
    if size + _FRAME > m.deliveries_bytes >> 1:
        if not _fragments(S, C, cursor, member, data, p, size, token, attempts):
            return False
        position = m.head - 1
    else:
        if not _send(S, C, cursor, member, data, p, 1, size, token, attempts):
            return False
        position = m.head - _padded(size)
    if load_u8(win, e + window.W_ATTEMPTS) > 0:
        C.redelivered += 1
    window.set_state(win, e, window.OUT)
    store_u8(win, e + window.W_ATTEMPTS, attempts)
    store_u16(win, e + window.W_MEMBER, member)
    store_u32(win, e + window.W_POSITION, position & _U32)
    store_u32(win, e + window.W_BYTES, size)
    store_i64(win, e + window.W_DEADLINE, now + C.ack_wait_ns)
    window.delist(C, win, e)
    if C.counting > 0:
        window.count_out(C, win, e, 1)
    _account(S, C, member, 1, size, now + C.ack_wait_ns)
    return True


@inlined
def deliver_again(S, C, cursor, now):
    """Deliver waiting entries in token order, so each key keeps its order. Returns how many."""
    S.misc[P_STAMP] += 1
    win = window.window_of(C)
    C.again_dirty = 0
    stalled = 0
    sent = 0
    left = C.again_n
    for w in range(C.w_first, C.w_next):
        if left == 0:
            break
        e = window.entry_at(C, w)
        word = load_u8(win, e + window.W_STATE)
        state = word & 7
        if state != window.WAIT and state != window.READY and state != window.HELD:
            continue
        left -= 1
        if word & window.SCHEDULED:
            continue
        keyed = word & window.KEYED != 0
        key_hash = load_u32(win, e + window.W_HASH)
        if keyed and (window.key_is_recalled(C, key_hash) or _met(S, key_hash)):
            continue
        if state == window.WAIT and load_i64(win, e + window.W_DEADLINE) > now:
            if keyed:
                _meet(S, key_hash)
            continue
        if _again(S, C, cursor, win, e, now):
            sent += 1
            continue
        stalled += 1
        if stalled == STALLED_MAX:
            break
        if keyed:
            _meet(S, key_hash)
    if stalled > 0:
        C.again_dirty = 1
    window.pop_done(C, win)
    return sent


# --- completing entries ---------------------------------------------------------------------------


@inlined
def give_credit_back(S, win, e):
    """An entry is no longer at its member."""
    member = load_u16(win, e + window.W_MEMBER)
    if member < lay.MEMBERS_MAX:
        m = S.members[member]
        m.in_flight -= 1
        m.in_flight_bytes -= load_u32(win, e + window.W_BYTES)


@inlined
def leave_member(S, C, win, e):
    """OUT no more: DONE, unless the caller gives it another state."""
    give_credit_back(S, win, e)
    C.out -= 1
    window.set_state(win, e, window.DONE)
    if C.counting > 0:
        window.count_out(C, win, e, -1)


@inlined
def bury(S, C, cursor, win, e, now, reason):
    """No more deliveries: ask the shell to put it into the dead-letter topic."""
    window.set_state(win, e, window.DEAD)
    C.dead += 1
    C.dying += 1
    C.dirty = 1
    announce_dead(S, C, cursor, win, e, now, reason)


@inlined
def announce_dead(S, C, cursor, win, e, now, reason):
    """Report a DEAD entry to the shell; again after a second, unless the shell completes it."""
    token = load_i64(win, e + window.W_TOKEN)
    attempts = load_u8(win, e + window.W_ATTEMPTS)
    store_i64(win, e + window.W_DEADLINE, now + 1_000_000_000)
    store_u32(win, e + window.W_POSITION, reason)
    due(S, C, now + 1_000_000_000)
    emit(S.events, S.attention, E_DEAD, cursor, token, attempts, reason, C.generation)


@inlined
def fail(S, C, cursor, win, e, now, due_ns, reason):
    """A delivery failed: try again at ``due_ns`` (0: now), or dead-letter the last attempt."""
    attempts = load_u8(win, e + window.W_ATTEMPTS)
    if C.deliveries_max > 0 and attempts >= C.deliveries_max:
        bury(S, C, cursor, win, e, now, reason)
        return
    window.enlist(C, win, e, window.WAIT if due_ns > now else window.READY, due_ns)
    if due_ns > now:
        due(S, C, due_ns)
    C.dirty = 1


@inlined
def make_room(S, C, cursor):
    """Make room in a full window. False: a larger window is requested, or the cursor rests."""
    size, settled = C.window_mask + 1, window.settled_entries(C)
    enough = size >> 1 if size < window.WINDOW_MAX else size >> 5  # a walk costs 3 ns an entry
    if settled >= enough and window.pack(C, window.window_of(C)) > 0:
        return True
    _grow_window(S, C, cursor)
    return False


@inlined
def _grow_window(S, C, cursor):
    """Request a larger window; at the largest size, rest until its first entries complete."""
    C.reason = cursors.WINDOW_FULL
    cursors.park(S, C)
    if C.growing == 0 and C.window_mask + 1 < window.WINDOW_MAX:
        if emit(S.events, S.attention, E_WINDOW, cursor, C.generation) > 0:
            C.growing = 1
