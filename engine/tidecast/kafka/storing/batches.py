"""Record batches of an idempotent producer, from runs. No Python object is made a record."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from tidecast.errors import ConfigError, CorruptLog, PayloadTooLarge
from tidecast.kafka.record_kernels import NO_ROOM, RECORD_FIELDS
from tidecast.kafka.storing import batch_kernels as kernels
from tidecast.layout import segment as seg
from tidecast.queues.adapter import Record, Run, pack

NO_NOTES = -1
"""As id of a log: batches have no notes, and no log is made from them."""
SEQUENCES = 1 << 31
"""A producer's sequences in a partition are counted modulo this."""
BYTES_MIN, BYTES_MAX = 1 << 10, 16 << 20
ROOM_BYTES_MAX = 320 << 20


class Identity(NamedTuple):
    """The writer of a partition: Kafka's producer id and epoch, and the next sequence."""

    producer: int
    epoch: int
    sequence: int = 0

    def behind(self, count: int) -> Identity:
        """The same with ``count`` records more stored."""
        return self._replace(sequence=(self.sequence + count) % SEQUENCES)


class Batch(NamedTuple):
    """A record batch to send: its bytes, which `Encoder` overwrites with the next, and its tokens.

    ``behind``: the token behind its last record.
    """

    data: memoryview
    token: int
    behind: int
    records: int


class Encoder:
    """Writes batches. Not for several threads at once. ``bytes_max``: of one of several records."""

    def __init__(self, bytes_max: int, log: int = 0, records_max: int = SEQUENCES) -> None:
        """``log``: id of the log that the records are of, or `NO_NOTES`. Raises ConfigError.

        ``records_max``: of a batch.
        """
        if not BYTES_MIN <= bytes_max <= BYTES_MAX:
            raise ConfigError(f"batch_bytes: {bytes_max}: allowed {BYTES_MIN}..{BYTES_MAX}")
        self.bytes_max, self._log, self._records_max = bytes_max, log, records_max
        self._words = np.zeros(kernels.PRODUCE_WORDS, dtype=np.int64)
        self._rows = np.zeros((seg.BATCH_RECORDS_MAX, RECORD_FIELDS), dtype=np.int64)
        self._scratch = np.zeros(16, dtype=np.int64)
        self._out = np.empty(bytes_max, dtype=np.uint8)
        self._notes = np.empty(kernels.NOTES_ROOM, dtype=np.uint8)
        self._alone_below = -1

    def encode(
        self, run: Run, token: int, identity: Identity, now_ms: int | None = None
    ) -> Batch | None:
        """The next records of a run, from ``token`` on; None: it has none.

        Raises CorruptLog for bytes that are no run, PayloadTooLarge for a record above all limits.
        """
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        self._words[: kernels.P_COUNT] = (token, self.bytes_max, now_ms, *identity, self._log)
        alone = token < self._alone_below
        self._words[kernels.P_RECORDS_MAX] = 1 if alone else self._records_max
        source = (run, run.size, self._words, self._rows)
        size = notes = int(kernels.plan_batch(*source, self._notes, self._scratch))
        while size > 0:
            noted = 0 if self._log == NO_NOTES else notes
            into = (self._notes, noted, self._out, self._scratch)
            size = int(kernels.encode_produced(*source, *into))
            need = int(self._words[kernels.P_NEED])
            if size != NO_ROOM or need > ROOM_BYTES_MAX:
                break
            self._out = np.empty(need, dtype=np.uint8)
        if size == NO_ROOM:
            raise PayloadTooLarge(
                f"record {token}: a batch of {need} bytes: at most {ROOM_BYTES_MAX} are made"
            )
        if size < 0:
            raise CorruptLog(f"run to produce from token {token}: its records do not add up")
        if size == 0:
            return None
        count, behind = self._words[kernels.P_COUNT : kernels.P_NEED].tolist()
        data: Any = self._out
        return Batch(memoryview(data)[:size], token, behind, count)

    def halve(self, batch: Batch) -> bool:
        """A broker refuses a batch as too large: make smaller ones. False: it is one record."""
        if batch.records > 1:
            self.bytes_max = max(BYTES_MIN, min(self.bytes_max, len(batch.data)) // 2)
        return batch.records > 1

    def separate(self, batch: Batch) -> bool:
        """A broker refuses records of a batch: send each alone. False: it is one record."""
        self._alone_below = batch.behind
        return batch.records > 1


def warm_up() -> None:
    """Compile or load the kernels: before the first record, not while it waits."""
    Encoder(BYTES_MIN).encode(pack([Record(b"x")]), 0, Identity(0, 0))
