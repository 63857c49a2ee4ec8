"""The kernel that publishes rows of Arrow columns, with keys, headers and times, into a ring."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidecast.buffers.header_names import has_reserved
from tidecast.buffers.writer import append
from tidecast.client.kernels.ports import bells_of, ring_of
from tidecast.layout import packet as wire
from tidecast.log.batch import seal_batch
from tidecast.native.jit import held_kernel, inlined
from tidecast.native.memory import (
    address_of,
    bytes_at,
    copy,
    load_i64,
    load_u8,
    store_i64,
    store_u16,
)

_MIX_A, _MIX_B = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_LOW_35, _LOW_32 = (1 << 35) - 1, (1 << 32) - 1
META_BYTES_MAX = 8 + 2 * (2 + 65_535)
FIELD_BYTES_MAX = 65_535
"""A key and headers may be this long at most; the caller has checked it."""


@inlined
def _valid(bits, i):
    return bits.size == 0 or (load_u8(bits, i >> 3) >> (i & 7)) & 1 != 0


@inlined
def _put_field(meta, at, data, first, n):
    store_u16(meta, at, n)
    copy(meta, at + 2, data, first, n)
    return at + 2 + n


class Columns(NamedTuple):
    """The buffers of a record batch: times in us, and where each row's bytes begin (``*_at``).

    ``*_bits``: validity, empty if all rows are valid.
    """

    times: np.ndarray
    time_bits: np.ndarray
    key_at: np.ndarray
    keys: np.ndarray
    key_bits: np.ndarray
    header_at: np.ndarray
    headers: np.ndarray
    header_bits: np.ndarray
    value_at: np.ndarray
    values: np.ndarray


@held_kernel
def put_rows(port, first, end, columns, meta):
    """Append rows [first, end) of `Columns`: (rows done, status of the last `append`)."""
    key_at, header_at, value_at = columns.key_at, columns.header_at, columns.value_at
    ring, bells = ring_of(port), bells_of(port)
    for i in range(first, end):
        n, flags = 0, 0
        if _valid(columns.time_bits, i):
            flags |= wire.TIMESTAMP
            store_i64(meta, 0, columns.times[i] * 1000)
            n = 8
        if _valid(columns.key_bits, i):
            flags |= wire.KEY
            n = _put_field(meta, n, columns.keys, key_at[i], key_at[i + 1] - key_at[i])
        if _valid(columns.header_bits, i):
            flags |= wire.HEADERS
            n = _put_field(meta, n, columns.headers, header_at[i], header_at[i + 1] - header_at[i])
        size = value_at[i + 1] - value_at[i]
        source = bytes_at(address_of(columns.values) + value_at[i], size)
        status = append(ring, bells, port, source, size, meta, n, flags, 0, 0)
        if status < 0:
            return i, status
    return end, 0


@held_kernel
def first_reserved(header_at, headers, header_bits, n):
    """The first of ``n`` rows with a header that only an engine may write; -1: none."""
    for i in range(n):
        if _valid(header_bits, i) and has_reserved(headers, header_at[i], header_at[i + 1]):
            return i
    return -1


@held_kernel
def reseal(batch, n, token, time_ns):
    """Give a sealed batch ``batch[:n]`` another first token; the token behind it."""
    return seal_batch(batch, 0, n, token, time_ns)


@inlined
def _mixed(mix, word):
    """One round of splitmix64 over a word more."""
    mix = (mix ^ word) * _MIX_A
    mix ^= (mix >> 29) & _LOW_35
    mix *= _MIX_B
    return mix ^ ((mix >> 32) & _LOW_32)


@inlined
def _mixed_field(mix, data, first, n):
    at, end = first, first + n
    mix = _mixed(mix, n + 1)
    while at + 8 <= end:
        mix = _mixed(mix, load_i64(data, at))
        at += 8
    word = 0
    while at < end:
        word = (word << 8) | load_u8(data, at)
        at += 1
    return _mixed(mix, word)


@held_kernel
def digest_rows(n, columns):
    """The sum of a hash of each of ``n`` rows: the same in whatever order the rows come."""
    key_at, header_at, value_at = columns.key_at, columns.header_at, columns.value_at
    total = 0
    for i in range(n):
        mix = _mixed(0, columns.times[i] if _valid(columns.time_bits, i) else -1)
        if _valid(columns.key_bits, i):
            mix = _mixed_field(mix, columns.keys, key_at[i], key_at[i + 1] - key_at[i])
        mix = _mixed(mix, 1)
        if _valid(columns.header_bits, i):
            mix = _mixed_field(mix, columns.headers, header_at[i], header_at[i + 1] - header_at[i])
        total += _mixed_field(mix, columns.values, value_at[i], value_at[i + 1] - value_at[i])
    return total
