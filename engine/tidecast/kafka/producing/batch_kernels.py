"""Kernel of the writer: records of a run as one record batch v2 of an idempotent producer."""

from __future__ import annotations

from tidecast.kafka.record_kernels import (
    BAD_BATCH,
    BATCH_BYTES,
    NO_ROOM,
    NS_PER_MS,
    put_head,
    put_record,
    record_body,
    varint_bytes,
)
from tidecast.layout import segment as seg
from tidecast.log.batch import O_TIME, O_TOKEN, list_records
from tidecast.native.jit import kernel
from tidecast.native.memory import load_u32

P_TOKEN, P_BYTES_MAX, P_NOW_MS, P_PRODUCER, P_EPOCH, P_SEQUENCE = range(6)
"""In: token of the first record wanted; bytes of a batch of several records; the time now: later
ones are refused by brokers, so they become it; id, epoch and next sequence of the producer."""
P_COUNT, P_BEHIND, P_NEED = 6, 7, 8
"""Out: records in the batch; the token behind the last; bytes that a first record needs."""
PRODUCE_WORDS = 12


@kernel
def encode_produced(data, n, w, rows, out, h):
    """Write the records of the whole batches ``data[:n]`` from a token on as one batch; its bytes.

    0: there are none. ``w``: int64[PRODUCE_WORDS], see P_TOKEN; ``rows``:
    int64[segment.BATCH_RECORDS_MAX, 10]; ``h``: int64[16] scratch. NO_ROOM when ``out`` cannot hold
    the first record, BAD_BATCH when what is due is no batch.
    """
    at, to, count, first_ms, last_ms = 0, BATCH_BYTES, 0, 0, 0
    behind = w[P_TOKEN]
    w[P_COUNT] = w[P_NEED] = 0
    w[P_BEHIND] = behind
    full = out.size < BATCH_BYTES
    if full:
        w[P_NEED] = 2 * BATCH_BYTES
        return NO_ROOM
    while at < n and not full:
        listed = list_records(data, at, n, rows, 0)
        if listed < 0:
            if count == 0:
                return BAD_BATCH
            break
        at += load_u32(data, at + seg.BATCH_LENGTH_AT)
        for i in range(listed):
            row = rows[i]
            if row[O_TOKEN] < w[P_TOKEN]:
                continue
            ms = min(max(row[O_TIME] // NS_PER_MS, 0), w[P_NOW_MS])
            row[O_TIME] = ms * NS_PER_MS
            if count == 0:
                first_ms = last_ms = ms
            body = record_body(data, row, count, first_ms, h)
            if count > 0 and to + body + varint_bytes(body) > w[P_BYTES_MAX]:
                full = True
                break
            if to + body + varint_bytes(body) > out.size:
                if count == 0:
                    w[P_NEED] = to + body + varint_bytes(body)
                    return NO_ROOM
                full = True
                break
            to = put_record(data, row, count, body, out, to, h)
            last_ms = max(last_ms, ms)
            behind = row[O_TOKEN] + 1
            count += 1
    if count == 0:
        return 0
    w[P_COUNT], w[P_BEHIND] = count, behind
    put_head(out, 0, to, count, 0, -1, first_ms, last_ms, w[P_PRODUCER], w[P_EPOCH], w[P_SEQUENCE])
    return to
