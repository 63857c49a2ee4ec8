"""Record batches v2: of clients as batches of the log, and the log as record batches.

A batch is taken apart by two kernels: one verifies every length, one writes. No Python object is
made a record. Names of headers become a map of MessagePack, as Tidecast's publishers write them;
headers that such a map cannot hold (repeated names, null values) go into
it whole, under ``kafka-headers``. A null value is an empty payload with the header ``kafka-null``.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tidecast.kafka import compression, record_kernels
from tidecast.kafka.answers import encoding
from tidecast.kafka.codes import Code, Refused
from tidecast.log.reading.range_scan import Selector, Wanted

BATCH_BYTES_MAX = 16 << 20
"""Of one record batch, as it is sent."""
RECORDS_MAX = 1 << 20
HEADER = struct.Struct(">qiibIhiqqqhii")
CODEC_MASK, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20
_MAGIC = 2
CAUSES = {
    record_kernels.BAD_LENGTH: "a length does not fit",
    record_kernels.BAD_VARINT: "a varint does not end",
    record_kernels.BAD_OFFSET: "offsets are not contiguous",
    record_kernels.BAD_COUNT: "there are not as many records as the batch says",
    record_kernels.BAD_TIME: "a time is out of range",
    record_kernels.BAD_NAME: "the name of a header is not UTF-8",
    record_kernels.TOO_LONG: (
        f"a key, or headers, of more than {record_kernels.FIELD_BYTES_MAX} bytes"
    ),
}


class TooLong(Refused):
    """A batch decompresses to more than there may be."""


class BatchHead(NamedTuple):
    """The header of a record batch, by Kafka's names."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: int


@dataclass(frozen=True, slots=True)
class Taken:
    """A decoded batch: unsealed batches of the log, and their producer (-1: none).

    ``raw``: the batch as it came; clients may get it unchanged, except its offset and epoch.
    """

    buffer: np.ndarray
    n_bytes: int
    count: int
    producer: int
    epoch: int
    sequence: int
    raw: memoryview | None = None


def head_of(records: memoryview) -> BatchHead:
    """The checked header of the one batch in ``records``. Raises Refused."""
    n = len(records)
    if n < record_kernels.BATCH_BYTES:
        raise Refused(
            Code.CORRUPT_MESSAGE,
            f"a record batch of {n} bytes: {record_kernels.BATCH_BYTES} at least",
        )
    if n > BATCH_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_TOO_LARGE, f"a record batch of {n} bytes: {BATCH_BYTES_MAX} at most"
        )
    head = BatchHead(*HEADER.unpack_from(records))
    if head.magic != _MAGIC:
        raise Refused(Code.UNSUPPORTED_FOR_MESSAGE_FORMAT, f"record format {head.magic}: only 2")
    if head.batch_length != n - 12:
        raise Refused(
            Code.INVALID_RECORD, "there must be one record batch a partition, and all of it"
        )
    if head.attributes & (TRANSACTIONAL | CONTROL):
        raise Refused(Code.INVALID_REQUEST, "transactions are not served")
    if not 1 <= head.records <= RECORDS_MAX or head.last_offset_delta != head.records - 1:
        raise Refused(
            Code.INVALID_RECORD, f"{head.records} records: 1 to {RECORDS_MAX}, without holes"
        )
    if not -1 <= head.base_timestamp <= record_kernels.TIME_MS_MAX:
        raise Refused(Code.INVALID_RECORD, f"time {head.base_timestamp} is out of range")
    return head


class Decoder:
    """Takes batches apart. Not for several threads at once."""

    def __init__(self) -> None:
        self._found = np.zeros(record_kernels.SCAN_WORDS, dtype=np.int64)
        self._fields = np.zeros(16, dtype=np.int64)
        self._scratch = np.zeros(record_kernels.SCRATCH_BYTES, dtype=np.uint8)

    def take(
        self, records: memoryview, wall_ns: int, bytes_max: int = compression.BYTES_MAX
    ) -> Taken:
        """A record batch as batches of the log. Raises Refused.

        TooLong: decompressed it has more than ``bytes_max``.
        """
        head = head_of(records)
        data: Any = np.frombuffer(records, dtype=np.uint8)
        from_attributes = 21
        crc = int(record_kernels.checksum(data, from_attributes, data.size - from_attributes))
        if crc != head.crc:
            raise Refused(
                Code.CORRUPT_MESSAGE, f"checksum {crc:08x}, the batch says {head.crc:08x}"
            )
        data, at = self._plain(head, data, records, bytes_max)
        taken = self._convert(head, data, at, wall_ns)
        time_max = head.base_timestamp + int(self._found[record_kernels.S_TIME_MAX])
        plain = head.attributes == 0 and head.base_timestamp >= 0
        if plain and head.max_timestamp == time_max:
            return replace(taken, raw=records)
        return taken

    def _plain(
        self, head: BatchHead, data: Any, records: memoryview, bytes_max: int
    ) -> tuple[Any, int]:
        codec = head.attributes & CODEC_MASK
        if codec == compression.NONE:
            return data, record_kernels.BATCH_BYTES
        try:
            plain = compression.decompress(codec, records[record_kernels.BATCH_BYTES :], bytes_max)
        except compression.Unsupported as problem:
            raise Refused(Code.UNSUPPORTED_COMPRESSION_TYPE, str(problem)) from None
        except compression.TooMuch as problem:
            raise TooLong(Code.CORRUPT_MESSAGE, str(problem)) from None
        except compression.BadCompression as problem:
            raise Refused(Code.CORRUPT_MESSAGE, str(problem)) from None
        return np.frombuffer(plain, dtype=np.uint8), 0

    def _convert(self, head: BatchHead, data: Any, at: int, wall_ns: int) -> Taken:
        status = int(
            record_kernels.scan_records(
                data, at, data.size, head.records, self._found, self._fields
            )
        )
        if status < 0:
            code = (
                Code.MESSAGE_TOO_LARGE if status == record_kernels.TOO_LONG else Code.INVALID_RECORD
            )
            raise Refused(code, CAUSES[status])
        out = np.empty(int(self._found[record_kernels.S_BYTES]), dtype=np.uint8)
        n = int(
            record_kernels.convert_records(
                data,
                at,
                data.size,
                head.records,
                head.base_timestamp,
                wall_ns,
                out,
                self._scratch,
                self._fields,
            )
        )
        assert n == out.size
        owner = head.producer_id, head.producer_epoch, head.base_sequence
        return Taken(out, n, head.records, *owner)


