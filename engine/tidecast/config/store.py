"""The topology of a running engine and the file it is saved in."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec

from tidecast.config.topology import (
    LIVE_TOPIC_FIELDS,
    TopicConfig,
    Topology,
    TransportConfig,
    add_topic,
    change_topic,
    save_topology,
)
from tidecast.errors import ConfigError


class TopologyStore:
    """Declared topics: checks changes before they are made, saves them after. Thread-safe."""

    def __init__(self, topology: Topology, path: Path | None) -> None:
        """``topology`` as in the file (without derived identity); ``path`` None: never saved."""
        self.topology = topology
        self._path = path
        self._lock = threading.Lock()

    def checked(self, topic: TopicConfig, running: list[TopicConfig]) -> TopicConfig:
        """The topic completed and checked against all that exist. Raises ConfigError, Conflict."""
        return add_topic(self._with(running), topic).topics[-1]

    def changed(
        self, name: str, changes: dict[str, Any], running: list[TopicConfig], *, recreate: bool
    ) -> tuple[TopicConfig, bool]:
        """The topic as it would be, and whether it must be recreated for that.

        Raises NotFound, ConfigError (for example: needs ``recreate``).
        """
        after = change_topic(self._with(running), name, changes)
        topic, before = after.topic(name), next(t for t in running if t.name == name)
        assert topic is not None
        fixed = sorted(
            field
            for field in changes
            if field not in LIVE_TOPIC_FIELDS and getattr(topic, field) != getattr(before, field)
        )
        if fixed and not recreate:
            raise ConfigError(
                f"{', '.join(fixed)} of topic {name} cannot change while it runs: allowed live are "
                f"{', '.join(sorted(LIVE_TOPIC_FIELDS))}; to recreate the topic (its publications "
                "and subscriptions end) use --recreate, in Python recreate=True"
            )
        return topic, bool(fixed)

    def put(self, topic: TopicConfig) -> None:
        """Save a topic, new or changed."""
        with self._lock:
            kept = list(self.topology.topics)
            at = next((i for i, t in enumerate(kept) if t.name == topic.name), len(kept))
            kept[at : at + 1] = [topic]
            self._save(kept)

    def put_all(self, topics: list[TopicConfig]) -> None:
        """Save these topics instead of those before, in one write."""
        with self._lock:
            self._save(topics)

    def put_transports(self, transports: list[TransportConfig]) -> None:
        """Save transports; they are opened when the engine starts again."""
        with self._lock:
            self.topology = msgspec.structs.replace(self.topology, transports=transports)
            self._save(list(self.topology.topics))

    def put_level(self, level: int) -> None:
        """Save the level that this engine writes."""
        with self._lock:
            self.topology = msgspec.structs.replace(self.topology, level=level)
            self._save(list(self.topology.topics))

    def put_drained(self, drained: bool) -> None:
        """Save whether this engine is drained."""
        with self._lock:
            node = msgspec.structs.replace(self.topology.node, drained=drained)
            self.topology = msgspec.structs.replace(self.topology, node=node)
            self._save(list(self.topology.topics))

    def remove(self, name: str) -> None:
        """Forget a topic, if it was declared."""
        with self._lock:
            self._save([t for t in self.topology.topics if t.name != name])

    def _with(self, running: list[TopicConfig]) -> Topology:
        return msgspec.structs.replace(self.topology, topics=running)

    def _save(self, topics: list[TopicConfig]) -> None:
        self.topology = msgspec.structs.replace(self.topology, topics=topics)
        if self._path is not None:
            save_topology(self.topology, self._path)
