"""The log of a queue, made again from the batches that a partition has of it.

Each batch notes the token of its first record, and all that the log knew of its records
(`batch_kernels`). A batch without notes was written by another program, and is left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tidecast.errors import Closed, StorageError
from tidecast.kafka import compression, record_kernels
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.records import CODEC_MASK, CONTROL, RECORDS_MAX, BatchHead
from tidecast.kafka.storing import batch_kernels as kernels
from tidecast.kafka.storing.fencing import PATIENCE_S, earliest_offset, fetch, whole_batches
from tidecast.layout import segment as seg
from tidecast.log.rebuilding import LogBuilder, Rebuilding
from tidecast.protocol.dedup import ProducerTable

_SPARE_BYTES = seg.BATCH_HEADER_BYTES + seg.RECORD_HEADER_BYTES


class Noted(NamedTuple):
    """A batch of the cluster that notes its place in a log. ``at``: of the records in ``data``."""

    log: int
    token: int
    records: int
    data: np.ndarray
    at: int


class BatchReader:
    """Takes batches of the cluster apart. Not for several threads at once."""

    def __init__(self) -> None:
        self._words = np.zeros(kernels.REBUILD_WORDS, dtype=np.int64)
        self._scratch = np.zeros(16, dtype=np.int64)

    def look(self, head: BatchHead, raw: memoryview) -> Noted | None:
        """A whole batch; None: it has no notes. Raises StorageError for one that is damaged.

        One that decompresses to more than the log's writer puts into a batch has none.
        """
        data: Any = np.frombuffer(raw, dtype=np.uint8)
        crc = int(record_kernels.checksum(data, 21, data.size - 21))
        if crc != head.crc or not 0 <= head.records <= RECORDS_MAX:
            raise StorageError(f"offset {head.base_offset}: checksum {crc:08x}, {head.crc:08x} due")
        at, codec = record_kernels.BATCH_BYTES, head.attributes & CODEC_MASK
        if codec != compression.NONE:
            try:
                plain = compression.decompress(codec, raw[at:], compression.BYTES_MAX)
            except compression.TooMuch:
                return None
            except compression.BadCompression as problem:
                raise StorageError(f"offset {head.base_offset}: {problem}") from None
            data, at = np.frombuffer(plain, dtype=np.uint8), 0
        if not kernels.find_notes(data, at, data.size, self._words):
            return None
        log, token = self._words[: kernels.R_AT].tolist()
        return Noted(log, token, head.records, data, at)

    def take(self, noted: Noted, since: int, owner: int) -> np.ndarray:
        """The batches of the log, from a token on, in the last result of `look`.

        Raises StorageError for notes that do not add up with the records.
        """
        self._words[kernels.R_FROM], self._words[kernels.R_OWNER] = since, owner
        out = np.empty(noted.data.size + (noted.records + 1) * _SPARE_BYTES, dtype=np.uint8)
        n = int(
            kernels.rebuild_batches(
                noted.data,
                noted.at,
                noted.data.size,
                noted.records,
                self._words,
                out,
                self._scratch,
            )
        )
        if n < 0:
            raise StorageError(f"its notes for token {noted.token} and its records do not add up")
        return out[:n]


def batches_of(
    cluster: Cluster, partition: int, since: int, stop: Callable[[], bool]
) -> Iterator[tuple[BatchHead, memoryview]]:
    """All batches from an offset on to the end that there is, markers left out.

    Raises ConnectionLost, StorageError; Closed once ``stop`` says so.
    """
    where, at = f"{cluster.topic}/{partition}", since
    deadline = time.monotonic() + PATIENCE_S
    while True:
        if stop():
            raise Closed(f"{where}: read after close")
        row = fetch(cluster, partition, at)
        end, before = int(row["high_watermark"]), at
        for head, raw in whole_batches(row["records"]):
            behind = head.base_offset + head.last_offset_delta + 1
            at = max(at, behind)
            if behind > before and not head.attributes & CONTROL:
                yield head, raw
        if at >= end:
            return
        if at > before:
            deadline = time.monotonic() + PATIENCE_S
        elif time.monotonic() >= deadline:
            raise StorageError(f"{where}: nothing comes at offset {at}, and {end} is its end")


def rebuild_queue(
    cluster: Cluster, queue: int, directory: Path, about: Rebuilding, producers: ProducerTable
) -> int:
    """Make the log of a queue in a directory that is not there; the token behind its end.

    Raises StorageError when a part is missing, ConnectionLost, Closed.
    """
    reader, where = BatchReader(), f"{cluster.topic}/{queue}"
    made = LogBuilder(directory, queue, about, producers)
    try:
        since = earliest_offset(cluster, queue)
        for head, raw in batches_of(cluster, queue, since, about.stop):
            try:
                noted = reader.look(head, raw)
                if noted is None or noted.log != about.log:
                    continue
                due = noted.token if made.due is None else made.due
                if noted.token > due:
                    raise StorageError(
                        f"records {due} to {noted.token - 1} of the log are not there: the brokers "
                        "lost them. To do without all before, delete them (kafka-delete-records"
                        f" up to offset {head.base_offset})"
                    )
                if noted.token + noted.records > due:
                    made.append(reader.take(noted, due, about.owner), due)
            except StorageError as problem:
                raise StorageError(f"{where}: offset {head.base_offset}: {problem}") from None
        return made.finish()
    finally:
        made.close()


__all__ = ["BatchReader", "Noted", "batches_of", "rebuild_queue"]