class Part(NamedTuple):
    """Batches of the log as record batches: their bytes, those in the log, the token behind."""

    n_bytes: int
    used: int
    behind: int


class NoRoom(Exception):
    """Not even the first batch fits. ``need``: the bytes that it takes at most."""

    def __init__(self, need: int) -> None:
        super().__init__(f"a record batch takes up to {need} bytes")
        self.need = need


class Encoder:
    """Writes batches of the log as record batches. Not for several threads at once."""

    def __init__(self) -> None:
        self._row = np.zeros(record_kernels.RECORD_FIELDS, dtype=np.int64)
        self._words = np.zeros(encoding.ENCODE_WORDS, dtype=np.int64)
        self._scratch = np.zeros(16, dtype=np.int64)

    def encode(
        self, block: np.ndarray, n: int, out: np.ndarray, *, limit: int, bytes_max: int, epoch: int
    ) -> Part:
        """Write the batches ``block[:n]`` below token ``limit`` to the beginning of ``out``.

        No batch begins beyond ``bytes_max``, but the first is always among them; those for which
        there is no room are left. Raises NoRoom; ValueError for bytes that are no batch.
        """
        words = self._words
        (
            words[encoding.E_LIMIT],
            words[encoding.E_BYTES_MAX],
            words[encoding.E_EPOCH],
        ) = limit, bytes_max, epoch
        size = int(encoding.encode_batches(block, n, words, self._row, out, self._scratch))
        if size == record_kernels.NO_ROOM:
            raise NoRoom(int(words[encoding.E_NEED]))
        if size < 0:
            raise ValueError("a batch of the log whose records do not add up")
        behind = int(words[encoding.E_NEXT]) if size else -1
        return Part(size, int(words[encoding.E_USED]), behind)


class _Local(threading.local):
    """The state of each thread."""

    @cached_property
    def encoder(self) -> Encoder:
        """Made when the thread first needs it."""
        return Encoder()

    _block = np.empty(0, dtype=np.uint8)

    def block(self, n: int) -> np.ndarray:
        """A buffer of ``n`` bytes at least."""
        if self._block.size < n:
            self._block = np.empty(n, dtype=np.uint8)
        return self._block

    _room = np.empty(0, dtype=np.uint8)

    def room(self, n: int) -> np.ndarray:
        """Another one."""
        if self._room.size < n:
            self._room = np.empty(n, dtype=np.uint8)
        return self._room


_local = _Local()


def encoder() -> Encoder:
    """The encoder of this thread."""
    return _local.encoder


def block_of_thread(n: int) -> np.ndarray:
    """A buffer of ``n`` bytes at least, into which this thread reads a log."""
    return _local.block(n)


def room_of_thread(n: int) -> np.ndarray:
    """A buffer of ``n`` bytes at least, into which this thread encodes."""
    return _local.room(n)


def warm_up() -> None:
    """Compile or load the kernels: before the first client, not while it waits."""
    body = bytes([12, 0, 0, 0, 1, 0, 0])  # one record: no key, an empty value, no headers
    head = HEADER.pack(0, 49 + len(body), 0, _MAGIC, 0, 0, 0, 0, 0, -1, -1, -1, 1)
    data: Any = np.frombuffer(head + body, dtype=np.uint8)
    crc = int(record_kernels.checksum(data, 21, data.size - 21))
    sound = head[:17] + crc.to_bytes(4, "big") + head[21:] + body
    taken = Decoder().take(memoryview(sound), 0)
    out = np.empty(4096, dtype=np.uint8)
    Encoder().encode(taken.buffer, taken.n_bytes, out, limit=1, bytes_max=1, epoch=0)
    record_kernels.span_of_batches(out, 0, 0, 0, 0, 0)
    Selector(Wanted(0, 1)).select(np.zeros(64, dtype=np.uint8), 0, -1)
