"""Kernels of the NATS protocol: messages of a consumer to batches of a run, sequences as tokens.

`scan_frames` verifies every length of the frames that have arrived and says how many bytes they
take as a run; only then `convert_frames` writes it. Nothing outside ``[at, end)`` is ever read.

A frame is ``MSG subject sid reply size`` or ``HMSG subject sid reply header-size size``, CR LF, the
body, CR LF. The reply of a message of a consumer names its place:
``$JS.ACK.stream.consumer.deliveries.sequence.number.time.pending``, with domain and account behind
``ACK``, and a random part at the end, in the newer form. Other frames are left to Python.
"""

from __future__ import annotations

from tidecast.buffers.header_names import put_head as put_map_head
from tidecast.layout import segment as seg
from tidecast.log.batch import add_record, begin_batch, record_bytes, seal_batch
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import Span, copy, load_u8
from tidecast.queues.foreign.maps import (
    bin_bytes,
    put_bin_head,
    put_name,
    put_str_head,
    same_bytes,
    str_bytes,
)
from tidecast.queues.mapper import key_hash

MORE, OTHER, BAD_FRAME, BAD_ORDER, LOST, LEFT_OUT, FULL = 0, -1, -2, -3, -4, -5, -6
"""Why a scan ends: the next frame has not arrived whole; it is not a message of a consumer; it
cannot be read; its sequence does not ascend; messages before it are missing; it is left out: its
headers, or its key, exceed 64 KiB, or its ``tidecast-tail`` is damaged; the run is long enough."""

LINE_BYTES_MAX = 16 * 1024
"""Of the first line of a frame."""
BODY_BYTES_MAX = 128 << 20
FIELD_BYTES_MAX = 65_535
HEADERS_IN_MAP_MAX = 32
"""Headers of a message that are compared with each other; more are kept as they came."""
BATCH_BYTES = 256 * 1024
"""A batch of the run ends when it has so many bytes, or `segment.BATCH_RECORDS_MAX` records."""
SCRATCH_BYTES = 2 * (FIELD_BYTES_MAX + 1)
TOKEN_MAX = 1 << 61
NUMBER_MAX = (1 << 62) // 10

BARE, STORED = 2, 3
DAMAGED = -2
"""Bytes of a tail's parts when it does not add up."""
W_NEXT, W_NUMBER, W_LIMIT, W_MODE = 0, 1, 2, 3
"""In: no sequence is below it; number of the message due; bytes after which no message is added;
the key is the subject (0), or a header (1), or neither key nor headers are looked at (BARE), or the
stream is that of a stored topic (STORED): the key is a header, or behind the payload."""
W_END, W_BYTES, W_RECORDS, W_BEHIND, W_LAST_NUMBER, W_PENDING, W_GAPS, W_NEED, W_FIRST = (
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
)
"""Out: where the messages end in the data; bytes of their run; how many; token behind the last; its
number; messages that follow it in the stream; how many holes are before or between them; bytes of
the frame that has not arrived whole, 0: unknown; the first sequence."""
SCAN_WORDS = 16

_SUBJECT_AT, _SUBJECT_N, F_LIST_AT, F_LIST_END = 0, 1, 2, 3
F_PAYLOAD_AT, F_PAYLOAD_N, F_SEQUENCE, F_NUMBER, _TIME, F_PENDING = 4, 5, 6, 7, 8, 9
_COUNT, F_MAP_N, _KEY_AT, F_KEY_N, F_NEED, _REPLY_AT, _REPLY_N, _HEADER_N = (
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
)
_MAP_AT = 18
FIELDS = 20
"""Words of a parsed frame. ``_COUNT``: headers, -1: their list is kept as it came; ``_MAP_AT``:
where their map is behind the payload, 0: it is made of the list."""

_SUBJECT = (12, *b"nats-subject")
_RAW = (12, *b"nats-headers")
_ACK = (8, *b"$JS.ACK.")
_VERSION = (8, *b"NATS/1.0")
TAIL_NAME = (13, *b"tidecast-tail")
"""Lengths and letters of names."""


# --- lines ----------------------------------------------------------------------------------------


