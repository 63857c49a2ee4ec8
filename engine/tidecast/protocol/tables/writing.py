"""The sender's table of one publication: it finds, defines and refers to repeated bytes.

A sketch counts keys and headers by their hash. A key or header seen `SEEN_MIN` times becomes an
entry. An entry never changes; when a table is full, and much else repeats, a table with another
number replaces it. The sender alone has the block of the table; but packets are in a ring into
which a client may write anything at any time, so each length is loaded once and checked before use.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout import packet as wire
from tidecast.native.jit import inlined
from tidecast.native.memory import (
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
from tidecast.protocol.tables.entries import (
    ENTRIES_MAX,
    ENTRY_BYTES_MAX,
    ENTRY_BYTES_MIN,
    FAR,
    LITERAL_MAX,
    NEAR,
    NEAR_ENTRIES,
    PLACE_BYTES_MASK,
    PLACE_SHIFT,
    TABLE_BYTES_MAX,
    same_bytes,
)

T_NUMBER, T_ENTRIES, T_USED, T_DEFINED, T_BEGAN_NS, T_REFUSED = 0, 8, 16, 24, 32, 40
"""Its number, entries, their bytes, entries sent, its begin, candidates without room."""
_INDEX, _SKETCH = 2 * ENTRIES_MAX, 4096
_PLACES_AT = 64
_HASHES_AT = _PLACES_AT + 4 * ENTRIES_MAX
_INDEX_AT = _HASHES_AT + 4 * ENTRIES_MAX
_SKETCH_AT = _INDEX_AT + 2 * _INDEX
_BYTES_AT = _SKETCH_AT + 4 * _SKETCH
WRITER_BYTES = _BYTES_AT + TABLE_BYTES_MAX

SEEN_MIN = 3
"""A definition costs an entry's bytes once more; the third reference has saved that cost."""
PROBES_MAX = 8
REFUSED_MAX = 256
"""So much that repeats has found no room: another table pays."""
TABLE_NS_MIN = 1_000_000_000
_COUNT_MAX = 255
_MIX = 0x1E3779B97F4A7C15  # odd; positive, so that numba keeps 64-bit whole numbers


def table_writer(number: int) -> np.ndarray:
    """A sender's empty table; ``number``: any but 0, of 32 bits."""
    block = np.zeros(WRITER_BYTES, dtype=np.uint8)
    block[:8].view(np.int64)[0] = number
    return block


@inlined
def begin_table(block, now_ns):
    """Empty the table and give it the next number. The sketch keeps its counts."""
    number = (load_i64(block, T_NUMBER) + 1) & 0xFFFFFFFF
    store_i64(block, T_NUMBER, max(number, 1))
    store_i64(block, T_ENTRIES, 0)
    store_i64(block, T_USED, 0)
    store_i64(block, T_DEFINED, 0)
    store_i64(block, T_BEGAN_NS, now_ns)
    store_i64(block, T_REFUSED, 0)
    for i in range(0, 2 * _INDEX, 8):
        store_i64(block, _INDEX_AT + i, 0)


@inlined
def is_worn_out(block, now_ns):
    """Is the table full, while much else repeats?"""
    return (
        load_i64(block, T_REFUSED) >= REFUSED_MAX
        and now_ns - load_i64(block, T_BEGAN_NS) >= TABLE_NS_MIN
    )


@inlined
def _hash(data, at, n):
    """32 bits of ``n`` bytes, at least `ENTRY_BYTES_MIN`."""
    h = n * _MIX
    for i in range(0, n - 7, 8):
        h = (h ^ load_i64(data, at + i)) * _MIX
        h ^= h >> 29
    if n & 7:
        if n & 4:
            h = (h ^ load_u32(data, at + (n & -8))) * _MIX
            h ^= h >> 29
        h = (h ^ load_u32(data, at + n - 4)) * _MIX
        h ^= h >> 29
    return (h >> 24) & 0xFFFFFFFF


@inlined
def _seen(block, h):
    """Count a hash in one of its two places. Returns how often it was seen.

    When both places have other hashes, both counts decrease: rare hashes make room.
    """
    one = _SKETCH_AT + 4 * (h & (_SKETCH - 1))
    two = _SKETCH_AT + 4 * ((h >> 12) & (_SKETCH - 1))
    mark, first, second = h >> 12, load_u32(block, one), load_u32(block, two)
    at, word = one, first
    if first >> 8 != mark or first & _COUNT_MAX == 0:
        at, word = two, second
        if second >> 8 != mark or second & _COUNT_MAX == 0:
            if first & _COUNT_MAX != 0 and second & _COUNT_MAX != 0:
                store_u32(block, one, first - 1)
                store_u32(block, two, second - 1)
                return 0
            at, word = one if first & _COUNT_MAX == 0 else two, mark << 8
    count = min((word & _COUNT_MAX) + 1, _COUNT_MAX)
    store_u32(block, at, mark << 8 | count)
    return count


