"""The record batches of a Fetch's answer, taken apart one by one as they are wanted.

The headers of all batches are read and checked at once: which of them are markers or belong to an
aborted transaction, and so are holes. The records of a batch are verified, decompressed and written
as a run in two kernels when a reader comes to them.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tidecast.errors import CorruptLog
from tidecast.kafka import compression, record_kernels
from tidecast.kafka.brokers import fetched_kernels as kernels
from tidecast.kafka.records import CAUSES, CODEC_MASK, CONTROL, HEADER, TRANSACTIONAL, BatchHead
from tidecast.queues.adapter import LeftOut, Received, Run
from tidecast.queues.foreign.runs import Cutter

OFFSET_MAX = 1 << 61
PLAIN_BYTES_MAX = 256 << 20
"""Of one batch, decompressed: as long as a record of a queue may be."""
_TIMES = f"allowed are 0 to {record_kernels.TIME_MS_MAX} ms since 1970, or -1"
_OVERHEAD, _MAGIC, _ATTRIBUTES_AT = 12, 2, 21
_FIXED_TIME = 0x08
_ABORT = 0
_DAMAGED = "the broker's log is damaged, or it is no Kafka broker: check it with kafka-dump-log"


class Part(NamedTuple):
    """A record batch of an answer: records with offsets in [base, behind), or a hole."""

    base: int
    behind: int
    at: int
    length: int
    is_hole: bool


class Left(NamedTuple):
    """Records that are left out of a run. ``at``: where the run continues behind them."""

    about: LeftOut
    at: int


class Batch(NamedTuple):
    """The records of a record batch: records that a run can hold, and the others in order."""

    run: Run
    left_out: list[Left]


def _end_of(left: Left) -> int:
    return left.about.end


class Aborted:
    """Which batches belong to aborted transactions, by the list that comes with an answer."""

    def __init__(self, listed: Iterable[dict[str, int]]) -> None:
        self._left = sorted((one["first_offset"], one["producer_id"]) for one in listed)
        self._open: set[int] = set()

    def drops(self, head: BatchHead, last: int, marker: int | None) -> bool:
        """Is this batch of an aborted transaction? ``marker``: the kind, if it is one."""
        while self._left and self._left[0][0] <= last:
            self._open.add(self._left.pop(0)[1])
        if marker is not None:
            if marker == _ABORT:
                self._open.discard(head.producer_id)
            return True
        return bool(head.attributes & TRANSACTIONAL) and head.producer_id in self._open


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def _marker(batch: memoryview) -> int:
    """The kind of a control batch's record: 0 abort, 1 commit, others; -1: it cannot be read."""
    try:
        _, at = _varint(batch, record_kernels.BATCH_BYTES)
        _, at = _varint(batch, at + 1)  # behind the attributes, the time
        _, at = _varint(batch, at)  # the offset
        key_n, at = _varint(batch, at)
        return int.from_bytes(batch[at + 2 : at + 4], "big") if key_n >= 4 else -1
    except IndexError:
        return -1