@inlined
def _begins(data, at, end, name):
    if end - at < name[0]:
        return False
    for i in range(name[0]):
        if load_u8(data, at + i) != name[1 + i]:
            return False
    return True


@inlined
def _line_end(data, at, end):
    """Where CR LF begins; -1: not in ``[at, end)``."""
    while at + 1 < end:
        if load_u8(data, at) == 0x0D and load_u8(data, at + 1) == 0x0A:
            return at
        at += 1
    return -1


@inlined
def _number(data, at, end):
    """The decimal number that fills ``[at, end)``; -1: it is none."""
    if at >= end:
        return -1
    value = 0
    while at < end:
        digit = load_u8(data, at) - 0x30
        if digit < 0 or digit > 9 or value > NUMBER_MAX:
            return -1
        value = value * 10 + digit
        at += 1
    return value


@inlined
def _part_end(data, at, end, mark):
    """Where the part from ``at`` on ends: at the mark, or at the end."""
    while at < end and load_u8(data, at) != mark:
        at += 1
    return at


@inlined
def _place(data, f):
    """Read the reply: sequence, number, time, pending. 0, OTHER when it is none of a consumer."""
    at, end = f[_REPLY_AT], f[_REPLY_AT] + f[_REPLY_N]
    if not _begins(data, at, end, _ACK):
        return OTHER
    parts = 1
    for i in range(at, end):
        if load_u8(data, i) == 0x2E:
            parts += 1
    skipped = 4 if parts == 9 else 6
    if parts not in (9, 11, 12):
        return OTHER
    for _ in range(skipped):
        at = _part_end(data, at, end, 0x2E) + 1
    for k in range(5):  # deliveries, sequence, number, time, pending
        stop = _part_end(data, at, end, 0x2E)
        value = _number(data, at, stop)
        if value < 0:
            return BAD_FRAME
        if k > 0:
            f[F_SEQUENCE + k - 1] = value
        at = stop + 1
    return 0


@inlined
def _parse_line(data, at, stop, has_headers, f):
    """Read the first line behind its name: 0, OTHER without a reply, BAD_FRAME."""
    f[_HEADER_N] = 0
    spaces = 0
    for i in range(at, stop):
        if load_u8(data, i) == 0x20:
            spaces += 1
    sizes = 2 if has_headers else 1
    if spaces == 1 + sizes:
        return OTHER
    if spaces != 2 + sizes:
        return BAD_FRAME
    to = _part_end(data, at, stop, 0x20)
    f[_SUBJECT_AT], f[_SUBJECT_N] = at, to - at
    at = _part_end(data, to + 1, stop, 0x20) + 1  # behind the subscription
    to = _part_end(data, at, stop, 0x20)
    f[_REPLY_AT], f[_REPLY_N] = at, to - at
    if has_headers:
        at = to + 1
        to = _part_end(data, at, stop, 0x20)
        f[_HEADER_N] = _number(data, at, to)
    size = _number(data, to + 1, stop)
    f[F_PAYLOAD_N] = size - f[_HEADER_N]
    if size < 0 or size > BODY_BYTES_MAX or f[_HEADER_N] < 0 or f[F_PAYLOAD_N] < 0:
        return BAD_FRAME
    return 0


# --- headers: lines of text to a map of MessagePack -----------------------------------------------


@inlined
def header_line(data, at, end):
    """(name's bytes, value at, its bytes, next line); name's bytes are -1 when it is none."""
    stop = _line_end(data, at, end)
    colon = _part_end(data, at, stop, 0x3A) if stop >= 0 else -1
    if stop < 0 or colon in (stop, at):
        return -1, 0, 0, at
    for i in range(at, colon):
        letter = load_u8(data, i)
        if letter < 33 or letter > 126:
            return -1, 0, 0, at
    begin, last = colon + 1, stop
    while begin < last and (load_u8(data, begin) == 0x20 or load_u8(data, begin) == 0x09):
        begin += 1
    while last > begin and (load_u8(data, last - 1) == 0x20 or load_u8(data, last - 1) == 0x09):
        last -= 1
    return colon - at, begin, last - begin, stop + 2


