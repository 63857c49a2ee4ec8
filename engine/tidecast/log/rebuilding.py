"""Rebuilds the log of a queue from the records in the storage beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tidecast.disk import make_directory
from tidecast.layout import segment as seg
from tidecast.log.batch import last_seq
from tidecast.log.files import checksum, index_header, index_name, segment_header, segment_name
from tidecast.log.queue_log import QueueLog
from tidecast.native.jit import kernel
from tidecast.native.memory import load_i64, load_u32
from tidecast.protocol.dedup import ProducerTable

_ROW_FIELDS = 5


class Rebuilding(NamedTuple):
    """The logs to rebuild from one log in the storage.

    ``log``: its id; ``owner``: epoch of the new owner; ``stop``: returns whether to give up.
    """

    topic: str
    log: int
    segment_bytes: int
    owner: int
    now_ns: int
    stop: Callable[[], bool]


class LogBuilder:
    """Creates the log of a queue in a new directory. Only one thread may use it."""

    def __init__(
        self, directory: Path, queue: int, about: Rebuilding, producers: ProducerTable
    ) -> None:
        self._directory, self._queue, self._about = directory, queue, about
        self._producers = producers
        self._log: QueueLog | None = None

    @property
    def due(self) -> int | None:
        """The token that the next record must have; None: the first record may have any."""
        return None if self._log is None else self._log.next_token

    def begin(self, token: int) -> QueueLog:
        """Create an empty log that begins with ``token``. Raises StorageError."""
        directory, about = self._directory, self._about
        make_directory(directory)
        if token:
            head = segment_header(about.topic, self._queue, token, about.now_ns)
            (directory / index_name(token)).write_bytes(index_header(head))
            (directory / segment_name(token)).write_bytes(head)
        self._log = QueueLog.open(
            directory,
            topic=about.topic,
            queue=self._queue,
            segment_bytes=about.segment_bytes,
            owner=about.owner,
            now_ns=about.now_ns,
        )
        if token:
            snapshot = self._producers.snapshot(self._queue, checksum)
            self._log.write_snapshot(token, snapshot)
        return self._log

    def append(self, run: np.ndarray, token: int) -> None:
        """Append sound batches from ``token`` on, and note whose they are. Raises StorageError."""
        log, now_ns = self._log or self.begin(token), self._about.now_ns
        last = log.segments[-1]
        if last.bytes > seg.SEGMENT_HEADER_BYTES and last.bytes + run.size > log.segment_bytes:
            log.roll(now_ns, self._producers.snapshot(self._queue, checksum))
        log.append(run, run.size, now_ns)
        rows = np.zeros((run.size // seg.BATCH_HEADER_BYTES, _ROW_FIELDS), dtype=np.int64)
        n = int(list_producers(run, run.size, rows))
        self._producers.learn(self._queue, *(rows[:n, i] for i in range(_ROW_FIELDS)))

    def finish(self) -> int:
        """Have it on the device; the token behind its end. Raises StorageError."""
        log = self._log or self.begin(0)
        log.sync()
        return log.next_token

    def close(self) -> None:
        """Close its files. Idempotent."""
        if self._log is not None:
            self._log.close()
            self._log = None


@kernel
def list_producers(data, n, rows):
    """List the sound batches ``data[:n]``: producer, epoch, last sequence, acked sequence, time.

    ``rows``: int64[n, _ROW_FIELDS]; how many are filled.
    """
    at, found = 0, 0
    while at + seg.BATCH_HEADER_BYTES <= n and found < rows.shape[0]:
        length = load_u32(data, at + seg.BATCH_LENGTH_AT)
        if length < seg.BATCH_HEADER_BYTES or length > n - at:
            break
        row = rows[found]
        row[0] = load_i64(data, at + seg.BATCH_PRODUCER_AT)
        row[1] = load_u32(data, at + seg.BATCH_EPOCH_AT)
        row[2] = last_seq(data, at)
        row[3] = load_i64(data, at + seg.BATCH_ACKED_SEQ_AT)
        row[4] = load_i64(data, at + seg.BATCH_APPEND_TIME_AT)
        at += length
        found += 1
    return found
