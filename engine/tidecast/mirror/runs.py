"""Runs of a source as a mirror appends them: a record's sequence is its offset plus one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np

from tidecast.errors import CorruptLog
from tidecast.layout import segment as lay
from tidecast.log import batch
from tidecast.log.building import BatchBuilder
from tidecast.native.jit import held_kernel
from tidecast.native.memory import load_i64, load_u32, store_i64, store_u32
from tidecast.queues.adapter import PACK_RECORDS, LeftOut, Record, Run, unpack
from tidecast.queues.mapper import hash_of

Placed = tuple[int, Record]
"""Offset in the source, and the record."""
_DELTA_MAX = (1 << 32) - 1


@held_kernel
def number_run(run):
    """Give all records of a run, in place, their sequences; the offset behind the last.

    Below 0: why a batch is not sound.
    """
    at, behind = 0, 0
    while at < run.size:
        length = batch.check_batch(run, at, run.size)
        if length < 0:
            return length
        token, end = load_i64(run, at + lay.BATCH_BASE_TOKEN_AT), at + length
        count = load_u32(run, at + lay.BATCH_COUNT_AT)
        store_i64(run, at + lay.BATCH_BASE_SEQ_AT, token + 1)
        record = at + lay.BATCH_HEADER_BYTES
        for i in range(count):
            if record + lay.RECORD_HEADER_BYTES > end:
                return batch.BAD_RECORD
            store_u32(run, record + lay.REC_SEQ_DELTA_AT, i)
            size = load_u32(run, record + lay.REC_LENGTH_AT) & lay.REC_LENGTH_MASK
            record += max(size, lay.RECORD_HEADER_BYTES)
        if record != end:
            return batch.BAD_RECORD
        behind = batch.seal_batch(run, at, end, token, 0)
        at = end
    return behind


def first_offset(run: Run) -> int:
    """The offset of a run's first record."""
    return int.from_bytes(run[lay.BATCH_BASE_TOKEN_AT :][:8].tobytes(), "little")


def records_in(run: Run) -> int:
    """How many records a sound run has."""
    at, found = 0, 0
    while at < run.size:
        length, count = (
            int.from_bytes(run[at + where :][:4].tobytes(), "little")
            for where in (lay.BATCH_LENGTH_AT, lay.BATCH_COUNT_AT)
        )
        at, found = at + length, found + count
    return found


def numbered(run: Run) -> tuple[Run, int]:
    """A copy of a run with its sequences, and the last of them. Raises CorruptLog."""
    made = run.copy()
    last = int(number_run(made))
    if last < 0:
        raise CorruptLog(f"a run of the source: {batch.CAUSES[last]}")
    return made, last


def _bytes_of(record: Record) -> tuple[bytes | None, int]:
    """The headers of a record as they are in the log, and the bytes of the record there."""
    headers = None if record.headers is None else msgspec.msgpack.encode(record.headers)
    parts = (record.key, headers)
    sizes = (-1 if part is None else len(part) for part in parts)
    return headers, int(batch.record_bytes(*sizes, len(record.payload)))


def record_max(bytes_max: int) -> int:
    """Bytes of the largest record that fits into a run of so many."""
    return bytes_max - lay.BATCH_HEADER_BYTES


def parted(run: Run, token: int, bytes_max: int) -> Iterator[tuple[list[Placed], LeftOut | None]]:
    """Groups of records of a run from offset ``token`` on, each before a record that is too large.

    The last group has no such record behind it. ``bytes_max``: of a run with one record. Raises
    CorruptLog.
    """
    found, most = [one for one in unpack(run) if one[0] >= token], record_max(bytes_max)
    fitting = list[Placed]()
    for offset, record in found if run.size > bytes_max else ():
        n = _bytes_of(record)[1]
        if n <= most:
            fitting.append((offset, record))
            continue
        reason = f"a record of {n} bytes: a mirror appends {most} at most"
        yield fitting, LeftOut(offset, offset + 1, 1, n, reason)
        fitting = []
    yield (fitting if run.size > bytes_max else found), None


def packed(records: Iterable[Placed], bytes_max: int) -> Iterator[tuple[int, int, bytes]]:
    """(records, last sequence, run) of records in order, each at most ``bytes_max`` bytes."""
    builder, count, first, last = BatchBuilder(1 << 16), 0, 0, 0
    used = lay.BATCH_HEADER_BYTES
    for offset, record in records:
        headers, n = _bytes_of(record)
        full = count == PACK_RECORDS or used + n > bytes_max or offset + 1 - first > _DELTA_MAX
        if count and full:
            yield count, last, _sealed(builder)
            count = 0
        if not count:
            builder.clear()
            builder.begin(base_seq=offset + 1)
            first, used = offset + 1, lay.BATCH_HEADER_BYTES
        builder.add(
            record.payload,
            key=record.key,
            headers=headers,
            time_ns=record.time_ns,
            key_hash=hash_of(record.key or b""),
            seq=offset + 1,
        )
        count, used, last = count + 1, used + n, offset + 1
    if count:
        yield count, last, _sealed(builder)


def _sealed(builder: BatchBuilder) -> bytes:
    builder.seal(0)
    return builder.buffer[: builder.used].tobytes()


def split(records: Iterable[Placed], queue_of: Callable[[Placed], int]) -> dict[int, list[Placed]]:
    """Records by queue, in order."""
    found: dict[int, list[Placed]] = {}
    for placed in records:
        found.setdefault(queue_of(placed), []).append(placed)
    return found


def warm_up() -> None:
    """Compile or load the kernel."""
    number_run(np.zeros(0, dtype=np.uint8))
