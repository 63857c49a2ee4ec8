"""Kernels that read plain samples of telemetry much faster than Arrow's JSON reader.

Plain is a flat object of known and unknown names with integers, ASCII strings without escapes and
nulls, as engines write them. A general parser reads all other JSON.
"""

from __future__ import annotations

from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import copy, load_u8

INTEGER, TEXT = 0, 1
DIGITS_MAX = 18
_QUOTE, _COMMA, _COLON, _MINUS, _OPEN, _CLOSE, _SPACE = 34, 44, 58, 45, 123, 125, 32
_ZERO, _NINE, _BACKSLASH, _N = 48, 57, 92, 110
NOT_PLAIN = -1


@inlined
def _skip_spaces(data, at, end):
    while at < end and load_u8(data, at) == _SPACE:
        at += 1
    return at


@inlined
def _text_end(data, at, end):
    """Where the text that begins at ``at`` has its closing quote, or NOT_PLAIN."""
    while at < end:
        one = load_u8(data, at)
        if one == _QUOTE:
            return at
        if one < _SPACE or one > 126 or one == _BACKSLASH:
            return NOT_PLAIN
        at += 1
    return NOT_PLAIN


@inlined
def _field_of(data, at, n, names, name_ends, guess):
    """The field of this name, looked for from ``guess`` on, as they come in order; -1: none."""
    fields = name_ends.size
    for i in range(fields):
        field = guess + i
        if field >= fields:
            field -= fields
        begin = name_ends[field - 1] if field > 0 else 0
        if name_ends[field] - begin != n:
            continue
        same = True
        for k in range(n):
            if load_u8(names, begin + k) != load_u8(data, at + k):
                same = False
                break
        if same:
            return field
    return -1


@inlined
def _is_null(data, at, end):
    return (
        at + 4 <= end
        and load_u8(data, at) == _N
        and load_u8(data, at + 1) == 117
        and load_u8(data, at + 2) == 108
        and load_u8(data, at + 3) == 108
    )


@inlined
def _read_number(data, at, end):
    """(integer, behind it); behind it NOT_PLAIN if it is none."""
    negative = load_u8(data, at) == _MINUS
    if negative:
        at += 1
    first, value = at, 0
    while at < end and _ZERO <= load_u8(data, at) <= _NINE:
        value = value * 10 + load_u8(data, at) - _ZERO
        at += 1
        if at - first > DIGITS_MAX:
            return 0, NOT_PLAIN
    n = at - first
    if n == 0 or (n > 1 and load_u8(data, first) == _ZERO):
        return 0, NOT_PLAIN
    return -value if negative else value, at


@inlined
def _put_bit(bits, field, row):
    bits[field, row >> 3] |= 1 << (row & 7)


@inlined
def _has_bit(bits, field, row):
    return (bits[field, row >> 3] >> (row & 7)) & 1 != 0


@inlined
def _read_row(data, at, end, row, names, name_ends, kinds, numbers, lengths, bits):
    """Whether the sample is plain; its values are in the columns then."""
    at = _skip_spaces(data, at, end)
    if at >= end or load_u8(data, at) != _OPEN:
        return False
    at = _skip_spaces(data, at + 1, end)
    guess = 0
    while True:
        if at >= end or load_u8(data, at) != _QUOTE:
            return False
        close = _text_end(data, at + 1, end)
        if close < 0:
            return False
        field = _field_of(data, at + 1, close - at - 1, names, name_ends, guess)
        at = _skip_spaces(data, close + 1, end)
        if at >= end or load_u8(data, at) != _COLON:
            return False
        at = _skip_spaces(data, at + 1, end)
        if at >= end or (field >= 0 and _has_bit(bits, field, row)):
            return False
        one = load_u8(data, at)
        if one == _QUOTE:
            close = _text_end(data, at + 1, end)
            if close < 0 or (field >= 0 and kinds[field] != TEXT):
                return False
            if field >= 0:
                numbers[field, row], lengths[field, row] = at + 1, close - at - 1
                _put_bit(bits, field, row)
            at = close + 1
        elif _is_null(data, at, end):
            at += 4
        else:
            value, at = _read_number(data, at, end)
            if at < 0 or (field >= 0 and kinds[field] != INTEGER):
                return False
            if field >= 0:
                numbers[field, row] = value
                _put_bit(bits, field, row)
        if field >= 0:
            guess = field + 1
        at = _skip_spaces(data, at, end)
        if at >= end:
            return False
        one = load_u8(data, at)
        at = _skip_spaces(data, at + 1, end)
        if one == _CLOSE:
            return at == end
        if one != _COMMA:
            return False


@kernel
def read_samples(data, ends, first, last, names, name_ends, kinds, numbers, lengths, bits):
    """Read samples [first, last), one a row from row 0 on; how many, up to the first not plain.

    ``ends``: int32 offsets into ``data``, one more than samples. ``numbers`` int64[fields, rows]:
    integers, and where texts begin; ``lengths``: of texts. ``bits`` uint8[fields, ...]: validity,
    zeroed. There is room for ``last - first`` rows.
    """
    for i in range(first, last):
        row = i - first
        if not _read_row(
            data, ends[i], ends[i + 1], row, names, name_ends, kinds, numbers, lengths, bits
        ):
            for field in range(kinds.size):
                bits[field, row >> 3] &= 255 ^ (1 << (row & 7))
            return row
    return last - first


@kernel
def text_bytes(lengths, bits, field, rows):
    """Bytes of a column of texts."""
    total = 0
    for row in range(rows):
        if _has_bit(bits, field, row):
            total += lengths[field, row]
    return total


@kernel
def gather_texts(data, numbers, lengths, bits, field, rows, out_ends, out):
    """Copy a column of texts together; ``out_ends``: int32 offsets, one more than rows."""
    to = 0
    out_ends[0] = 0
    for row in range(rows):
        if _has_bit(bits, field, row):
            n = lengths[field, row]
            copy(out, to, data, numbers[field, row], n)
            to += n
        out_ends[row + 1] = to


@kernel
def count_bits(bits, field, rows):
    """Rows of a column that are not null."""
    found = 0
    for row in range(rows):
        if _has_bit(bits, field, row):
            found += 1
    return found
