"""Reading a queue's log: runs of whole batches into a caller's buffer, from any token on.

In order, a read is one `pread`. Out of order it costs a search: the table of segments, then the
segment's sparse index, then a walk over at most INDEX_INTERVAL_BYTES of headers.
"""

from __future__ import annotations

import numpy as np

from tidecast.layout import segment as lay
from tidecast.log.append import readable_token, words_of
from tidecast.log.batch import SHORT, check_batch, check_header
from tidecast.log.state import (
    L_DIRECTORY_FD,
    L_DURABLE_TOKEN,
    L_END_SEGMENT,
    L_FIRST_SEGMENT,
    L_GENERATION,
    R_BAD_BASE,
    R_BAD_CAUSE,
    R_BAD_POSITION,
    R_BASE_TOKEN,
    R_BATCHES,
    R_BYTES,
    R_FD,
    R_GENERATION,
    R_NEED,
    R_OPENS,
    R_POSITION,
    R_SEARCHES,
    R_SYNCED,
    R_TOKEN,
    READER,
    S_BASE_TOKEN,
    SEGMENTS_MAX,
)
from tidecast.native.atomics import load_acquire
from tidecast.native.crc32c import crc32c
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import load_i64, load_u32, store_u8
from tidecast.native.system.files import ENOENT, close, file_bytes, open_at, pread, pread_all

NOTHING, GONE, CORRUPT, NEED_ROOM = 0, -10_001, -10_002, -10_003
"""Results of `read_block` besides bytes: NOTHING there yet; GONE: the token was deleted by
retention; CORRUPT: R_BAD_* say where; NEED_ROOM: give R_NEED bytes. Otherwise ``-errno``."""

_reader_of = READER.of
_TRIES_MAX = 8
_DIGITS = 20
_ZERO = 48
_SUFFIX_BYTES = 8
_LOG = np.frombuffer(b".log\0\0\0\0", dtype=np.uint8)
_INDEX = np.frombuffer(b".index\0\0", dtype=np.uint8)


@inlined
def earliest_token(L):
    """The oldest token that is kept."""
    first = load_acquire(words_of(L), L_FIRST_SEGMENT * 8)
    return L.segments[first & (SEGMENTS_MAX - 1), S_BASE_TOKEN]


@inlined
def _segment_of(L, token):
    """First token of the segment that holds ``token``."""
    low = load_acquire(words_of(L), L_FIRST_SEGMENT * 8)
    high = load_acquire(words_of(L), L_END_SEGMENT * 8) - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if L.segments[middle & (SEGMENTS_MAX - 1), S_BASE_TOKEN] <= token:
            low = middle
        else:
            high = middle - 1
    return L.segments[low & (SEGMENTS_MAX - 1), S_BASE_TOKEN]


@inlined
def _open(R, base, index):
    """Open a segment, or its index, by its first token; the descriptor or ``-errno``."""
    rest = base
    for i in range(_DIGITS):
        store_u8(R.name, _DIGITS - 1 - i, _ZERO + rest % 10)
        rest //= 10
    for i in range(_SUFFIX_BYTES):
        store_u8(R.name, _DIGITS + i, _INDEX[i] if index else _LOG[i])
    R.w[R_OPENS] += 1
    return open_at(R.log.w[L_DIRECTORY_FD], R.name)


@inlined
def _close_segment(R):
    if R.w[R_FD] >= 0:
        close(R.w[R_FD])
    R.w[R_FD], R.w[R_BASE_TOKEN], R.w[R_TOKEN] = -1, -1, -1


@inlined
def _entry_at(R, fd, i):
    """Read index entry ``i``; False when it is not sound."""
    at = lay.SEGMENT_HEADER_BYTES + i * lay.INDEX_ENTRY_BYTES
    if pread(fd, R.entry, 0, lay.INDEX_ENTRY_BYTES, at) != lay.INDEX_ENTRY_BYTES:
        return False
    return crc32c(R.entry, 0, lay.IDX_CRC_AT) == load_u32(R.entry, lay.IDX_CRC_AT)


@inlined
def _position_before(R, base, token, field):
    """Position of a batch at or before the wanted batch: from the index, else the first batch.

    ``field`` IDX_TOKEN_AT: the wanted batch has ``token``. IDX_TIME_AT: it has the first record not
    older than ``token`` (a time); an entry has the latest time of the records before it.
    """
    found = lay.SEGMENT_HEADER_BYTES
    fd = _open(R, base, True)
    if fd < 0:
        return found
    low, high = 0, (file_bytes(fd) - lay.SEGMENT_HEADER_BYTES) // lay.INDEX_ENTRY_BYTES - 1
    while low <= high:
        middle = (low + high) >> 1
        if not _entry_at(R, fd, middle):
            high = middle - 1  # torn or damaged: a walk from an earlier entry finds the batch, too
            continue
        key = load_i64(R.entry, field)
        if key < token or (key == token and field == lay.IDX_TOKEN_AT):
            found = max(load_i64(R.entry, lay.IDX_POSITION_AT), lay.SEGMENT_HEADER_BYTES)
            low = middle + 1
        else:
            high = middle - 1
    close(fd)
    return found


@inlined
def _bad(R, position, cause):
    R.w[R_BAD_BASE], R.w[R_BAD_POSITION] = R.w[R_BASE_TOKEN], position
    R.w[R_BAD_CAUSE] = cause
    return CORRUPT


