"""Topics in a directory for the tests of the Spark source: no engine, the log's own writer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from tidecast.layout.segment import REC_ENGINE
from tidecast.log.building import BatchBuilder
from tidecast.log.files import queue_directory
from tidecast.log.queue_log import QueueLog
from tidecast.queues.mapper import hash_of

SEGMENT_BYTES = 1 << 14
TIME_NS = 1_700_000_000_000_000_000
STEP_NS = 1_000_000


class Record(NamedTuple):
    value: bytes
    key: bytes | None = None
    headers: dict[str, object] | None = None
    time_ns: int = 0
    of_engine: bool = False


def records(n: int, first: int = 0, keys: int = 10) -> list[Record]:
    """``n`` records, one a millisecond, each naming itself."""
    return [
        Record(b"v%d" % i, b"k%d" % (i % keys), None, TIME_NS + i * STEP_NS)
        for i in range(first, first + n)
    ]


def append(
    data_dir: Path,
    topic: str,
    queue: int,
    some: Iterable[Record],
    *,
    per_batch: int = 50,
    segment_bytes: int = SEGMENT_BYTES,
) -> QueueLog:
    """Append records to a queue, ``per_batch`` a batch; the log, closed."""
    log = QueueLog.open(
        queue_directory(data_dir, topic, queue),
        topic=topic,
        queue=queue,
        segment_bytes=segment_bytes,
        fsync="none",
    )
    builder, waiting = BatchBuilder(), list(some)
    for at in range(0, len(waiting), per_batch):
        builder.clear()
        builder.begin()
        for one in waiting[at : at + per_batch]:
            raw = None if one.headers is None else msgspec.msgpack.encode(one.headers)
            hashed = hash_of(one.key) if one.key else 0
            flag_at = builder._end + 3
            builder.add(one.value, key=one.key, headers=raw, time_ns=one.time_ns, key_hash=hashed)
            builder.buffer[flag_at] |= REC_ENGINE >> 24 if one.of_engine else 0
        builder.seal(log.next_token, TIME_NS)
        log.append(builder.buffer, builder.used, TIME_NS)
    log.close()
    return log


def segments(data_dir: Path, topic: str, queue: int = 0) -> list[Path]:
    return sorted(queue_directory(data_dir, topic, queue).glob("*.log"))


def damage(path: Path, position: int, n: int = 4) -> None:
    """Flip bytes of a file."""
    raw = bytearray(path.read_bytes())
    for i in range(position, position + n):
        raw[i] ^= 0xFF
    path.write_bytes(raw)