class Fetched:
    """One answer for one partition: records from ``token`` on, up to ``behind``.

    ``end``: the offset that the next committed record gets, at the time of the answer. ``records``
    and ``bytes``: how many came, markers and aborted records included in the bytes alone.
    """

    def __init__(
        self,
        where: str,
        token: int,
        records: memoryview,
        aborted: Iterable[dict[str, int]],
        end: int,
        *,
        is_cut: bool = False,
    ) -> None:
        """``is_cut``: only the begin of the answer was read.

        Raises CorruptLog for headers that do not add up.
        """
        self.where, self.token, self.end = where, token, end
        self.bytes, self.records = len(records), 0
        self._records = records
        self._parts: list[Part] = []
        self._list(Aborted(aborted), is_cut)
        self.behind = self._parts[-1].behind if self._parts else token
        self._decoded = -1
        self._batch = Batch(np.empty(0, dtype=np.uint8), [])

    def damage(self, offset: int, cause: str) -> CorruptLog:
        """The error for a batch that is not sound."""
        return CorruptLog(f"{self.where}: batch at offset {offset}: {cause}: {_DAMAGED}")

    def _list(self, aborted: Aborted, is_cut: bool) -> None:
        at, due = 0, self.token
        size = len(self._records)
        while size - at >= record_kernels.BATCH_BYTES:
            head = BatchHead(*HEADER.unpack_from(self._records, at))
            length = head.batch_length + _OVERHEAD
            if head.magic != _MAGIC:
                raise self.damage(
                    head.base_offset, f"record format {head.magic}, and only 2 can be read"
                )
            if length < record_kernels.BATCH_BYTES:
                raise self.damage(head.base_offset, f"a length of {head.batch_length}")
            whole = length <= size - at
            if not whole and (self._parts or not is_cut):
                break  # brokers cut the last one
            last = head.base_offset + head.last_offset_delta
            if not 0 <= head.base_offset <= last <= OFFSET_MAX:
                raise self.damage(head.base_offset, f"a last offset of {last}")
            if not whole and last >= self.end:
                raise self.damage(
                    head.base_offset, f"a last offset of {last}: the end is {self.end}"
                )
            if last < due or (self._parts and head.base_offset < due):
                raise self.damage(head.base_offset, f"offsets go back: {due} is due")
            batch = self._records[at : at + length]
            marker = _marker(batch) if head.attributes & CONTROL else None
            hole = aborted.drops(head, last, marker) or (head.records == 0 and whole)
            self._parts.append(Part(head.base_offset, last + 1, at, length, hole))
            self.records += 0 if hole else max(head.records, 0)
            at, due = at + length, last + 1
            if not whole:  # only its header is needed
                self._records = memoryview(bytes(batch[: record_kernels.BATCH_BYTES]))
                return
        if size and not self._parts:
            raise self.damage(self.token, f"it is cut off: {size} bytes came")

    def covers(self, token: int) -> bool:
        """Does this answer have the record behind ``token``?"""
        return self.token <= token < self.behind

    def receive(self, token: int, buffer: Run, decoder: Decoder) -> Received:
        """Whole batches, or left-out records, from ``token`` on, which it covers.

        Raises CorruptLog.
        """
        used, behind = 0, token
        for number, part in enumerate(self._parts):
            if part.behind <= behind:
                continue
            if part.is_hole:
                if not used:
                    behind = part.behind
                continue
            if number != self._decoded:
                self._batch = decoder.batch(self, part, self._records)
                self._decoded = number
            run, left = self._from(behind)
            n, first, stop, last = decoder.cut(run, behind, buffer.size - used)
            if n == 0 and first < 0 and left is not None:
                if used:
                    break
                return Received(0, left.end, end=self.end, left_out=left)
            if n == 0 and first < 0:  # the rest of a batch is a hole
                behind = part.behind if not used else behind
                continue
            if n == 0:
                break
            buffer[used : used + n] = run[first:stop]
            used, behind = used + n, last
            if stop < run.size or left is not None:
                break
        else:
            return Received(used, behind, end=self.end)
        if used:
            return Received(used, behind, end=self.end)
        return Received(0, token, need=decoder.need(self._batch.run, behind), end=self.end)

    def _from(self, token: int) -> tuple[Run, LeftOut | None]:
        """The run up to the first records from ``token`` on that are left out, and these."""
        run, left_out = self._batch
        next_left = bisect.bisect_right(left_out, token, key=_end_of)
        if next_left == len(left_out):
            return run, None
        about, at = left_out[next_left]
        return run[:at], about


def _whole(part: Part, head: BatchHead, reason: str) -> Batch:
    """A batch that is left out whole."""
    records = min(max(head.records, 1), part.behind - part.base)
    about = LeftOut(part.base, part.behind, records, part.length, reason)
    return Batch(np.empty(0, dtype=np.uint8), [Left(about, 0)])


def _left(offset: int, at: int, why: int, size: int, key_n: int, headers_n: int) -> Left:
    """A record that is left out, see `fetched_kernels.L_OFFSET`."""
    if why == record_kernels.BAD_TIME:
        reason = f"its time is out of range: {_TIMES}"
    elif why == record_kernels.BAD_NAME:
        reason = "the name of a header is not UTF-8"
    elif max(key_n, headers_n) > record_kernels.FIELD_BYTES_MAX:
        what, n = ("a key", key_n) if key_n > headers_n else ("headers", headers_n)
        reason = f"{what} of {n} bytes: at most {record_kernels.FIELD_BYTES_MAX}"
    else:
        reason = f"a record of {size} bytes: at most {kernels.RECORD_BYTES_MAX}"
    return Left(LeftOut(offset, offset + 1, 1, size, reason), at)