@inlined
def _learn(block, data, at, n, h):
    """Count bytes that are no entry. The number of the entry that they become, or -1."""
    if _seen(block, h) < SEEN_MIN:
        return -1
    entry, used = load_i64(block, T_ENTRIES), load_i64(block, T_USED)
    slot = h & (_INDEX - 1)
    for _ in range(PROBES_MAX):
        if load_u16(block, _INDEX_AT + 2 * slot) == 0:
            break
        slot = (slot + 1) & (_INDEX - 1)
    is_free = load_u16(block, _INDEX_AT + 2 * slot) == 0
    if not is_free or entry >= ENTRIES_MAX or used + n > TABLE_BYTES_MAX:
        store_i64(block, T_REFUSED, load_i64(block, T_REFUSED) + 1)
        return -1
    copy(block, _BYTES_AT + used, data, at, n)
    store_u32(block, _PLACES_AT + 4 * entry, used << PLACE_SHIFT | n)
    store_u32(block, _HASHES_AT + 4 * entry, h)
    store_u16(block, _INDEX_AT + 2 * slot, entry + 1)
    store_i64(block, T_USED, used + n)
    store_i64(block, T_ENTRIES, entry + 1)
    return entry


@inlined
def entry_of(block, data, at, n):
    """The entry with the ``n`` bytes at ``at``, or -1. Counts bytes that have no entry."""
    if n < ENTRY_BYTES_MIN or n > ENTRY_BYTES_MAX:
        return -1
    h = _hash(data, at, n)
    slot = h & (_INDEX - 1)
    for _ in range(PROBES_MAX):
        entry = load_u16(block, _INDEX_AT + 2 * slot) - 1
        if entry < 0:
            break
        if load_u32(block, _HASHES_AT + 4 * entry) == h:
            place = load_u32(block, _PLACES_AT + 4 * entry)
            if place & PLACE_BYTES_MASK == n and same_bytes(
                data, at, block, _BYTES_AT + (place >> PLACE_SHIFT), n
            ):
                return entry
        slot = (slot + 1) & (_INDEX - 1)
    return _learn(block, data, at, n, h)


@inlined
def _put_literal(out, to, limit, data, at, end):
    """Copy the bytes ``at`` to ``end`` as they are. Where the next operation goes, -1: no room."""
    n = end - at
    if to + n + (n + LITERAL_MAX - 1) // LITERAL_MAX > limit:
        return -1
    while at < end:
        n = min(end - at, LITERAL_MAX)
        store_u8(out, to, n - 1)
        copy(out, to + 1, data, at, n)
        to += 1 + n
        at += n
    return to


@inlined
def _put_entry(out, to, limit, data, at, end, entry):
    """The bytes ``at`` to ``end`` as they are, then an entry. As `_put_literal`."""
    to = _put_literal(out, to, limit, data, at, end)
    if to < 0 or to + 2 > limit:
        return -1
    if entry < NEAR_ENTRIES:
        store_u8(out, to, NEAR + entry)
        return to + 1
    entry -= NEAR_ENTRIES
    store_u8(out, to, FAR + (entry >> 8))
    store_u8(out, to + 1, entry & 0xFF)
    return to + 2


@inlined
def _value_end(data, at, end):
    """Behind the MessagePack value at ``at``, if it is a scalar that ends by ``end``; else -1."""
    if at >= end:
        return -1
    kind = load_u8(data, at)
    n = 0
    if kind < 0x80 or kind >= 0xE0 or kind == 0xC0 or kind == 0xC2 or kind == 0xC3:
        n = 1
    elif 0xA0 <= kind < 0xC0:
        n = 1 + (kind & 31)
    elif 0xCC <= kind <= 0xCF:
        n = 1 + (1 << (kind - 0xCC))
    elif 0xD0 <= kind <= 0xD3:
        n = 1 + (1 << (kind - 0xD0))
    elif kind == 0xCA or kind == 0xCB:
        n = 5 if kind == 0xCA else 9
    elif (kind == 0xC4 or kind == 0xD9) and at + 2 <= end:
        n = 2 + load_u8(data, at + 1)
    elif (kind == 0xC5 or kind == 0xDA) and at + 3 <= end:
        n = 3 + (load_u8(data, at + 1) << 8 | load_u8(data, at + 2))
    if n == 0 or at + n > end:
        return -1
    return at + n


