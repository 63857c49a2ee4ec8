"""Kernels of the writer: records of a run as messages of NATS, and back.

A message has the record's payload and these headers: the sequence that it expects before its own;
``tidecast-log``, all that the log knows of the record and NATS does not; ``tidecast-key``, or
``tidecast-key-hex`` when the key is no printable text; the record's headers as lines, as far as
they are printable; and ``tidecast-headers``, their whole map in base64.

A server takes 64 KiB of headers. Where they do not fit, the lines are left out; where they still do
not fit, key and map are behind the payload, and ``tidecast-tail`` says how many bytes each has,
``-`` without it (ADR 0067).

``tidecast-log`` has numbers in base 16 with blanks between them: token, producer, epoch, sequence,
acked sequence, time, append time, flags.
"""

from __future__ import annotations

from tidecast.jetstream.frame_kernels import (
    BARE,
    F_LIST_AT,
    F_LIST_END,
    F_PAYLOAD_AT,
    F_PAYLOAD_N,
    FIELD_BYTES_MAX,
    TAIL_NAME,
    header_line,
    parse_frame,
    tail_sizes,
)
from tidecast.layout import segment as seg
from tidecast.log.batch import (
    O_HEADERS_AT,
    O_HEADERS_N,
    O_KEY_AT,
    O_KEY_N,
    O_PAYLOAD_AT,
    O_PAYLOAD_N,
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
from tidecast.queues.mapper import key_hash

BAD_BATCH, TOO_LARGE = -1, -2
"""Why nothing is written: the due bytes are no batch; its first message is too large."""
P_TOKEN, P_EXPECTED, P_MESSAGE_MAX = 0, 1, 2
"""In: token of the first record wanted; sequence before its message; bytes of a message, at most.
"""
P_COUNT, P_BEHIND, P_NEED = 3, 4, 5
"""Out: messages; the token behind the last; bytes of room that one message needs, 0: enough."""
WRITE_WORDS = 8

ENGINES, KEYED, HEADED, HEX_KEY = 1, 2, 4, 8
"""Flags of a record: an engine wrote it, it has a key, headers, a key in base 16."""
_FIXED_BYTES = 512
"""More than a message has beside its subject, key, headers and payload."""
_SIZE_DIGITS = 8
LOG_FIELDS = 8
HEADER_BYTES_MAX = 60 << 10
"""Of the headers of a message, at most: the server takes 65,535 bytes, and a reader makes a map of
them that has a few more."""
TEXT, MAP_ALONE, TAIL = 0, 1, 2
"""Forms of a message: headers as lines and as their map; the map alone; key and map behind the
payload."""
CHUNK_MESSAGES_MAX = 999
"""Messages of a writer that are under way: fewer than a fence has."""

_EXPECT = (29, *b"Nats-Expected-Last-Sequence: ")
_TIDECAST = (9, *b"tidecast-")
_LOG = (12, *b"tidecast-log")
_KEY = (12, *b"tidecast-key")
_HEX = (4, *b"-hex")
_MAP = (16, *b"tidecast-headers")
_VERSION = (8, *b"NATS/1.0")
_NONE = (0, 0)
_NATS = (5, *b"nats-")
"""Lengths and letters of names and their parts."""


# --- text -----------------------------------------------------------------------------------------


@inlined
def _put(out, to, letters):
    for i in range(letters[0]):
        store_u8(out, to + i, letters[1 + i])
    return to + letters[0]


@inlined
def _put_line_end(out, to):
    store_u8(out, to, 0x0D)
    store_u8(out, to + 1, 0x0A)
    return to + 2


@inlined
def _put_name(out, to, letters):
    to = _put(out, to, letters)
    store_u8(out, to, 0x3A)
    store_u8(out, to + 1, 0x20)
    return to + 2


@inlined
def _put_decimal(out, to, value, digits):
    """A number with zeros before it, or, without ``digits``, as short as it is."""
    if digits == 0:
        digits, rest = 1, value // 10
        while rest > 0:
            digits += 1
            rest //= 10
    at = to + digits
    while at > to:
        at -= 1
        store_u8(out, at, 0x30 + value % 10)
        value //= 10
    return to + digits


@inlined
def _hex_digit(value):
    return 0x30 + value if value < 10 else 0x57 + value


@inlined
def _put_hex(out, to, value):
    """A number of 64 bits in base 16, and a blank."""
    shift = 60
    while shift > 0 and (value >> shift) & 0xF == 0:
        shift -= 4
    while shift >= 0:
        store_u8(out, to, _hex_digit((value >> shift) & 0xF))
        to += 1
        shift -= 4
    store_u8(out, to, 0x20)
    return to + 1


@inlined
def _hex_value(letter):
    """The value of a digit; -1: it is none."""
    if 0x30 <= letter <= 0x39:
        return letter - 0x30
    if 0x61 <= letter <= 0x66:
        return letter - 0x57
    return -1


@inlined
def _base64_letter(value):
    if value < 26:
        return 0x41 + value
    if value < 52:
        return 0x61 + value - 26
    if value < 62:
        return 0x30 + value - 52
    return 0x2B if value == 62 else 0x2F


@inlined
def _base64_value(letter):
    if 0x41 <= letter <= 0x5A:
        return letter - 0x41
    if 0x61 <= letter <= 0x7A:
        return letter - 0x61 + 26
    if 0x30 <= letter <= 0x39:
        return letter - 0x30 + 52
    if letter == 0x2B:
        return 62
    return 63 if letter == 0x2F else -1


@inlined
def _put_base64(data, at, n, out, to):
    """Without the ``=`` at the end."""
    bits, value = 0, 0
    for i in range(n):
        value = (value << 8 | load_u8(data, at + i)) & 0xFFFF
        bits += 8
        while bits >= 6:
            bits -= 6
            store_u8(out, to, _base64_letter((value >> bits) & 0x3F))
            to += 1
    if bits > 0:
        store_u8(out, to, _base64_letter((value << (6 - bits)) & 0x3F))
        to += 1
    return to


@inlined
def _get_base64(data, at, n, out, to):
    """Bytes that ``n`` letters are, written to ``out``; -1: they are none."""
    bits, value, begun = 0, 0, to
    for i in range(n):
        digit = _base64_value(load_u8(data, at + i))
        if digit < 0:
            return -1
        value = (value << 6 | digit) & 0xFFFF
        bits += 6
        if bits >= 8:
            bits -= 8
            store_u8(out, to, (value >> bits) & 0xFF)
            to += 1
    return to - begun


@inlined
def _is_text(data, at, n):
    """Printable ASCII without a blank at its ends: a header holds it as it is."""
    for i in range(n):
        letter = load_u8(data, at + i)
        if letter > 0x7E or letter < 0x20 or (letter == 0x20 and (i == 0 or i == n - 1)):
            return False
    return True


# --- headers of a record as lines -----------------------------------------------------------------


@inlined
def _begins_with(data, at, n, letters):
    """Without regard to case; ``letters`` are small."""
    if n < letters[0]:
        return False
    for i in range(letters[0]):
        letter = load_u8(data, at + i)
        if 0x41 <= letter <= 0x5A:
            letter += 32
        if letter != letters[1 + i]:
            return False
    return True


@inlined
def _is_name(data, at, n):
    """May be a header's name; those of NATS order it to do something, those of ours are taken."""
    if n == 0 or _begins_with(data, at, n, _NATS) or _begins_with(data, at, n, _TIDECAST):
        return False
    for i in range(n):
        letter = load_u8(data, at + i)
        if letter < 33 or letter > 126 or letter == 0x3A:
            return False
    return True


@inlined
def _text(data, at, end):
    """(place, bytes) of the text or the binary bytes at ``at``; the bytes are -1: another kind."""
    if at >= end:
        return 0, -1
    head = load_u8(data, at)
    size, width = -1, 0
    if 0xA0 <= head <= 0xBF:
        size = head - 0xA0
    elif head in (0xC4, 0xD9):
        width = 1
    elif head in (0xC5, 0xDA):
        width = 2
    else:
        return 0, -1
    if width > end - at - 1:
        return 0, -1
    if width > 0:
        size = 0
        for i in range(width):
            size = size << 8 | load_u8(data, at + 1 + i)
    if size > end - at - 1 - width:
        return 0, -1
    return at + 1 + width, size


@inlined
def _put_lines(data, at, end, out, to):
    """Write the headers of a map as lines, until a value is neither text nor bytes."""
    if at >= end:
        return to
    head = load_u8(data, at)
    count, at = head & 0x0F, at + 1
    if head == 0xDE and end - at >= 2:
        count, at = load_u8(data, at) << 8 | load_u8(data, at + 1), at + 2
    elif head & 0xF0 != 0x80:
        return to
    for _ in range(count):
        name_at, name_n = _text(data, at, end)
        if name_n < 0:
            return to
        value_at, value_n = _text(data, name_at + name_n, end)
        if value_n < 0:
            return to
        at = value_at + value_n
        if _is_name(data, name_at, name_n) and _is_text(data, value_at, value_n):
            copy(out, to, data, name_at, name_n)
            to += name_n
            store_u8(out, to, 0x3A)
            store_u8(out, to + 1, 0x20)
            copy(out, to + 2, data, value_at, value_n)
            to = _put_line_end(out, to + 2 + value_n)
    return to


# --- log -> messages ------------------------------------------------------------------------------


@inlined
def _is_engines(data, row):
    """Whether an engine wrote a record itself: the flag is in its length."""
    lead = max(row[O_KEY_N], 0) + max(row[O_HEADERS_N], 0) + seg.RECORD_HEADER_BYTES
    return load_u32(data, row[O_PAYLOAD_AT] - lead + seg.REC_LENGTH_AT) & seg.REC_ENGINE != 0


@inlined
def _need(row, fixed):
    """More than the bytes of a message."""
    headers = max(row[O_HEADERS_N], 0)
    return fixed + 2 * max(row[O_KEY_N], 0) + 5 * headers + row[O_PAYLOAD_N]


@inlined
def _put_size(out, to, at, n):
    """The bytes of a part behind the payload; ``-``: there is none, its place is below 0."""
    if at >= 0:
        return _put_decimal(out, to, n, 0)
    store_u8(out, to, 0x2D)
    return to + 1


@inlined
def _put_key(data, row, is_text, out, to):
    """The key as a header."""
    if is_text:
        to = _put_name(out, to, _KEY)
        copy(out, to, data, row[O_KEY_AT], row[O_KEY_N])
        return _put_line_end(out, to + row[O_KEY_N])
    to = _put_name(out, _put(out, to, _KEY), _HEX)
    for i in range(row[O_KEY_N]):
        byte = load_u8(data, row[O_KEY_AT] + i)
        store_u8(out, to, _hex_digit(byte >> 4))
        store_u8(out, to + 1, _hex_digit(byte & 0xF))
        to += 2
    return _put_line_end(out, to)


@inlined
def _put_headers(data, at, row, expected, form, out, to):
    to = _put_line_end(out, _put(out, to, _VERSION))
    to = _put_line_end(out, _put_decimal(out, _put(out, to, _EXPECT), expected, 0))
    is_text = form == TAIL or row[O_KEY_AT] < 0 or _is_text(data, row[O_KEY_AT], row[O_KEY_N])
    flags = ENGINES if _is_engines(data, row) else 0
    flags |= KEYED if row[O_KEY_AT] >= 0 else 0
    flags |= HEADED if row[O_HEADERS_AT] >= 0 else 0
    flags |= 0 if is_text else HEX_KEY
    to = _put_hex(out, _put_name(out, to, _LOG), row[O_TOKEN])
    to = _put_hex(out, to, load_i64(data, at + seg.BATCH_PRODUCER_AT))
    to = _put_hex(out, to, load_u32(data, at + seg.BATCH_EPOCH_AT))
    to = _put_hex(out, to, row[O_SEQ])
    to = _put_hex(out, to, load_i64(data, at + seg.BATCH_ACKED_SEQ_AT))
    to = _put_hex(out, to, row[O_TIME])
    to = _put_hex(out, to, load_i64(data, at + seg.BATCH_APPEND_TIME_AT))
    to = _put_line_end(out, _put_hex(out, to, flags) - 1)
    if form == TAIL:
        to = _put_size(out, _put_name(out, to, TAIL_NAME), row[O_KEY_AT], row[O_KEY_N])
        store_u8(out, to, 0x20)
        to = _put_size(out, to + 1, row[O_HEADERS_AT], row[O_HEADERS_N])
        return _put_line_end(out, _put_line_end(out, to))
    if flags & KEYED:
        to = _put_key(data, row, is_text, out, to)
    if flags & HEADED:
        first = row[O_HEADERS_AT]
        if form == TEXT:
            to = _put_lines(data, first, first + row[O_HEADERS_N], out, to)
        to = _put_name(out, to, _MAP)
        to = _put_line_end(out, _put_base64(data, first, row[O_HEADERS_N], out, to))
    return _put_line_end(out, to)


@inlined
def _put_tail(data, row, out, to):
    """Key and headers, as they are."""
    if row[O_KEY_AT] >= 0:
        copy(out, to, data, row[O_KEY_AT], row[O_KEY_N])
        to += row[O_KEY_N]
    if row[O_HEADERS_AT] >= 0:
        copy(out, to, data, row[O_HEADERS_AT], row[O_HEADERS_N])
        to += row[O_HEADERS_N]
    return to


@inlined
def _put_message(data, at, row, expected, message_max, subject, reply, out, to):
    """Write the frame of a record, in the first form that fits; (its end, bytes of its message)."""
    store_u8(out, to, 0x48)
    store_u8(out, to + 1, 0x50)
    store_u8(out, to + 2, 0x55)
    store_u8(out, to + 3, 0x42)
    store_u8(out, to + 4, 0x20)
    to += 5
    copy(out, to, subject, 0, subject.size)
    to += subject.size
    store_u8(out, to, 0x20)
    to += 1
    copy(out, to, reply, 0, reply.size)
    to += reply.size
    store_u8(out, to, 0x20)
    to += 1
    sizes = to
    body = to + 2 * _SIZE_DIGITS + 3
    form, headers_n = TEXT, 0
    while True:
        to = _put_headers(data, at, row, expected, form, out, body)
        headers_n = to - body
        fits = headers_n <= HEADER_BYTES_MAX and headers_n + row[O_PAYLOAD_N] <= message_max
        if fits or form == TAIL:
            break
        form += 1
    copy(out, to, data, row[O_PAYLOAD_AT], row[O_PAYLOAD_N])
    to += row[O_PAYLOAD_N]
    if form == TAIL:
        to = _put_tail(data, row, out, to)
    size = to - body
    _put_decimal(out, sizes, headers_n, _SIZE_DIGITS)  # known only now
    store_u8(out, sizes + _SIZE_DIGITS, 0x20)
    _put_decimal(out, sizes + _SIZE_DIGITS + 1, size, _SIZE_DIGITS)
    _put_line_end(out, body - 2)
    return _put_line_end(out, to), size


@kernel
def encode_messages(data, n, w, rows, subject, reply, out):
    """Write the next records of the run ``data[:n]`` as messages; their bytes, 0: there are none.

    ``w``: int64[WRITE_WORDS], see P_TOKEN; ``rows``: int64[segment.BATCH_RECORDS_MAX,
    RECORD_FIELDS].
    """
    at, to, count = 0, 0, 0
    fixed = _FIXED_BYTES + subject.size + reply.size
    w[P_COUNT], w[P_BEHIND], w[P_NEED] = 0, w[P_TOKEN], 0
    full = False
    while at < n and not full:
        listed = list_records(data, at, n, rows, 0)
        if listed < 0:
            if count == 0:
                return BAD_BATCH
            break
        first = max(w[P_TOKEN] - rows[0, O_TOKEN], 0)
        for i in range(first, listed):
            row = rows[i]
            need = _need(row, fixed)
            if row[O_TOKEN] != w[P_BEHIND]:
                if count == 0:
                    return BAD_BATCH
                full = True
                break
            if to + need > out.size or count == CHUNK_MESSAGES_MAX:
                if count == 0:
                    w[P_NEED] = need
                    return 0
                full = True
                break
            due, most = w[P_EXPECTED] + count, w[P_MESSAGE_MAX]
            end, size = _put_message(data, at, row, due, most, subject, reply, out, to)
            if size > w[P_MESSAGE_MAX]:
                if count == 0:
                    w[P_NEED] = size
                    return TOO_LARGE
                full = True
                break
            to = end
            count += 1
            w[P_BEHIND] = row[O_TOKEN] + 1
        at += load_u32(data, at + seg.BATCH_LENGTH_AT)
    w[P_COUNT] = count
    return to


# --- answers --------------------------------------------------------------------------------------

A_DUE, A_LAST = 0, 1
"""In and out: the sequence that the next answer names; in: the last one."""
A_END, A_NEED = 2, 3
"""Out: where the answers end in the data; bytes of the one that has not arrived whole."""
ANSWER_WORDS = 4
ALL, MORE, OTHER = 1, 0, -1
"""Why a scan ends: all are answered, the next answer has not arrived whole, or is another frame."""
_ANSWER_MAX = 4096
_STREAM = (11, *b'{"stream":"')
_SEQ = (6, *b'"seq":')
"""Lengths and letters of ``{"stream":"`` and ``"seq":``."""


@inlined
def _has(data, at, end, letters):
    if end - at < letters[0]:
        return False
    for i in range(letters[0]):
        if load_u8(data, at + i) != letters[1 + i]:
            return False
    return True


@inlined
def _sequence(data, at, end):
    """The sequence that the answer ``data[at:end]`` names; -1: it is an error, or no answer."""
    if not _has(data, at, end, _STREAM):
        return -1
    while at < end and not _has(data, at, end, _SEQ):
        at += 1
    at += _SEQ[0]
    value, digits = 0, 0
    while at < end and 0x30 <= load_u8(data, at) <= 0x39 and digits < 18:
        value = value * 10 + load_u8(data, at) - 0x30
        at, digits = at + 1, digits + 1
    if digits == 0 or at >= end:
        return -1
    mark = load_u8(data, at)
    return value if mark == 0x2C or mark == 0x7D else -1


@kernel
def scan_answers(data, at, end, w):
    """Take answers that messages are stored, one after the other; why that ends, see ALL.

    ``w``: int64[ANSWER_WORDS], see A_DUE.
    """
    w[A_NEED] = 0
    while w[A_DUE] <= w[A_LAST]:
        w[A_END] = at
        if end - at < 5:
            return MORE
        is_message = (
            load_u8(data, at) == 0x4D
            and load_u8(data, at + 1) == 0x53
            and load_u8(data, at + 2) == 0x47
            and load_u8(data, at + 3) == 0x20
        )
        if not is_message:
            return OTHER
        stop, size_at = at + 4, at + 4
        limit = min(end - 1, at + _ANSWER_MAX)
        while stop < limit and not (
            load_u8(data, stop) == 0x0D and load_u8(data, stop + 1) == 0x0A
        ):
            if load_u8(data, stop) == 0x20:
                size_at = stop + 1
            stop += 1
        if stop >= limit:
            return OTHER if end - at >= _ANSWER_MAX else MORE
        size = 0
        for i in range(size_at, stop):
            digit = load_u8(data, i) - 0x30
            if digit < 0 or digit > 9 or size > _ANSWER_MAX:
                return OTHER
            size = size * 10 + digit
        if size_at == stop or size > _ANSWER_MAX:
            return OTHER
        behind = stop + 4 + size
        if behind > end:
            w[A_NEED] = behind - at
            return MORE
        found = _sequence(data, stop + 2, stop + 2 + size)
        if found < 0 or found > w[A_DUE]:
            return OTHER
        if found == w[A_DUE]:  # else the answer to an earlier message
            w[A_DUE] += 1
        at = behind
    w[A_END] = at
    return ALL


# --- messages -> log ------------------------------------------------------------------------------

R_DUE, R_OWNER = 0, 1
"""In: the token of the next record, -1: any; owner of the batches."""
R_TOKEN, R_BEHIND, R_GAP = 2, 3, 4
"""Out: token of the first record; the token behind the last; the token behind a gap that ends the
batches, -1: there is none."""
REBUILD_WORDS = 8
BAD_MESSAGE = -1
"""Why no batches are made: a message does not add up."""
TOKENS_MAX = 1 << 62
BATCH_BYTES = 256 * 1024
SPARE_BYTES = seg.BATCH_HEADER_BYTES + seg.RECORD_HEADER_BYTES
"""A message takes at most so much more room as a record than as a frame."""
SCRATCH_BYTES = 2 * (FIELD_BYTES_MAX + 1)
_KEY_AT, _KEY_N, _HEX_AT, _HEX_N, _MAP_AT, _MAP_N, _LOG_AT, _LOG_N = range(8)
_NUMBERS, _TAIL_AT, _TAIL_N = 8, 16, 17
FIELDS = 32
"""Words of a message: places and bytes of its headers, and the numbers of ``tidecast-log``."""


@inlined
def _same_name(data, at, n, letters, more):
    """Is a name the first letters, and the second ones behind them?"""
    if n != letters[0] + more[0]:
        return False
    for i in range(letters[0]):
        if load_u8(data, at + i) != letters[1 + i]:
            return False
    for i in range(more[0]):
        if load_u8(data, at + letters[0] + i) != more[1 + i]:
            return False
    return True


@inlined
def _find_headers(data, at, end, g):
    """Find Tidecast's headers in a list of headers; an absent header has -1 bytes."""
    for k in range(4):
        g[2 * k], g[2 * k + 1] = 0, -1
    g[_TAIL_AT], g[_TAIL_N] = 0, -1
    while at < end:
        n, value_at, value_n, behind = header_line(data, at, end)
        if n < 0:
            return
        if _same_name(data, at, n, _LOG, _NONE):
            g[_LOG_AT], g[_LOG_N] = value_at, value_n
        elif _same_name(data, at, n, _KEY, _NONE):
            g[_KEY_AT], g[_KEY_N] = value_at, value_n
        elif _same_name(data, at, n, _KEY, _HEX):
            g[_HEX_AT], g[_HEX_N] = value_at, value_n
        elif _same_name(data, at, n, _MAP, _NONE):
            g[_MAP_AT], g[_MAP_N] = value_at, value_n
        elif _same_name(data, at, n, TAIL_NAME, _NONE):
            g[_TAIL_AT], g[_TAIL_N] = value_at, value_n
        at = behind


@inlined
def _numbers(data, at, n, g):
    """Read the numbers of ``tidecast-log`` into ``g[8:]``; False: they are none that fit."""
    found, digits, value, end = 0, 0, 0, at + n
    while at <= end:
        letter = load_u8(data, at) if at < end else 0x20
        at += 1
        if letter == 0x20:
            if digits == 0 or found == LOG_FIELDS:
                return False
            g[8 + found] = value
            found, digits, value = found + 1, 0, 0
            continue
        digit = _hex_value(letter)
        if digit < 0 or digits == 16:
            return False
        value = value << 4 | digit
        digits += 1
    if found != LOG_FIELDS:
        return False
    for k in range(LOG_FIELDS):
        if g[8 + k] < 0:
            return False
    return g[8] < TOKENS_MAX and g[10] <= 0xFFFFFFFF and g[15] <= 15


@inlined
def _take_key(data, g, scratch):
    """The key to the begin of ``scratch``: its bytes, -1 without one, -2 when it is damaged."""
    if g[15] & KEYED == 0:
        return -1
    if g[15] & HEX_KEY == 0:
        if g[_KEY_N] < 0 or g[_KEY_N] > FIELD_BYTES_MAX:
            return -2
        copy(scratch, 0, data, g[_KEY_AT], g[_KEY_N])
        return g[_KEY_N]
    n = g[_HEX_N] >> 1
    if g[_HEX_N] < 0 or g[_HEX_N] & 1 or n > FIELD_BYTES_MAX:
        return -2
    for i in range(n):
        high = _hex_value(load_u8(data, g[_HEX_AT] + 2 * i))
        low = _hex_value(load_u8(data, g[_HEX_AT] + 2 * i + 1))
        if high < 0 or low < 0:
            return -2
        store_u8(scratch, i, high << 4 | low)
    return n


@inlined
def _take_map(data, g, scratch, to):
    """The headers to ``scratch[to:]``; as `_take_key`."""
    if g[15] & HEADED == 0:
        return -1
    if g[_MAP_N] < 0 or g[_MAP_N] * 6 // 8 > FIELD_BYTES_MAX:
        return -2
    n = _get_base64(data, g[_MAP_AT], g[_MAP_N], scratch, to)
    return -2 if n < 0 else n


@inlined
def _take_tail(data, g, f, scratch):
    """(bytes of the key, of the headers) behind the payload, copied to ``scratch``.

    As `_take_key`; the payload then ends before them.
    """
    key_n, map_n = tail_sizes(data, g[_TAIL_AT], g[_TAIL_N], f[F_PAYLOAD_N])
    if (key_n >= 0) != (g[15] & KEYED != 0) or (map_n >= 0) != (g[15] & HEADED != 0):
        return -2, -2
    if key_n < -1 or map_n < -1:
        return -2, -2
    n = max(key_n, 0) + max(map_n, 0)
    f[F_PAYLOAD_N] -= n
    copy(scratch, 0, data, f[F_PAYLOAD_AT] + f[F_PAYLOAD_N], n)
    return key_n, map_n


@inlined
def _other_batch(g, prior, base_seq, count, size):
    """Does a record begin a batch of the log?"""
    if count == 0 or count == seg.BATCH_RECORDS_MAX or size > BATCH_BYTES:
        return True
    for k in (9, 10, 12, 14):
        if g[k] != prior[k]:
            return True
    return g[11] < base_seq or g[11] - base_seq > 0xFFFFFFFF


@kernel
def rebuild_messages(data, at, end, w, out, scratch, f, g):
    """Write the messages at ``data[at:end]`` as the batches of the log that they were; bytes.

    They have been scanned. Messages that note no place in a log are left out. ``w``:
    int64[REBUILD_WORDS], see R_DUE; ``scratch``: uint8[SCRATCH_BYTES]; ``f``: int64[F_WORDS];
    ``g``: int64[2, FIELDS].
    """
    begun, to, in_batch, total, base_seq, first = 0, 0, 0, 0, 0, 0
    due, now, prior = w[R_DUE], 0, 1
    w[R_TOKEN], w[R_BEHIND], w[R_GAP] = due, due, -1
    while at < end:
        at = parse_frame(data, at, end, BARE, scratch, f)
        if at <= 0:
            return BAD_MESSAGE
        row = g[now]
        _find_headers(data, f[F_LIST_AT], f[F_LIST_END], row)
        if row[_LOG_N] < 0 or not _numbers(data, row[_LOG_AT], row[_LOG_N], row):
            continue
        token = row[8]
        if due >= 0 and token < due:
            continue
        if due >= 0 and token > due:
            w[R_GAP] = token
            break
        if row[_TAIL_N] >= 0:
            key_n, map_n = _take_tail(data, row, f, scratch)
        else:
            key_n = _take_key(data, row, scratch)
            map_n = -2 if key_n == -2 else _take_map(data, row, scratch, max(key_n, 0))
        if map_n == -2:
            return BAD_MESSAGE
        n = record_bytes(key_n, map_n, f[F_PAYLOAD_N])
        if to + n + seg.BATCH_HEADER_BYTES > out.size:
            return BAD_MESSAGE
        if _other_batch(row, g[prior], base_seq, in_batch, to - begun + n):
            if in_batch > 0:
                seal_batch(out, begun, to, first, g[prior, 14])
            begun, in_batch, base_seq, first = to, 0, row[11], token
            to = begin_batch(out, begun, row[9], row[10], w[R_OWNER], base_seq, row[12])
        hashed = key_hash(scratch, 0, key_n) if key_n >= 0 else 0
        record = to
        key, headers = Span(scratch, 0, key_n), Span(scratch, max(key_n, 0), map_n)
        payload = Span(data, f[F_PAYLOAD_AT], f[F_PAYLOAD_N])
        to = add_record(out, begun, to, row[11], row[13], hashed, key, headers, payload)
        if row[15] & ENGINES:
            head = load_u32(out, record + seg.REC_LENGTH_AT)
            store_u32(out, record + seg.REC_LENGTH_AT, head | seg.REC_ENGINE)
        if total == 0:
            w[R_TOKEN] = token
        in_batch, total, due = in_batch + 1, total + 1, token + 1
        now, prior = prior, now
    if in_batch > 0:
        seal_batch(out, begun, to, first, g[prior, 14])
    w[R_BEHIND] = due
    return to
