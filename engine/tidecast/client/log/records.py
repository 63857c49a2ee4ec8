"""Records of a log and batches of them. They own their memory, so they live as long as you like."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import numpy as np

from tidecast import codecs
from tidecast.buffers import member_ring
from tidecast.client.columns.received import HeaderForm
from tidecast.client.columns.records import StoredRecord, StoredRecords
from tidecast.client.consumer.message import Token
from tidecast.layout import segment

_LENGTH, _KEY_HASH, _KEY_LENGTH, _HEADERS_LENGTH = (
    (segment.REC_LENGTH_AT, "<u4"),
    (segment.REC_KEY_HASH_AT, "<u4"),
    (segment.REC_KEY_LENGTH_AT, "<u2"),
    (segment.REC_HEADERS_LENGTH_AT, "<u2"),
)


class LogRecord(StoredRecord["LogBatch"], frozen=True, gc=False, eq=False):
    """A record of a durable topic, as its queue keeps it."""

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._batch.topic

    @property
    def queue(self) -> int:
        """Number of its queue."""
        return self._batch.queue

    @property
    def offset(self) -> int:
        """Its offset in the queue."""
        return int(self._batch.offsets[self._row])

    @property
    def token(self) -> Token:
        """Its place: topic, queue and offset (``sequence``)."""
        return Token(self._batch.topic, self._batch.queue, self.offset)

    @property
    def value(self) -> Any:
        """The payload, decoded by the codec. Raises CodecError; ConfigError without a codec."""
        return codecs.decode(self._batch.codec, self.data, self._batch.topic)

    def __repr__(self) -> str:
        return f"LogRecord(token={self.token!r}, size={self.size})"


class LogBatch(StoredRecords):
    """Records of one queue, in order. ``offsets``: int64 of each, increasing, not always by one."""

    __slots__ = ("codec", "offsets", "queue", "topic")

    def __init__(
        self,
        topic: str,
        queue: int,
        memory: np.ndarray[Any, Any],
        rows: Any,
        offsets: np.ndarray[Any, Any],
        codec: codecs.Codec | None,
    ) -> None:
        super().__init__(memory, rows)
        self.topic, self.queue, self.offsets, self.codec = topic, queue, offsets, codec

    def __repr__(self) -> str:
        return f"<LogBatch of {self._n} records of {self.topic}/{self.queue}>"

    def __iter__(self) -> Iterator[LogRecord]:
        return map(LogRecord, self.payloads(), repeat(self), range(self._n))

    @property
    def records(self) -> list[LogRecord]:
        """All records. `to_arrow` and `to_record_batch` give columns."""
        return list(self)

    def values(self) -> list[Any]:
        """The payloads, decoded by the codec. Raises CodecError; ConfigError without a codec."""
        return [codecs.decode(self.codec, each, self.topic) for each in self.payloads()]

    def tokens(self) -> list[Token]:
        """Where each lies."""
        return [Token(self.topic, self.queue, offset) for offset in self.offsets.tolist()]

    def to_record_batch(self, *, headers: HeaderForm = "map") -> Any:
        """An Arrow record batch: payload, key, headers, timestamp, deliver_at, and where each is.

        That is topic, queue, offset. `publish_batch` takes it. ``headers``: ``map``, of text to
        bytes (whole numbers as decimal text), or ``raw``, the MessagePack bytes as they were
        published. Raises ConfigError.
        """
        import pyarrow as pa

        n = self._n
        topics = pa.DictionaryArray.from_arrays(
            np.zeros(n, dtype=np.int32), pa.array([self.topic], pa.string())
        )
        where = {
            "topic": topics,
            "queue": pa.array(np.full(n, self.queue, dtype=np.int32)),
            "offset": pa.array(self.offsets),
        }
        return self.fields().record_batch(self.to_arrow(), headers, where, self.topic)

    def part(self, first: int, end: int) -> LogBatch:
        """Rows [first, end), in the same memory."""
        return LogBatch(
            self.topic,
            self.queue,
            self._memory,
            self._rows[first:end],
            self.offsets[first:end],
            self.codec,
        )


def empty_batch(topic: str) -> LogBatch:
    """A batch of no records."""
    rows = np.zeros((0, member_ring.ROW_FIELDS), dtype=np.int64)
    return LogBatch(topic, 0, np.zeros(0, dtype=np.uint8), rows, rows[:, 0], None)


def batch_of(
    topic: str, queue: int, block: np.ndarray[Any, Any], rows: Any, codec: codecs.Codec | None
) -> LogBatch:
    """The records of a block of `Logs.blocks`, copied out of it. The rows were checked."""
    memory = np.array(block)
    at = rows[:, 0].copy()
    headers = np.lib.stride_tricks.sliding_window_view(memory, segment.RECORD_HEADER_BYTES)[at]
    length, key_hash, key_n, headers_n = (
        headers[:, start : start + int(kind[-1])].copy().view(kind)[:, 0].astype(np.int64)
        for start, kind in (_LENGTH, _KEY_HASH, _KEY_LENGTH, _HEADERS_LENGTH)
    )
    table = np.zeros((len(at), member_ring.ROW_FIELDS), dtype=np.int64)
    lead = segment.RECORD_HEADER_BYTES + key_n + headers_n
    table[:, member_ring.ROW_AT] = at + lead
    table[:, member_ring.ROW_LENGTH] = (length & segment.REC_LENGTH_MASK) - lead
    table[:, member_ring.ROW_RECORD_AT] = at
    table[:, member_ring.ROW_KEY_HASH] = key_hash
    return LogBatch(topic, queue, memory, table, rows[:, 1].copy(), codec)
