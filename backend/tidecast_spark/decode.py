"""Kernels that turn a block of the queue log into Arrow's buffers, with the filters applied.

A block is a run of whole batches in ``uint8[:]``. `select_records` checks its batches and lists the
records wanted; `measure` and `fill` make columns of a slice of them.
"""

from __future__ import annotations

from tidecast.layout import segment as lay
from tidecast.log.batch import BAD_RECORD, check_batch, check_header
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import copy, load_i64, load_u8, load_u16, load_u32, store_u8

(
    W_TOKEN_MIN, W_TOKEN_END, W_TIME_MIN, W_TIME_END, W_KEYS, W_KEY_NULL, W_EXPECTED, W_AT,
    W_NEXT_TOKEN, W_GAP, W_SKIPPED,
) = range(11)  # fmt: skip
SELECT_WORDS = 11
"""In: bounds (end exclusive) of token and time, number of wanted keys (-1: any), whether records
without a key are wanted, the first token of the next batch (-1: any). Out: where the walk stopped
and the token expected there, whether tokens were missing there, records filtered out."""
NO_KEYS = -1
TOKEN_GAP = -20
"""A sound batch whose token does not follow on from the one before."""

KEY, HEADERS = lay.REC_KEY, lay.REC_HEADERS


@inlined
def _key_wanted(block, at, head, w, keys, key_ends, hashes):
    """Whether the record's key is one of the wanted ones."""
    if head & KEY == 0:
        return w[W_KEY_NULL] != 0
    n = load_u16(block, at + lay.REC_KEY_LENGTH_AT)
    hashed = load_u32(block, at + lay.REC_KEY_HASH_AT)
    for k in range(w[W_KEYS]):
        if hashes[k] != hashed:
            continue
        begin = key_ends[k - 1] if k > 0 else 0
        if key_ends[k] - begin != n:
            continue
        same = True
        for i in range(n):
            if load_u8(keys, begin + i) != load_u8(block, at + lay.RECORD_HEADER_BYTES + i):
                same = False
                break
        if same:
            return True
    return False


@inlined
def _walk_batch(block, at, length, w, keys, key_ends, hashes, out, n):
    """List the wanted records of a sound batch: (offset, token) rows; BAD_RECORD if it lies."""
    token = load_i64(block, at + lay.BATCH_BASE_TOKEN_AT)
    count = load_u32(block, at + lay.BATCH_COUNT_AT)
    end = at + length
    at += lay.BATCH_HEADER_BYTES
    for i in range(count):
        if at + lay.RECORD_HEADER_BYTES > end:
            return BAD_RECORD
        head = load_u32(block, at + lay.REC_LENGTH_AT)
        size = head & lay.REC_LENGTH_MASK
        lead = lay.RECORD_HEADER_BYTES + load_u16(block, at + lay.REC_KEY_LENGTH_AT)
        lead += load_u16(block, at + lay.REC_HEADERS_LENGTH_AT)
        if size < lead or at + size > end:
            return BAD_RECORD
        time_ns = load_i64(block, at + lay.REC_TIME_AT)
        wanted = w[W_TOKEN_MIN] <= token + i < w[W_TOKEN_END]
        wanted = wanted and w[W_TIME_MIN] <= time_ns < w[W_TIME_END]
        if wanted and w[W_KEYS] >= 0:
            wanted = _key_wanted(block, at, head, w, keys, key_ends, hashes)
        if wanted:
            out[n, 0] = at
            out[n, 1] = token + i
            n += 1
        else:
            w[W_SKIPPED] += 1
        at += size
    if at != end:
        return BAD_RECORD
    return n


@kernel
def select_records(block, size, w, keys, key_ends, hashes, out):
    """Walk the batches of ``block[:size]`` from W_AT on: rows of ``out`` (offset, token) filled.

    Stops at the first batch that is not whole or not sound, and behind W_TOKEN_END: W_AT and
    W_NEXT_TOKEN say where. A cause (see `tidecast.log.batch.CAUSES`) below zero when nothing could
    be listed; ``out`` has room for ``size // RECORD_HEADER_BYTES`` rows.
    """
    n = 0
    while w[W_AT] < size:
        at = w[W_AT]
        length = check_batch(block, at, size)
        if length < 0:
            return n if n > 0 else length
        token = load_i64(block, at + lay.BATCH_BASE_TOKEN_AT)
        if w[W_EXPECTED] >= 0 and token != w[W_EXPECTED]:
            w[W_GAP] = token
            return n if n > 0 else TOKEN_GAP
        if token >= w[W_TOKEN_END]:
            w[W_NEXT_TOKEN] = token
            return n
        behind = token + load_u32(block, at + lay.BATCH_COUNT_AT)
        if behind > w[W_TOKEN_MIN] and load_i64(block, at + lay.BATCH_TIME_MAX_AT) >= w[W_TIME_MIN]:
            rows = _walk_batch(block, at, length, w, keys, key_ends, hashes, out, n)
            if rows < 0:
                return n if n > 0 else rows
            n = rows
        w[W_AT] = at + length
        w[W_NEXT_TOKEN] = w[W_EXPECTED] = behind
    return n


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


@kernel
def fill(block, rows, first, end, key_at, key_data, key_bits, header_at, header_data, header_bits,
         value_at, value_data, tokens, times, nulls):  # fmt: skip
    """Fill the buffers of columns from ``rows[first:end]``; ``nulls``: rows without key, headers.

    ``*_at``: int32 offsets, one more than rows. ``*_bits``: validity, zeroed. Times in us.
    """
    k = h = v = 0
    key_at[0] = header_at[0] = value_at[0] = 0
    no_key = no_headers = 0
    for i in range(end - first):
        at = rows[first + i, 0]
        head, key_n, headers_n, value_n = _lengths(block, at)
        body = at + lay.RECORD_HEADER_BYTES
        copy(key_data, k, block, body, key_n)
        copy(header_data, h, block, body + key_n, headers_n)
        copy(value_data, v, block, body + key_n + headers_n, value_n)
        k += key_n
        h += headers_n
        v += value_n
        key_at[i + 1], header_at[i + 1], value_at[i + 1] = k, h, v
        if head & KEY:
            _set_bit(key_bits, i)
        else:
            no_key += 1
        if head & HEADERS:
            _set_bit(header_bits, i)
        else:
            no_headers += 1
        tokens[i] = rows[first + i, 1]
        times[i] = load_i64(block, at + lay.REC_TIME_AT) // 1000
    nulls[0], nulls[1] = no_key, no_headers


@kernel
def find_batch(block, size, at, token_min):
    """Offset of the next sound batch at or behind ``at`` with a token above ``token_min``, or -1.

    Searches byte by byte: for what lies behind a damaged batch.
    """
    while at + lay.BATCH_HEADER_BYTES <= size:
        if (
            load_i64(block, at + lay.BATCH_BASE_TOKEN_AT) >= token_min
            and check_header(block, at, size) > 0
            and check_batch(block, at, size) > 0
        ):
            return at
        at += 1
    return -1
