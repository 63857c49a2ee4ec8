"""The state of a topic beside its records, on the cluster: its writer, and its small files.

It lies in a compacted topic, ``TOPIC.tidecast``, of one partition, under the epoch of the writer.
The files are those of the topic's directory that the next owner needs: positions of subscriptions,
paused queues, epochs of producers, the map of queues. They are copied when they change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from tidecast.config.sources.kafka import KafkaSource
from tidecast.errors import StorageError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.storing.batches import Identity
from tidecast.kafka.storing.fencing import earliest_offset
from tidecast.kafka.storing.rebuilding import BatchReader, batches_of
from tidecast.kafka.storing.writer import PartitionWriter
from tidecast.node.storing.small_files import SmallFiles, known_files
from tidecast.queues.adapter import Record, Run, pack, unpack

SUFFIX = ".tidecast"
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),  # only segments before the newest are compacted
    "min.cleanable.dirty.ratio": "0.1",
}
"""Settings of the topic, when it is made."""
HEAD_KEY, FILE_KEY = b"writer", b"file/"
_NULL = "kafka-null"


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The last writer of a topic, and the log that it writes."""

    log: int
    producer: int
    epoch: int
    queues: int
    node: str

    @property
    def writer(self) -> tuple[int, int]:
        """Kafka's producer id and epoch."""
        return self.producer, self.epoch


class Kept(NamedTuple):
    """The state that the cluster has. ``files``: contents by name."""

    head: Head | None
    files: dict[str, bytes]


def open_state(source: KafkaSource, begun: Callable[[Cluster], None]) -> Cluster:
    """The topic of the state, which is made if it is missing. Raises as `Cluster`."""
    beside = msgspec.structs.replace(source, topic=source.topic + SUFFIX)
    return Cluster(beside, create=1, configs=CONFIGS, begun=begun)


def read_state(cluster: Cluster, stop: Callable[[], bool]) -> Kept:
    """All that is there; to be called behind a fence. Raises ConnectionLost, StorageError."""
    reader, found = BatchReader(), dict[bytes, bytes | None]()
    for head, raw in batches_of(cluster, 0, earliest_offset(cluster, 0), stop):
        noted = reader.look(head, raw) if head.records else None  # compaction leaves empty ones
        if noted is None:
            continue
        for _, record in unpack(reader.take(noted, noted.token, 0)):
            null = _NULL in (record.headers or {})
            found[record.key or b""] = None if null else record.payload
    raw_head = found.get(HEAD_KEY)
    try:
        made = None if raw_head is None else msgspec.json.decode(raw_head, type=Head)
    except msgspec.MsgspecError as problem:
        raise StorageError(f"{cluster.topic}: {HEAD_KEY.decode()}: {problem}") from None
    files = {
        key[len(FILE_KEY) :].decode(errors="replace"): value
        for key, value in found.items()
        if key.startswith(FILE_KEY) and value is not None
    }
    return Kept(made, known_files(files))


class StateWriter(SmallFiles):
    """Writes the state of a topic. For one thread; `close` may come from another."""

    def __init__(self, cluster: Cluster, who: Identity, kept: Kept) -> None:
        super().__init__(kept.files)
        self.cluster = cluster
        self._writer = PartitionWriter(cluster, 0, who)
        self._token = 0
        self._pending: Run | None = None

    def write_head(self, head: Head) -> None:
        """Name the writer from now on. Raises as `PartitionWriter.write`."""
        self._put(Record(msgspec.json.encode(head), HEAD_KEY))

    def _put_file(self, name: str, raw: bytes | None) -> None:
        headers = {_NULL: True} if raw is None else None
        self._put(Record(raw or b"", FILE_KEY + name.encode(), headers))

    def _put(self, record: Record) -> None:
        """One record, in a batch of its own: compaction removes whole batches then."""
        if self._pending is not None:  # in doubt: it comes first
            self._write(self._pending)
        self._write(pack([record], self._token))

    def _write(self, run: Run) -> None:
        self._pending = run
        self._token = self._writer.write(run, self._token)
        self._pending = None

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._writer.close()


__all__ = [
    "Head",
    "Kept",
    "StateWriter",
    "open_state",
    "read_state",
]
