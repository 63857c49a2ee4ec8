"""Headers of a message, checked in kernels for names that only an engine may write.

Headers are a MessagePack map of names to str, bytes or int. The publisher wrote it, so nothing in
it is trusted: no byte beyond its end is read.
"""

from __future__ import annotations

from tidecast.layout.header_names import DELIVER_AT, RESERVED
from tidecast.native.jit import inlined
from tidecast.native.memory import load_i64, load_u8, load_u32, store_u8

_DEAD, _TIDECAST = (int.from_bytes(name[:-1].encode(), "little") for name in RESERVED)
_DASH = ord("-")
BAD = 1 << 30

_TIME = DELIVER_AT.encode()
_TIME_8, _TIME_16 = (int.from_bytes(_TIME[k : k + 8], "little") for k in (0, 8))
_TIME_19 = int.from_bytes(_TIME[15:], "little")
_TIME_TAG, _UINT64, _MAP16 = 0xA0 | len(_TIME), 0xCF, 0xDE
TIME_ENTRY_BYTES = 1 + len(_TIME) + 9
"""Bytes of a delivery time in a map of headers: its name, and an unsigned integer of 64 bits."""
assert len(_TIME) == 19


@inlined
def packed_bytes(data, at, end):
    """Bytes of the value at ``at``: str, bin, int, nil, bool; others: a huge number."""
    if at >= end:
        return BAD
    tag = load_u8(data, at)
    if tag < 0x80 or tag >= 0xE0 or tag == 0xC0 or tag == 0xC2 or tag == 0xC3:
        return 1
    if tag >= 0xA0 and tag < 0xC0:
        return 1 + (tag & 31)
    if (tag == 0xD9 or tag == 0xC4) and at + 2 <= end:
        return 2 + load_u8(data, at + 1)
    if (tag == 0xDA or tag == 0xC5) and at + 3 <= end:
        return 3 + load_u8(data, at + 1) * 256 + load_u8(data, at + 2)
    if tag == 0xCC or tag == 0xD0:
        return 2
    if tag == 0xCD or tag == 0xD1:
        return 3
    if tag == 0xCE or tag == 0xD2 or tag == 0xCA:
        return 5
    if tag == 0xCF or tag == 0xD3 or tag == 0xCB:
        return 9
    return BAD


@inlined
def is_reserved_at(data, at, n):
    """As `layout.header_names.is_reserved`, of the ``n`` bytes of a name."""
    if n >= 5 and load_u32(data, at) == _DEAD and load_u8(data, at + 4) == _DASH:
        return True
    return n >= 9 and load_i64(data, at) == _TIDECAST and load_u8(data, at + 8) == _DASH


@inlined
def _name_at(data, at, n):
    """(where the text of a packed name begins, how long it is); ``n`` bytes in all."""
    tag = load_u8(data, at)
    skip = 1
    if tag == 0xD9:
        skip = 2
    elif tag == 0xDA:
        skip = 3
    return at + skip, n - skip


@inlined
def has_reserved(data, at, end):
    """Whether a map of headers has a reserved name, as far as the map is sound."""
    if at >= end:
        return False
    tag = load_u8(data, at)
    count = tag & 15
    at += 1
    if tag == 0xDE and at + 2 <= end:
        count = load_u8(data, at) * 256 + load_u8(data, at + 1)
        at += 2
    elif tag & 0xF0 != 0x80:
        return False
    for _ in range(count):
        name_n = packed_bytes(data, at, end)
        if name_n > end - at:
            return False
        text, n = _name_at(data, at, name_n)
        if is_reserved_at(data, text, n):
            return True
        value_n = packed_bytes(data, at + name_n, end)
        if name_n + value_n > end - at:
            return False
        at += name_n + value_n
    return False


@inlined
def first_entry(data, at):
    """Bytes before the first entry of the map of headers at ``at``."""
    return 3 if load_u8(data, at) == _MAP16 else 1


@inlined
def put_head(target, at, count):
    """Begin a map of ``count`` entries at ``at``. Returns where the first entry goes."""
    if count <= 15:
        store_u8(target, at, 0x80 | count)
        return at + 1
    store_u8(target, at, _MAP16)
    store_u8(target, at + 1, (count >> 8) & 0xFF)
    store_u8(target, at + 2, count & 0xFF)
    return at + 3


@inlined
def delivery_time(data, at, n):
    """The delivery time in the ``n`` bytes of headers at ``at``, ns since 1970; 0: at once.

    It is the first header, as the client writes it. Bytes of any other form have no effect.
    """
    if n < 1 + TIME_ENTRY_BYTES:
        return 0
    skip = first_entry(data, at)
    if n < skip + TIME_ENTRY_BYTES:
        return 0
    at += skip
    if load_u8(data, at) != _TIME_TAG or load_u8(data, at + 20) != _UINT64:
        return 0
    if load_i64(data, at + 1) != _TIME_8 or load_i64(data, at + 9) != _TIME_16:
        return 0
    if load_u32(data, at + 16) != _TIME_19 or load_u8(data, at + 21) > 127:
        return 0
    due = 0
    for k in range(8):
        due = (due << 8) | load_u8(data, at + 21 + k)
    return due
