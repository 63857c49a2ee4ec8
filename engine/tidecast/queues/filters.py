"""Which records a lane delivers: all, one stream, a pattern on key and headers, a function."""

from __future__ import annotations

from tidecast.layout import segment as seg
from tidecast.native.jit import inlined
from tidecast.native.memory import bytes_at, load_u8, load_u16, load_u32

ALL, STREAM, PATTERN, FUNCTION = 0, 1, 2, 3


@inlined
def same_key(data, p, key, n):
    """Is the key of the record at ``p`` these ``n`` bytes?"""
    if load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_KEY == 0:
        return False
    if load_u16(data, p + seg.REC_KEY_LENGTH_AT) != n:
        return False
    at = p + seg.RECORD_HEADER_BYTES
    for i in range(n):
        if load_u8(data, at + i) != load_u8(key, i):
            return False
    return True


@inlined
def passes(L, data, p):
    """Does the lane deliver the record at ``p``?"""
    if L.filter == STREAM:
        return same_key(data, p, bytes_at(L.filter_address, L.filter_bytes), L.filter_bytes)
    return True
