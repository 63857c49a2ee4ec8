"""Headers of a record, read in kernels: a MessagePack map of names to str, bytes or int.

The publisher wrote it, so nothing in it is trusted: no byte at or beyond ``end`` is read.
"""

from __future__ import annotations

from tidecast.buffers.header_names import packed_bytes
from tidecast.native.jit import inlined
from tidecast.native.memory import load_u8
from tidecast.queues.filters.where import ABSENT, BYTES, NUMBER


@inlined
def same(a, at, b, b_at, n):
    """Are ``n`` bytes the same?"""
    for i in range(n):
        if load_u8(a, at + i) != load_u8(b, b_at + i):
            return False
    return True


@inlined
def find_value(data, at, end, name, name_at, name_n):
    """Offset of a header's value; -1: there is none. ``name_n`` bytes: its packed name."""
    if at >= end:
        return -1
    tag = load_u8(data, at)
    count = tag & 15
    at += 1
    if tag == 0xDE and at + 2 <= end:
        count = load_u8(data, at) * 256 + load_u8(data, at + 1)
        at += 2
    elif tag & 0xF0 != 0x80:
        return -1
    for _ in range(count):
        key_n = packed_bytes(data, at, end)
        value_n = packed_bytes(data, at + key_n, end)
        if key_n + value_n > end - at:
            return -1
        if key_n == name_n and same(data, at, name, name_at, key_n):
            return at + key_n
        at += key_n + value_n
    return -1


@inlined
def _big_endian(data, at, n):
    found = 0
    for i in range(n):
        found = found << 8 | load_u8(data, at + i)
    return found


@inlined
def value_at(data, at, end):
    """(kind, number, where its bytes lie, how many) of the value that `find_value` found."""
    n = packed_bytes(data, at, end)
    tag = load_u8(data, at)
    if tag < 0x80:
        return NUMBER, tag, 0, 0
    if tag >= 0xE0:
        return NUMBER, tag - 256, 0, 0
    if tag >= 0xA0 and tag < 0xC0:
        return BYTES, 0, at + 1, n - 1
    if tag == 0xD9 or tag == 0xC4:
        return BYTES, 0, at + 2, n - 2
    if tag == 0xDA or tag == 0xC5:
        return BYTES, 0, at + 3, n - 3
    if tag >= 0xCC and tag <= 0xD3:
        number = _big_endian(data, at + 1, n - 1)
        if tag >= 0xD0 and n < 9 and number >> (8 * (n - 1) - 1):
            number -= 1 << (8 * (n - 1))
        if tag == 0xCF and number < 0:
            return ABSENT, 0, 0, 0  # beyond 64 bits with a sign: no publisher of ours
        return NUMBER, number, 0, 0
    return ABSENT, 0, 0, 0
