"""Batches of records: build, check, list their records. Layout: `tidecast.layout.segment`.

Nothing here trusts its input: `check_batch` verifies header and checksum, `list_records` every
length, so that callers may pass any bytes.
"""

from __future__ import annotations

from tidecast.layout import segment as lay
from tidecast.native.crc32c import crc32c
from tidecast.native.jit import inlined
from tidecast.native.memory import (
    copy,
    load_i64,
    load_u16,
    load_u32,
    store_i64,
    store_u16,
    store_u32,
)

SHORT, BAD_LENGTH, BAD_CRC, BAD_FIELD, BAD_RECORD, NO_ROOM = -1, -2, -3, -4, -5, -6
CAUSES = {
    SHORT: "it ends before its length",
    BAD_LENGTH: "its length is none a batch can have",
    BAD_CRC: "its checksum is wrong",
    BAD_FIELD: "a field of its header is out of range",
    BAD_RECORD: "a record does not fit",
    NO_ROOM: "the table for its records is too small",
}
"""Results of `check_batch` and `list_records` below zero, in words."""

(
    O_PAYLOAD_AT,
    O_PAYLOAD_N,
    O_KEY_AT,
    O_KEY_N,
    O_HEADERS_AT,
    O_HEADERS_N,
    O_TIME,
    O_KEY_HASH,
    O_TOKEN,
    O_SEQ,
) = range(10)
RECORD_FIELDS = 10
"""Columns of the rows of `list_records`: offsets into its input (-1: no key, no headers), lengths,
time-stamp, hash of the key, token, sequence of the producer."""

_HEADER, _RECORD = lay.BATCH_HEADER_BYTES, lay.RECORD_HEADER_BYTES
_TOKEN_MAX = 1 << 62
RECORD_BYTES_MAX = lay.REC_LENGTH_MASK
assert lay.BATCH_BYTES_MAX <= RECORD_BYTES_MAX


@inlined
def begin_batch(out, at, producer, epoch, owner, base_seq, acked_seq):
    """Start an empty batch at ``out[at:]``; returns where its records begin."""
    store_i64(out, at, 0)
    store_i64(out, at + lay.BATCH_BASE_TOKEN_AT, 0)
    store_u32(out, at + lay.BATCH_COUNT_AT, 0)
    store_u16(out, at + lay.BATCH_VERSION_AT, lay.BATCH_VERSION)
    store_u16(out, at + lay.BATCH_FLAGS_AT, 0)
    store_i64(out, at + lay.BATCH_APPEND_TIME_AT, 0)
    store_i64(out, at + lay.BATCH_TIME_MAX_AT, 0)
    store_i64(out, at + lay.BATCH_PRODUCER_AT, producer)
    store_u32(out, at + lay.BATCH_EPOCH_AT, epoch)
    store_u32(out, at + lay.BATCH_OWNER_AT, owner)
    store_i64(out, at + lay.BATCH_BASE_SEQ_AT, base_seq)
    store_i64(out, at + lay.BATCH_ACKED_SEQ_AT, acked_seq)
    return at + _HEADER


@inlined
def record_bytes(key_n, headers_n, payload_n):
    """Bytes of a record; ``key_n`` and ``headers_n`` may be -1 (none)."""
    return _RECORD + max(key_n, 0) + max(headers_n, 0) + payload_n


@inlined
def add_record(out, at, end, seq, time_ns, key_hash, key, headers, payload):
    """Add a record behind ``end`` to the batch at ``out[at:]``; returns the new end.

    ``key``, ``headers`` and ``payload`` are `Span`s; the first two may be none (length -1). The
    caller has checked that `record_bytes` fit and that ``seq`` is at most 2^32-1 ahead of base_seq.
    """
    flags = 0
    to = end + _RECORD
    if key.n >= 0:
        flags |= lay.REC_KEY
        copy(out, to, key.data, key.at, key.n)
        to += key.n
    if headers.n >= 0:
        flags |= lay.REC_HEADERS
        copy(out, to, headers.data, headers.at, headers.n)
        to += headers.n
    copy(out, to, payload.data, payload.at, payload.n)
    to += payload.n
    store_u32(out, end + lay.REC_LENGTH_AT, (to - end) | flags)
    store_u32(out, end + lay.REC_SEQ_DELTA_AT, seq - load_i64(out, at + lay.BATCH_BASE_SEQ_AT))
    store_i64(out, end + lay.REC_TIME_AT, time_ns)
    store_u32(out, end + lay.REC_KEY_HASH_AT, key_hash)
    store_u16(out, end + lay.REC_KEY_LENGTH_AT, max(key.n, 0))
    store_u16(out, end + lay.REC_HEADERS_LENGTH_AT, max(headers.n, 0))
    count = load_u32(out, at + lay.BATCH_COUNT_AT)
    store_u32(out, at + lay.BATCH_COUNT_AT, count + 1)
    if count == 0 or time_ns > load_i64(out, at + lay.BATCH_TIME_MAX_AT):
        store_i64(out, at + lay.BATCH_TIME_MAX_AT, time_ns)
    return to


