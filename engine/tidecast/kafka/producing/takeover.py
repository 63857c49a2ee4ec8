"""Taking a topic over from an engine whose directory is not here: its log, made again from Kafka.

The owner before is fenced first, so what is on the cluster then is all that was ever acked. An
engine that was the last writer itself has it all in its own directory, and more: that one stays.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import msgspec

from tidecast.config.kafka import storage_source
from tidecast.config.topology import TopicConfig
from tidecast.disk import make_directory, sync_directory, write_atomically
from tidecast.errors import Closed, ConfigError, StorageError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.producing.batches import warm_up
from tidecast.kafka.producing.fencing import end_offset, fence
from tidecast.kafka.producing.notes import Mark, Notes, load_notes, save_notes
from tidecast.kafka.producing.rebuilding import Rebuilding, rebuild_queue
from tidecast.kafka.producing.state import Kept, StateWriter, open_state, read_state
from tidecast.kafka.producing.writer import transactional_id
from tidecast.log.files import queue_name
from tidecast.log.takeover import SUBSCRIPTIONS_NAME, Owners
from tidecast.protocol.dedup import ProducerTable
from tidecast.queues.subscription_store import SavedCursor, SubscriptionStore

REBUILT_NAME = ".rebuilt"


class KafkaTakeover:
    """See module. `run` once, in a thread of its own; `close` from another.

    ``node``: this one; ``queues``: the directory of its topics; ``owner``: epoch of its lease.
    """

    def __init__(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> None:
        """Raises ConfigError."""
        self._config, self._node, self._owner, self._now_ns = config, node, owner, now_ns
        self._queues, self._source = queues, storage_source(config.storage)
        self._lock, self._closed = threading.Lock(), False
        self._clusters: list[Cluster] = []
        self.records = 0
        """That were read from the cluster."""

    def close(self) -> None:
        """End it: nothing is asked, nor put in its place, when this returns. Idempotent."""
        with self._lock:
            self._closed = True
            clusters = list(self._clusters)
        for each in clusters:
            each.close()

    def run(self) -> None:
        """Have the topic's log and state in the directory. Raises TidecastError; Closed."""
        warm_up()
        work = self._queues / REBUILT_NAME / f"{self._config.name}.{self._owner}"
        try:
            self._take(work)
        finally:
            for each in self._clusters:
                each.close()
            shutil.rmtree(work, ignore_errors=True)

    def _take(self, work: Path) -> None:
        config = self._config
        data = Cluster(self._source, create=config.queues, begun=self._keep)
        if data.partitions != config.queues:
            raise ConfigError(
                f"queues: {config.queues}: topic {data.topic} of {self._source.servers} has "
                f"{data.partitions} partitions: allowed {data.partitions}"
            )
        beside = open_state(self._source, self._keep)
        who = fence(data, transactional_id(data.topic, config.owner, self._node), [beside])
        kept = read_state(beside, self._stopped)
        before = load_notes(self._queues / config.name)
        mine = None if before is None else (before.producer, before.epoch)
        if kept.head is None or kept.head.writer == mine:
            return  # nobody has kept it since this engine
        if kept.head.queues != config.queues:
            raise ConfigError(
                f"queues: {config.queues}: the log of topic {config.name} has {kept.head.queues} "
                f"on the cluster: allowed {kept.head.queues}"
            )
        shutil.rmtree(work, ignore_errors=True)
        make_directory(work)
        marks = self._rebuild(data, work, kept.head.log)
        self._write_files(work, kept, [mark.token for mark in marks])
        head = msgspec.structs.replace(
            kept.head, producer=who.producer, epoch=who.epoch, node=self._node
        )
        notes = Notes(
            topic=data.topic, producer=who.producer, epoch=who.epoch, queues=marks, log=head.log
        )
        save_notes(work, notes)
        writer = StateWriter(beside, who, kept)
        try:
            writer.write_head(head)
        finally:
            writer.close()
        self._install(work)

    def _rebuild(self, data: Cluster, work: Path, log: int) -> list[Mark]:
        config = self._config
        about = Rebuilding(
            config.name, log, config.segment_bytes, self._owner, self._now_ns, self._stopped
        )
        producers, marks = ProducerTable(config.queues), list[Mark]()
        for queue in range(config.queues):
            token = rebuild_queue(data, queue, work / queue_name(queue), about, producers)
            marks.append(Mark(token, 0, end_offset(data, queue)))
        return marks

    def _write_files(self, work: Path, kept: Kept, ends: list[int]) -> None:
        try:
            make_directory(work / SUBSCRIPTIONS_NAME)
            for name, raw in kept.files.items():
                write_atomically(work / name, raw)
        except OSError as problem:
            raise StorageError(f"{work}: {problem.strerror}", problem.errno or 0) from None
        store = SubscriptionStore(work / SUBSCRIPTIONS_NAME, make=False)
        for saved in store.load()[0]:
            cursors = [clamped(one, self._config.name, ends) for one in saved.cursors]
            if cursors != saved.cursors:
                store.save(msgspec.structs.replace(saved, cursors=cursors))

    def _install(self, work: Path) -> None:
        """Put what was made in the place of what is there: a log that others have gone past."""
        owners = Owners(self._queues, self._config.name)
        with self._lock:
            if self._closed:
                raise Closed(f"topic {self._config.name}: it is not taken over")
            try:
                sync_directory(work)
                if owners.link.is_dir() and not owners.link.is_symlink():
                    shutil.rmtree(owners.link)
                owners.remove()
                work.rename(owners.link)
                sync_directory(self._queues)
            except OSError as problem:
                raise StorageError(f"{work}: {problem.strerror}", problem.errno or 0) from None

    def _keep(self, cluster: Cluster) -> None:
        with self._lock:
            if self._closed:
                raise Closed(f"topic {self._config.name}: it is not taken over")
            self._clusters.append(cluster)

    def _stopped(self) -> bool:
        return self._closed


def clamped(cursor: SavedCursor, topic: str, ends: list[int]) -> SavedCursor:
    """A cursor that counts no token behind the end of its queue: other records will get those.

    A subscription that began at the end of the log may be ahead of what Kafka had.
    """
    if cursor.topic != topic or cursor.queue >= len(ends):
        return cursor
    end = ends[cursor.queue]
    acked = [(first, min(behind, end)) for first, behind in cursor.acked if first < end]
    attempts = [(token, count) for token, count in cursor.attempts if token < end]
    return SavedCursor(topic, cursor.queue, min(cursor.position, end), acked, attempts)


__all__ = ["KafkaTakeover", "clamped"]
