"""`BatchBuilder`: batches from Python, one record at a time; for tests, tools and small producers.

The archiver builds batches in its own kernel, with the same functions of `tidecast.log.batch`.
"""

from __future__ import annotations

import numpy as np

from tidecast.errors import PayloadTooLarge
from tidecast.layout import segment as lay
from tidecast.log import batch
from tidecast.native.jit import held_kernel, kernel
from tidecast.native.memory import Span


@held_kernel
def _begin(out, at, producer, epoch, owner, base_seq, acked_seq):
    return batch.begin_batch(out, at, producer, epoch, owner, base_seq, acked_seq)


@held_kernel
def _add(out, at, end, seq, time_ns, key_hash, fields, key_n, headers_n, payload):
    """``fields``: key and headers. Both arrays have an extra byte, so that neither is empty."""
    headers = Span(fields, max(key_n, 0), headers_n)
    body = Span(payload, 0, payload.size - 1)
    key = Span(fields, 0, key_n)
    return batch.add_record(out, at, end, seq, time_ns, key_hash, key, headers, body)


@held_kernel
def _seal(out, at, end, base_token, append_time):
    return batch.seal_batch(out, at, end, base_token, append_time)


@kernel
def check(data, at, end):
    """`tidecast.log.batch.check_batch` from Python."""
    return batch.check_batch(data, at, end)


@kernel
def records(data, at, end, out, n):
    """`tidecast.log.batch.list_records` from Python."""
    return batch.list_records(data, at, end, out, n)


class BatchBuilder:
    """Builds batches end to end in ``buffer``; ``used`` bytes of it are sealed batches."""

    def __init__(self, size_bytes: int = 1 << 20) -> None:
        self.buffer = np.zeros(size_bytes, dtype=np.uint8)
        self.used = 0
        self._at = self._end = -1
        self._count = self._next_seq = 0

    def begin(
        self,
        *,
        producer: int = 0,
        epoch: int = 0,
        owner: int = 0,
        base_seq: int = 1,
        acked_seq: int = 0,
    ) -> BatchBuilder:
        """Start a batch behind the sealed batches."""
        self._grow(self.used + lay.BATCH_HEADER_BYTES)
        self._at = self.used
        self._end = int(_begin(self.buffer, self._at, producer, epoch, owner, base_seq, acked_seq))
        self._count, self._next_seq = 0, base_seq
        return self

    def add(
        self,
        payload: bytes,
        *,
        key: bytes | None = None,
        headers: bytes | None = None,
        time_ns: int = 0,
        key_hash: int = 0,
        seq: int | None = None,
    ) -> BatchBuilder:
        """Add a record; ``headers`` is a MessagePack map, ``seq`` follows on by itself."""
        n = batch.record_bytes(*(-1 if x is None else len(x) for x in (key, headers)), len(payload))
        if self._end - self._at + n > lay.BATCH_BYTES_MAX or self._count >= lay.BATCH_RECORDS_MAX:
            raise PayloadTooLarge(f"a batch of {self._end - self._at + n} bytes is too large")
        self._grow(self._end + n)
        fields = np.frombuffer((key or b"") + (headers or b"") + b"\0", dtype=np.uint8)
        body = np.frombuffer(payload + b"\0", dtype=np.uint8)
        seq = self._next_seq if seq is None else seq
        self._end = int(
            _add(
                self.buffer,
                self._at,
                self._end,
                seq,
                time_ns,
                key_hash,
                fields,
                -1 if key is None else len(key),
                -1 if headers is None else len(headers),
                body,
            )
        )
        self._next_seq, self._count = seq + 1, self._count + 1
        return self

    def seal(self, base_token: int, append_time: int = 0) -> int:
        """Seal the batch; the token behind its last record."""
        assert self._count, "a batch has at least one record"
        token = int(_seal(self.buffer, self._at, self._end, base_token, append_time))
        self.used, self._at = self._end, -1
        return token

    def reopen(self) -> None:
        """Take the only batch up again, to seal it with other tokens."""
        self._at, self._end, self.used = 0, self.used, 0

    def clear(self) -> None:
        """Forget all batches."""
        self.used, self._at = 0, -1

    def _grow(self, n: int) -> None:
        if n > self.buffer.size:
            larger = np.zeros(max(n, 2 * self.buffer.size), dtype=np.uint8)
            larger[: self.buffer.size] = self.buffer
            self.buffer = larger


def record_table(rows: int = lay.BATCH_RECORDS_MAX) -> np.ndarray:
    """Room for the rows of `records`: int64[rows, RECORD_FIELDS]."""
    return np.zeros((rows, batch.RECORD_FIELDS), dtype=np.int64)
