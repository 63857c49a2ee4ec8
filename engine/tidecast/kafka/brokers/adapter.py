"""A topic of a Kafka cluster as an adapter: its partitions are queues. See docs/KAFKA_TOPICS.md."""

from __future__ import annotations

from typing import NoReturn

from tidecast.config.sources.kafka import KafkaSource, kafka_source_of
from tidecast.errors import ConfigError, NotFound
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.brokers.fetched import warm_up
from tidecast.kafka.brokers.receiver import KafkaReceiver
from tidecast.queues.adapter import Counts, Direction
from tidecast.queues.foreign.receivers import Receivers

__all__ = ["KafkaAdapter"]


class KafkaAdapter:
    """Reads the partitions of the topic, also partitions added later. ``name``: ``kafka``."""

    name, direction, rewindable = "kafka", Direction.READ, True

    def __init__(self, source: KafkaSource) -> None:
        """Raises ConfigError, AuthError, ConnectionLost."""
        warm_up()
        self.cluster = Cluster(source)
        self.refresh_s = source.refresh_s
        self._receivers = Receivers()

    @classmethod
    def of(cls, url: str) -> KafkaAdapter:
        """An adapter for ``kafka://HOST:PORT,HOST:PORT/TOPIC?setting=value``."""
        return cls(kafka_source_of(url))

    @property
    def queues(self) -> int:
        """The partitions, as far as is known."""
        return self.cluster.partitions

    def refresh(self) -> None:
        """Ask how many partitions there are now. Raises ConnectionLost, AuthError."""
        self.cluster.refresh()

    def receiver(self, queue: int) -> KafkaReceiver:
        """A receiver of a partition."""
        if not 0 <= queue < self.queues:
            raise NotFound(f"queue: {queue}: {self.cluster.topic} has {self.queues}, from 0 on")
        return self._receivers.add(KafkaReceiver(self.cluster, queue))

    def sender(self, queue: int, owner: int) -> NoReturn:
        """Nothing can be written: raises ConfigError."""
        raise ConfigError(
            f"queue {queue} of {self.cluster.topic}: the adapter reads only (owner {owner})"
        )

    def counted(self) -> Counts:
        """Of all receivers together; the lag of a partition is that of its foremost reader."""
        return self._receivers.counted()

    def close(self) -> None:
        """Close all receivers, and hang up. Idempotent."""
        self._receivers.close()
        self.cluster.close()
