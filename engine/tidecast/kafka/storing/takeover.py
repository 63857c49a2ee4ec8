"""Taking a topic over: its log, made again from a topic of Kafka."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidecast.config.sources.kafka import KafkaSource
from tidecast.config.sources.storage import storage_source
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.storing.batches import warm_up
from tidecast.kafka.storing.fencing import end_offset, fence
from tidecast.kafka.storing.notes import NOTES, Mark, Notes
from tidecast.kafka.storing.rebuilding import rebuild_queue
from tidecast.kafka.storing.state import StateWriter, open_state, read_state
from tidecast.kafka.storing.writer import transactional_id
from tidecast.log.files import queue_name
from tidecast.node.storing.takeover import TopicTakeover
from tidecast.protocol.dedup import ProducerTable


class KafkaTakeover(TopicTakeover[Cluster]):
    """See `TopicTakeover`."""

    def __init__(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> None:
        """Raises ConfigError."""
        super().__init__(config, node, queues, owner, now_ns)
        source = storage_source(config.storage)
        assert isinstance(source, KafkaSource)
        self._source = source

    def _warm_up(self) -> None:
        warm_up()

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
        kept = read_state(beside, self._replacing.stopped)
        before = NOTES.load(self._replacing.before)
        mine = None if before is None else (before.producer, before.epoch)
        if kept.head is None or kept.head.writer == mine:
            return  # no other engine has kept it since
        self._check_queues(kept.head.queues, "on the cluster")
        self._replacing.begin(work)
        marks = self._rebuild(data, work, kept.head.log)
        self._replacing.write_files(work, kept.files, [mark.token for mark in marks])
        head = msgspec.structs.replace(
            kept.head, producer=who.producer, epoch=who.epoch, node=self._node
        )
        notes = Notes(
            topic=data.topic, producer=who.producer, epoch=who.epoch, queues=marks, log=head.log
        )
        NOTES.save(work, notes)
        writer = StateWriter(beside, who, kept)
        try:
            writer.write_head(head)
        finally:
            writer.close()
        self._replacing.install(work)

    def _rebuild(self, data: Cluster, work: Path, log: int) -> list[Mark]:
        config = self._config
        about = self._about(log)
        producers, marks = ProducerTable(config.queues), list[Mark]()
        for queue in range(config.queues):
            token = rebuild_queue(data, queue, work / queue_name(queue), about, producers)
            marks.append(Mark(token, 0, end_offset(data, queue)))
        return marks


open_takeover = KafkaTakeover
"""See `Storages.take_over`."""

__all__ = ["KafkaTakeover", "open_takeover"]
