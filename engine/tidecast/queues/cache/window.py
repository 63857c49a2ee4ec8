"""The window of a cursor: records that it has passed and that are not completed, in token order.

A ring of 32-byte entries at a raw address. The cursor appends an entry for each record that it
passes; entries change their state in place, and leave at the front once completed. So the token of
the first entry (or the cursor, when there is none) is the contiguous acked watermark: the
checkpoint.
"""

from __future__ import annotations

import numpy as np

from tidecast.native.jit import inlined, kernel
from tidecast.native.lines import prefetch
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

ENTRY_BYTES = 32
W_TOKEN, W_DEADLINE, W_HASH, W_BYTES, W_POSITION = 0, 8, 16, 20, 24
W_STATE, W_ATTEMPTS, W_MEMBER = 28, 29, 30
"""Offsets in an entry: token (i64), when it is due (i64), key hash, bytes of the record, low 32
bits of its position in the member's ring (u32 each), state, attempts (u8 each), member (u16)."""

OUT, WAIT, READY, HELD, DONE, DEAD = 1, 2, 3, 4, 5, 6
KEYED, STALE, SCHEDULED, KEY_LATER = 8, 16, 32, 64
"""States. OUT: at a member, due at its deadline. WAIT: to be delivered again, not before its
deadline. READY: to be delivered again now. HELD: passed by the cursor, never delivered: its key or
its member holds it back. DONE: completed. DEAD: on its way to the dead-letter topic. Flag KEYED:
the record has a key, so order matters. Flag STALE: only while the table of keys is filled again.
Flag SCHEDULED: WAIT for its delivery time, and its deadline is ns since 1970. Its key holds nothing
back meanwhile: flag KEY_LATER becomes KEYED when it is due."""
_STATE = 7
ATTEMPTS_MAX = 255
WINDOW_SMALL, WINDOW_MIN, WINDOW_MAX = 8, 256, 1 << 17
"""Entries: of a new cursor of one stream; of other new cursors, and of a small window that has
grown; at most."""
NO_MEMBER = 0xFFFF

"""
   new ---> OUT ---ack---> DONE
    |      ^   \\--nak, timeout, member gone--> WAIT or READY (or DEAD: too many attempts)
    +-> HELD / READY / WAIT (due) --> OUT          term --> DEAD --stored--> DONE
"""


@inlined
def window_of(C):
    """The entries' bytes."""
    return bytes_at(C.window_address, (C.window_mask + 1) * ENTRY_BYTES)


@inlined
def entry_at(C, w):
    """Offset of entry number ``w``."""
    return (w & C.window_mask) * ENTRY_BYTES


@inlined
def state_of(win, e):
    """State without flags."""
    return load_u8(win, e + W_STATE) & _STATE


@inlined
def set_state(win, e, state):
    """Change the state, keep the flags."""
    store_u8(win, e + W_STATE, load_u8(win, e + W_STATE) & ~_STATE | state)


@inlined
def push(C, win, token, deadline, key_hash, size, state, attempts, member, position):
    """Append an entry; the caller made sure that there is room. ``state`` with flags."""
    e = entry_at(C, C.w_next)
    store_i64(win, e + W_TOKEN, token)
    store_i64(win, e + W_DEADLINE, deadline)
    store_u32(win, e + W_HASH, key_hash)
    store_u32(win, e + W_BYTES, size)
    store_u32(win, e + W_POSITION, position)
    store_u8(win, e + W_STATE, state)
    store_u8(win, e + W_ATTEMPTS, attempts)
    store_u16(win, e + W_MEMBER, member)
    C.w_next += 1


@inlined
def window_room(C):
    """Entries that still fit."""
    return C.window_mask + 1 - (C.w_next - C.w_first)


@inlined
def first_at_or_behind(C, win, token):
    """Number of the first entry with a token of at least ``token``; w_next when there is none."""
    low = C.w_first
    if low >= C.w_next or load_i64(win, entry_at(C, low) + W_TOKEN) >= token:
        return low  # in order, as most acks are
    high = C.w_next
    while low < high:
        middle = (low + high) >> 1
        if load_i64(win, entry_at(C, middle) + W_TOKEN) < token:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def pop_done(C, win):
    """Remove completed entries at the front."""
    while C.w_first < C.w_next and state_of(win, entry_at(C, C.w_first)) == DONE:
        C.w_first += 1
    if C.w_first == C.w_next:
        C.w_first, C.w_next = 0, 0  # the same cache line again


@inlined
def pack(C, win):
    """Remove all completed entries, also behind open entries. Returns how many.

    So a record that stays open for long, such as a record with a delivery time, costs one entry,
    however many records pass it.
    """
    kept = C.w_first
    for w in range(C.w_first, C.w_next):
        e = entry_at(C, w)
        if state_of(win, e) == DONE:
            continue
        if kept != w:
            copy(win, entry_at(C, kept), win, e, ENTRY_BYTES)
        kept += 1
    given_up = C.w_next - kept
    C.w_next = kept
    return given_up


