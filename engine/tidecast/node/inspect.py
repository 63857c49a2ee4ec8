"""What a node tells about itself, and fault injection: the part of `Node` that owns no state."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from tidecast import events as ev
from tidecast.agents.run import ring_bell_line
from tidecast.buffers.counters import CountersFile
from tidecast.config.topology import NODE_ID_MAX, FaultSettings, Topology
from tidecast.errors import ConfigError, NoResponders
from tidecast.layout import counters as cl
from tidecast.layout import recorder as rec
from tidecast.native.mapped import MappedFile
from tidecast.node.live import agent_tables, sessions
from tidecast.node.live.indexed import Indexed
from tidecast.node.live.transports import TransportRuntime
from tidecast.node.state import Client, Image, Publication
from tidecast.transport.faults import apply_faults


class NodeViews:
    """Base of `Node`: what it shows of itself."""

    id: int
    name: str
    lock: threading.RLock
    topology: Topology
    runtimes: dict[str, TransportRuntime]
    pubs: Indexed[Publication]
    images_by_id: Indexed[Image]
    names: dict[int, str]
    faults: dict[str, FaultSettings]
    counters: CountersFile

    clients: dict[int, Client]
    node_row: int
    _bells: MappedFile
    on_events: Callable[[int], None] | None
    on_source_gone: Callable[[Publication | Image], None] | None

    note: Callable[..., None]

    @property
    def bells(self) -> np.ndarray:
        """The doorbell file's bytes."""
        return self._bells.array

    def tell(self, client_id: int, event: ev.Event) -> None:
        """Queue an event for a client and ring its bell."""
        client = self.clients.get(client_id)
        if client is None:
            return
        if len(client.events) == client.events.maxlen:
            self.counters.values[self.node_row, cl.NodeCounter.EVENTS_LOST] += 1
        client.events.append(msgspec.structs.replace(event, at_ns=time.time_ns()))
        ring_bell_line(self.bells, client.doorbell)
        if self.on_events is not None:
            self.on_events(client_id)

    def tell_all(self, event: ev.Event) -> None:
        """Queue an event for every client."""
        for client_id in list(self.clients):
            self.tell(client_id, event)

    def take_events(self, client_id: int) -> list[ev.Event]:
        """What happened since the call before."""
        client = self.clients.get(client_id)
        if client is None:
            return []
        taken = []
        with contextlib.suppress(IndexError):
            while True:
                taken.append(client.events.popleft())
        return taken

    def source_gone(self, source: Publication | Image) -> None:
        """A publication or image is about to end: its counters can still be read."""
        if self.on_source_gone is not None:
            self.on_source_gone(source)

    def node_id_of(self, name: str) -> int:
        """Id of a node by name, of two the one that came last. Raises NoResponders.

        Names travel with what a node publishes, and with the reports of what it receives.
        """
        if name == self.name:
            return self.id
        names = dict(self.names)
        for node_id in reversed(names):
            if names[node_id] == name:
                return node_id
        known = ", ".join(sorted(names.values())) or "none"
        unnamed = {row["node_id"] for row in self.receivers()} - names.keys()
        numbers = ", ".join(map(str, sorted(unnamed)))
        hint = f"; receivers whose names are not known yet: give their id, {numbers}" * bool(
            numbers
        )
        raise NoResponders(f"no node {name!r} was seen: known are {known}{hint}")

    def set_faults(self, transport: str, faults: FaultSettings) -> None:
        """Inject faults into a transport that allows it."""
        with self.lock:
            config = self.topology.transport(transport)
            runtime = self.runtimes.get(config.name)
            if runtime is None:
                raise ConfigError(f"transport {config.name}: kind {config.kind} has no packets")
            if faults.any and not config.allow_faults:
                raise ConfigError(
                    f"transport {config.name}: allow_faults is off: set `allow_faults: true` for "
                    "it in the topology if this is a place for tests"
                )
            cut = self._cut_nodes(faults)
            delay_ns = int(faults.delay_us * 1000)
            runtime.on_receiver(
                lambda: apply_faults(
                    runtime.rx_state.faults,
                    drop=faults.drop,
                    duplicate=faults.duplicate,
                    reorder=faults.reorder,
                    corrupt=faults.corrupt,
                    delay_ns=delay_ns,
                    cut_nodes=cut,
                    seed=faults.seed,
                )
            )
            sessions.set_refused(runtime, [*self.topology.node.quarantined, *cut])
            self.faults[config.name] = faults
            self.note(
                rec.ALERT,
                rec.Code.FAULTS_CHANGED,
                runtime.index,
                round(faults.drop * 1e6),
                delay_ns,
                faults.seed,
            )

    def _cut_nodes(self, faults: FaultSettings) -> list[int]:
        """The ids of a partition: not this node's, and of names those that are known already."""
        ids = {int(name) for name in faults.partition if name.isdigit()}
        wrong = [n for n in ids if not 1 <= n <= NODE_ID_MAX]
        if wrong:
            raise ConfigError(
                f"faults.partition: {wrong[0]}: allowed are names of nodes, ids 1..{NODE_ID_MAX}"
            )
        names = dict(self.names)
        ids.update(node_id for node_id in names if names[node_id] in faults.partition)
        return sorted(ids - {self.id})

    def name_seen(self, name: str) -> None:
        """A node has told its name: cut it off where a partition waits for it."""
        with self.lock:
            for transport, faults in list(self.faults.items()):
                if name in faults.partition:
                    self.set_faults(transport, faults)

    def get_faults(self) -> dict[str, FaultSettings]:
        """Fault injection by transport."""
        return {name: self.faults.get(name, FaultSettings()) for name in self.runtimes}

    def stats(self) -> dict[str, Any]:
        """Counters of every entity that has one, by kind and name."""
        return agent_tables.stats(self.counters)

    def publications(self) -> list[dict[str, Any]]:
        """One mapping a publication."""
        with self.lock:
            return [agent_tables.publication_row(p) for p in self.pubs.values()]

    def images(self) -> list[dict[str, Any]]:
        """One mapping an image."""
        with self.lock:
            return [agent_tables.image_row(i) for i in self.images_by_id.values()]

    def receivers(self) -> list[dict[str, Any]]:
        """One mapping a receiver of a publication of this node."""
        with self.lock:
            return [
                r for p in self.pubs.values() for r in agent_tables.receiver_rows(self.names, p)
            ]
