"""Kernels of the codec: records of Kafka's record batches v2 to records of the log, and back.

`scan_records` verifies every length of a batch's records and says how many bytes they take in the
log; only then `convert_records` writes them. `answers.encoding` is the other way. Offsets and
lengths are int64; nothing outside ``[at, end)`` is ever read.
"""

from __future__ import annotations

from typing import NamedTuple

from tidecast.buffers.header_names import put_head as put_map_head
from tidecast.layout import segment as seg
from tidecast.log.batch import (
    O_HEADERS_AT,
    O_HEADERS_N,
    O_KEY_AT,
    O_KEY_N,
    O_PAYLOAD_AT,
    O_PAYLOAD_N,
    O_TIME,
    RECORD_FIELDS,
    add_record,
    begin_batch,
    record_bytes,
)
from tidecast.native.crc32c import crc32c
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import Span, copy, load_u8, store_u8, store_u32
from tidecast.queues.foreign.maps import (
    bin_bytes,
    put_be,
    put_bin_head,
    put_name,
    put_str_head,
    same_bytes,
    str_bytes,
)
from tidecast.queues.mapper import key_hash

BAD_LENGTH, BAD_VARINT, BAD_OFFSET, TOO_LONG, BAD_COUNT = -1, -2, -3, -4, -5
"""Why records are refused: a length that does not fit, a varint that does not end, an offset that
is not the next, a key or headers beyond 64 KiB, another number of records than is said."""
BAD_TIME, BAD_NAME = -6, -7
"""The same: a time out of range, a header's name that is not UTF-8: clients would choke on it."""
NO_ROOM, BAD_BATCH = -8, -9
"""Of encoding: a batch needs more room, or is none."""
TIME_MS_MAX = 1 << 42
"""Times, and differences of times, are at most so many ms: twice of it, in ns, is an int64."""

FIELD_BYTES_MAX = 65_535
HEADERS_IN_MAP_MAX = 32
"""Headers of a record that are compared with each other; more go into the log as they came."""
LOG_BATCH_BYTES = 256 * 1024
"""A batch of the log ends when it has so many bytes, or `segment.BATCH_RECORDS_MAX` records."""
SCRATCH_BYTES = 3 * (FIELD_BYTES_MAX + 1) + 64

S_BYTES, S_RECORDS, S_TIME_MAX, S_LEFT_OUT = 0, 1, 2, 3
"""Results of `scan_records`: bytes that the records take in the log, batch headers included; their
number; the latest of their times, as a difference to the batch's. Of `scan_fetched` also how many
records are left out."""
SCAN_WORDS = 4

BATCH_BYTES = 61
"""Header of a record batch v2, its base offset and length included."""
_ATTRIBUTES_AT, _CRC_AT, _BODY_AT, _LAST_DELTA_AT = 21, 17, 12, 23
NS_PER_MS = 1_000_000
_NO_VALUE = (10, 0x6B, 0x61, 0x66, 0x6B, 0x61, 0x2D, 0x6E, 0x75, 0x6C, 0x6C)
_RAW = (13, 0x6B, 0x61, 0x66, 0x6B, 0x61, 0x2D, 0x68, 0x65, 0x61, 0x64, 0x65, 0x72, 0x73)
"""Lengths and letters of the names ``kafka-null`` and ``kafka-headers``."""


# --- varints --------------------------------------------------------------------------------------


@inlined
def _uvarint(data, at, end, bits):
    """(value, where it ends); the end is -1 when it has more bits, or does not end in time."""
    value = 0
    shift = 0
    while at < end and shift < bits:
        byte = load_u8(data, at)
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    return 0, -1


@inlined
def _varint(data, at, end):
    """The same with Kafka's zigzag, in five bytes at most."""
    value, at = _uvarint(data, at, end, 35)
    return (value >> 1) ^ -(value & 1), at


