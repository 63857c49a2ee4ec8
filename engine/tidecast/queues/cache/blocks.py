"""Blocks: runs of whole batches in memory; the offsets of their records are listed at loading.

A block belongs to one queue and covers contiguous tokens [first, end). Its index has an entry for
each token: where its record starts, and which record of the same bucket of keys is next. So a
cursor of one stream (topic + key) visits only records of its bucket.

Sources whose offsets have holes (transaction markers, compaction, deleted messages) leave tokens
without a record. Between batches of a block such a token has the offset 0, where no record can
start because a batch header is there. Before a block's first record, [lead, first) is a hole.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout import segment as seg
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import bytes_at, load_i64, load_u16, load_u32, store_u32

BLOCK_BYTES = 256 * 1024
QUEUE_BLOCKS_MAX = 64
INDEX_BYTES = 8
HEADS = 4096
HOLES_MAX = 16_384
"""Tokens without a record that a block's index may list; a longer hole ends the block."""
HOLE = 0
"""The index of a token without a record."""

BLOCK = np.dtype(
    [
        ("state", np.int64),  # 0 free, 1 loaded
        ("queue", np.int64),
        ("generation", np.int64),  # grows with each reuse
        ("data_address", np.int64),
        ("data_bytes", np.int64),  # capacity
        ("used", np.int64),  # bytes of batches
        ("index_address", np.int64),
        ("index_max", np.int64),  # records that fit
        ("heads_address", np.int64),  # 0: not indexed by stream
        ("heads_count", np.int64),  # records indexed by stream
        ("lead", np.int64),  # [lead, first) is a hole; without a hole lead equals first
        ("first", np.int64),  # token of the first record
        ("end", np.int64),  # behind the last
        ("hot", np.int64),  # last cycle that ended with a ready cursor in it
        ("parked", np.int64),  # cursors that rest in it: paused, or without credit
        ("touched", np.int64),  # last cycle that used it
        ("own", np.int64),  # 1: it has separate memory, larger than usual
        ("holes", np.int64),  # tokens without a record that the index lists
        ("holes_max", np.int64),  # at most; 0: each batch must follow the batch before
    ]
)

BAD_BATCH, INDEX_FULL, NOT_CONTIGUOUS = -1, -2, -3
"""Results of `add_batches` below zero."""


@inlined
def data_of(B):
    """The batches' bytes."""
    return bytes_at(B.data_address, B.used)


@inlined
def record_at(B, i):
    """Offset of record ``i``; HOLE: token ``first + i`` has none."""
    return load_u32(bytes_at(B.index_address, B.index_max * INDEX_BYTES), i * INDEX_BYTES)


@inlined
def _next_in_bucket(B, i):
    return load_u32(bytes_at(B.index_address, B.index_max * INDEX_BYTES), i * INDEX_BYTES + 4)


@inlined
def holds_token(B, queue, token):
    """Does this block hold record ``token`` of ``queue``, or know that there is none?"""
    return B.state == 1 and B.queue == queue and B.lead <= token < B.end


@inlined
def count_records(data, used):
    """How many records the headers of ``used`` bytes of batches promise; BAD_BATCH."""
    at = 0
    n = 0
    while at < used:
        if used - at < seg.BATCH_HEADER_BYTES:
            return BAD_BATCH
        length = load_u32(data, at + seg.BATCH_LENGTH_AT)
        count = load_u32(data, at + seg.BATCH_COUNT_AT)
        if length < seg.BATCH_HEADER_BYTES or length > used - at:
            return BAD_BATCH
        if count < 1 or count > seg.BATCH_RECORDS_MAX:
            return BAD_BATCH
        n += count
        at += length
    return n


@kernel
def entries_for(blocks, b, n):
    """Words of the index that ``n`` more bytes of batches behind ``used`` take; BAD_BATCH."""
    B = blocks[b]
    at, stop = B.used, B.used + n
    if stop > B.data_bytes:
        return BAD_BATCH
    data = bytes_at(B.data_address, B.data_bytes)
    if count_records(bytes_at(B.data_address + at, n), n) < 0:
        return BAD_BATCH
    end, holes, need = B.end, B.holes, 0
    while at < stop:
        base = load_i64(data, at + seg.BATCH_BASE_TOKEN_AT)
        if base < 0:
            return BAD_BATCH
        if base != end and B.end - B.first + need > 0:
            if base < end or base - end > B.holes_max - holes:
                break  # the batches from here on are for another block
            holes += base - end
            need += base - end
        records = load_u32(data, at + seg.BATCH_COUNT_AT)
        need += records
        end = base + records
        at += load_u32(data, at + seg.BATCH_LENGTH_AT)
    return need


@kernel
def add_batches(blocks, b, n):
    """`list_batches`, from Python."""
    return list_batches(blocks, b, n)


