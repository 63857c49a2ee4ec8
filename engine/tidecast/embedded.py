"""A node inside the client's process: `EmbeddedLink` is a `Link` that calls it directly."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tidecast.sync
from tidecast.agents.warmup import needed, warm_up
from tidecast.api.link import (
    ConsumerGrant,
    ConsumerOptions,
    Link,
    PublicationGrant,
    PublicationOptions,
    SubscriptionGrant,
    SubscriptionOptions,
)
from tidecast.api.logs import Logs, Report
from tidecast.client.log.sources import LocalLogs
from tidecast.config.sources.storage import storage_name
from tidecast.config.store import TopologyStore
from tidecast.config.topology import (
    TopicConfig,
    Topology,
    load_topology,
    own_topology,
    topology_from,
    with_identity,
)
from tidecast.events import Event
from tidecast.native.predicates import Predicate
from tidecast.node.administration import Administration
from tidecast.node.node import Node
from tidecast.node.storing.service import Storage, Takeover
from tidecast.node.storing.spool import Spool
from tidecast.queues.adapter import Adapter
from tidecast.scratch import drop_scratch, scratch_directory

if TYPE_CHECKING:
    from tidecast.client.blocking import Connection

_PREFIX = "tidecast-embedded-"


def connect_to(node: Node, of_engine: bool) -> Connection:
    """A connection of the node's own. ``of_engine``: its records may say where they come from."""
    link = EmbeddedLink(node, "dead letters", owns_node=False, of_engine=of_engine)
    link.of_engine = True  # a letter of a letter has reserved names still
    return tidecast.sync.connect(link=link)


class KnownStorages:
    """The storages beside the logs of topics. Their packages stand above node."""

    def _module(self, storage: str, name: str) -> Any:
        package = {"Kafka": "kafka.storing", "JetStream": "jetstream.storing"}
        return importlib.import_module(f"tidecast.{package[storage_name(storage)]}.{name}")

    def open(self, spool: Spool) -> Storage:
        """See `Storages`."""
        storage: Storage = self._module(spool.storage, "storage").open_storage(spool)
        return storage

    def take_over(
        self, config: TopicConfig, node: str, queues: Path, owner: int, now_ns: int
    ) -> Takeover:
        """See `Storages`."""
        module = self._module(config.storage, "takeover")
        takeover: Takeover = module.open_takeover(config, node, queues, owner, now_ns)
        return takeover