@inlined
def _is_ours(data, at, n):
    return n == _RAW[0] and (_begins(data, at, at + n, _RAW) or _begins(data, at, at + n, _SUBJECT))


@inlined
def _count_headers(data, at, end):
    """How many headers differ and can be in a map; -1: keep the list as it came."""
    first, count = at, 0
    while at < end:
        n, _, _, behind = header_line(data, at, end)
        if n < 0 or count == HEADERS_IN_MAP_MAX or _is_ours(data, at, n):
            return -1
        other = first
        for _ in range(count):
            m, _, _, next_other = header_line(data, other, end)
            if m == n and same_bytes(data, at, other, n):
                return -1
            other = next_other
        at = behind
        count += 1
    return count


@inlined
def _find_key(data, f, name):
    """The value of the header with the key; its bytes are -1 when there is none."""
    f[_KEY_AT], f[F_KEY_N] = 0, -1
    at = f[F_LIST_AT]
    while at < f[F_LIST_END]:
        n, value_at, value_n, behind = header_line(data, at, f[F_LIST_END])
        if n < 0:
            return
        if n == name.size:
            is_same = True
            for i in range(n):
                is_same = is_same and load_u8(data, at + i) == load_u8(name, i)
            if is_same:
                f[_KEY_AT], f[F_KEY_N] = value_at, value_n
                return
        at = behind


@inlined
def _size(data, at, end):
    """A number of bytes; -1: ``-``, there are none; DAMAGED."""
    if end - at == 1 and load_u8(data, at) == 0x2D:
        return -1
    n = _number(data, at, end)
    return DAMAGED if n < 0 or n > FIELD_BYTES_MAX else n


@inlined
def tail_sizes(data, at, n, payload_n):
    """(bytes of the key, of the headers) behind a payload, from the value of ``tidecast-tail``.

    -1: the record has none; DAMAGED, both: the value is none, or the payload is shorter.
    """
    middle = _part_end(data, at, at + n, 0x20)
    key_n, map_n = _size(data, at, middle), _size(data, middle + 1, at + n)
    if key_n == DAMAGED or map_n == DAMAGED or max(key_n, 0) + max(map_n, 0) > payload_n:
        return DAMAGED, DAMAGED
    return key_n, map_n


@inlined
def _take_tail(data, f):
    """If there is a tail, find key and headers there; False: it is damaged."""
    at = f[F_LIST_AT]
    while at < f[F_LIST_END]:
        n, value_at, value_n, behind = header_line(data, at, f[F_LIST_END])
        if n < 0:
            return True
        if n == TAIL_NAME[0] and _begins(data, at, at + n, TAIL_NAME):
            key_n, map_n = tail_sizes(data, value_at, value_n, f[F_PAYLOAD_N])
            if key_n == DAMAGED:
                return False
            f[F_PAYLOAD_N] -= max(key_n, 0) + max(map_n, 0)
            f[_KEY_AT], f[F_KEY_N] = f[F_PAYLOAD_AT] + f[F_PAYLOAD_N], key_n
            if map_n >= 0:
                f[_MAP_AT], f[F_MAP_N] = f[_KEY_AT] + max(key_n, 0), map_n
            return True
        at = behind
    return True


@inlined
def _map_bytes(data, f, mode):
    """Bytes of the map for a message's headers; -1: there are none."""
    entries, n = 0, 0
    if mode != 0:
        entries = 1
        n += str_bytes(_SUBJECT[0]) + bin_bytes(f[_SUBJECT_N])
    if f[_COUNT] < 0:
        entries += 1
        n += str_bytes(_RAW[0]) + bin_bytes(f[F_LIST_END] - f[F_LIST_AT])
    at = f[F_LIST_AT]
    for _ in range(max(f[_COUNT], 0)):
        name_n, _, value_n, at = header_line(data, at, f[F_LIST_END])
        n += str_bytes(name_n) + bin_bytes(value_n)
        entries += 1
    if entries == 0:
        return -1
    return n + (1 if entries < 16 else 3)


@inlined
def _put_bin(data, at, n, out, to):
    to = put_bin_head(out, to, n)
    copy(out, to, data, at, n)
    return to + n


