"""Kafka as the storage of a durable topic: synced records of its logs are written to partitions.

Each queue has a partition. A run opens the cluster, fences the writer before, and counts the
records of that writer. See docs/adr/0041, and `tidecast.node.storing.running`.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from tidecast.config.sources.kafka import KafkaSource
from tidecast.config.sources.storage import storage_source
from tidecast.errors import ConfigError, Fenced, StorageError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.storing.batches import Identity, warm_up
from tidecast.kafka.storing.fencing import count_stored, end_offset, fence
from tidecast.kafka.storing.notes import NOTES, Mark, Notes
from tidecast.kafka.storing.state import Head, StateWriter, open_state, read_state
from tidecast.kafka.storing.writer import PartitionWriter, transactional_id
from tidecast.node.storing.running import Run, SpoolStorage
from tidecast.node.storing.spool import Spool

PATIENCE_S = 2.0
"""So long a batch is sent again before the wait is reported; then it is sent on."""


class _KafkaRun(Run):
    """Writers under one epoch."""

    def __init__(
        self,
        cluster: Cluster,
        who: Identity,
        marks: list[Mark],
        log: int,
        state: StateWriter | None,
    ) -> None:
        self._cluster, self._who, self._marks, self._id = cluster, who, marks, log
        self._partitions = [
            PartitionWriter(cluster, queue, who, patience_s=PATIENCE_S, log=log)
            for queue in range(len(marks))
        ]
        self._saved: Notes | None = None
        super().__init__([mark.token for mark in marks], [*self._partitions], state)

    def save(self, directory: Path) -> None:
        """See `Run`."""
        fresh = Notes(
            topic=self._cluster.topic,
            producer=self._who.producer,
            epoch=self._who.epoch,
            log=self._id,
            queues=[
                writer.mark or mark
                for writer, mark in zip(self._partitions, self._marks, strict=True)
            ],
        )
        if fresh != self._saved:
            NOTES.save(directory, fresh)
            self._saved = fresh


class KafkaStorage(SpoolStorage):
    """See module."""

    def __init__(self, spool: Spool) -> None:
        """Raises ConfigError."""
        super().__init__(spool)
        source = storage_source(spool.storage)
        assert isinstance(source, KafkaSource)
        self._source = source
        self.transactional_id = transactional_id(self._source.topic, spool.owner, spool.node)
        self._mine: set[tuple[int, int]] = set()
        """Producer ids and epochs that this engine has had."""
        self._clusters: list[Cluster] = []
        """Of the run, or of its begin."""

    def _warm_up(self) -> None:
        warm_up()

    def _hang_up(self) -> None:
        with self._lock:
            clusters = list(self._clusters)
        for each in clusters:
            each.close()

    def _begin(self) -> _KafkaRun:
        """Fence the writer before, count its records, note where this writer begins."""
        spool = self._spool
        before = NOTES.load(spool.directory)
        self._check_notes(before)
        with self._lock:
            self._clusters = []
        try:
            cluster = Cluster(self._source, create=spool.queues, begun=self._keep)
            self._check_topic(cluster)
            beside = [open_state(self._source, self._keep)] if spool.owner else []
            who = fence(cluster, self.transactional_id, beside)
            state = self._take_state(beside[0], who, before) if beside else None
            marks = [self._find_mark(cluster, queue, before) for queue in range(spool.queues)]
            log = before.log if before is not None and before.log else secrets.randbits(62) + 1
            run = _KafkaRun(cluster, who, marks, log, state)
            self._check_open()
            run.save(spool.directory)
            if state is not None:
                head = Head(
                    log=log,
                    producer=who.producer,
                    epoch=who.epoch,
                    queues=spool.queues,
                    node=spool.node,
                )
                state.write_head(head)
                state.copy_files(spool.directory)
        except BaseException:
            self._hang_up()
            raise
        return run

    def _take_state(self, beside: Cluster, who: Identity, before: Notes | None) -> StateWriter:
        """The state on the cluster; of a leased topic it has to be of this log's last writer.

        Else another engine has kept the topic since: its records are not in this log.
        """
        kept = read_state(beside, self._closing.is_set)
        if before is not None:
            self._mine.add((before.producer, before.epoch))
        head = kept.head
        if self._spool.leased and head is not None and head.writer not in self._mine:
            raise Fenced(
                f"topic {beside.topic}: node {head.node} has kept topic {self._spool.topic} since, "
                f"with epoch {head.epoch} of producer {head.producer}"
            )
        self._mine.add((who.producer, who.epoch))
        return StateWriter(beside, who, kept)

    def _keep(self, cluster: Cluster) -> None:
        with self._lock:
            self._check_open()
            self._clusters.append(cluster)

    def _check_notes(self, before: Notes | None) -> None:
        if before is None:
            return
        spool = self._spool
        if before.topic != self._source.topic or len(before.queues) != spool.queues:
            raise ConfigError(
                f"storage: {self._source.topic}: the log of topic {spool.topic} was written to "
                f"{before.topic} with {len(before.queues)} partitions so far: allowed is that "
                f"topic. {NOTES.remedy}"
            )

    def _check_topic(self, cluster: Cluster) -> None:
        queues, name = self._spool.queues, cluster.topic
        if cluster.partitions != queues:
            raise ConfigError(
                f"queues: {queues}: topic {name} of {self._source.servers} has "
                f"{cluster.partitions} partitions: allowed {cluster.partitions}"
            )
        policy = cluster.setting("cleanup.policy") or ""
        if "compact" in policy:
            raise ConfigError(
                f"cleanup.policy of topic {name} of {self._source.servers}: {policy}: allowed "
                "delete: compaction removes records that were acknowledged"
            )

    def _find_mark(self, cluster: Cluster, queue: int, before: Notes | None) -> Mark:
        """Where this writer begins."""
        spool = self._spool
        if before is None:
            return Mark(spool.earliest(queue), 0, end_offset(cluster, queue))
        token, sequence, offset = before.queues[queue]
        one = Identity(before.producer, before.epoch, sequence)
        try:
            count, end = count_stored(cluster, queue, one, offset)
        except StorageError as problem:
            raise StorageError(
                f"{cluster.topic}/{queue}: it is not known how far the log is stored, from offset "
                f"{offset} on: {problem}. {NOTES.remedy}"
            ) from None
        if token + count > spool.synced(queue):
            raise StorageError(
                f"{cluster.topic}/{queue}: has {token + count} records of the log, which has "
                f"{spool.synced(queue)}: the log lost records. Restore it, or delete the topic"
            )
        return Mark(token + count, 0, end)


def open_storage(spool: Spool) -> KafkaStorage:
    """See `Storages.open`."""
    return KafkaStorage(spool)


__all__ = ["KafkaStorage", "open_storage"]
