"""Kernels that list the wanted records of a run of the log, by bounds, times and keys; find gaps.

A block is a run of whole batches in ``uint8[:]``. `select_records` checks its batches and lists the
wanted records; `keep_listed` copies the batches that have wanted records, side by side.
"""

from __future__ import annotations

from tidecast.layout import segment as lay
from tidecast.log.batch import BAD_RECORD, check_batch, check_header
from tidecast.log.redriven import is_redriven
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import copy, load_i64, load_u8, load_u16, load_u32

(
    W_TOKEN_MIN,
    W_TOKEN_END,
    W_TIME_MIN,
    W_TIME_END,
    W_KEYS,
    W_KEY_NULL,
    W_EXPECTED,
    W_AT,
    W_NEXT_TOKEN,
    W_GAP,
    W_SKIPPED,
    W_HOLES,
) = range(12)
SELECT_WORDS = 12
"""In: bounds (end exclusive) of token and time, number of wanted keys (-1: any), whether records
without a key are wanted, the first token of the next batch (-1: any), whether tokens may be missing
between batches. Out: where the walk stopped and the token expected there, whether tokens were
missing there, records filtered out."""
NO_KEYS = -1
TOKEN_GAP = -20
"""A sound batch whose token does not follow on from the batch before."""


@inlined
def _key_wanted(block, at, head, w, keys, key_ends, hashes):
    """Whether the record has a wanted key."""
    if head & lay.REC_KEY == 0:
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
    """List the wanted records of a sound batch: (offset, token) rows. BAD_RECORD: a wrong length.

    Redriven copies of dead letters, which are for one subscription alone, are never wanted.
    """
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
        if head & lay.REC_ENGINE and is_redriven(block, at):
            wanted = False  # the record itself was here before
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
        if (
            w[W_EXPECTED] >= 0
            and token != w[W_EXPECTED]
            and (w[W_HOLES] == 0 or token < w[W_EXPECTED])
        ):
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


@kernel
def keep_listed(block, first, end, rows, n, out):
    """Copy the batches of ``block[first:end]`` that hold any of the ``n`` rows. Bytes copied.

    The batches were checked by `select_records`, which listed the rows; ``out`` has room for all.
    """
    at, to, i = first, 0, 0
    while at < end and i < n:
        length = load_u32(block, at + lay.BATCH_LENGTH_AT)
        if rows[i, 0] < at + length:
            copy(out, to, block, at, length)
            to += length
            while i < n and rows[i, 0] < at + length:
                i += 1
        at += length
    return to


@kernel
def find_batch(block, size, at, token_min):
    """Offset of the next sound batch at or behind ``at`` with a token above ``token_min``, or -1.

    Searches byte by byte, behind a damaged batch.
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