@inlined
def _put_map(data, f, mode, out, to):
    """Write the map that `_map_bytes` has measured, or that of the tail, at most 64 KiB."""
    if f[_MAP_AT] > 0:
        copy(out, to, data, f[_MAP_AT], f[F_MAP_N])
        return to + f[F_MAP_N]
    entries = (0 if mode == 0 else 1) + (1 if f[_COUNT] < 0 else f[_COUNT])
    to = put_map_head(out, to, entries)
    if mode != 0:
        to = _put_bin(data, f[_SUBJECT_AT], f[_SUBJECT_N], out, put_name(out, to, _SUBJECT))
    if f[_COUNT] < 0:
        n = f[F_LIST_END] - f[F_LIST_AT]
        return _put_bin(data, f[F_LIST_AT], n, out, put_name(out, to, _RAW))
    at = f[F_LIST_AT]
    for _ in range(f[_COUNT]):
        name_n, value_at, value_n, behind = header_line(data, at, f[F_LIST_END])
        to = put_str_head(out, to, name_n)
        copy(out, to, data, at, name_n)
        to = _put_bin(data, value_at, value_n, out, to + name_n)
        at = behind
    return to


# --- frames ---------------------------------------------------------------------------------------


@inlined
def _parse_headers(data, at, f):
    """Find the list of the headers at ``data[at:]``: 0, or BAD_FRAME."""
    f[F_LIST_AT] = f[F_LIST_END] = at
    f[_COUNT] = 0
    if f[_HEADER_N] == 0:
        return 0
    end = at + f[_HEADER_N]
    stop = _line_end(data, at, end)
    if not _begins(data, at, end, _VERSION) or stop < 0 or end - stop < 4:
        return BAD_FRAME
    if load_u8(data, end - 2) != 0x0D or load_u8(data, end - 1) != 0x0A:
        return BAD_FRAME
    f[F_LIST_AT], f[F_LIST_END] = stop + 2, end - 2
    f[_COUNT] = _count_headers(data, stop + 2, end - 2)
    return 0


@inlined
def parse_frame(data, at, end, mode, name, f):
    """Parse the frame at ``data[at:end]`` into ``f``: where it ends, or why not, see MORE."""
    f[F_NEED] = 0
    if end - at < 5:
        return MORE
    has_headers = load_u8(data, at) == 0x48
    begin = at + (1 if has_headers else 0)
    is_message = (
        load_u8(data, begin) == 0x4D
        and load_u8(data, begin + 1) == 0x53
        and load_u8(data, begin + 2) == 0x47
        and load_u8(data, begin + 3) == 0x20
    )
    if not is_message:
        return OTHER
    stop = _line_end(data, at, min(end, at + LINE_BYTES_MAX))
    if stop < 0:
        return BAD_FRAME if end - at >= LINE_BYTES_MAX else MORE
    status = _parse_line(data, begin + 4, stop, has_headers, f)
    if status == 0:
        status = _place(data, f)
    if status < 0:
        return status
    body = stop + 2
    behind = body + f[_HEADER_N] + f[F_PAYLOAD_N]
    f[F_NEED] = behind + 2 - at
    if behind + 2 > end:
        return MORE
    if load_u8(data, behind) != 0x0D or load_u8(data, behind + 1) != 0x0A:
        return BAD_FRAME
    f[F_PAYLOAD_AT] = body + f[_HEADER_N]
    if _parse_headers(data, body, f) < 0:
        return BAD_FRAME
    if mode == BARE:
        f[_KEY_AT], f[F_KEY_N], f[F_MAP_N] = 0, -1, -1
        return behind + 2
    f[_MAP_AT] = 0
    if mode == 0:
        f[_KEY_AT], f[F_KEY_N] = f[_SUBJECT_AT], f[_SUBJECT_N]
    else:
        _find_key(data, f, name)
    if mode == STORED and not _take_tail(data, f):
        f[F_KEY_N] = DAMAGED
        return LEFT_OUT
    if f[_MAP_AT] == 0:
        f[F_MAP_N] = _map_bytes(data, f, mode)
    if f[F_KEY_N] > FIELD_BYTES_MAX or f[F_MAP_N] > FIELD_BYTES_MAX:
        return LEFT_OUT
    return behind + 2


