"""A topic of a Kafka cluster as an adapter: its partitions are queues. See docs/KAFKA_TOPICS.md."""

from __future__ import annotations

from typing import NoReturn

from tidecast.config.kafka import KafkaSource, kafka_source_of
from tidecast.errors import ConfigError, NotFound
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.brokers.fetched import warm_up
from tidecast.kafka.brokers.receiver import Counts, KafkaReceiver
from tidecast.queues.adapter import Direction

__all__ = ["KafkaAdapter"]


class KafkaAdapter:
    """Reads the partitions that the topic has when it is made. ``name`` is ``kafka``."""

    name, direction, rewindable = "kafka", Direction.READ, True

    def __init__(self, source: KafkaSource) -> None:
        """Raises ConfigError, AuthError, ConnectionLost."""
        warm_up()
        self.cluster = Cluster(source)
        self.queues = self.cluster.partitions
        self._receivers: list[KafkaReceiver] = []

    @classmethod
    def of(cls, url: str) -> KafkaAdapter:
        """An adapter for ``kafka://HOST:PORT,HOST:PORT/TOPIC?setting=value``."""
        return cls(kafka_source_of(url))

    def receiver(self, queue: int) -> KafkaReceiver:
        """A receiver of a partition."""
        if not 0 <= queue < self.queues:
            raise NotFound(f"queue: {queue}: {self.cluster.topic} has {self.queues}, from 0 on")
        made = KafkaReceiver(self.cluster, queue)
        self._receivers.append(made)
        return made

    def sender(self, queue: int, owner: int) -> NoReturn:
        """Nothing can be written: raises ConfigError."""
        raise ConfigError(
            f"queue {queue} of {self.cluster.topic}: the adapter reads only (owner {owner})"
        )

    def counts(self) -> Counts:
        """Of all receivers together."""
        each = [one.counts for one in self._receivers]
        return Counts(
            sum(one.fetches for one in each), sum(one.fetched_bytes for one in each),
            sum(one.troubles for one in each),
        )  # fmt: skip

    def close(self) -> None:
        """Close all receivers, and hang up. Idempotent."""
        for one in self._receivers:
            one.close()
        self.cluster.close()