@inlined
def settled_entries(C):
    """Number of completed entries in the window."""
    return C.w_next - C.w_first - C.out - C.again_n - C.dying


@inlined
def watermark(C, win):
    """The first token that is not completed."""
    if C.w_first < C.w_next:
        return load_i64(win, entry_at(C, C.w_first) + W_TOKEN)
    return C.next


# --- order of a key -----------------------------------------------------------------------------
# A table with open addressing, KEY_BYTES a slot: i64 hash + 1 (0: free), u32 entries of that key
# that wait for delivery (again), u32 entries of it that are at a member, with flag RECALLED.
#
# When a member refuses a record, later records of its key may still be in that member's ring. The
# member returns them as it comes to them. Until then the key is RECALLED and none of its records is
# sent: a newer record would be ahead of the returned records. Entries at members are counted only
# while a key may be recalled (`counting`): a cursor whose members refuse nothing pays one
# comparison a frame.
KEY_BYTES = 16
_WAITING, _OUT = 8, 12
RECALLED = 1 << 31
_MIX = 0x9E3779B1


@inlined
def _keys_of(C):
    return bytes_at(C.keys_address, (C.keys_mask + 1) * KEY_BYTES)


@inlined
def _slot(keys, mask, key_hash):
    i = ((key_hash * _MIX) >> 15) & mask
    for _ in range(mask + 1):
        word = load_i64(keys, i * KEY_BYTES)
        if word == 0 or word == key_hash + 1:
            return i * KEY_BYTES
        i = (i + 1) & mask
    return 0


@inlined
def _count_key(C, key_hash, field, change):
    """Change a count of this key by ``change`` (1 or -1); a count never falls below 0."""
    keys = _keys_of(C)
    at = _slot(keys, C.keys_mask, key_hash)
    if load_i64(keys, at) == 0:
        if change < 0:
            return
        C.keys_used += 1
        store_i64(keys, at, key_hash + 1)
    count = load_u32(keys, at + field)
    if change > 0 or count & ~RECALLED > 0:
        store_u32(keys, at + field, count + change)
    if field == _OUT and count + change == RECALLED:
        store_u32(keys, at + _OUT, 0)
        C.recalled -= 1
        C.again_dirty = 1


@inlined
def key_is_held(C, key_hash):
    """Whether a new record of this key must wait: an earlier record waits, or it is recalled."""
    keys = _keys_of(C)
    at = _slot(keys, C.keys_mask, key_hash)
    return load_u32(keys, at + _WAITING) > 0 or load_u32(keys, at + _OUT) & RECALLED != 0


@inlined
def key_is_recalled(C, key_hash):
    """Whether all records of this key wait until a member has returned the records it has."""
    if C.counting == 0 or C.recalled == 0:
        return False
    keys = _keys_of(C)
    return load_u32(keys, _slot(keys, C.keys_mask, key_hash) + _OUT) & RECALLED != 0


@inlined
def count_out(C, win, e, change):
    """Count an entry that is at a member now (1), or no longer (-1).

    The caller checks whether entries are counted, so that an ack pays one comparison and no call.
    """
    if load_u8(win, e + W_STATE) & KEYED:
        _count_key(C, load_u32(win, e + W_HASH), _OUT, change)


@inlined
def passed(C, n):
    """``n`` new records were delivered and counted: the counting ends when nothing needs it."""
    C.counting -= n
    if C.counting <= 0:
        C.counting = 1 if C.again_n > C.scheduled or C.recalled > 0 else 0


@inlined
def recall_key(C, win, e):
    """A member refused this entry: it returns all records of the entry's key that it has."""
    if load_u8(win, e + W_STATE) & KEYED == 0:
        return
    if C.counting == 0:
        C.counting = 1
        _fill_keys(C, win)
    C.counting = C.window_mask + 1  # filling the table again pays off after so many records
    keys = _keys_of(C)
    at = _slot(keys, C.keys_mask, load_u32(win, e + W_HASH))
    count = load_u32(keys, at + _OUT)
    if count > 0 and count & RECALLED == 0:
        store_u32(keys, at + _OUT, count | RECALLED)
        C.recalled += 1


@inlined
def _note_recalled(C, win):
    """Note in the entries which keys are recalled, before the table is filled again."""
    if C.recalled == 0:
        return
    for w in range(C.w_first, C.w_next):
        e = entry_at(C, w)
        word = load_u8(win, e + W_STATE)
        if word & KEYED and word & _STATE == OUT:
            if key_is_recalled(C, load_u32(win, e + W_HASH)):
                store_u8(win, e + W_STATE, word | STALE)


