"""The state of a queue's log as kernels see it: a writer holds a `LOG`, a reader a `READER`.

A log has one writer, which keeps the descriptors in `LOG`. Any number of readers read its words and
its table of segments, and open segments by name, so that a segment may be deleted during a read:
the reader reads its open segment to the end.
"""

from __future__ import annotations

import numpy as np

from tidecast.native.handles import Kind

(L_FD, L_INDEX_FD, L_DIRECTORY_FD, L_SEGMENT_BYTES, L_SYNCED_READS, L_OWNER, L_QUEUE) = range(7)
"""Descriptors; bytes at which a segment is full; 1: consumers read only synced records; epoch of
the owner; index of the queue."""
L_NEXT_TOKEN, L_POSITION, L_TIME_MAX, L_INDEX_DUE, L_ERROR, L_BASE_TOKEN = 8, 9, 10, 11, 12, 13
"""Written by the appender: token behind the newest record, end of the active segment, its latest
time-stamp, position from which on the next batch gets an index entry, errno of the last failure,
first token of the active segment."""
L_DURABLE_TOKEN, L_SYNCS, L_DURABLE_POSITION, L_GENERATION, L_SUSPECT = 16, 17, 18, 19, 20
L_STORED, L_STORED_TOKEN = 21, 22
"""Written by the thread that syncs: all tokens below are on the device; the number of syncs; the
durable position in the active segment; how often another file has replaced that segment; 1: a sync
of it failed, and nothing may be appended until another file has replaced it. L_STORED, 1: records
are durable only when a storage beside the log has them, too; it has all below L_STORED_TOKEN."""
L_FIRST_SEGMENT, L_END_SEGMENT = 24, 25
"""The present segments: rows of `segments` by number modulo SEGMENTS_MAX; the last is active."""
L_SEALED_BYTES, L_DELETED_BYTES, L_EARLIEST_TOKEN = 26, 27, 28
"""Sums of that table, so that a node reads all its queues at once: bytes of all sealed segments,
bytes that retention has deleted (two words, each with one writer); first token of the first
segment."""
L_APPENDED_BYTES, L_BATCHES, L_WRITES, L_FAILURES = 32, 33, 34, 35
"""Counts since it was opened."""
LOG_WORDS = 40

SEGMENTS_MAX = 1 << 14
"""Segments of one queue: 2 TiB of 128 MiB each."""
S_BASE_TOKEN, S_BYTES, S_TIME_MAX = 0, 1, 2
SEGMENT_FIELDS = 4
"""Columns of `segments`; bytes and latest time-stamp are set when a segment is sealed."""

LOG = Kind(
    "Log",
    [
        ("w", np.int64, ()),  # L_*
        ("segments", np.int64, (SEGMENT_FIELDS,)),  # S_*
        ("disk", np.int64, ()),  # tidecast.native.system.files.F_*
        ("entry", np.uint8, ()),  # an index entry under construction
    ],
)
"""All that a log's writer owns."""

R_FD, R_BASE_TOKEN, R_TOKEN, R_POSITION, R_NEED = 0, 1, 2, 3, 4
"""The open segment (descriptor or -1, first token); the next token in order and where its batch
starts; bytes that a read lacked room for."""
(
    R_BAD_BASE,
    R_BAD_POSITION,
    R_BAD_CAUSE,
    R_BATCHES,
    R_BYTES,
    R_OPENS,
    R_SEARCHES,
    R_GENERATION,
    R_SYNCED,
) = range(5, 14)
"""Place of the last corrupt batch, and its problem; counts; the log's L_GENERATION when the segment
was opened; 1: it reads all synced records, also records that consumers may not read yet."""
READER_WORDS = 16
NAME_BYTES = 32

READER = Kind(
    "LogReader",
    [
        ("log", LOG, ()),
        ("w", np.int64, ()),  # R_*
        ("name", np.uint8, ()),  # of the segment to open
        ("entry", np.uint8, ()),  # an index entry, or a batch's header
    ],
)
"""All that a reader of a log owns."""