@inlined
def seal_batch(out, at, end, base_token, append_time):
    """Give a batch its tokens, length and checksum. Returns the token behind its last record."""
    store_u32(out, at + lay.BATCH_LENGTH_AT, end - at)
    store_i64(out, at + lay.BATCH_BASE_TOKEN_AT, base_token)
    store_i64(out, at + lay.BATCH_APPEND_TIME_AT, append_time)
    first = at + lay.BATCH_CRC_AT + 4
    store_u32(out, at + lay.BATCH_CRC_AT, crc32c(out, first, end - first))
    return base_token + load_u32(out, at + lay.BATCH_COUNT_AT)


@inlined
def check_header(data, at, end):
    """Bytes of the batch whose header is at ``data[at:end]``, or why it is none; no checksum.

    The batch itself may end behind ``end``.
    """
    if at + _HEADER > end:
        return SHORT
    length = load_u32(data, at + lay.BATCH_LENGTH_AT)
    count = load_u32(data, at + lay.BATCH_COUNT_AT)
    if length < _HEADER + _RECORD or length > lay.BATCH_BYTES_MAX:
        return BAD_LENGTH
    token = load_i64(data, at + lay.BATCH_BASE_TOKEN_AT)
    if (
        count < 1
        or count > lay.BATCH_RECORDS_MAX
        or count * _RECORD > length - _HEADER
        or load_u16(data, at + lay.BATCH_VERSION_AT) != lay.BATCH_VERSION
        or token < 0
        or token > _TOKEN_MAX
    ):
        return BAD_FIELD
    return length


@inlined
def check_batch(data, at, end):
    """Bytes of the sound batch at ``data[at:end]``, else SHORT, BAD_LENGTH, BAD_CRC, BAD_FIELD."""
    length = check_header(data, at, end)
    if length < 0:
        return length
    if at + length > end:
        return SHORT
    first = at + lay.BATCH_CRC_AT + 4
    if crc32c(data, first, at + length - first) != load_u32(data, at + lay.BATCH_CRC_AT):
        return BAD_CRC
    return length


@inlined
def list_records(data, at, end, out, n):
    """List the records of the batch at ``data[at:end]`` in ``out[n:]``, see O_*.

    Returns how many rows ``out`` holds then, or a cause below zero (rows from ``n`` on are then
    void). Checks all lengths, not the checksum: call `check_batch` first, once.
    """
    length = check_header(data, at, end)
    if length < 0:
        return length
    if at + length > end:
        return SHORT
    count = load_u32(data, at + lay.BATCH_COUNT_AT)
    if n + count > out.shape[0]:
        return NO_ROOM
    token = load_i64(data, at + lay.BATCH_BASE_TOKEN_AT)
    base_seq = load_i64(data, at + lay.BATCH_BASE_SEQ_AT)
    end = at + length
    at += _HEADER
    for i in range(count):
        if at + _RECORD > end:
            return BAD_RECORD
        head = load_u32(data, at + lay.REC_LENGTH_AT)
        size = head & lay.REC_LENGTH_MASK
        key_n = load_u16(data, at + lay.REC_KEY_LENGTH_AT)
        headers_n = load_u16(data, at + lay.REC_HEADERS_LENGTH_AT)
        lead = _RECORD + key_n + headers_n
        if size < lead or at + size > end:
            return BAD_RECORD
        row = n + i
        out[row, O_KEY_AT] = at + _RECORD if head & lay.REC_KEY else -1
        out[row, O_KEY_N] = key_n
        out[row, O_HEADERS_AT] = at + _RECORD + key_n if head & lay.REC_HEADERS else -1
        out[row, O_HEADERS_N] = headers_n
        out[row, O_PAYLOAD_AT] = at + lead
        out[row, O_PAYLOAD_N] = size - lead
        out[row, O_TIME] = load_i64(data, at + lay.REC_TIME_AT)
        out[row, O_KEY_HASH] = load_u32(data, at + lay.REC_KEY_HASH_AT)
        out[row, O_TOKEN] = token + i
        out[row, O_SEQ] = base_seq + load_u32(data, at + lay.REC_SEQ_DELTA_AT)
        at += size
    if at != end:
        return BAD_RECORD
    return n + count


@inlined
def last_seq(data, at):
    """Sequence of the last record of a sound batch; -1 when its records do not add up."""
    end = at + load_u32(data, at + lay.BATCH_LENGTH_AT)
    count = load_u32(data, at + lay.BATCH_COUNT_AT)
    base_seq = load_i64(data, at + lay.BATCH_BASE_SEQ_AT)
    at += _HEADER
    delta = 0
    for _ in range(count):
        if at + _RECORD > end:
            return -1
        delta = load_u32(data, at + lay.REC_SEQ_DELTA_AT)
        at += max(load_u32(data, at + lay.REC_LENGTH_AT) & lay.REC_LENGTH_MASK, _RECORD)
    if at != end:
        return -1
    return base_seq + delta