@inlined
def _fill_keys(C, win):
    """Count all entries of the window again, in an empty table."""
    keys = _keys_of(C)
    for at in range(0, (C.keys_mask + 1) * KEY_BYTES, 8):
        store_i64(keys, at, 0)
    C.keys_used, C.recalled = 0, 0
    for w in range(C.w_first, C.w_next):
        e = entry_at(C, w)
        word = load_u8(win, e + W_STATE)
        if word & KEYED == 0:
            continue
        key_hash = load_u32(win, e + W_HASH)
        state = word & _STATE
        if state != OUT and state != DONE and state != DEAD:
            _count_key(C, key_hash, _WAITING, 1)
        elif state == OUT and C.counting > 0:
            _count_key(C, key_hash, _OUT, 1)
            if word & STALE:
                store_u8(win, e + W_STATE, word & ~STALE)
                at = _slot(keys, C.keys_mask, key_hash)
                count = load_u32(keys, at + _OUT)
                if count & RECALLED == 0:
                    store_u32(keys, at + _OUT, count | RECALLED)
                    C.recalled += 1


@inlined
def room_for_keys(C, win, n):
    """Make room for ``n`` keys more in the table when it fills with keys that no longer matter.

    The table has two slots for each entry of the window, so there always is room.
    """
    if (C.keys_used + n) * 4 > (C.keys_mask + 1) * 3:
        _note_recalled(C, win)
        _fill_keys(C, win)


@inlined
def enlist(C, win, e, state, deadline):
    """An entry is no longer at a member and is to be delivered (again): WAIT, READY or HELD."""
    room_for_keys(C, win, 1)
    set_state(win, e, state)
    store_i64(win, e + W_DEADLINE, deadline)
    C.again_n += 1
    C.again_dirty = 1
    if load_u8(win, e + W_STATE) & KEYED:
        _count_key(C, load_u32(win, e + W_HASH), _WAITING, 1)


@inlined
def schedule(C, win, token, due_ns, key_hash, size, keyed):
    """Append an entry that waits for its delivery time, ``due_ns`` since 1970."""
    later = KEY_LATER if keyed else 0
    push(C, win, token, due_ns, key_hash, size, WAIT | SCHEDULED | later, 0, NO_MEMBER, 0)
    C.again_n += 1
    C.scheduled += 1
    C.dirty = 1


@inlined
def begin_scheduled(C, win, e):
    """A scheduled entry is due: it is READY, and its key is in order from now on."""
    room_for_keys(C, win, 1)
    later = load_u8(win, e + W_STATE) & KEY_LATER
    store_u8(win, e + W_STATE, READY | (KEYED if later else 0))
    C.scheduled -= 1
    C.again_dirty = 1
    if later:
        _count_key(C, load_u32(win, e + W_HASH), _WAITING, 1)


@inlined
def delist(C, win, e):
    """Undo `enlist`: the entry goes to a member, or is completed."""
    C.again_n -= 1
    word = load_u8(win, e + W_STATE)
    if word & SCHEDULED:
        C.scheduled -= 1
        store_u8(win, e + W_STATE, word & ~(SCHEDULED | KEY_LATER))
    if word & KEYED:
        _count_key(C, load_u32(win, e + W_HASH), _WAITING, -1)
        C.again_dirty = 1  # a later record of this key may be next


# --- from Python --------------------------------------------------------------------------------


def window_memory(entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Memory for a window and for its table of keys, which has two slots an entry."""
    assert entries & (entries - 1) == 0
    keys = np.zeros(2 * entries * KEY_BYTES // 8, dtype=np.int64)
    return np.zeros(entries * ENTRY_BYTES, dtype=np.uint8), keys


@inlined
def ask_for_window(C, w):
    """Entry number ``w`` is about to be looked at."""
    prefetch(C.window_address + entry_at(C, w))


@kernel
def move_window(cursors, cursor, window, keys):
    """Copy a cursor's entries into larger memory and let the cursor use that."""
    C = cursors[cursor]
    old = window_of(C)
    _note_recalled(C, old)
    mask = window.size // ENTRY_BYTES - 1
    for w in range(C.w_first, C.w_next):
        copy(window, (w & mask) * ENTRY_BYTES, old, entry_at(C, w), ENTRY_BYTES)
    C.window_mask = mask
    C.window_address = window.ctypes.data
    C.keys_address = keys.ctypes.data
    C.keys_mask = keys.size * 8 // KEY_BYTES - 1
    _fill_keys(C, window)


@kernel
def export_window(cursors, cursor, out):
    """Copy the entries of a window: int64[n, 6] rows.

    Columns: token, state, attempts, member, deadline, position in the member's ring (32 bits).
    Returns how many rows were written.
    """
    C = cursors[cursor]
    win = window_of(C)
    n = 0
    for w in range(C.w_first, C.w_next):
        if n >= out.shape[0]:
            break
        e = entry_at(C, w)
        out[n, 0] = load_i64(win, e + W_TOKEN)
        out[n, 1] = state_of(win, e)
        out[n, 2] = load_u8(win, e + W_ATTEMPTS)
        out[n, 3] = load_u16(win, e + W_MEMBER)
        out[n, 4] = load_i64(win, e + W_DEADLINE)
        out[n, 5] = load_u32(win, e + W_POSITION)
        n += 1
    return n
