"""Which records a lane delivers: all, one stream, keys with a prefix, certain headers, a function.

A record whose first header is ``tidecast-for`` is for the subscription of that name alone: that is
how dead letters are delivered again without disturbing the others.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tidecast.layout import segment as seg
from tidecast.native.jit import inlined
from tidecast.native.memory import address_of, bytes_at, load_i64, load_u8, load_u16, load_u32
from tidecast.native.predicates import DROPS, RAISED, call_predicate

ALL, STREAM, PATTERN = 0, 1, 2
FOR_HEADER = "tidecast-for"
_FOR_8 = int.from_bytes(b"tidecast", "little")
_FOR_4 = int.from_bytes(b"-for", "little")
_BAD = 1 << 30


@inlined
def _same(a, at, b, n):
    for i in range(n):
        if load_u8(a, at + i) != load_u8(b, i):
            return False
    return True


@inlined
def _packed_bytes(data, at, end):
    """Bytes of the MessagePack value at ``at``: str, bin, int, nil, bool; others: a huge number."""
    if at >= end:
        return _BAD
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
    return _BAD


@inlined
def _has_pair(data, at, end, pair, n):
    """Does the map of headers hold these ``n`` packed bytes of a name and its value?"""
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
        name_n = _packed_bytes(data, at, end)
        value_n = _packed_bytes(data, at + name_n, end)
        if name_n + value_n > end - at:
            return False
        if name_n + value_n == n and _same(data, at, pair, n):
            return True
        at += name_n + value_n
    return False


@inlined
def addressed(data, p):
    """Is the record at ``p``, which has headers, for one subscription?"""
    at = p + seg.RECORD_HEADER_BYTES + load_u16(data, p + seg.REC_KEY_LENGTH_AT)
    if load_u16(data, p + seg.REC_HEADERS_LENGTH_AT) < 16 or load_u8(data, at + 1) != 0xAC:
        return False
    return load_i64(data, at + 2) == _FOR_8 and load_u32(data, at + 10) == _FOR_4


@inlined
def _kept(L, data, p, at, key_n, value_at, word):
    """What the user's compiled function says of the record; the record's lengths are checked."""
    base = address_of(data)
    value_n = (word & seg.REC_LENGTH_MASK) - (value_at - p)
    time_ns = load_i64(data, p + seg.REC_TIME_AT)
    kept = call_predicate(L.function_address, base + at, key_n, base + value_at, value_n, time_ns)
    if kept == RAISED:
        L.filter_errors += 1
    return kept != DROPS


@inlined
def passes(L, data, p):
    """Does the lane deliver the record at ``p``?"""
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    key_n = load_u16(data, p + seg.REC_KEY_LENGTH_AT)
    at = p + seg.RECORD_HEADER_BYTES
    end = at + key_n + load_u16(data, p + seg.REC_HEADERS_LENGTH_AT)
    conditions = bytes_at(L.conditions_address, L.conditions_bytes)
    own = load_u16(conditions, 0)
    if word & seg.REC_HEADERS and addressed(data, p):
        pair = bytes_at(L.conditions_address + 2, own)
        if not _has_pair(data, at + key_n, end, pair, own):
            return False
    if L.filter == ALL:
        return True
    if L.filter_bytes > 0 or L.filter == STREAM:
        if word & seg.REC_KEY == 0 or key_n < L.filter_bytes:
            return False
        if L.filter == STREAM and key_n != L.filter_bytes:
            return False
        if not _same(data, at, bytes_at(L.filter_address, L.filter_bytes), L.filter_bytes):
            return False
    if L.function_address != 0 and not _kept(L, data, p, at, key_n, end, word):
        return False
    c = 2 + own
    while c < L.conditions_bytes:
        n = load_u16(conditions, c)
        if not _has_pair(data, at + key_n, end, bytes_at(L.conditions_address + c + 2, n), n):
            return False
        c += 2 + n
    return True


def conditions_of(name: str, headers: dict[str, str]) -> np.ndarray:
    """What `passes` compares with: u16 length and packed bytes of each (header, value) pair.

    The first is what records for this subscription alone carry.
    """
    pack = msgspec.msgpack.encode
    pairs = [(FOR_HEADER, name), *headers.items()]
    parts = [pack(header) + pack(value) for header, value in pairs]
    raw = b"".join(len(part).to_bytes(2, "little") + part for part in parts)
    return np.frombuffer(raw, dtype=np.uint8).copy()
