"""Kernels of the writer: records of a run as one record batch v2 of a producer, and back.

The first record of a batch has one header more, ``tidecast-log``: the fields of the log's records
that Kafka's record batch does not have. With it `rebuild_batches` restores the batches of the log.
The value, in Kafka's varints unless noted:

    version (1 byte), id of the log (8 bytes), token of the first record (8 bytes), then pieces, a
    batch of the log each: count, producer, epoch, base sequence, acked sequence, append time; and
    for each of its records: (sequence - the one before) * 4 + engine's * 2 + has headers, time -
    the one before (ns), and with headers their bytes and the map.
"""

from __future__ import annotations

from tidecast.kafka.record_kernels import (
    BAD_BATCH,
    BATCH_BYTES,
    NO_ROOM,
    NS_PER_MS,
    ProducerState,
    find_header,
    locate_record,
    put_head,
    put_record,
    put_varint,
    record_body,
    varint_bytes,
    varlong,
)
from tidecast.layout import segment as seg
from tidecast.log.batch import (
    O_HEADERS_AT,
    O_HEADERS_N,
    O_KEY_N,
    O_PAYLOAD_AT,
    O_SEQ,
    O_TIME,
    O_TOKEN,
    add_record,
    begin_batch,
    list_records,
    record_bytes,
    seal_batch,
)
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import Span, copy, load_i64, load_u8, load_u32, store_u8, store_u32
from tidecast.queues.foreign.maps import put_be
from tidecast.queues.mapper import key_hash

P_TOKEN, P_BYTES_MAX, P_NOW_MS, P_PRODUCER, P_EPOCH, P_SEQUENCE, P_LOG = range(7)
"""In: token of the first record wanted; bytes of a batch of several records; the time now: later
ones are refused by brokers, so they become it; id, epoch and next sequence of the producer; id of
the log."""
P_COUNT, P_BEHIND, P_NEED = 7, 8, 9
"""Out: records in the batch; the token behind the last; bytes that it needs."""
P_RECORDS_MAX = 10
"""In: records of a batch."""
PRODUCE_WORDS = 12

R_LOG, R_TOKEN, R_AT, R_BYTES = range(4)
"""Out of `find_notes`: id of the log, token of the first record, place and bytes of the pieces."""
R_FROM, R_OWNER, R_BEHIND = 4, 5, 6
"""In: records below this token are left out; owner of the batches. Out: the token behind."""
REBUILD_WORDS = 8

NOTES_NAME = (12, 0x74, 0x69, 0x64, 0x65, 0x63, 0x61, 0x73, 0x74, 0x2D, 0x6C, 0x6F, 0x67)
"""Length and letters of ``tidecast-log``."""
NOTES_VERSION, NOTES_HEAD_BYTES = 1, 17
TOKENS_MAX = 1 << 62
"""A token beyond is damage: those of its records would overflow."""
NOTES_BYTES = 32 << 10
"""A batch of several records ends when its notes have so many bytes: readers take 64 KiB."""
NOTES_ROOM = 2 * NOTES_BYTES + (64 << 10)
_PIECE_BYTES, _RECORD_BYTES = 64, 32
"""The most that a piece, and a record without its headers, take in the notes."""


@inlined
def _put_piece(data, at, count, notes, to):
    to = put_varint(notes, to, count)
    to = put_varint(notes, to, load_i64(data, at + seg.BATCH_PRODUCER_AT))
    to = put_varint(notes, to, load_u32(data, at + seg.BATCH_EPOCH_AT))
    to = put_varint(notes, to, load_i64(data, at + seg.BATCH_BASE_SEQ_AT))
    to = put_varint(notes, to, load_i64(data, at + seg.BATCH_ACKED_SEQ_AT))
    return put_varint(notes, to, load_i64(data, at + seg.BATCH_APPEND_TIME_AT))