class EmbeddedLink(Link):
    """A session with a node of this process. See `tidecast.api.link.Link`."""

    def __init__(
        self,
        node: Node,
        name: str,
        *,
        owns_node: bool,
        of_engine: bool = False,
        store: TopologyStore | None = None,
    ) -> None:
        """``store``: where topics are saved that this client changes; None: nowhere."""
        self.node = node
        self._store = store or TopologyStore(node.topology, None)
        self._owns = owns_node
        self._scratch: tuple[Path, int] | None = None
        self._closed = False
        self._work_lock = threading.Lock()
        self.of_engine = of_engine
        self.client_id = node.attach(name, of_engine=of_engine)
        self.node_id, self.node_name, self.incarnation = node.id, node.name, node.incarnation
        self.inline = node.inline
        self.doorbell, self.bells = node.doorbell(self.client_id), node.bells

    @classmethod
    def open(
        cls,
        topology: Topology | Mapping[str, Any] | Path | str | None = None,
        *,
        mode: str = "threads",
        name: str = "embedded",
        data_dir: Path | None = None,
        adapters: Mapping[str, Adapter] | None = None,
    ) -> EmbeddedLink:
        """Start a node in this process and attach to it.

        ``topology``: a checked one, a mapping as in YAML, a YAML file, or None: `own_topology`.
        ``mode``: ``threads``, or ``inline``: no threads; the agents run whenever this client
        polls, publishes or waits. ``adapters``: by name, topics whose queues they are.
        Without ``data_dir`` a temporary directory is used. Raises ConfigError, NotFound, Conflict.
        """
        if topology is None:
            topology = own_topology()
        elif isinstance(topology, str | Path):
            topology = load_topology(Path(topology))
        elif not isinstance(topology, Topology):
            topology = topology_from(topology)
        warm_up(names=needed(topology, inline=mode == "inline"))
        scratch = None
        if data_dir is None:
            scratch = scratch_directory(_PREFIX)
            data_dir, _ = scratch
        node = Node(
            with_identity(topology, data_dir),
            data_dir,
            mode == "inline",
            connect=connect_to,
            storages=KnownStorages(),
        )
        try:
            node.start()
            for topic, adapter in (adapters or {}).items():
                node.consumers.attached.attach(topic, adapter)
        except BaseException:
            node.stop()
            if scratch is not None:
                drop_scratch(*scratch)
            raise
        link = cls(node, name, owns_node=True)
        link._scratch = scratch
        atexit.register(link.close)
        return link

    def open_publication(self, topic: str, options: PublicationOptions) -> PublicationGrant:
        """See `Link`."""
        return self.node.open_publication(self.client_id, topic, options)

    def begin_publication(self, publication_id: int) -> None:
        """See `Link`."""
        self.node.begin_publication(self.client_id, publication_id)

    def keep_publication(self, publication_id: int) -> None:
        """See `Link`."""
        self.node.keep_publication(self.client_id, publication_id)

    def close_publication(self, publication_id: int) -> None:
        """See `Link`."""
        self.node.close_publication(self.client_id, publication_id)

    def open_subscription(self, pattern: str, options: SubscriptionOptions) -> SubscriptionGrant:
        """See `Link`."""
        return self.node.open_subscription(self.client_id, pattern, options)

    def close_subscription(self, subscription_id: int) -> None:
        """See `Link`."""
        self.node.close_subscription(self.client_id, subscription_id)

    def release_image(self, subscription_id: int, image_id: int) -> None:
        """See `Link`."""
        self.node.release_image(self.client_id, subscription_id, image_id)

    def offer_filter(self, function: Callable[[Any, Any, int], bool]) -> str:
        """See `Link`."""
        predicate = Predicate(function)
        self.node.consumers.offer(predicate)
        return predicate.digest

    def open_consumer(self, pattern: str, name: str, options: ConsumerOptions) -> ConsumerGrant:
        """See `Link`."""
        return self.node.consumers.open_consumer(self.client_id, pattern, name, options)

    def close_consumer(self, consumer_id: int) -> None:
        """See `Link`."""
        self.node.consumers.close_consumer(self.client_id, consumer_id)

    def administer(self, action: str, arguments: dict[str, Any]) -> Any:
        """See `Link`."""
        return Administration(self.node, self._store).perform(action, arguments)

    def take_events(self) -> list[Event]:
        """See `Link`."""
        return self.node.take_events(self.client_id)

    def sync(self) -> None:
        """See `Link`: the node's events are there at once."""

    def open_logs(self, topic: str, report: Report) -> Logs:
        """See `Link`: the files of the node."""
        return LocalLogs(self.node.data_dir, topic, report)

    def node_id_of(self, name: str) -> int:
        """See `Link`."""
        return self.node.node_id_of(name)

    def stats(self) -> dict[str, Any]:
        """See `Link`."""
        return self.node.stats()

    def work(self) -> int:
        """See `Link`."""
        if not self.inline:
            return 0
        with self._work_lock:
            return self.node.work()

    @property
    def agents(self) -> tuple[Any, Any] | None:
        """(kernel, arguments) that runs the agents once inside a compiled loop, when inline."""
        from tidecast.agents.run import inline_agents

        runtimes = list(self.node.runtimes.values())
        if not self.inline or len(runtimes) != 1 or self.node.durable.registry.active:
            return None
        return inline_agents, runtimes[0].inline_arguments

    def close(self) -> None:
        """See `Link`; a node that was opened with this link stops with it."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(Exception):
            atexit.unregister(self.close)
        self.node.client_gone(self.client_id)
        if self._owns:
            self.node.stop()
        if self._scratch is not None:
            drop_scratch(*self._scratch)
