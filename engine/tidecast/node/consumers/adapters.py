"""Topics of a node whose queues an adapter keeps: they are consumed here, and not written."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from tidecast.agents.warmup import DURABLE, warm_up
from tidecast.config.topology import TopicConfig, check_topic_name
from tidecast.errors import ConfigError, Conflict, NotFound, TidecastError
from tidecast.log.queue_log import QueueLog
from tidecast.node.consumers.state import ConsumersState
from tidecast.queues.adapter import Adapter, Direction
from tidecast.queues.attached import AttachedQueue
from tidecast.queues.mapper import QueueMap

QUEUES_MAX = 1024


class QueueHost(Protocol):
    """Delivery of queues to consumers."""

    def topic_opened(
        self, config: TopicConfig, logs: Sequence[QueueLog | AttachedQueue], queue_map: QueueMap
    ) -> None:
        """A topic's queues are there."""

    def topic_closed(self, name: str) -> None:
        """A topic is gone."""

    def appended(self, topic: str, queue_index: int) -> None:
        """A queue has new records."""

    def position(self, topic: str, queue_index: int) -> int | None:
        """The oldest token that some subscription has not acked; None: there is none."""


class Attached:
    """The adapters of a node, by the topics they are."""

    def __init__(self, state: ConsumersState, host: QueueHost) -> None:
        self._state, self._host = state, host
        self.adapters = state.adapters

    def attach(self, topic: str, adapter: Adapter) -> None:
        """Let an adapter be a topic's queues. Raises ConfigError, Conflict, NotFound."""
        check_topic_name(topic)
        warm_up(names=DURABLE)
        state = self._state
        if topic in state.topics or topic in state.ctx.topic_by_name:
            raise Conflict(f"topic {topic}: it is one of this engine's: give another name")
        if adapter.direction is Direction.WRITE:
            raise ConfigError(f"topic {topic}: adapter {adapter.name} can only write")
        if not 1 <= adapter.queues <= QUEUES_MAX:
            raise ConfigError(f"topic {topic}: {adapter.queues} queues: 1 to {QUEUES_MAX}")
        try:
            queues = [
                AttachedQueue(adapter, number, partial(self._host.appended, topic, number))
                for number in range(adapter.queues)
            ]
        except TidecastError as problem:
            problem.args = (f"topic {topic}: adapter {adapter.name}: {problem}",)
            raise
        self.adapters[topic] = adapter
        config = TopicConfig(name=topic, mode="durable", queues=adapter.queues)
        self._host.topic_opened(config, queues, QueueMap(adapter.queues))

    def directory(self, topic: str) -> Path | None:
        """Where the engine keeps what it knows of a topic that an adapter is; None: it is none."""
        if topic not in self.adapters:
            return None
        path = self._state.ctx.data_dir / "attached" / topic
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return path

    def rows(self) -> list[dict[str, Any]]:
        """The queues that adapters keep: topic, queue, adapter, earliest and next token."""
        with self._state.lock:
            here = [
                (topic, adapter, one)
                for topic, adapter in sorted(self.adapters.items())
                if topic in self._state.topics
                for one in self._state.topics[topic].queues
            ]
        return [
            {"topic": topic, "queue": one.queue, "adapter": adapter.name,
             "earliest_token": one.log.earliest_token, "next_token": one.log.next_token}
            for topic, adapter, one in here
        ]  # fmt: skip

    def detach(self, topic: str) -> None:
        """Take it away; subscriptions and their positions stay. Raises NotFound."""
        adapter = self.adapters.pop(topic, None)
        if adapter is None:
            raise NotFound(f"topic {topic}: no adapter is attached")
        self._host.topic_closed(topic)
        adapter.close()

    def check_writable(self, topic: str) -> None:
        """Raise Conflict for a topic that an adapter is."""
        self._state.check_writable(topic)

    def look_after(self) -> None:
        """Tell the adapters how far all subscriptions are."""
        for topic in list(self.adapters):
            here = self._state.topics.get(topic)
            for one in here.queues if here is not None else ():
                position = self._host.position(topic, one.queue)
                if position is not None and isinstance(one.log, AttachedQueue):
                    one.log.acked(position)

    def close(self) -> None:
        """Close all. Idempotent."""
        for adapter in self.adapters.values():
            adapter.close()
        self.adapters.clear()