def warm_up() -> None:
    """Compile or load the kernels: before the first answer, not while it waits."""
    body = bytes([12, 0, 0, 0, 1, 0, 0])  # one record: no key, an empty value, no headers
    head = HEADER.pack(0, 49 + len(body), 0, _MAGIC, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    data: Any = np.frombuffer(head + body, dtype=np.uint8)
    crc = int(record_kernels.checksum(data, _ATTRIBUTES_AT, data.size - _ATTRIBUTES_AT))
    sound = memoryview(head[:17] + crc.to_bytes(4, "big") + head[21:] + body)
    Fetched("warm up", 0, sound, (), 1).receive(0, np.empty(1 << 10, dtype=np.uint8), Decoder())


class Decoder:
    """Takes batches apart. Not for several threads at once."""

    def __init__(self) -> None:
        self._found = np.zeros(record_kernels.SCAN_WORDS, dtype=np.int64)
        self._fields = np.zeros(16, dtype=np.int64)
        self._scratch = np.zeros(record_kernels.SCRATCH_BYTES, dtype=np.uint8)
        self._words = np.zeros(kernels.FETCHED_WORDS, dtype=np.int64)
        cutter = Cutter()
        self.cut, self.need = cutter.cut, cutter.need

    def batch(self, answer: Fetched, part: Part, records: memoryview) -> Batch:
        """The records of a batch. Raises CorruptLog."""
        batch = records[part.at : part.at + part.length]
        head = BatchHead(*HEADER.unpack_from(batch))
        if len(batch) < part.length:
            return _whole(
                part, head, f"a batch of {part.length} bytes: at most {answer.bytes} are read"
            )
        data: Any = np.frombuffer(batch, dtype=np.uint8)
        crc = int(record_kernels.checksum(data, _ATTRIBUTES_AT, data.size - _ATTRIBUTES_AT))
        if crc != head.crc:
            raise answer.damage(part.base, f"its checksum is {crc:08x}, and it says {head.crc:08x}")
        try:
            data, at = self._plain(answer, head, data, batch)
        except compression.TooMuch as problem:
            return _whole(part, head, str(problem))
        delta = head.last_offset_delta
        status = int(
            kernels.scan_fetched(
                data, at, data.size, head.records, delta, self._found, self._fields
            )
        )
        if status < 0:
            raise answer.damage(part.base, CAUSES[status])
        for each in (head.base_timestamp, head.max_timestamp):
            if not -1 <= each <= record_kernels.TIME_MS_MAX:
                return _whole(part, head, f"a time of {each} ms: {_TIMES}")
        self._words[:] = (
            head.base_offset,
            head.base_timestamp,
            head.max_timestamp if head.attributes & _FIXED_TIME else -1,
            max(head.leader_epoch, 0),
        )
        out = np.empty(int(self._found[record_kernels.S_BYTES]), dtype=np.uint8)
        rows = int(self._found[record_kernels.S_LEFT_OUT]), kernels.LEFT_WORDS
        left_out = np.zeros(rows, dtype=np.int64)
        n = kernels.convert_fetched(
            data,
            at,
            data.size,
            head.records,
            self._words,
            out,
            left_out,
            self._scratch,
            self._fields,
        )
        assert n == out.size
        return Batch(out, [_left(*row) for row in left_out.tolist()])

    def _plain(
        self, answer: Fetched, head: BatchHead, data: Any, batch: memoryview
    ) -> tuple[Any, int]:
        codec = head.attributes & CODEC_MASK
        if codec == compression.NONE:
            return data, record_kernels.BATCH_BYTES
        try:
            plain = compression.decompress(
                codec, batch[record_kernels.BATCH_BYTES :], PLAIN_BYTES_MAX
            )
        except compression.Unsupported as problem:
            raise CorruptLog(
                f"{answer.where}: batch at offset {head.base_offset}: {problem}"
            ) from None
        except compression.TooMuch:
            raise
        except compression.BadCompression as problem:
            raise answer.damage(head.base_offset, str(problem)) from None
        return np.frombuffer(plain, dtype=np.uint8), 0
