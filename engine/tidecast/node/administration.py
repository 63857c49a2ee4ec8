"""Administration by clients: topics of a running engine, its subscriptions, its Kafka groups.

Topics are changed in the node first, then saved in the topology file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidecast.api.node import NodeApi
from tidecast.config.check import build, raise_problems, shown
from tidecast.config.store import TopologyStore
from tidecast.config.topology import TopicConfig
from tidecast.errors import ConfigError, TidecastError
from tidecast.node.access.rights import TOPIC_ACTIONS
from tidecast.node.kafka_endpoint import KAFKA_ACTIONS


class _Asked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    settings: dict[str, Any] = {}
    recreate: bool = False


def topic_of(name: str, settings: dict[str, Any]) -> TopicConfig:
    """A topic with these settings, whose types and ranges are checked. Raises ConfigError."""
    problems: list[str] = []
    wanted = build(TopicConfig, {**settings, "name": name}, "", problems)
    raise_problems(problems, f"topic {shown(name)}")
    assert wanted is not None
    return wanted


class Administration:
    """Carries out `Link.administer`. Thread-safe as far as the node and the store are."""

    def __init__(self, node: NodeApi, store: TopologyStore) -> None:
        self._node, self._store = node, store

    def create(self, topic: TopicConfig, *, check: bool = False) -> TopicConfig:
        """The topic as it is saved; ``check``: as it would be. Raises Conflict, ConfigError."""
        made = self._store.checked(topic, self._node.topics())
        if check:
            return made
        self._node.create_topic(made)
        self._store.put(made)
        return made

    def edit(
        self, name: str, changes: dict[str, Any], *, recreate: bool = False, check: bool = False
    ) -> TopicConfig:
        """The topic after the changes; ``check``: as it would be. Raises NotFound, ConfigError."""
        node, running = self._node, self._node.topics()
        after, anew = self._store.changed(name, changes, running, recreate=recreate)
        if check:
            return after
        before = next(t for t in running if t.name == name)
        if anew:
            node.delete_topic(name, keep_data=True)
            try:
                node.create_topic(after)
            except TidecastError:
                node.create_topic(before)
                raise
        else:
            node.edit_topic(name, {field: getattr(after, field) for field in changes})
        self._store.put(after)
        return after

    def delete(self, name: str) -> None:
        """Raises NotFound."""
        self._node.delete_topic(name)
        self._store.remove(name)

    def perform(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link.administer`. Raises ConfigError, Conflict, NotFound."""
        if action in KAFKA_ACTIONS:
            return self._node.kafka.perform(action, arguments)
        if action not in TOPIC_ACTIONS:
            return self._node.consumers.perform(action, arguments)
        try:
            asked = msgspec.convert(arguments, _Asked)
        except msgspec.ValidationError as problem:
            raise ConfigError(f"{action}: {problem}") from None
        if action == "delete_topic":
            self.delete(asked.topic)
            return None
        if action == "edit_topic":
            edited = self.edit(asked.topic, asked.settings, recreate=asked.recreate)
            return msgspec.to_builtins(edited)
        return msgspec.to_builtins(self.create(topic_of(asked.topic, asked.settings)))
