"""Queue logs for tests: append by hand, read all, damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tidecast.log import batch
from tidecast.log.building import BatchBuilder, check, record_table, records
from tidecast.log.queue_log import LogReader, QueueLog

SEGMENT_BYTES = 1 << 16


def opened(directory: Path, **options: object) -> QueueLog:
    """A log with small segments."""
    settings: dict[str, object] = {"topic": "orders", "segment_bytes": SEGMENT_BYTES}
    return QueueLog.open(directory, **{**settings, **options})  # type: ignore[arg-type]


def put(log: QueueLog, *payloads: bytes, time_ns: int = 0, **session: int) -> None:
    """Append one batch."""
    builder = BatchBuilder().begin(**session)
    for payload in payloads:
        builder.add(payload, time_ns=time_ns)
    builder.seal(log.next_token, time_ns)
    log.append(builder.buffer, builder.used, time_ns)


def blocks(reader: LogReader, token: int, room: int = 1 << 16) -> Iterator[tuple[np.ndarray, int]]:
    """(buffer, bytes) of every block from a token on."""
    buffer = np.zeros(room, dtype=np.uint8)
    while n := reader.read_block(token, buffer):
        yield buffer, n
        token = reader.next_token


def read_all(log: QueueLog, token: int = 0, room: int = 1 << 16) -> list[tuple[int, bytes]]:
    """(token, payload) of every record from the batch on that holds ``token``."""
    out, found = record_table(), []
    reader = log.reader()
    for buffer, n in blocks(reader, token, room):
        raw, at = buffer[:n].tobytes(), 0
        while at < n:
            length = check(buffer, at, n)
            rows = records(buffer, at, n, out, 0)
            assert length > 0
            assert rows > 0
            for row in out[:rows].tolist():
                first = row[batch.O_PAYLOAD_AT]
                found.append((row[batch.O_TOKEN], raw[first : first + row[batch.O_PAYLOAD_N]]))
            at += length
    reader.close()
    return found
