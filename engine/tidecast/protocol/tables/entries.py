"""The limits of a table of keys and headers, and the operations that refer to its entries.

The body of a COMPACT packet is a list of operations that give the body of its DATA packet:

- ``0x00`` to ``0x7f``: as many bytes as the operation says, and one more, follow and are copied
- ``0x80`` to ``0xef``: the entry of that number, from 0 on
- ``0xf0`` to ``0xff`` and a byte: the entry 112 + 256 x (operation - 0xf0) + byte

An entry is bytes that stand in many messages: a key or a header's name, or a header's name and
value, each with its length in front. A reader copies them and parses nothing.
"""

from __future__ import annotations

from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u32

ENTRIES_MAX, TABLE_BYTES_MAX = 1024, 16_384
ENTRY_BYTES_MIN, ENTRY_BYTES_MAX = 4, 255
"""A shorter one would save nothing: a reference has up to two bytes, a copy ends in front of it."""
LITERAL_MAX = 128
NEAR, FAR = 0x80, 0xF0
NEAR_ENTRIES = FAR - NEAR
PLACE_SHIFT, PLACE_BYTES_MASK = 8, 0xFF
"""Of the u32 of an entry: where its bytes begin, and how many there are."""


@inlined
def same_bytes(one, one_at, other, other_at, n):
    """Are ``n`` bytes (at least `ENTRY_BYTES_MIN`) equal?"""
    if n < 8:
        return load_u32(one, one_at) == load_u32(other, other_at) and load_u32(
            one, one_at + n - 4
        ) == load_u32(other, other_at + n - 4)
    for i in range(0, n - 7, 8):
        if load_i64(one, one_at + i) != load_i64(other, other_at + i):
            return False
    return load_i64(one, one_at + n - 8) == load_i64(other, other_at + n - 8)
