"""The limits of a table of keys and headers, and the operations that refer to its entries.

The body of a COMPACT packet is a list of operations that give the body of its DATA packet:

- ``0x00`` to ``0x7f``: copy the next operation + 1 bytes
- ``0x80`` to ``0xef``: copy entry operation - 0x80
- ``0xf0`` to ``0xff`` and a byte: copy entry 112 + 256 x (operation - 0xf0) + byte

An entry is bytes that many messages have: a key or a header's name, or a header's name and value,
each with its length in front. A reader copies them and parses nothing.
"""

from __future__ import annotations

from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u32

ENTRIES_MAX, TABLE_BYTES_MAX = 1024, 16_384
ENTRY_BYTES_MIN, ENTRY_BYTES_MAX = 4, 255
"""A shorter entry saves nothing: a reference has up to two bytes, and ends the copy before it."""
LITERAL_MAX = 128
NEAR, FAR = 0x80, 0xF0
NEAR_ENTRIES = FAR - NEAR
PLACE_SHIFT, PLACE_BYTES_MASK = 8, 0xFF
"""Parts of the u32 of an entry: the offset of its bytes, and their number."""


@inlined
def same_bytes(one, one_at, other, other_at, n):
    """Whether ``n`` bytes (at least `ENTRY_BYTES_MIN`) are equal."""
    if n < 8:
        return load_u32(one, one_at) == load_u32(other, other_at) and load_u32(
            one, one_at + n - 4
        ) == load_u32(other, other_at + n - 4)
    for i in range(0, n - 7, 8):
        if load_i64(one, one_at + i) != load_i64(other, other_at + i):
            return False
    return load_i64(one, one_at + n - 8) == load_i64(other, other_at + n - 8)
