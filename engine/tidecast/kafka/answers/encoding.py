"""Kernels that write batches of the log as record batches of Kafka, in one pass.

A length of the log is checked before it is used: a batch that is not sound ends the answer in front
of it. Records without headers, the most, take no detour through a table of their fields.
"""

from __future__ import annotations

from tidecast.kafka.record_kernels import (
    BAD_BATCH,
    BATCH_BYTES,
    NO_ROOM,
    NS_PER_MS,
    ProducerState,
    put_head,
    put_record,
    put_varint,
    record_body,
    varint_bytes,
)
from tidecast.layout import segment as seg
from tidecast.log.batch import (
    O_HEADERS_AT,
    O_HEADERS_N,
    O_KEY_AT,
    O_KEY_N,
    O_PAYLOAD_AT,
    O_PAYLOAD_N,
    O_TIME,
    check_header,
)
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import copy, load_i64, load_u16, load_u32, store_u8

JOINED_BYTES = 64 * 1024
"""Batches of the log with so many bytes together become a single record batch."""
E_LIMIT, E_BYTES_MAX, E_EPOCH, E_NEXT, E_NEED, E_USED = 0, 1, 2, 3, 4, 5
"""In: tokens from here on are not shown; bytes after which no batch is begun; epoch of the leader.
Out: token behind the written records; bytes that the next batch takes at most; bytes of the log
that were written."""
ENCODE_WORDS = 8


@inlined
def _put_plain(data, at, head, key_n, value_at, value_n, i, delta, out, to):
    """A record without headers at ``data[at:]``, the ``i``-th of its batch, or NO_ROOM."""
    known_n = key_n if head & seg.REC_KEY else -1
    body = 2 + varint_bytes(delta) + varint_bytes(i) + varint_bytes(known_n)
    body += varint_bytes(value_n) + value_n + max(known_n, 0)
    if to + body + 5 > out.size:
        return NO_ROOM
    to = put_varint(out, to, body)
    store_u8(out, to, 0)
    to = put_varint(out, to + 1, delta)
    to = put_varint(out, to, i)
    to = put_varint(out, to, known_n)
    if known_n > 0:
        copy(out, to, data, at + seg.RECORD_HEADER_BYTES, known_n)
        to += known_n
    to = put_varint(out, to, value_n)
    copy(out, to, data, value_at, value_n)
    store_u8(out, to + value_n, 0)
    return to + value_n + 1


@inlined
def _put_with_headers(data, at, size, i, first_ms, row, out, to, h):
    """The same for a record of ``size`` bytes that has headers; its lengths are checked."""
    key_n = load_u16(data, at + seg.REC_KEY_LENGTH_AT)
    headers_n = load_u16(data, at + seg.REC_HEADERS_LENGTH_AT)
    lead = seg.RECORD_HEADER_BYTES + key_n + headers_n
    key_at = at + seg.RECORD_HEADER_BYTES
    row[O_KEY_AT] = key_at if load_u32(data, at + seg.REC_LENGTH_AT) & seg.REC_KEY else -1
    row[O_KEY_N], row[O_HEADERS_N] = key_n, headers_n
    row[O_HEADERS_AT] = key_at + key_n
    row[O_PAYLOAD_AT], row[O_PAYLOAD_N] = at + lead, size - lead
    row[O_TIME] = load_i64(data, at + seg.REC_TIME_AT)
    body = record_body(data, row, i, first_ms, h)
    if to + body + 5 > out.size:
        return NO_ROOM
    return put_record(data, row, i, body, out, to, h)