@inlined
def _pairs_of(data, at, end):
    """(pairs, where the first is) of the MessagePack map at ``at``; (0, at): it is none."""
    if at >= end:
        return 0, at
    kind = load_u8(data, at)
    if 0x80 <= kind < 0x90:
        return kind & 15, at + 1
    if kind == 0xDE and at + 3 <= end:
        return load_u8(data, at + 1) << 8 | load_u8(data, at + 2), at + 3
    return 0, at


@inlined
def _fields_at(at, flags):
    """Where key and headers of the message at ``at`` begin."""
    at += wire.MESSAGE_HEADER_BYTES
    if flags & wire.TIMESTAMP:
        at += 8
    if flags & wire.TO:
        at += 4
    return at


@inlined
def _compact_headers(block, data, at, end, out, to, limit, copied, entries):
    """Refer to the headers of the map at ``at``: (next operation, bytes done so far, entries).

    ``copied``: where the bytes begin that no operation gives yet. The first is -1: no room.
    """
    pairs, q = _pairs_of(data, at, end)
    for _ in range(pairs):
        value = _value_end(data, q, end)
        following = _value_end(data, value, end) if value >= 0 else -1
        if following < 0:
            break
        upto = following
        entry = entry_of(block, data, q, following - q)
        if entry < 0:
            upto = value
            entry = entry_of(block, data, q, value - q)
        if entry >= 0:
            to = _put_entry(out, to, limit, data, copied, q, entry)
            if to < 0:
                break
            copied, entries = upto, max(entries, entry + 1)
        q = following
    return to, copied, entries


@inlined
def compact(block, data, at, length, out, out_at):
    """Write the DATA packet of ``length`` bytes at ``at`` as COMPACT to ``out_at``: its length.

    0: it would not be shorter, or has a message that is not whole. ``out`` has room for ``length``
    bytes there.
    """
    end, limit = at + length, out_at + length - 1
    if length <= wire.COMPACT_OPERATIONS_AT:
        return 0
    to = out_at + wire.COMPACT_OPERATIONS_AT
    copied = p = at + wire.PACKET_HEADER_BYTES
    entries = 0
    while p < end:
        if p + wire.MESSAGE_HEADER_BYTES > end:
            return 0
        word = load_u32(data, p)
        flags, stop = word >> 24, p + wire.MESSAGE_HEADER_BYTES + (word & wire.MESSAGE_LENGTH_MAX)
        if stop > end or flags & wire.WHOLE != wire.WHOLE or flags > wire.FLAGS_KNOWN:
            return 0
        q = _fields_at(p, flags)
        p = stop
        if flags & wire.KEY:
            if q + 2 > stop:
                return 0
            behind = q + 2 + load_u16(data, q)
            if behind > stop:
                return 0
            entry = entry_of(block, data, q, behind - q)
            if entry >= 0:
                to = _put_entry(out, to, limit, data, copied, q, entry)
                if to < 0:
                    return 0
                copied, entries = behind, max(entries, entry + 1)
            q = behind
        if flags & wire.HEADERS:
            if q + 2 > stop:
                return 0
            behind = q + 2 + load_u16(data, q)
            if behind > stop:
                return 0
            to, copied, entries = _compact_headers(
                block, data, q + 2, behind, out, to, limit, copied, entries
            )
            if to < 0:
                return 0
    if entries == 0:
        return 0
    to = _put_literal(out, to, limit, data, copied, end)
    if to < 0:
        return 0
    copy(out, out_at, data, at, wire.PACKET_HEADER_BYTES)
    store_u8(out, out_at + wire.TYPE_AT, wire.COMPACT)
    store_u16(out, out_at + wire.LENGTH_AT, to - out_at)
    store_u32(out, out_at + wire.COMPACT_TABLE_AT, load_i64(block, T_NUMBER))
    store_u16(out, out_at + wire.COMPACT_ENTRIES_AT, entries)
    store_u16(out, out_at + wire.COMPACT_LENGTH_AT, length)
    return to - out_at


@inlined
def put_definitions(block, first, out, length_max):
    """Write the body of TABLE with entries from ``first`` on: (length of the packet, next entry).

    The caller writes the packet's header.
    """
    entries, at = load_i64(block, T_ENTRIES), wire.TABLE_DEFINITIONS_AT
    entry = first
    while entry < entries:
        place = load_u32(block, _PLACES_AT + 4 * entry)
        n = place & PLACE_BYTES_MASK
        if at + 1 + n > length_max:
            break
        store_u8(out, at, n)
        copy(out, at + 1, block, _BYTES_AT + (place >> PLACE_SHIFT), n)
        at += 1 + n
        entry += 1
    store_u32(out, wire.TABLE_NUMBER_AT, load_i64(block, T_NUMBER))
    store_u16(out, wire.TABLE_FIRST_AT, first)
    store_u16(out, wire.TABLE_COUNT_AT, entry - first)
    return at, entry
