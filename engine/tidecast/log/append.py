"""Appending to a queue's log: sealed batches in one write, an index entry at intervals."""

from __future__ import annotations

from tidecast.layout import segment as lay
from tidecast.log.state import (
    L_APPENDED_BYTES,
    L_BATCHES,
    L_DURABLE_POSITION,
    L_DURABLE_TOKEN,
    L_ERROR,
    L_FAILURES,
    L_FD,
    L_INDEX_DUE,
    L_INDEX_FD,
    L_NEXT_TOKEN,
    L_POSITION,
    L_SEGMENT_BYTES,
    L_STORED,
    L_STORED_TOKEN,
    L_SUSPECT,
    L_SYNCED_READS,
    L_SYNCS,
    L_TIME_MAX,
    L_WRITES,
    LOG,
)
from tidecast.native.atomics import load_acquire, store_release
from tidecast.native.crc32c import crc32c
from tidecast.native.jit import inlined, kernel
from tidecast.native.memory import address_of, bytes_at, load_i64, load_u32, store_i64
from tidecast.native.system.files import fdatasync, file_bytes, pwrite_all

ROLL, SUSPECT = 1, 2
"""`append_run` wrote nothing: the segment is full, make the next one and call again; a sync of it
failed, store it again first (`QueueLog.sync`)."""

_log_of = LOG.of


@inlined
def words_of(L):
    """The words of a log as bytes, for atomics."""
    return bytes_at(address_of(L.w), L.w.size * 8)


@inlined
def readable_token(L):
    """The token behind the newest record that consumers may read."""
    if L.w[L_SYNCED_READS] == 0:
        return load_acquire(words_of(L), L_NEXT_TOKEN * 8)
    token = load_acquire(words_of(L), L_DURABLE_TOKEN * 8)
    if L.w[L_STORED] != 0:
        token = min(token, load_acquire(words_of(L), L_STORED_TOKEN * 8))
    return token


@inlined
def put_index_entry(L, token, position, time_ns):
    """Write the next entry of the active segment's index: 0 or ``-errno``."""
    store_i64(L.entry, lay.IDX_TOKEN_AT, token)
    store_i64(L.entry, lay.IDX_POSITION_AT, position)
    store_i64(L.entry, lay.IDX_TIME_AT, time_ns)
    store_i64(L.entry, lay.IDX_CRC_AT, crc32c(L.entry, 0, lay.IDX_CRC_AT))
    end = file_bytes(L.w[L_INDEX_FD])
    if end < 0:
        return end
    whole = (end - lay.SEGMENT_HEADER_BYTES) // lay.INDEX_ENTRY_BYTES * lay.INDEX_ENTRY_BYTES
    return pwrite_all(
        L.w[L_INDEX_FD],
        L.entry,
        0,
        lay.INDEX_ENTRY_BYTES,
        lay.SEGMENT_HEADER_BYTES + max(whole, 0),
        L.disk,
    )


@inlined
def _index_run(L, buffer, at, end):
    """Entries for the batches of a run that is about to stand at L_POSITION. 0 or ``-errno``."""
    W = L.w
    position, time_max = W[L_POSITION], W[L_TIME_MAX]
    while at < end:
        if position >= W[L_INDEX_DUE]:
            token = load_i64(buffer, at + lay.BATCH_BASE_TOKEN_AT)
            status = put_index_entry(L, token, position, time_max)
            if status < 0:
                return status
            W[L_INDEX_DUE] = position + lay.INDEX_INTERVAL_BYTES
        time_max = max(time_max, load_i64(buffer, at + lay.BATCH_TIME_MAX_AT))
        length = load_u32(buffer, at + lay.BATCH_LENGTH_AT)
        position += length
        at += length
    W[L_TIME_MAX] = time_max
    return 0


@inlined
def append_run(L, buffer, at, end):
    """Append sealed batches ``buffer[at:end]`` whose tokens follow on: 0, ROLL, SUSPECT, -errno.

    All or nothing: after a failure the log ends where it did, and the same run may be tried again.
    """
    W = L.w
    if W[L_SUSPECT] != 0:
        return SUSPECT
    n = end - at
    position = W[L_POSITION]
    if position > lay.SEGMENT_HEADER_BYTES and position + n > W[L_SEGMENT_BYTES]:
        return ROLL
    status = pwrite_all(W[L_FD], buffer, at, n, position, L.disk)
    if status == 0:
        status = _index_run(L, buffer, at, end)
    if status < 0:
        W[L_ERROR] = -status
        W[L_FAILURES] += 1
        return status
    W[L_ERROR] = 0
    token = W[L_NEXT_TOKEN]
    while at < end:
        token += load_u32(buffer, at + lay.BATCH_COUNT_AT)
        W[L_BATCHES] += 1
        at += load_u32(buffer, at + lay.BATCH_LENGTH_AT)
    W[L_POSITION] = position + n
    W[L_APPENDED_BYTES] += n
    W[L_WRITES] += 1
    store_release(words_of(L), L_NEXT_TOKEN * 8, token)
    return 0


@kernel
def note_stored(words, token):
    """A storage beside the log has all records below ``token``. One caller at a time."""
    store_release(words_of(_log_of(words)), L_STORED_TOKEN * 8, token)


@kernel
def append_sealed(words, buffer, n):
    """`append_run` of ``buffer[:n]``, from Python."""
    return append_run(_log_of(words), buffer, 0, n)


@kernel
def sync_file(words, fd):
    """Sync a file that is to become a log's active segment: 0 or ``-errno``."""
    return fdatasync(fd, _log_of(words).disk)


@kernel
def sync_active(words):
    """Sync the active segment: records appended before are durable then. 0 or ``-errno``.

    One caller at a time; never while the log rolls.
    """
    L = _log_of(words)
    token = load_acquire(words_of(L), L_NEXT_TOKEN * 8)
    if token == L.w[L_DURABLE_TOKEN]:
        return 0
    position = L.w[L_POSITION]  # of this token or of a later one
    status = fdatasync(L.w[L_FD], L.disk)
    if status < 0:
        return status
    L.w[L_SYNCS] += 1
    L.w[L_DURABLE_POSITION] = position
    store_release(words_of(L), L_DURABLE_TOKEN * 8, token)
    return 0