@inlined
def _walk_to(R, token, position, buffer, at, room):
    """Step over batches in the open segment up to the batch with ``token``. Its position."""
    n, start = 0, position
    while True:
        if position + lay.BATCH_HEADER_BYTES > start + n:
            start = position
            n = pread_all(R.w[R_FD], buffer, at, room, start)
            if n < 0:
                return n
            if n < lay.BATCH_HEADER_BYTES:
                return _bad(R, position, SHORT)
        here = at + position - start
        length = check_header(buffer, here, at + n)
        if length < 0:
            return _bad(R, position, length)
        end = load_i64(buffer, here + lay.BATCH_BASE_TOKEN_AT)
        end += load_u32(buffer, here + lay.BATCH_COUNT_AT)
        if token < end:
            return position
        position += length


@inlined
def _seek(R, token, buffer, at, room):
    """Open the segment of ``token`` and find its batch: 0, GONE, CORRUPT or ``-errno``."""
    L, W = R.log, R.w
    W[R_SEARCHES] += 1
    for _ in range(_TRIES_MAX):
        if token < earliest_token(L):
            return GONE
        base = _segment_of(L, token)
        if W[R_BASE_TOKEN] != base or W[R_FD] < 0:
            _close_segment(R)
            fd = _open(R, base, False)
            if fd == -ENOENT:
                continue  # retention was quicker
            if fd < 0:
                return fd
            W[R_FD], W[R_BASE_TOKEN] = fd, base
        position = lay.SEGMENT_HEADER_BYTES
        if token > base:
            position = _position_before(R, base, token, lay.IDX_TOKEN_AT)
            position = _walk_to(R, token, position, buffer, at, room)
            if position < 0:
                return position
        W[R_TOKEN], W[R_POSITION] = token, position
        return 0
    return GONE


@inlined
def _sound_run(R, token, buffer, at, n, limit, position):
    """Bytes of the sound batches from ``at`` on that follow on from ``token``, below ``limit``.

    ``n`` bytes were read. 0: the first batch is not all there. CORRUPT when it is unsound.
    """
    W = R.w
    end = at + n
    here = at
    expected = token
    while True:
        length = check_batch(buffer, here, end)
        if length < 0:
            if here > at or length == SHORT:
                break
            return _bad(R, position, length)
        base = load_i64(buffer, here + lay.BATCH_BASE_TOKEN_AT)
        count = load_u32(buffer, here + lay.BATCH_COUNT_AT)
        if base >= limit:
            break
        follows = base == expected if here > at else base <= expected < base + count
        if not follows:
            if here > at:
                break
            return _bad(R, position, SHORT)
        expected = base + count
        here += length
        W[R_BATCHES] += 1
    W[R_TOKEN], W[R_POSITION] = expected, position + here - at
    return here - at


@inlined
def read_block(R, token, buffer, at, room):
    """Read whole batches into ``buffer[at:at + room]``, from the batch with ``token`` on.

    Returns bytes (always of one segment, checksums verified), or NOTHING, GONE, CORRUPT, NEED_ROOM
    or ``-errno``. ``room``: at least 4 KiB. R_TOKEN is then the token to continue with.
    """
    L, W = R.log, R.w
    limit = readable_token(L)
    if R.w[R_SYNCED] != 0:
        limit = load_acquire(words_of(L), L_DURABLE_TOKEN * 8)
    if token >= limit:
        return NOTHING
    generation = load_acquire(words_of(L), L_GENERATION * 8)
    if W[R_GENERATION] != generation:
        _close_segment(R)  # a sync failed, and another file has replaced the open segment
        W[R_GENERATION] = generation
    for _ in range(_TRIES_MAX):
        if W[R_FD] < 0 or W[R_TOKEN] != token:
            status = _seek(R, token, buffer, at, room)
            if status < 0:
                return status
        base = _segment_of(L, token)
        if base != W[R_BASE_TOKEN] and base <= token:
            _close_segment(R)  # it was sealed, and the token is the first of the next
            continue
        n = pread_all(W[R_FD], buffer, at, room, W[R_POSITION])
        if n < 0:
            return n
        run = _sound_run(R, token, buffer, at, n, limit, W[R_POSITION])
        if run > 0:
            W[R_BYTES] += run
            return run
        if run < 0:
            W[R_TOKEN] = -1
            return run
        if n == 0 and token < earliest_token(L):
            _close_segment(R)  # retention deleted it, and segments behind it, during the read
            return GONE
        length = check_header(buffer, at, at + n)
        if length > room:
            W[R_NEED] = length
            return NEED_ROOM
        return _bad(R, W[R_POSITION], SHORT)  # below the limit, so it should be whole
    return GONE


@kernel
def read_run(words, token, buffer, at, room):
    """`read_block`, from Python."""
    return read_block(_reader_of(words), token, buffer, at, room)


@kernel
def close_reader(words):
    """Close a reader's open segment. The reader may be used again."""
    _close_segment(_reader_of(words))


@kernel
def seek_time(words, base, time_ns):
    """Where in segment ``base`` to start looking for the first record not older than a time."""
    return _position_before(_reader_of(words), base, time_ns, lay.IDX_TIME_AT)