@inlined
def _is_engines(data, row):
    """Whether an engine wrote a record itself: the flag is in its length."""
    lead = max(row[O_KEY_N], 0) + max(row[O_HEADERS_N], 0) + seg.RECORD_HEADER_BYTES
    return load_u32(data, row[O_PAYLOAD_AT] - lead + seg.REC_LENGTH_AT) & seg.REC_ENGINE != 0


@inlined
def _put_notes(data, row, seq, time_ns, notes, to):
    headed = 1 if row[O_HEADERS_AT] >= 0 else 0
    flags = (2 if _is_engines(data, row) else 0) | headed
    to = put_varint(notes, to, (row[O_SEQ] - seq) * 4 + flags)
    to = put_varint(notes, to, row[O_TIME] - time_ns)
    if headed == 1:
        to = put_varint(notes, to, row[O_HEADERS_N])
        copy(notes, to, data, row[O_HEADERS_AT], row[O_HEADERS_N])
        to += row[O_HEADERS_N]
    return to


@inlined
def _to_ms(row, now_ms):
    """The time of a record becomes one that brokers take."""
    ms = min(max(row[O_TIME] // NS_PER_MS, 0), now_ms)
    row[O_TIME] = ms * NS_PER_MS
    return ms


@inlined
def _notes_header(n):
    """Bytes of the header with notes of ``n`` bytes."""
    return varint_bytes(NOTES_NAME[0]) + NOTES_NAME[0] + varint_bytes(n) + n


@kernel
def plan_batch(data, n, w, rows, notes, h):
    """Choose the records of the next batch, and write their notes; bytes of these.

    0: there are none; BAD_BATCH: the due bytes are no batch. ``notes``: uint8[NOTES_ROOM]; the
    other arguments are those of `encode_produced`.
    """
    at, total, count = 0, BATCH_BYTES + 32, 0
    behind = w[P_TOKEN]
    w[P_COUNT] = 0
    w[P_BEHIND] = behind
    if notes.size < NOTES_ROOM:
        return BAD_BATCH
    store_u8(notes, 0, NOTES_VERSION)
    put_be(notes, put_be(notes, 1, w[P_LOG], 8), w[P_TOKEN], 8)
    used = NOTES_HEAD_BYTES
    while at < n:
        listed = list_records(data, at, n, rows, 0)
        if listed < 0:
            if count == 0:
                return BAD_BATCH
            break
        first = max(w[P_TOKEN] - rows[0, O_TOKEN], 0)
        piece, piece_count = used, 0
        seq, time_ns = load_i64(data, at + seg.BATCH_BASE_SEQ_AT), 0
        here = piece + _PIECE_BYTES  # of the records, until their number is known
        full = False
        for i in range(first, listed):
            row = rows[i]
            need = here + _RECORD_BYTES + max(row[O_HEADERS_N], 0)
            body = record_body(data, row, count, row[O_TIME] // NS_PER_MS if count == 0 else 0, h)
            size = body + varint_bytes(body) + 10
            if count > 0:
                full = total + size + _notes_header(need) > w[P_BYTES_MAX] or need > NOTES_BYTES
                full = full or count >= w[P_RECORDS_MAX]
                if full:
                    break
            here = _put_notes(data, row, seq, time_ns, notes, here)
            seq, time_ns = row[O_SEQ], row[O_TIME]
            total += size
            behind = row[O_TOKEN] + 1
            count += 1
            piece_count += 1
        if piece_count > 0:
            size = here - piece - _PIECE_BYTES
            used = _put_piece(data, at, piece_count, notes, piece)
            for i in range(size):  # forwards: it moves to the front
                store_u8(notes, used + i, load_u8(notes, piece + _PIECE_BYTES + i))
            used += size
        if full:
            break
        at += load_u32(data, at + seg.BATCH_LENGTH_AT)
    if count == 0:
        return 0
    w[P_COUNT], w[P_BEHIND] = count, behind
    return used


@inlined
def _put_first(data, row, body, notes, notes_n, out, to, h):
    """Write the first record: its headers end with the notes."""
    extra = _notes_header(notes_n)
    raw_at, raw_n, headers = 0, 0, h[0]
    if h[5] != 0 and h[4] > 0:
        raw_n = h[4]
        headers, raw_at = varlong(data, h[3], h[3] + h[4])
        if raw_at < 0 or headers < 0:
            return BAD_BATCH
    body += extra + varint_bytes(headers + 1) - varint_bytes(headers)  # as of a raw list, too
    if to + body + varint_bytes(body) > out.size:
        return NO_ROOM
    end = put_record(data, row, 0, body, out, to, h)
    left = 0  # bytes of its own headers
    if raw_n > 0:
        left = raw_n - (raw_at - h[3])
    elif h[5] != 0 and h[0] > 0:
        left = h[1]
    narrow, wide = varint_bytes(headers), varint_bytes(headers + 1)
    start = end - left - narrow
    if raw_n > 0:
        start = end - raw_n
        copy(out, start + wide, data, raw_at, left)
    elif wide != narrow:
        for i in range(left - 1, -1, -1):  # backwards: it moves behind
            store_u8(out, start + wide + i, load_u8(out, start + narrow + i))
    put_varint(out, start, headers + 1)
    to = start + wide + left
    to = put_varint(out, to, NOTES_NAME[0])
    for i in range(NOTES_NAME[0]):
        store_u8(out, to + i, NOTES_NAME[1 + i])
    to = put_varint(out, to + NOTES_NAME[0], notes_n)
    copy(out, to, notes, 0, notes_n)
    return to + notes_n


@kernel
def encode_produced(data, n, w, rows, notes, notes_n, out, h):
    """Write the records that `plan_batch` chose of ``data[:n]`` as one batch; its bytes.

    ``w``: int64[PRODUCE_WORDS], see P_TOKEN; ``rows``: int64[segment.BATCH_RECORDS_MAX, 10]; ``h``:
    int64[16] scratch. ``notes_n`` 0: without notes. NO_ROOM when ``out`` cannot hold them,
    BAD_BATCH when the due bytes are no batch.
    """
    at, to, count, first_ms, last_ms = 0, BATCH_BYTES, 0, 0, 0
    w[P_NEED] = 0
    if out.size < BATCH_BYTES:
        w[P_NEED] = 2 * BATCH_BYTES
        return NO_ROOM
    while at < n and count < w[P_COUNT]:
        listed = list_records(data, at, n, rows, 0)
        if listed < 0:
            return BAD_BATCH
        at += load_u32(data, at + seg.BATCH_LENGTH_AT)
        for i in range(max(w[P_TOKEN] - rows[0, O_TOKEN], 0), listed):
            if count == w[P_COUNT]:
                break
            row = rows[i]
            ms = _to_ms(row, w[P_NOW_MS])
            if count == 0:
                first_ms = last_ms = ms
            body = record_body(data, row, count, first_ms, h)
            if to + body + varint_bytes(body) + (notes_n + 64 if count == 0 else 0) > out.size:
                w[P_NEED] = 2 * (to + body + notes_n + 64)
                return NO_ROOM
            if count == 0 and notes_n > 0:
                to = _put_first(data, row, body, notes, notes_n, out, to, h)
                if to < 0:
                    return to
            else:
                to = put_record(data, row, count, body, out, to, h)
            last_ms = max(last_ms, ms)
            count += 1
    producer = ProducerState(w[P_PRODUCER], w[P_EPOCH], w[P_SEQUENCE])
    put_head(out, 0, to, count, 0, -1, first_ms, last_ms, producer)
    return to


# --- back -----------------------------------------------------------------------------------------


@inlined
def _get_be8(data, at):
    value = 0
    for i in range(8):
        value = value << 8 | load_u8(data, at + i)
    return value


@kernel
def find_notes(data, at, end, w):
    """Find the notes in the first of the records ``data[at:end]``; False: there are none.

    ``w``: int64[REBUILD_WORDS], see R_LOG.
    """
    value_at, value_n = find_header(data, at, end, NOTES_NAME)
    if value_n < NOTES_HEAD_BYTES or load_u8(data, value_at) != NOTES_VERSION:
        return False
    w[R_LOG], w[R_TOKEN] = _get_be8(data, value_at + 1), _get_be8(data, value_at + 9)
    w[R_AT], w[R_BYTES] = value_at + NOTES_HEAD_BYTES, value_n - NOTES_HEAD_BYTES
    return 0 <= w[R_TOKEN] < TOKENS_MAX


@kernel
def rebuild_batches(data, at, end, count, w, out, f):
    """Write ``count`` records ``data[at:end]`` as the batches of the log that they were; bytes.

    ``w``: as `find_notes` left it, with R_FROM and R_OWNER. BAD_BATCH: notes and records do not add
    up, NO_ROOM: ``out`` is too small. ``f``: int64[16] scratch.
    """
    note, notes_end = w[R_AT], w[R_AT] + w[R_BYTES]
    token, done, to = w[R_TOKEN], 0, 0
    if note < 0 or notes_end > data.size or end > data.size:
        return BAD_BATCH
    while done < count:
        pieces, note = varlong(data, note, notes_end)
        if note < 0 or pieces < 1 or pieces > min(count - done, seg.BATCH_RECORDS_MAX):
            return BAD_BATCH
        for k in range(5):
            f[8 + k], note = varlong(data, note, notes_end)
            if note < 0:
                return BAD_BATCH
        if min(f[8], f[9], f[10], f[11]) < 0 or f[9] > 0xFFFFFFFF:
            return BAD_BATCH
        if to + seg.BATCH_HEADER_BYTES > out.size:
            return NO_ROOM
        begun, first = to, max(w[R_FROM], token)
        to = begin_batch(out, begun, f[8], f[9], w[R_OWNER], f[10], f[11])
        seq, time_ns = f[10], 0
        for _ in range(pieces):
            step, note = varlong(data, note, notes_end)
            if note < 0:
                return BAD_BATCH
            more, note = varlong(data, note, notes_end)
            if note < 0:
                return BAD_BATCH
            seq, time_ns = seq + (step >> 2), time_ns + more
            map_at, map_n = 0, -1
            if step & 1:
                map_n, map_at = varlong(data, note, notes_end)
                if map_at < 0 or map_n < 0 or map_n > min(notes_end - map_at, 0xFFFF):
                    return BAD_BATCH
                note = map_at + map_n
            at = locate_record(data, at, end, f)
            if at < 0 or seq - f[10] < 0 or seq - f[10] > 0xFFFFFFFF or f[1] > 0xFFFF:
                return BAD_BATCH
            if token >= w[R_FROM]:
                key_n, value_n = f[1], max(f[3], 0)
                if to + record_bytes(key_n, map_n, value_n) > out.size:
                    return NO_ROOM
                to = _put_back(data, f, seq, time_ns, map_at, map_n, step & 2, out, begun, to)
            token += 1
            done += 1
        if token > first:
            seal_batch(out, begun, to, first, f[12])
        else:
            to = begun
    w[R_BEHIND] = token
    return to


@inlined
def _put_back(data, f, seq, time_ns, map_at, map_n, engines, out, begun, to):
    """Add a record that `parse_record` found; its headers are the map at ``map_at``."""
    key_n, value_n = f[1], max(f[3], 0)
    hashed = key_hash(data, f[0], key_n) if key_n >= 0 else 0
    key, headers = Span(data, f[0], key_n), Span(data, map_at, map_n)
    value = Span(data, f[2], value_n)
    end = add_record(out, begun, to, seq, time_ns, hashed, key, headers, value)
    if engines:
        head = load_u32(out, to + seg.REC_LENGTH_AT)
        store_u32(out, to + seg.REC_LENGTH_AT, head | seg.REC_ENGINE)
    return end
