"""The adapters that an engine process attaches when it starts: of its options, and its topology."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from tidecast.config.kafka import SCHEME, KafkaSource, kafka_source_of
from tidecast.config.store import TopologyStore
from tidecast.errors import ConfigError
from tidecast.queues.adapter import Adapter

Make = Callable[[], Adapter]


def _kafka(source: KafkaSource) -> Adapter:
    from tidecast.kafka.brokers.adapter import KafkaAdapter

    return KafkaAdapter(source)


def made_by(text: str) -> tuple[str, Make]:
    """(topic, function that makes an adapter) of ``TOPIC=MODULE:FUNCTION`` or ``TOPIC=kafka://...``.

    Raises ConfigError.
    """
    topic, _, where = text.partition("=")
    if where.startswith(SCHEME) and topic:
        try:
            return topic, partial(_kafka, kafka_source_of(where))
        except ConfigError as problem:
            raise ConfigError(f"adapter: {topic}: {problem}", problem.problems) from None
    module, _, name = where.partition(":")
    if not (topic and module and name):
        raise ConfigError(
            f"adapter: {text!r}: allowed are TOPIC=MODULE:FUNCTION, and "
            f"TOPIC={SCHEME}HOST:PORT/NAME"
        )
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as problem:
        raise ConfigError(f"adapter: {text!r}: {problem}") from None
    return topic, found


class Adapters:
    """Beside an engine process: its adapters, attached as long as it runs."""

    def __init__(self, texts: tuple[str, ...], node: Any, store: TopologyStore) -> None:
        self._made = [made_by(text) for text in texts]
        self._made += [
            (each.topic, partial(_kafka, each.kafka)) for each in store.topology.adapters
        ]
        self._node = node

    def start(self) -> None:
        """Attach them. Raises what an adapter raises."""
        for topic, make in self._made:
            self._node.consumers.attached.attach(topic, make())

    def stop(self) -> None:
        """The node closes them."""