@inlined
def list_batches(blocks, b, n):
    """List the records of ``n`` more bytes of batches behind ``used``.

    Every length is checked here, so that readers of the block need no checks. Returns the number of
    records added; NOT_CONTIGUOUS: the hole behind the block's last record is longer than it may
    list, nothing is added.
    """
    B = blocks[b]
    data = bytes_at(B.data_address, B.data_bytes)
    index = bytes_at(B.index_address, B.index_max * INDEX_BYTES)
    at = B.used
    stop = at + n
    if stop > B.data_bytes:
        return BAD_BATCH
    count = B.end - B.first
    before = count
    first, lead, end, holes = B.first, B.lead, B.end, B.holes
    added = 0
    while at < stop:
        if stop - at < seg.BATCH_HEADER_BYTES:
            return BAD_BATCH
        length = load_u32(data, at + seg.BATCH_LENGTH_AT)
        records = load_u32(data, at + seg.BATCH_COUNT_AT)
        base = load_i64(data, at + seg.BATCH_BASE_TOKEN_AT)
        if length < seg.BATCH_HEADER_BYTES or length > stop - at or records < 1 or base < 0:
            return BAD_BATCH
        if count == 0:
            first = base
            end = base
            lead = min(lead, base) if B.holes_max > 0 else base
        gap = base - end
        if gap < 0 or gap > B.holes_max - holes:
            if count == before:
                return NOT_CONTIGUOUS
            break  # the batches behind the gap are for another block
        if count + gap + records > B.index_max:
            return INDEX_FULL
        for _ in range(gap):
            store_u32(index, count * INDEX_BYTES, HOLE)
            count += 1
        holes += gap
        end += gap
        p = at + seg.BATCH_HEADER_BYTES
        batch_end = at + length
        for _ in range(records):
            if batch_end - p < seg.RECORD_HEADER_BYTES:
                return BAD_BATCH
            size = load_u32(data, p + seg.REC_LENGTH_AT) & seg.REC_LENGTH_MASK
            fixed = seg.RECORD_HEADER_BYTES + load_u16(data, p + seg.REC_KEY_LENGTH_AT)
            fixed += load_u16(data, p + seg.REC_HEADERS_LENGTH_AT)
            if size < fixed or size > batch_end - p:
                return BAD_BATCH
            store_u32(index, count * INDEX_BYTES, p)
            count += 1
            p += size
        end += records
        added += records
        at = batch_end
    B.lead, B.first, B.end, B.used, B.holes = lead, first, end, at, holes
    return added


# --- the index by stream ------------------------------------------------------------------------


@inlined
def index_streams(B):
    """Link the records that are not linked yet into the buckets of their keys."""
    if B.heads_count == B.end - B.first:
        return
    heads = bytes_at(B.heads_address, HEADS * 8)
    index = bytes_at(B.index_address, B.index_max * INDEX_BYTES)
    data = data_of(B)
    if B.heads_count == 0:
        for i in range(HEADS * 2):
            store_u32(heads, i * 4, 0)
    for i in range(B.heads_count, B.end - B.first):
        p = load_u32(index, i * INDEX_BYTES)
        if p == HOLE:
            continue
        bucket = (load_u32(data, p + seg.REC_KEY_HASH_AT) & (HEADS - 1)) * 8
        store_u32(index, i * INDEX_BYTES + 4, 0)
        last = load_u32(heads, bucket + 4)
        if last == 0:
            store_u32(heads, bucket, i + 1)
        else:
            store_u32(index, (last - 1) * INDEX_BYTES + 4, i + 1)
        store_u32(heads, bucket + 4, i + 1)
    B.heads_count = B.end - B.first


@inlined
def next_of_stream(B, key_hash, i):
    """First record from ``i`` on whose key has this hash; -1 when the block has none.

    The walk starts at ``i``, or at ``i - 1``, if that record is in the bucket, else at the bucket's
    first record. Cost: records of the stream (and of streams that share its bucket), not of the
    block. Tokens without a record are in no bucket.
    """
    index_streams(B)
    heads = bytes_at(B.heads_address, HEADS * 8)
    data = data_of(B)
    found = load_u32(heads, (key_hash & (HEADS - 1)) * 8)
    if i < B.end - B.first and record_at(B, i) != HOLE:
        here = load_u32(data, record_at(B, i) + seg.REC_KEY_HASH_AT)
        if here == key_hash:
            return i
        if here & (HEADS - 1) == key_hash & (HEADS - 1):
            found = i + 1
        elif i > 0 and record_at(B, i - 1) != HOLE:  # the record that was delivered last
            last = load_u32(data, record_at(B, i - 1) + seg.REC_KEY_HASH_AT)
            if last & (HEADS - 1) == key_hash & (HEADS - 1):
                found = _next_in_bucket(B, i - 1)
    while found != 0:
        k = found - 1
        if k >= i and load_u32(data, record_at(B, k) + seg.REC_KEY_HASH_AT) == key_hash:
            return k
        found = _next_in_bucket(B, k)
    return -1
