"""Kernels of a Fetch's answer: records of a record batch v2 to batches of a run, offsets kept.

`scan_fetched` verifies every length and says how many bytes the run takes; only then
`convert_fetched` writes it. Compaction leaves holes in the offsets of a batch: behind each the run
begins another batch. Records that a run cannot hold are left out, and listed.
"""

from __future__ import annotations

from tidecast.kafka.record_kernels import (
    BAD_COUNT,
    BAD_NAME,
    BAD_OFFSET,
    BAD_TIME,
    LOG_BATCH_BYTES,
    NS_PER_MS,
    S_BYTES,
    S_LEFT_OUT,
    S_RECORDS,
    TOO_LONG,
    parse_record,
    put_parsed,
)
from tidecast.layout import segment as seg
from tidecast.log.batch import begin_batch, record_bytes, seal_batch
from tidecast.native.jit import inlined, kernel

R_BASE, R_BASE_MS, R_FIXED_MS, R_EPOCH = 0, 1, 2, 3
"""In: offset of the batch; its time; the time of all its records, -1: each has its own; epoch of
the leader."""
FETCHED_WORDS = 4
RECORD_BYTES_MAX = seg.BATCH_BYTES_MAX - seg.BATCH_HEADER_BYTES
"""Of a record in the log."""
L_OFFSET, L_AT, L_WHY, L_BYTES, L_KEY, L_HEADERS = 0, 1, 2, 3, 4, 5
"""Of a record that is left out: its offset; where the run continues behind it; why, as
`parse_record` says; its bytes as it came; bytes of its key, and of its headers as a map."""
LEFT_WORDS = 6


@inlined
def _next_record(data, at, end, f):
    """Parse a record: (its end, or below 0 why none can be read; below 0 why it is left out)."""
    behind = parse_record(data, at, end, f)
    if behind in (TOO_LONG, BAD_TIME, BAD_NAME):
        return f[11], behind
    if behind > 0 and record_bytes(f[2], f[7], max(f[4], 0)) > RECORD_BYTES_MAX:
        return behind, TOO_LONG
    return behind, 0


@inlined
def _ends(records, bytes_before, n, delta, due):
    """Does the batch of the run that has ``records`` end before a record of ``n`` bytes?"""
    if records == 0:
        return False
    return delta != due or bytes_before + n > LOG_BATCH_BYTES or records == seg.BATCH_RECORDS_MAX


@kernel
def scan_fetched(data, at, end, count, last_delta, found, f):
    """Verify ``count`` records that fill ``data[at:end]``: 0, or why they are refused.

    ``last_delta``: no record has a greater offset delta. ``found``: int64[SCAN_WORDS], see S_BYTES;
    ``f``: int64[16] scratch.
    """
    if count < 1 or count > end - at:
        return BAD_COUNT
    total, in_batch, records, left_out = 0, 0, 0, 0
    due, lowest = 0, 0
    for _ in range(count):
        at, why = _next_record(data, at, end, f)
        if at < 0:
            return at
        if f[10] < lowest or f[10] > last_delta:
            return BAD_OFFSET
        lowest = f[10] + 1
        if why < 0:
            left_out += 1
            continue
        n = record_bytes(f[2], f[7], max(f[4], 0))
        if records == 0 or _ends(records, in_batch, n, f[10], due):
            total += seg.BATCH_HEADER_BYTES
            in_batch, records = seg.BATCH_HEADER_BYTES, 0
        total += n
        in_batch += n
        records += 1
        due = f[10] + 1
    found[S_BYTES], found[S_RECORDS], found[S_LEFT_OUT] = total, count - left_out, left_out
    return 0 if at == end else BAD_COUNT


@kernel
def convert_fetched(data, at, end, count, w, out, left_out, scratch, f):
    """Write records that `scan_fetched` has passed as sealed batches of a run; bytes of them.

    ``w``: int64[FETCHED_WORDS], see R_BASE; ``left_out``: int64[S_LEFT_OUT, LEFT_WORDS], filled
    with the records that are left out, see L_OFFSET; ``scratch``: uint8[SCRATCH_BYTES].
    """
    begun, to, records, due, first = 0, 0, 0, 0, 0
    time_ns, left = 0, 0
    for _ in range(count):
        begin = at
        at, why = _next_record(data, at, end, f)
        delta = f[10]
        if why < 0:
            row = left_out[left]
            row[L_OFFSET], row[L_AT], row[L_WHY] = w[R_BASE] + delta, to, why
            row[L_BYTES], row[L_KEY], row[L_HEADERS] = at - begin, f[2], f[7]
            left += 1
            continue
        n = record_bytes(f[2], f[7], max(f[4], 0))
        if _ends(records, to - begun, n, delta, due):
            seal_batch(out, begun, to, w[R_BASE] + first, time_ns)
            begun, records = to, 0
        if records == 0:
            first = delta
            to = begin_batch(out, begun, 0, 0, w[R_EPOCH], w[R_BASE] + first + 1, 0)
        ms = w[R_FIXED_MS] if w[R_FIXED_MS] >= 0 else w[R_BASE_MS] + f[0]
        time_ns = max(ms, 0) * NS_PER_MS
        to = put_parsed(data, at, f, time_ns, w[R_BASE] + delta + 1, out, begun, to, scratch)
        records += 1
        due = delta + 1
    if records > 0:
        seal_batch(out, begun, to, w[R_BASE] + first, time_ns)
    return to