@inlined
def _ends(records, in_batch, n, sequence, due):
    """Does the batch of the run that has ``records`` end before a record of ``n`` bytes?"""
    if records == 0:
        return False
    return sequence != due or in_batch + n > BATCH_BYTES or records == seg.BATCH_RECORDS_MAX


@kernel
def scan_frames(data, at, end, name, w, f):
    """Verify the messages at ``data[at:end]``; why the scan ends, see MORE.

    After LEFT_OUT ``f`` and W_NEED are of the message that is left out; else it was verified.
    ``name``: the header with the key; ``w``: int64[SCAN_WORDS], see W_NEXT; ``f``: int64[FIELDS].
    """
    due, number, total, records, in_batch = w[W_NEXT], w[W_NUMBER], 0, 0, 0
    w[W_END], w[W_RECORDS], w[W_BYTES], w[W_GAPS], w[W_NEED] = at, 0, 0, 0, 0
    w[W_BEHIND], w[W_LAST_NUMBER], w[W_PENDING], w[W_FIRST] = due, number - 1, 0, due
    in_all = 0
    while True:
        if total >= w[W_LIMIT]:
            return FULL
        behind = parse_frame(data, at, end, w[W_MODE], name, f)
        if behind <= 0:
            w[W_NEED] = f[F_NEED]
        if behind <= 0 and behind != LEFT_OUT:
            return behind
        sequence = f[F_SEQUENCE]
        if f[F_NUMBER] != number:
            return LOST
        if sequence < due or sequence > TOKEN_MAX:
            return BAD_ORDER
        if behind == LEFT_OUT:
            return LEFT_OUT
        n = record_bytes(f[F_KEY_N], f[F_MAP_N], f[F_PAYLOAD_N])
        if sequence != due:
            w[W_GAPS] += 1
        if records == 0 or _ends(records, in_batch, n, sequence, due):
            total += seg.BATCH_HEADER_BYTES
            in_batch, records = seg.BATCH_HEADER_BYTES, 0
        if in_all == 0:
            w[W_FIRST] = sequence
        total += n
        in_batch += n
        records += 1
        in_all += 1
        due, number, at = sequence + 1, number + 1, behind
        w[W_END], w[W_RECORDS], w[W_BYTES] = at, in_all, total
        w[W_BEHIND], w[W_LAST_NUMBER], w[W_PENDING] = due, number - 1, f[F_PENDING]


@kernel
def convert_frames(data, at, end, name, w, out, scratch, f):
    """Write the messages at ``data[at:end]``, which `scan_frames` has passed, as a run; its bytes.

    ``scratch``: uint8[SCRATCH_BYTES].
    """
    begun, to, records, due, first, time_ns = 0, 0, 0, 0, 0, 0
    while at < end:
        at = parse_frame(data, at, end, w[W_MODE], name, f)
        sequence = f[F_SEQUENCE]
        n = record_bytes(f[F_KEY_N], f[F_MAP_N], f[F_PAYLOAD_N])
        if _ends(records, to - begun, n, sequence, due):
            seal_batch(out, begun, to, first, time_ns)
            begun, records = to, 0
        if records == 0:
            first = sequence
            to = begin_batch(out, begun, 0, 0, 0, sequence + 1, 0)
        time_ns = f[_TIME]
        hashed = key_hash(data, f[_KEY_AT], f[F_KEY_N]) if f[F_KEY_N] >= 0 else 0
        if f[F_MAP_N] >= 0:
            _put_map(data, f, w[W_MODE], scratch, 0)
        key, headers = Span(data, f[_KEY_AT], f[F_KEY_N]), Span(scratch, 0, f[F_MAP_N])
        payload = Span(data, f[F_PAYLOAD_AT], f[F_PAYLOAD_N])
        to = add_record(out, begun, to, sequence + 1, time_ns, hashed, key, headers, payload)
        records += 1
        due = sequence + 1
    seal_batch(out, begun, to, first, time_ns)
    return to
