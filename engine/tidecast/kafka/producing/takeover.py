"""Taking a topic over from an engine whose directory is not here: its log, made again from Kafka.

The owner before is fenced first, so what is on the cluster then is all that was ever acked. An
engine that was the last writer itself has it all in its own directory, and more: that one stays.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidecast.config.kafka import KafkaSource
from tidecast.config.sources.storage import storage_source
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.producing.batches import warm_up
from tidecast.kafka.producing.fencing import end_offset, fence
from tidecast.kafka.producing.notes import Mark, Notes, load_notes, save_notes
from tidecast.kafka.producing.rebuilding import rebuild_queue
from tidecast.kafka.producing.state import StateWriter, open_state, read_state
from tidecast.kafka.producing.writer import transactional_id
from tidecast.log.files import queue_name
from tidecast.log.rebuilding import Rebuilding
from tidecast.node.storing.replacing import Replacing
from tidecast.protocol.dedup import ProducerTable


class KafkaTakeover:
    """See module. `run` once, in a thread of its own; `close` from another.

    ``node``: this one; ``queues``: the directory of its topics; ``owner``: epoch of its lease.
    """

    def __init__(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> None:
        """Raises ConfigError."""
        self._config, self._node, self._owner, self._now_ns = config, node, owner, now_ns
        source = storage_source(config.storage)
        assert isinstance(source, KafkaSource)
        self._source = source
        self._replacing = Replacing(config.name, queues, owner)
        self._clusters: list[Cluster] = []

    def close(self) -> None:
        """End it: nothing is asked, nor put in its place, when this returns. Idempotent."""
        self._replacing.close()
        for each in list(self._clusters):
            each.close()

    def run(self) -> None:
        """Have the topic's log and state in the directory. Raises TidecastError; Closed."""
        warm_up()
        try:
            self._replacing.run(self._take)
        finally:
            for each in self._clusters:
                each.close()

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
        before = load_notes(self._replacing.before)
        mine = None if before is None else (before.producer, before.epoch)
        if kept.head is None or kept.head.writer == mine:
            return  # nobody has kept it since this engine
        if kept.head.queues != config.queues:
            raise ConfigError(
                f"queues: {config.queues}: the log of topic {config.name} has {kept.head.queues} "
                f"on the cluster: allowed {kept.head.queues}"
            )
        self._replacing.begin(work)
        marks = self._rebuild(data, work, kept.head.log)
        self._replacing.write_files(work, kept.files, [mark.token for mark in marks])
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
        self._replacing.install(work)

    def _rebuild(self, data: Cluster, work: Path, log: int) -> list[Mark]:
        config = self._config
        about = Rebuilding(
            config.name,
            log,
            config.segment_bytes,
            self._owner,
            self._now_ns,
            self._replacing.stopped,
        )
        producers, marks = ProducerTable(config.queues), list[Mark]()
        for queue in range(config.queues):
            token = rebuild_queue(data, queue, work / queue_name(queue), about, producers)
            marks.append(Mark(token, 0, end_offset(data, queue)))
        return marks

    def _keep(self, cluster: Cluster) -> None:
        self._clusters.append(cluster)  # first: `close` sets what is looked at here
        self._replacing.check_open()


open_takeover = KafkaTakeover
"""See `Storages.take_over`."""

__all__ = ["KafkaTakeover", "open_takeover"]
