"""A topic of a Kafka cluster as an adapter: its partitions are queues. See docs/KAFKA_TOPICS.md."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import NoReturn

from tidecast.config.kafka import KafkaSource, kafka_source_of
from tidecast.errors import ConfigError, NotFound
from tidecast.kafka.brokers.cluster import Cluster
from tidecast.kafka.brokers.fetched import warm_up
from tidecast.kafka.brokers.receiver import KafkaReceiver
from tidecast.queues.adapter import Counts, Direction

__all__ = ["KafkaAdapter"]


class KafkaAdapter:
    """Reads the partitions of the topic, also those that are added later. ``name``: ``kafka``."""

    name, direction, rewindable = "kafka", Direction.READ, True

    def __init__(self, source: KafkaSource) -> None:
        """Raises ConfigError, AuthError, ConnectionLost."""
        warm_up()
        self.cluster = Cluster(source)
        self.refresh_s = source.refresh_s
        self._lock = threading.Lock()
        self._receivers: list[KafkaReceiver] = []
        self._before = Counts()
        """Of receivers that are closed."""

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
        made = KafkaReceiver(self.cluster, queue)
        with self._lock:
            closed = [one for one in self._receivers if one.is_closed]
            self._before = _sum(self._before, closed)
            self._receivers = [one for one in self._receivers if one not in closed] + [made]
        return made

    def sender(self, queue: int, owner: int) -> NoReturn:
        """Nothing can be written: raises ConfigError."""
        raise ConfigError(
            f"queue {queue} of {self.cluster.topic}: the adapter reads only (owner {owner})"
        )

    def counted(self) -> Counts:
        """Of all receivers together; the lag of a partition is that of its foremost reader."""
        with self._lock:
            each, before = list(self._receivers), self._before
        ends, read = dict[int, int](), dict[int, int]()
        for one in each:
            ends[one.partition] = max(one.end, ends.get(one.partition, 0))
            read[one.partition] = max(one.behind, read.get(one.partition, -1))
        lag = sum(max(0, ends[queue] - behind) for queue, behind in read.items() if behind >= 0)
        return replace(_sum(before, each), lag=lag)

    def close(self) -> None:
        """Close all receivers, and hang up. Idempotent."""
        with self._lock:
            each = list(self._receivers)
        for one in each:
            one.close()
        self.cluster.close()


def _sum(before: Counts, receivers: Iterable[KafkaReceiver]) -> Counts:
    each: list[Counts | KafkaReceiver] = [before, *receivers]
    return Counts(
        fetches=sum(one.fetches for one in each),
        records=sum(one.records for one in each),
        bytes=sum(one.bytes for one in each),
        errors=sum(one.errors for one in each),
        reconnects=sum(one.reconnects for one in each),
    )
