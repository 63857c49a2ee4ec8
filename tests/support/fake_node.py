"""A node without agents: what the admission server and the command line need, in memory.

`python -m tests.support.fake_node DATA_DIR` runs an engine process with one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.api.node import LeftBehind
from tidecast.buffers.counters import CountersFile
from tidecast.config.topology import (
    FaultSettings,
    TopicConfig,
    Topology,
    topology_from,
    with_identity,
)
from tidecast.errors import Conflict, NoResponders, NotFound
from tidecast.events import Event
from tidecast.layout.ring import DOORBELL_BYTES, DOORBELL_FIRST_CLIENT, DOORBELLS_MAX
from tidecast.native.mapped import MappedFile


class FakeConsumers:
    """Refuses all durable consumers; lists topics."""

    def __init__(self, topics: Callable[[], list[TopicConfig]]) -> None:
        self._topics = topics

    def open_consumer(
        self, client_id: int, pattern: str, name: str, options: ConsumerOptions
    ) -> ConsumerGrant:
        raise NotFound(f"no topic {pattern}")

    def close_consumer(self, client_id: int, consumer_id: int) -> None:
        raise NotFound(f"no consumer {consumer_id}")

    def perform(self, action: str, arguments: dict[str, Any]) -> Any:
        rows = msgspec.to_builtins(self._topics()) if action == "topics" else []
        return {"rows": rows, "next": None}


class FakeKafka:
    """No Kafka endpoint."""

    def perform(self, action: str, arguments: dict[str, Any]) -> Any:
        raise NotFound("this engine has no Kafka endpoint")


class FakeNode:
    """Records what it is asked; raises what it is told to (`fail`)."""

    def __init__(
        self, topology: Topology, data_dir: Path, inline: bool = False, clock: Any = None
    ) -> None:
        self.topology = with_identity(topology_from(topology), data_dir)
        self.id, self.name = self.topology.node.id, self.topology.node.name
        self.incarnation = 77
        self.left_behind = LeftBehind()
        shm = data_dir / "shm"
        self.bells_path = shm / "bells"
        self.counters_path, self.recorder_path = shm / "counters", shm / "recorder"
        self.consumers = FakeConsumers(self.topics)
        self.kafka = FakeKafka()
        self.on_events: Callable[[int], None] | None = None
        self.fail: Exception | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.gone: list[int] = []
        self.started = False
        self._topics = {t.name: t for t in self.topology.topics}
        self._faults = {t.name: FaultSettings() for t in self.topology.transports}
        self._events: dict[int, list[Event]] = {}
        self._next = 1
        self._lock = threading.Lock()

    def start(self) -> None:
        self.bells_path.unlink(missing_ok=True)
        MappedFile.create(self.bells_path, DOORBELLS_MAX * DOORBELL_BYTES)
        CountersFile.create(self.counters_path)
        self.started = True

    def stop(self) -> None:
        self.started = False
        self.bells_path.unlink(missing_ok=True)

    @property
    def level(self) -> int:
        return self.topology.level

    def attach(self, name: str, *, outlives: bool = False) -> int:
        with self._lock:
            client, self._next = self._next, self._next + 1
            self._events[client] = []
            self.calls.append(("attach", name))
            return client

    def end(self) -> None:
        pass

    def client_gone(self, client_id: int) -> None:
        self.gone.append(client_id)
        self._events.pop(client_id, None)

    def doorbell(self, client_id: int) -> int:
        return DOORBELL_FIRST_CLIENT + client_id

    def set_events_hook(self, hook: Callable[[int], None] | None) -> None:
        self.on_events = hook

    def emit(self, client_id: int, *events: Event) -> None:
        self._events[client_id].extend(events)
        if self.on_events is not None:
            self.on_events(client_id)

    def take_events(self, client_id: int) -> list[Event]:
        taken, self._events[client_id] = self._events[client_id], []
        return taken

    def open_publication(
        self, client_id: int, topic: str, options: PublicationOptions
    ) -> PublicationGrant:
        self._note("open_publication", client_id, topic, options)
        return PublicationGrant(
            publication_id=5,
            ring_path="ring",
            topic=topic,
            session=9,
            reliability="reliable",
            flow="min",
        )

    def begin_publication(self, client_id: int, publication_id: int) -> None:
        self._note("begin_publication", client_id, publication_id)

    def keep_publication(self, client_id: int, publication_id: int) -> None:
        self._note("keep_publication", client_id, publication_id)

    def close_publication(self, client_id: int, publication_id: int) -> None:
        self._note("close_publication", client_id, publication_id)

    def open_subscription(
        self, client_id: int, pattern: str, options: SubscriptionOptions
    ) -> SubscriptionGrant:
        self._note("open_subscription", client_id, pattern, options)
        return SubscriptionGrant(subscription_id=3, subscriber_id=4, pattern=pattern)

    def close_subscription(self, client_id: int, subscription_id: int) -> None:
        self._note("close_subscription", client_id, subscription_id)

    def release_image(self, client_id: int, subscription_id: int, image_id: int) -> None:
        self._note("release_image", client_id, subscription_id, image_id)

    def node_id_of(self, name: str) -> int:
        if name != self.name:
            raise NoResponders(f"no node {name}")
        return self.id

    def stats(self) -> dict[str, Any]:
        import numpy as np

        return {"node": {"packets_sent": np.int64(3), "ratio": np.float64(0.5)}}

    def publications(self) -> list[dict[str, Any]]:
        return [{"topic": "a", "session": 9}]

    def images(self) -> list[dict[str, Any]]:
        return []

    def discovered(self) -> list[dict[str, Any]]:
        return []

    def receivers(self) -> list[dict[str, Any]]:
        return []

    def topics(self) -> list[TopicConfig]:
        return list(self._topics.values())

    def create_topic(self, topic: TopicConfig) -> None:
        if topic.name in self._topics:
            raise Conflict(f"topic {topic.name} exists already")
        self._note("create_topic", topic.name)
        self._topics[topic.name] = topic

    def edit_topic(self, name: str, changes: dict[str, Any]) -> None:
        self._note("edit_topic", name, changes)
        self._topics[name] = msgspec.structs.replace(self._topics[name], **changes)

    def delete_topic(self, name: str, *, keep_data: bool = False) -> None:
        if self._topics.pop(name, None) is None:
            raise NotFound(f"no topic {name}")
        self._note("delete_topic", name)

    def set_faults(self, transport: str, faults: FaultSettings) -> None:
        if transport not in self._faults:
            raise NotFound(f"no transport {transport}")
        self._faults[transport] = faults

    def get_faults(self) -> dict[str, FaultSettings]:
        return dict(self._faults)

    def _note(self, *call: Any) -> None:
        if self.fail is not None:
            raise self.fail
        self.calls.append(call)


def main(data_dir: Path) -> None:
    from tidecast.engine.process import run_engine

    def on_ready(*_: Any) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    run_engine(data_dir, None, on_ready=on_ready, node_factory=FakeNode)
    sys.stdout.write("stopped\n")
    sys.stdout.flush()
    if "--linger" in sys.argv:
        sys.stdin.read()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
