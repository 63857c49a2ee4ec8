"""The records that a cursor delivers: all, one stream, or the choice of a program or function.

A record that the engine wrote (`segment.REC_ENGINE`) with ``tidecast-for`` as its first header is
for the subscription of that name alone: so dead letters are delivered again to one subscription. In
records of other publishers the header means nothing.
"""

from __future__ import annotations

from tidecast.layout import segment as seg
from tidecast.log.redriven import is_redriven
from tidecast.native.jit import inlined
from tidecast.native.memory import address_of, bytes_at, load_i64, load_u16, load_u32
from tidecast.native.predicates import DROPS, RAISED, call_predicate
from tidecast.queues.cache.packed import same, value_at
from tidecast.queues.filters.where import BYTES
from tidecast.queues.filters.where_kernels import keeps

ALL, STREAM, CHOSEN = 0, 1, 2


@inlined
def _kept(L, data, p, at, key_n, value_at, word):
    """The answer of the user's compiled function; the record's lengths are checked."""
    base = address_of(data)
    value_n = (word & seg.REC_LENGTH_MASK) - (value_at - p)
    time_ns = load_i64(data, p + seg.REC_TIME_AT)
    kept = call_predicate(L.function_address, base + at, key_n, base + value_at, value_n, time_ns)
    if kept == RAISED:
        L.filter_errors += 1
    return kept != DROPS


@inlined
def _is_own(L, data, at, end):
    """Is the subscription that the first header, at ``at``, names the cursor's own?"""
    kind, _, name_at, n = value_at(data, at + 14, end)
    if kind != BYTES or n != L.name_bytes or name_at + n > end:
        return False
    return same(data, name_at, bytes_at(L.name_address, n), 0, n)


@inlined
def passes(L, data, p):
    """Does the cursor deliver the record at ``p``?"""
    word = load_u32(data, p + seg.REC_LENGTH_AT)
    key_n = load_u16(data, p + seg.REC_KEY_LENGTH_AT)
    at = p + seg.RECORD_HEADER_BYTES
    end = at + key_n + load_u16(data, p + seg.REC_HEADERS_LENGTH_AT)
    if word & seg.REC_ENGINE and is_redriven(data, p) and not _is_own(L, data, at + key_n, end):
        return False
    if L.filter == ALL:
        return True
    if L.filter == STREAM:
        if word & seg.REC_KEY == 0 or key_n != L.filter_bytes:
            return False
        if not same(data, at, bytes_at(L.filter_address, key_n), 0, key_n):
            return False
    if L.function_address != 0 and not _kept(L, data, p, at, key_n, end, word):
        return False
    return L.program_bytes == 0 or keeps(bytes_at(L.program_address, L.program_bytes), data, p)