@inlined
def varlong(data, at, end):
    """The same in ten bytes."""
    value, at = _uvarint(data, at, end, 70)
    return ((value >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(value & 1), at


@inlined
def varint_bytes(value):
    value = (value << 1) ^ (value >> 63)
    n = 1
    value = (value >> 7) & 0x1FFFFFFFFFFFFFF
    while value != 0:
        n += 1
        value >>= 7
    return n


@inlined
def put_varint(out, to, value):
    value = (value << 1) ^ (value >> 63)
    more = (value >> 7) & 0x1FFFFFFFFFFFFFF
    low = value & 0x7F
    while more != 0:
        store_u8(out, to, low | 0x80)
        to += 1
        low = more & 0x7F
        more >>= 7
    store_u8(out, to, low)
    return to + 1


@inlined
def _get_be(data, at, n):
    value = 0
    for i in range(n):
        value = value << 8 | load_u8(data, at + i)
    return value


# --- headers: Kafka's list to a map of MessagePack ------------------------------------------------


@inlined
def _is_name(data, at, n, name):
    if n != name[0]:
        return False
    for i in range(n):
        if load_u8(data, at + i) != name[1 + i]:
            return False
    return True


@inlined
def _is_utf8(data, at, n):
    """Well formed, as RFC 3629 says: no overlong forms, no surrogates."""
    end = at + n
    while at < end:
        head = load_u8(data, at)
        at += 1
        if head < 0x80:
            continue
        more = 1 if head < 0xE0 else 2 if head < 0xF0 else 3
        if head < 0xC2 or head > 0xF4 or more > end - at:
            return False
        low = 0xA0 if head == 0xE0 else 0x90 if head == 0xF0 else 0x80
        high = 0x9F if head == 0xED else 0x8F if head == 0xF4 else 0xBF
        for _ in range(more):
            byte = load_u8(data, at)
            if byte < low or byte > high:
                return False
            low, high = 0x80, 0xBF
            at += 1
    return True


@inlined
def _header(data, at, end):
    """(name at, its bytes, value at, its bytes or -1, end); the end is -1 when it does not fit."""
    n, at = _varint(data, at, end)
    if at < 0 or n < 0 or n > end - at:
        return 0, 0, 0, 0, -1
    name_at = at
    v, at = _varint(data, at + n, end)
    if at < 0 or v < -1 or v > end - at:
        return 0, 0, 0, 0, -1
    return name_at, n, at, v, at + max(v, 0)


@inlined
def _fits_map(data, at, end, count):
    """Headers whose names differ, and are none of ours, with values: a map holds them.

    They have been verified.
    """
    if count > HEADERS_IN_MAP_MAX:
        return False
    here = at
    for i in range(count):
        name_at, n, _, v, here = _header(data, here, end)
        if v < 0 or _is_name(data, name_at, n, _NO_VALUE) or _is_name(data, name_at, n, _RAW):
            return False
        other = at
        for _ in range(i):
            other_at, m, _, _, other = _header(data, other, end)
            if m == n and same_bytes(data, name_at, other_at, n):
                return False
    return True


@inlined
def _map_bytes(data, at, end, count, raw_n, null):
    """Bytes of the map for a record's headers; -1: there are none. ``raw_n`` > 0: as they came."""
    entries = null
    n = null * (str_bytes(_NO_VALUE[0]) + 1)
    if raw_n > 0:
        entries += 1
        n += str_bytes(_RAW[0]) + bin_bytes(raw_n)
    else:
        entries += count
        for _ in range(count):
            _, name_n, _, value_n, at = _header(data, at, end)
            n += str_bytes(name_n) + bin_bytes(value_n)
    if entries == 0:
        return -1
    return n + (1 if entries < 16 else 3)


@inlined
def _put_map(data, at, end, count, raw_at, raw_n, null, out, to):
    """Write the map that `_map_bytes` has measured, at most 64 KiB."""
    entries = null + (1 if raw_n > 0 else count)
    to = put_map_head(out, to, entries)
    if null == 1:
        to = put_name(out, to, _NO_VALUE)
        store_u8(out, to, 0xC3)
        to += 1
    if raw_n > 0:
        to = put_name(out, to, _RAW)
        to = put_bin_head(out, to, raw_n)
        copy(out, to, data, raw_at, raw_n)
        return to + raw_n
    for _ in range(count):
        name_at, name_n, value_at, value_n, at = _header(data, at, end)
        to = put_str_head(out, to, name_n)
        copy(out, to, data, name_at, name_n)
        to = put_bin_head(out, to + name_n, value_n)
        copy(out, to, data, value_at, value_n)
        to += value_n
    return to


# --- Kafka -> log ---------------------------------------------------------------------------------


@inlined
def parse_record(data, at, end, f):
    """Parse the record at ``data[at:end]`` into ``f``: its end, or why not.

    f: 0 time delta, 1 key at, 2 key bytes or -1, 3 value at, 4 value bytes or -1, 5 headers'
    count, 6 first header at, 7 their map's bytes or -1, 8 the raw list's bytes or 0, 9 where it
    begins, 10 offset delta, 11 its end. After TOO_LONG, BAD_TIME and BAD_NAME they are valid, too.
    """
    n, at = _varint(data, at, end)
    if at < 0:
        return BAD_VARINT
    if n < 1 or n > end - at:
        return BAD_LENGTH
    end = at + n
    f[0], at = varlong(data, at + 1, end)  # behind the attributes, which are not used
    if at < 0:
        return BAD_VARINT
    f[10], at = _varint(data, at, end)
    if at < 0:
        return BAD_VARINT
    for k in range(2):  # key and value
        n, at = _varint(data, at, end)
        if at < 0:
            return BAD_VARINT
        if n < -1 or n > end - at:
            return BAD_LENGTH
        f[1 + 2 * k], f[2 + 2 * k] = at, n
        at += max(n, 0)
    f[9] = at
    count, at = _varint(data, at, end)
    if at < 0:
        return BAD_VARINT
    if count < 0 or count > end - at:
        return BAD_LENGTH
    f[5], f[6] = count, at
    are_text = True
    for _ in range(count):
        name_at, n, _, _, at = _header(data, at, end)
        if at < 0:
            return BAD_LENGTH
        are_text = are_text and _is_utf8(data, name_at, n)
    if at != end:
        return BAD_LENGTH
    f[8], f[11] = 0, end
    if count > 0 and not _fits_map(data, f[6], end, count):
        f[8] = end - f[9]
    f[7] = _map_bytes(data, f[6], end, count, f[8], 1 if f[4] < 0 else 0)
    if f[0] < -TIME_MS_MAX or f[0] > TIME_MS_MAX:
        return BAD_TIME
    if not are_text:
        return BAD_NAME
    if f[2] > FIELD_BYTES_MAX or f[7] > FIELD_BYTES_MAX:
        return TOO_LONG
    return end


@inlined
def locate_record(data, at, end, f):
    """Find key and value of the record at ``data[at:end]``; its end, or BAD_LENGTH.

    f: 0 key at, 1 key bytes or -1, 2 value at, 3 value bytes or -1, 4 where its headers begin.
    """
    n, at = _varint(data, at, end)
    if at < 0 or n < 1 or n > end - at:
        return BAD_LENGTH
    end = at + n
    _, at = varlong(data, at + 1, end)
    if at < 0:
        return BAD_LENGTH
    _, at = _varint(data, at, end)
    if at < 0:
        return BAD_LENGTH
    for k in range(2):
        n, at = _varint(data, at, end)
        if at < 0 or n < -1 or n > end - at:
            return BAD_LENGTH
        f[2 * k], f[1 + 2 * k] = at, n
        at += max(n, 0)
    if f[1] > FIELD_BYTES_MAX:
        return BAD_LENGTH
    f[4] = at
    return end


@inlined
def find_header(data, at, end, name):
    """(place, bytes) of the last header of a name of the record at ``data[at:end]``; (0, -1)."""
    n, at = _varint(data, at, end)
    if at < 0 or n < 1 or n > end - at:
        return 0, -1
    end = at + n
    _, at = varlong(data, at + 1, end)
    if at >= 0:
        _, at = _varint(data, at, end)
    for _ in range(2):
        if at < 0:
            return 0, -1
        n, at = _varint(data, at, end)
        if at < 0 or n < -1 or n > end - at:
            return 0, -1
        at += max(n, 0)
    count, at = _varint(data, at, end)
    if at < 0 or count < 0 or count > end - at:
        return 0, -1
    found_at, found_n = 0, -1
    for _ in range(count):
        name_at, n, value_at, value_n, at = _header(data, at, end)
        if at < 0:
            return 0, -1
        if _is_name(data, name_at, n, name):
            found_at, found_n = value_at, value_n
    return found_at, found_n


@kernel
def scan_records(data, at, end, count, found, f):
    """Verify ``count`` records that fill ``data[at:end]``: 0, or why they are refused.

    ``found``: int64[SCAN_WORDS], see S_BYTES; ``f``: int64[16] scratch.
    """
    if count < 1 or count > end - at:
        return BAD_COUNT
    total, in_batch, records = seg.BATCH_HEADER_BYTES, seg.BATCH_HEADER_BYTES, 0
    latest = -(1 << 62)
    for i in range(count):
        at = parse_record(data, at, end, f)
        if at < 0:
            return at
        latest = max(latest, f[0])
        if f[10] != i:
            return BAD_OFFSET
        n = record_bytes(f[2], f[7], max(f[4], 0))
        if records > 0 and (in_batch + n > LOG_BATCH_BYTES or records == seg.BATCH_RECORDS_MAX):
            total += seg.BATCH_HEADER_BYTES
            in_batch, records = seg.BATCH_HEADER_BYTES, 0
        total += n
        in_batch += n
        records += 1
    found[S_BYTES], found[S_RECORDS], found[S_TIME_MAX] = total, count, latest
    return 0 if at == end else BAD_COUNT


@inlined
def put_parsed(data, end, f, time_ns, seq, out, begun, to, scratch):
    """Add the record of `parse_record`, up to ``end``, to the batch at ``out[begun:]``: its end."""
    hashed = key_hash(data, f[1], f[2]) if f[2] >= 0 else 0
    if f[7] >= 0:
        _put_map(data, f[6], end, f[5], f[9], f[8], 1 if f[4] < 0 else 0, scratch, 0)
    key, headers = Span(data, f[1], f[2]), Span(scratch, 0, f[7])
    value = Span(data, f[3], max(f[4], 0))
    return add_record(out, begun, to, seq, time_ns, hashed, key, headers, value)


@inlined
def _end_batch(out, begun, to):
    store_u32(out, begun + seg.BATCH_LENGTH_AT, to - begun)


@kernel
def convert_records(data, at, end, count, base_ms, wall_ns, out, scratch, f):
    """Write records that `scan_records` has passed as batches of the log; bytes of them.

    ``base_ms``: time of the batch, -1: none, then each record has ``wall_ns``. ``scratch``:
    uint8[SCRATCH_BYTES]. Tokens, sequences and checksums are stamped when they are appended.
    """
    begun, records = 0, 0
    to = begin_batch(out, begun, 0, 0, 0, 0, 0)
    for _ in range(count):
        at = parse_record(data, at, end, f)
        n = record_bytes(f[2], f[7], max(f[4], 0))
        if records > 0 and (to - begun + n > LOG_BATCH_BYTES or records == seg.BATCH_RECORDS_MAX):
            _end_batch(out, begun, to)
            begun, records = to, 0
            to = begin_batch(out, begun, 0, 0, 0, 0, 0)
        time_ns = wall_ns if base_ms < 0 else (base_ms + f[0]) * NS_PER_MS
        to = put_parsed(data, at, f, time_ns, records, out, begun, to, scratch)
        records += 1
    _end_batch(out, begun, to)
    return to


@kernel
def checksum(data, at, n):
    """CRC32C of ``data[at:at + n]``."""
    return crc32c(data, at, n)


# --- log -> Kafka ---------------------------------------------------------------------------------


@inlined
def _value(data, at, end):
    """A value of MessagePack: (its bytes' beginning, their number or -1 for nil, end or -1).

    Of strings and bytes their content; of all other kinds the value as it is encoded.
    """
    if at >= end:
        return 0, 0, -1
    head = load_u8(data, at)
    if head == 0xC0:
        return at, -1, at + 1
    n, lead = -1, 1
    if 0xA0 <= head < 0xC0:
        n = head & 0x1F
    elif head in (0xC4, 0xD9):
        lead = 2
    elif head in (0xC5, 0xDA):
        lead = 3
    elif head in (0xC6, 0xDB):
        lead = 5
    if lead > end - at:
        return 0, 0, -1
    if lead > 1:
        n = _get_be(data, at + 1, lead - 1)
    if n >= 0:
        if n > end - at - lead:
            return 0, 0, -1
        return at + lead, n, at + lead + n
    width = 1  # numbers and booleans
    if head in (0xCC, 0xD0):
        width = 2
    elif head in (0xCD, 0xD1):
        width = 3
    elif head in (0xCA, 0xCE, 0xD2):
        width = 5
    elif head in (0xCB, 0xCF, 0xD3):
        width = 9
    elif not (head < 0x80 or head >= 0xE0 or head in (0xC2, 0xC3)):
        return 0, 0, -1
    if width > end - at:
        return 0, 0, -1
    return at, width, at + width


@inlined
def _map_head(data, at, end):
    """(entries, where the first begins), or (0, -1)."""
    if at >= end:
        return 0, -1
    head = load_u8(data, at)
    if head & 0xF0 == 0x80:
        return head & 0x0F, at + 1
    if head == 0xDE and end - at >= 3:
        return _get_be(data, at + 1, 2), at + 3
    return 0, -1


@inlined
def _list_headers(data, at, end, out, to, h):
    """Kafka's headers of a map at ``data[at:end]``, behind their count, to ``out[to:]``.

    ``to`` -1: they are only counted. h: 0 their number, 1 their bytes, 2 whether the value is
    null, 3 and 4 place and bytes of a raw list that stands for all of them. False: it is no map
    that a publisher can have made.
    """
    h[0] = h[1] = h[2] = h[3] = h[4] = 0
    entries, here = _map_head(data, at, end)
    if here < 0:
        return False
    for _ in range(entries):
        name_at, name_n, here = _value(data, here, end)
        if here < 0 or name_n < 0:
            return False
        value_at, value_n, here = _value(data, here, end)
        if here < 0:
            return False
        if _is_name(data, name_at, name_n, _NO_VALUE):
            h[2] = 1
            continue
        if _is_name(data, name_at, name_n, _RAW) and value_n > 0:
            h[3], h[4] = value_at, value_n
            continue
        h[0] += 1
        h[1] += varint_bytes(name_n) + name_n + varint_bytes(value_n) + max(value_n, 0)
        if to >= 0:
            to = put_varint(out, to, name_n)
            copy(out, to, data, name_at, name_n)
            to = put_varint(out, to + name_n, value_n)
            copy(out, to, data, value_at, max(value_n, 0))
            to += max(value_n, 0)
    return here == end


@inlined
def record_body(data, row, i, first_ms, h):
    """Bytes of a record without its length field; fills ``h`` with the layout of its headers."""
    h[0] = h[2] = h[4] = 0
    h[5] = 0
    headers_n = 1
    at = row[O_HEADERS_AT]
    if at >= 0:
        h[5] = _list_headers(data, at, at + row[O_HEADERS_N], data, -1, h)
        if h[5] == 0:
            h[0] = h[2] = h[4] = 0  # nothing that Kafka knows
        elif h[4] > 0:
            headers_n = h[4]
        else:
            headers_n = varint_bytes(h[0]) + h[1]
    key_n = row[O_KEY_N] if row[O_KEY_AT] >= 0 else -1
    value_n = -1 if h[2] == 1 and row[O_PAYLOAD_N] == 0 else row[O_PAYLOAD_N]
    h[6], h[7], h[8] = key_n, value_n, row[O_TIME] // NS_PER_MS - first_ms
    return (
        1 + varint_bytes(h[8]) + varint_bytes(i)
        + varint_bytes(key_n) + max(key_n, 0) + varint_bytes(value_n) + max(value_n, 0)
        + headers_n
    )  # fmt: skip


@inlined
def put_record(data, row, i, body, out, to, h):
    to = put_varint(out, to, body)
    store_u8(out, to, 0)
    to = put_varint(out, to + 1, h[8])
    to = put_varint(out, to, i)
    to = put_varint(out, to, h[6])
    if h[6] > 0:  # a record without a key has no place for it
        copy(out, to, data, row[O_KEY_AT], h[6])
        to += h[6]
    to = put_varint(out, to, h[7])
    copy(out, to, data, row[O_PAYLOAD_AT], max(h[7], 0))
    to += max(h[7], 0)
    if h[5] != 0 and h[4] > 0:
        copy(out, to, data, h[3], h[4])
        return to + h[4]
    to = put_varint(out, to, h[0])
    if h[5] != 0 and h[0] > 0:
        at, n = row[O_HEADERS_AT], h[1]
        _list_headers(data, at, at + row[O_HEADERS_N], out, to, h)
        to += n
    return to


class ProducerState(NamedTuple):
    """The producer of a record batch, -1: none, with the sequence of the batch's first record."""

    id: int
    epoch: int
    sequence: int


@inlined
def put_head(out, start, to, n, offset, leader, first_ms, last_ms, producer):
    """Write the header of the record batch ``out[start:to]`` of ``n`` records, and its checksum.

    ``leader``: epoch of the leader; ``producer``: a `ProducerState`.
    """
    at = put_be(out, start, offset, 8)
    at = put_be(out, at, to - start - _BODY_AT, 4)
    at = put_be(out, at, leader, 4)
    store_u8(out, at, 2)
    at = put_be(out, start + _ATTRIBUTES_AT, 0, 2)
    at = put_be(out, at, n - 1, 4)
    at = put_be(out, at, first_ms, 8)
    at = put_be(out, at, last_ms, 8)
    at = put_be(out, at, producer.id, 8)
    at = put_be(out, at, producer.epoch, 2)
    at = put_be(out, at, producer.sequence, 4)
    put_be(out, at, n, 4)
    crc = crc32c(out, start + _ATTRIBUTES_AT, to - start - _ATTRIBUTES_AT)
    put_be(out, start + _CRC_AT, crc, 4)


@kernel
def span_of_batches(data, used, token, limit, bytes_max, over):
    """(start, end, token behind) of the requested record batches among ``data[:used]``.

    The first requested batch holds ``token``. All are below ``limit``; none begins ``bytes_max``
    behind the first, and none ends more than ``over`` bytes behind that. The span may be empty.
    """
    at, start, behind = 0, -1, token
    while at + BATCH_BYTES <= used:
        base, n = _get_be(data, at, 8), _BODY_AT + _get_be(data, at + 8, 4)
        if base >= limit or n < BATCH_BYTES or n > used - at:
            break
        after = base + _get_be(data, at + _LAST_DELTA_AT, 4) + 1
        if start < 0 and after > token:
            start = at
        if start >= 0:
            if at + n - start > bytes_max + over or (at > start and at - start >= bytes_max):
                break
            behind = after
        at += n
    if start < 0:
        return 0, 0, token
    return start, at, behind


__all__ = [
    "BATCH_BYTES", "RECORD_FIELDS", "SCAN_WORDS", "SCRATCH_BYTES", "checksum",
    "convert_records", "scan_records", "span_of_batches",
]  # fmt: skip
