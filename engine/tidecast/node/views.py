"""What a node tells about itself, and fault injection: the part of `Node` that owns no state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tidecast.buffers.counters import CountersFile
from tidecast.config import FaultSettings, Topology
from tidecast.errors import ConfigError, NoResponders
from tidecast.layout import recorder as rec
from tidecast.node import sessions, tables
from tidecast.node.state import Image, Peer, Publication
from tidecast.node.transports import TransportRuntime
from tidecast.transport.faults import apply_faults


class NodeViews:
    """Base of `Node`: what it shows of itself."""

    id: int
    name: str
    lock: threading.RLock
    topology: Topology
    runtimes: dict[str, TransportRuntime]
    pubs: dict[int, Publication]
    images_by_id: dict[int, Image]
    peers: dict[int, Peer]
    faults: dict[str, FaultSettings]
    counters: CountersFile

    note: Callable[..., None]

    def node_id_of(self, name: str) -> int:
        """Id of a node by name."""
        if name == self.name:
            return self.id
        for peer in self.peers.values():
            if peer.name == name:
                return peer.id
        known = ", ".join(sorted(p.name for p in self.peers.values())) or "none"
        raise NoResponders(f"no node {name!r} was seen: known are {known}")

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
            cut = [self._cut_node(name) for name in faults.partition]
            delay_ns = int(faults.delay_us * 1000)
            runtime.on_receiver(
                lambda: apply_faults(
                    runtime.rx_state.faults,
                    drop=faults.drop,
                    duplicate=faults.duplicate,
                    reorder=faults.reorder,
                    corrupt=faults.corrupt,
                    delay_ns=delay_ns,
                    cut_nodes=[n for n in cut if n != self.id],
                    seed=faults.seed,
                )
            )
            sessions.set_refused(
                runtime, [*self.topology.node.quarantined, *(n for n in cut if n != self.id)]
            )
            self.faults[config.name] = faults
            self.note(
                rec.ALERT,
                rec.Code.FAULTS_CHANGED,
                runtime.index,
                round(faults.drop * 1e6),
                delay_ns,
                faults.seed,
            )

    def _cut_node(self, name: str) -> int:
        return int(name) if name.isdigit() else self.node_id_of(name)

    def get_faults(self) -> dict[str, FaultSettings]:
        """Fault injection by transport."""
        return {name: self.faults.get(name, FaultSettings()) for name in self.runtimes}

    def stats(self) -> dict[str, Any]:
        """Counters of every entity that has one, by kind and name."""
        return tables.stats(self.counters)

    def publications(self) -> list[dict[str, Any]]:
        """One mapping a publication."""
        with self.lock:
            return [tables.publication_row(p) for p in self.pubs.values()]

    def images(self) -> list[dict[str, Any]]:
        """One mapping an image."""
        with self.lock:
            return [tables.image_row(i) for i in self.images_by_id.values()]

    def receivers(self) -> list[dict[str, Any]]:
        """One mapping a receiver of a publication of this node."""
        with self.lock:
            return [r for p in self.pubs.values() for r in tables.receiver_rows(self.peers, p)]
