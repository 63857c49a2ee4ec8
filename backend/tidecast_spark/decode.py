"""Kernels that make Arrow's buffers of records that `tidecast.log.reading.select` has listed.

`measure` says how many bytes a slice of them has, `fill` makes columns of it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tidecast.layout import segment as lay
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import copy, load_i64, load_u8, load_u16, load_u32, store_u8

KEY, HEADERS = lay.REC_KEY, lay.REC_HEADERS


@inlined
def _lengths(block, at):
    head = load_u32(block, at + lay.REC_LENGTH_AT)
    key_n = load_u16(block, at + lay.REC_KEY_LENGTH_AT)
    headers_n = load_u16(block, at + lay.REC_HEADERS_LENGTH_AT)
    value_n = (head & lay.REC_LENGTH_MASK) - lay.RECORD_HEADER_BYTES - key_n - headers_n
    return head, key_n, headers_n, value_n


@kernel
def measure(block, rows, first, end, byte_max, sums):
    """Bytes of keys, headers and values of ``rows[first:end]`` into ``sums``: where it ended.

    Ends early where one of the sums would pass ``byte_max``, but takes one row at least.
    """
    keys = headers = values = 0
    for i in range(first, end):
        _, key_n, headers_n, value_n = _lengths(block, rows[i, 0])
        if i > first and max(keys + key_n, headers + headers_n, values + value_n) > byte_max:
            end = i
            break
        keys += key_n
        headers += headers_n
        values += value_n
    sums[0], sums[1], sums[2] = keys, headers, values
    return end


@inlined
def _set_bit(bits, i):
    store_u8(bits, i >> 3, load_u8(bits, i >> 3) | (1 << (i & 7)))


class Buffers(NamedTuple):
    """The buffers of columns: offsets, int32, one more than rows; bytes; validity, zeroed.

    Times in us; ``nulls``: how many rows have no key, and no headers.
    """

    key_at: np.ndarray
    keys: np.ndarray
    key_bits: np.ndarray
    header_at: np.ndarray
    headers: np.ndarray
    header_bits: np.ndarray
    value_at: np.ndarray
    values: np.ndarray
    tokens: np.ndarray
    times: np.ndarray
    nulls: np.ndarray

    @classmethod
    def of(cls, n: int, key_bytes: int, header_bytes: int, value_bytes: int) -> Buffers:
        """Buffers for ``n`` rows with so many bytes."""
        keys, headers, values = (
            np.empty(size, dtype=np.uint8) for size in (key_bytes, header_bytes, value_bytes)
        )
        key_at, header_at, value_at = (np.empty(n + 1, dtype=np.int32) for _ in range(3))
        key_bits, header_bits = (np.zeros((n + 7) // 8, dtype=np.uint8) for _ in range(2))
        return cls(
            key_at,
            keys,
            key_bits,
            header_at,
            headers,
            header_bits,
            value_at,
            values,
            np.empty(n, dtype=np.int64),
            np.empty(n, dtype=np.int64),
            np.zeros(2, dtype=np.int64),
        )


@kernel
def fill(block, rows, first, end, columns):
    """Fill `Buffers` from ``rows[first:end]``."""
    key_at, header_at, value_at = columns.key_at, columns.header_at, columns.value_at
    k = h = v = 0
    key_at[0] = header_at[0] = value_at[0] = 0
    no_key = no_headers = 0
    for i in range(end - first):
        at = rows[first + i, 0]
        head, key_n, headers_n, value_n = _lengths(block, at)
        body = at + lay.RECORD_HEADER_BYTES
        copy(columns.keys, k, block, body, key_n)
        copy(columns.headers, h, block, body + key_n, headers_n)
        copy(columns.values, v, block, body + key_n + headers_n, value_n)
        k += key_n
        h += headers_n
        v += value_n
        key_at[i + 1], header_at[i + 1], value_at[i + 1] = k, h, v
        if head & KEY:
            _set_bit(columns.key_bits, i)
        else:
            no_key += 1
        if head & HEADERS:
            _set_bit(columns.header_bits, i)
        else:
            no_headers += 1
        columns.tokens[i] = rows[first + i, 1]
        columns.times[i] = load_i64(block, at + lay.REC_TIME_AT) // 1000
    columns.nulls[0], columns.nulls[1] = no_key, no_headers