@inlined
def _put_records(data, at, n, i, first_ms, row, out, to, h):
    """The records of the batch at ``data[at:n]``, the first of them the ``i``-th: where they end.

    NO_ROOM; BAD_BATCH: the batch, or a length in it, is not sound. ``h[9]``: the latest time.
    """
    length = check_header(data, at, n)
    if length < 0 or at + length > n:
        return BAD_BATCH
    end, count = at + length, load_u32(data, at + seg.BATCH_COUNT_AT)
    at += seg.BATCH_HEADER_BYTES
    latest = h[9]
    for k in range(count):
        if at + seg.RECORD_HEADER_BYTES > end:
            return BAD_BATCH
        head = load_u32(data, at + seg.REC_LENGTH_AT)
        size = head & seg.REC_LENGTH_MASK
        key_n = load_u16(data, at + seg.REC_KEY_LENGTH_AT)
        headers_n = load_u16(data, at + seg.REC_HEADERS_LENGTH_AT)
        lead = seg.RECORD_HEADER_BYTES + key_n + headers_n
        if size < lead or at + size > end:
            return BAD_BATCH
        delta = load_i64(data, at + seg.REC_TIME_AT) // NS_PER_MS - first_ms
        latest = max(latest, first_ms + delta)
        if head & seg.REC_HEADERS:
            to = _put_with_headers(data, at, size, i + k, first_ms, row, out, to, h)
        else:
            to = _put_plain(data, at, head, key_n, at + lead, size - lead, i + k, delta, out, to)
        if to < 0:
            return to
        at += size
    h[9] = latest
    return to if at == end else BAD_BATCH


@inlined
def _put_joined(data, at, n, w, row, out, to, h):
    """A record batch of the batch at ``data[at:n]`` and short ones behind it: where it ends.

    Those behind follow without a hole below the limit, and are sound. NO_ROOM and BAD_BATCH are
    said of the first alone. ``h[10]``: bytes of the log, ``h[11]``: records.
    """
    start, first, end = to, load_i64(data, at + seg.BATCH_BASE_TOKEN_AT), at
    first_ms = load_i64(data, at + seg.BATCH_HEADER_BYTES + seg.REC_TIME_AT) // NS_PER_MS
    h[9] = first_ms
    count, to = 0, to + BATCH_BYTES
    if to > out.size:
        return NO_ROOM
    while end == at or (
        end + seg.BATCH_HEADER_BYTES <= n
        and (
            load_i64(data, end + seg.BATCH_BASE_TOKEN_AT) == first + count < w[E_LIMIT]
            and end - at + load_u32(data, end + seg.BATCH_LENGTH_AT) <= JOINED_BYTES
            and count + load_u32(data, end + seg.BATCH_COUNT_AT) <= seg.BATCH_RECORDS_MAX
        )
    ):
        latest = h[9]
        behind = _put_records(data, end, n, count, first_ms, row, out, to, h)
        if behind < 0:
            if count == 0:
                return behind
            h[9] = latest
            break
        to = behind
        count += load_u32(data, end + seg.BATCH_COUNT_AT)
        end += load_u32(data, end + seg.BATCH_LENGTH_AT)
    put_head(out, start, to, count, first, w[E_EPOCH], first_ms, h[9], ProducerState(-1, -1, -1))
    h[10], h[11] = end - at, count
    return to


@kernel
def encode_batches(data, n, w, row, out, h):
    """Write the whole batches ``data[:n]`` of a log as record batches; bytes in ``out``.

    Short batches that follow each other share a record batch: clients take each apart by itself.

    ``w``: int64[ENCODE_WORDS], see E_LIMIT; ``row``: int64[RECORD_FIELDS] and ``h``: int64[16]:
    scratch. NO_ROOM when not even the first fits, else as many as there is room for. BAD_BATCH when
    the first is no batch.
    """
    at, to = 0, 0
    w[E_NEED] = w[E_USED] = 0
    while at < n:
        length = check_header(data, at, n)
        if length < 0 or at + length > n:
            return to if to > 0 else BAD_BATCH
        token = load_i64(data, at + seg.BATCH_BASE_TOKEN_AT)
        if token >= w[E_LIMIT] or (to > 0 and to >= w[E_BYTES_MAX]):
            break
        behind = _put_joined(data, at, n, w, row, out, to, h)
        if behind == NO_ROOM:
            count = load_u32(data, at + seg.BATCH_COUNT_AT)
            w[E_NEED] = 2 * length + 16 * count + BATCH_BYTES
        if behind < 0:
            return to if to > 0 else behind
        to = behind
        w[E_NEXT] = token + h[11]
        at += h[10]
        w[E_USED] = at
    return to
