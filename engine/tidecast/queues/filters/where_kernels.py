"""The walk through a filter's tests, see `tidecast.queues.filters.where`, for each record."""

from __future__ import annotations

import math

import numpy as np

from tidecast.layout import segment as seg
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import load_i64, load_u8, load_u16, load_u32
from tidecast.queues.cache.packed import find_value, same, value_at
from tidecast.queues.filters.where import (
    ABSENT,
    BYTES,
    ENDS,
    EQUAL,
    FIELDS,
    HEADER,
    HOLDS,
    INTEGER,
    IS_THERE,
    KEEP,
    KEY,
    LESS,
    LESS_EQUAL,
    MORE,
    NUMBER,
    REAL,
    SIZE,
    STARTS,
    T_AT,
    T_BYTES,
    T_ELSE,
    T_FIELD,
    T_KIND,
    T_NAME_AT,
    T_NAME_BYTES,
    T_NUMBER,
    T_TEST,
    T_THEN,
    TIME,
    VALUE,
)


@inlined
def _word(program, test, field):
    return load_i64(program, (test * FIELDS + field) * 8)


@inlined
def _integer(data, at, width):
    """A little-endian integer of |width| bytes; negative widths are signed."""
    n = abs(width)
    found = 0
    for i in range(n):
        found |= load_u8(data, at + i) << (8 * i)
    if width < 0 and n < 8 and found >> (8 * n - 1):
        found -= 1 << (8 * n)
    return found


@inlined
def _real(bits, width):
    if width == 4:
        return np.float64(np.int32(bits).view(np.float32))
    return np.int64(bits).view(np.float64)


@inlined
def _order(a, at, n, b, b_at, m):
    """Below 0, 0, above 0: as bytes compare."""
    for i in range(min(n, m)):
        difference = load_u8(a, at + i) - load_u8(b, b_at + i)
        if difference != 0:
            return difference
    return n - m


@inlined
def _find(data, at, n, program, c, m):
    for i in range(n - m + 1):
        if same(data, at + i, program, c, m):
            return True
    return False


@inlined
def _by_order(test, order):
    if test == EQUAL:
        return order == 0
    if test == LESS:
        return order < 0
    if test == LESS_EQUAL:
        return order <= 0
    if test == MORE:
        return order > 0
    return order >= 0


@inlined
def _compare_bytes(test, data, at, n, program, c, m):
    if test == STARTS:
        return n >= m and same(data, at, program, c, m)
    if test == ENDS:
        return n >= m and same(data, at + n - m, program, c, m)
    if test == HOLDS:
        return _find(data, at, n, program, c, m)
    return _by_order(test, _order(data, at, n, program, c, m))


@inlined
def _found(program, i, data, p):
    """The value that test ``i`` checks: (kind, number, offset of its bytes, how many)."""
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    field = _word(program, i, T_FIELD)
    key_at = p + seg.RECORD_HEADER_BYTES
    headers_at = key_at + load_u16(data, p + seg.REC_KEY_LENGTH_AT)
    payload_at = headers_at + load_u16(data, p + seg.REC_HEADERS_LENGTH_AT)
    payload_n = (word & seg.REC_LENGTH_MASK) - (payload_at - p)
    a, b = _word(program, i, T_NAME_AT), _word(program, i, T_NAME_BYTES)
    if field == KEY:
        kind = BYTES if word & seg.REC_KEY else ABSENT
        return kind, 0, key_at, headers_at - key_at
    if field == VALUE:
        return BYTES, 0, payload_at, payload_n
    if field == SIZE:
        return NUMBER, payload_n, 0, 0
    if field == TIME:
        return NUMBER, load_i64(data, p + seg.REC_TIME_AT), 0, 0
    if field == HEADER:
        if word & seg.REC_HEADERS == 0:
            return ABSENT, 0, 0, 0
        at = find_value(data, headers_at, payload_at, program, a, b)
        if at < 0:
            return ABSENT, 0, 0, 0
        return value_at(data, at, payload_at)
    if a + abs(b) > payload_n:
        return ABSENT, 0, 0, 0
    return (NUMBER if field == INTEGER else REAL), _integer(data, payload_at + a, b), 0, 0


@inlined
def _holds(program, i, data, p):
    """Whether test ``i`` holds for the record at ``p``. An absent value equals nothing."""
    kind, number, at, n = _found(program, i, data, p)
    test = _word(program, i, T_TEST)
    if test == IS_THERE:
        return kind != ABSENT
    if kind != _word(program, i, T_KIND):
        return False
    if kind == BYTES:
        c, m = _word(program, i, T_AT), _word(program, i, T_BYTES)
        return _compare_bytes(test, data, at, n, program, c, m)
    constant = _word(program, i, T_NUMBER)
    if kind == REAL:
        a = _real(number, abs(_word(program, i, T_NAME_BYTES)))
        b = _real(constant, 8)
        if math.isnan(a):  # no comparison holds
            return False
        return _by_order(test, (1 if a > b else 0) - (1 if a < b else 0))
    return _by_order(test, (1 if number > constant else 0) - (1 if number < constant else 0))


@inlined
def keeps(program, data, p):
    """Whether a program keeps the record at ``p`` of ``data``, whose lengths are checked."""
    i = 0
    while i >= 0:
        i = _word(program, i, T_THEN if _holds(program, i, data, p) else T_ELSE)
    return i == KEEP


@kernel
def keeps_record(program, data, p):
    """`keeps`, for Python: 1 or 0."""
    return 1 if keeps(program, data, p) else 0
