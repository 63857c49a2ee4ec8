"""The receiver's table of one image: take definitions, expand packets.

A packet names the table and how many of its entries it needs. An image that lacks some entries
cannot expand the packet: the packet counts as lost, the image asks for it by NAK, and gets it as
DATA.
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
    FAR,
    NEAR,
    NEAR_ENTRIES,
    PLACE_BYTES_MASK,
    PLACE_SHIFT,
    TABLE_BYTES_MAX,
)

_NUMBER, _ENTRIES, _USED = 0, 8, 16
_PLACES_AT = 24
_BYTES_AT = _PLACES_AT + 4 * ENTRIES_MAX
READER_BYTES = _BYTES_AT + TABLE_BYTES_MAX
MISSING, MALFORMED = -1, -2


def table_reader() -> np.ndarray:
    """An image's table, which has no number yet."""
    return np.zeros(READER_BYTES, dtype=np.uint8)


@inlined
def check_definitions(buffer, at, length):
    """Do the entries of the TABLE packet at ``at`` fill its ``length`` bytes, at least 40?"""
    count = load_u16(buffer, at + wire.TABLE_COUNT_AT)
    if (
        load_u32(buffer, at + wire.TABLE_NUMBER_AT) == 0
        or load_u16(buffer, at + wire.TABLE_FIRST_AT) + count > ENTRIES_MAX
    ):
        return False
    p, end = at + wire.TABLE_DEFINITIONS_AT, at + length
    for _ in range(count):
        if p >= end:
            return False
        n = load_u8(buffer, p)
        p += 1 + n
        if n == 0 or p > end:
            return False
    return p == end


@inlined
def take_definitions(block, buffer, at):
    """Add the entries of a checked TABLE packet. False: some before them are missing.

    The first entries of another table replace the table; entries that are there never change.
    """
    number = load_u32(buffer, at + wire.TABLE_NUMBER_AT)
    first = load_u16(buffer, at + wire.TABLE_FIRST_AT)
    if load_i64(block, _NUMBER) != number:
        if first != 0:
            return False
        store_i64(block, _NUMBER, number)
        store_i64(block, _ENTRIES, 0)
        store_i64(block, _USED, 0)
    entries, used = load_i64(block, _ENTRIES), load_i64(block, _USED)
    if first > entries:
        return False
    p = at + wire.TABLE_DEFINITIONS_AT
    for entry in range(first, first + load_u16(buffer, at + wire.TABLE_COUNT_AT)):
        n = load_u8(buffer, p)
        if entry >= entries:
            if used + n > TABLE_BYTES_MAX:
                break
            copy(block, _BYTES_AT + used, buffer, p + 1, n)
            store_u32(block, _PLACES_AT + 4 * entry, used << PLACE_SHIFT | n)
            used += n
            entries += 1
        p += 1 + n
    store_i64(block, _ENTRIES, entries)
    store_i64(block, _USED, used)
    return True


@inlined
def expand(block, buffer, at, length, out):
    """Write the DATA packet of the COMPACT packet at ``at`` to ``out``: its length.

    MISSING: the table, or some of the entries, are not here. MALFORMED: an operation goes beyond
    the packet, names an entry that it may not, or gives more or less than the packet says.
    """
    full = load_u16(buffer, at + wire.COMPACT_LENGTH_AT)
    entries = load_u16(buffer, at + wire.COMPACT_ENTRIES_AT)
    if full <= length or full > out.size:
        return MALFORMED
    if (
        load_u32(buffer, at + wire.COMPACT_TABLE_AT) != load_i64(block, _NUMBER)
        or load_i64(block, _NUMBER) == 0
        or entries > load_i64(block, _ENTRIES)
    ):
        return MISSING
    p, end = at + wire.COMPACT_OPERATIONS_AT, at + length
    to = wire.PACKET_HEADER_BYTES
    while p < end:
        operation = load_u8(buffer, p)
        p += 1
        if operation < NEAR:
            n = operation + 1
            if p + n > end or to + n > full:
                return MALFORMED
            copy(out, to, buffer, p, n)
            p += n
            to += n
            continue
        entry = operation - NEAR
        if operation >= FAR:
            if p >= end:
                return MALFORMED
            entry = NEAR_ENTRIES + ((operation - FAR) << 8) + load_u8(buffer, p)
            p += 1
        if entry >= entries:
            return MALFORMED
        place = load_u32(block, _PLACES_AT + 4 * entry)
        n = place & PLACE_BYTES_MASK
        if to + n > full:
            return MALFORMED
        copy(out, to, block, _BYTES_AT + (place >> PLACE_SHIFT), n)
        to += n
    if to != full:
        return MALFORMED
    copy(out, 0, buffer, at, wire.PACKET_HEADER_BYTES)
    store_u8(out, wire.TYPE_AT, wire.DATA)
    store_u16(out, wire.LENGTH_AT, full)
    return full
