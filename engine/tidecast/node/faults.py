"""Fault injection, and the nodes whose packets are refused."""

from __future__ import annotations

from functools import partial

from tidecast.config.topology import NODE_ID_MAX, FaultSettings
from tidecast.errors import ConfigError
from tidecast.layout import recorder as rec
from tidecast.node.context import NodeContext
from tidecast.node.live.transports import TransportRuntime, node_bits
from tidecast.transport.faults import apply_faults


class Faults:
    """Fault injection by transport. A node that is cut off by name is cut off once it is known."""

    def __init__(self, ctx: NodeContext) -> None:
        self._ctx = ctx
        self._of: dict[str, FaultSettings] = {}

    def set(self, transport: str, faults: FaultSettings) -> None:
        """Inject faults into a transport that allows it."""
        with self._ctx.lock:
            config = self._ctx.topology.transport(transport)
            lanes = self._ctx.runtimes.of(config.name)
            if not lanes:
                raise ConfigError(f"transport {config.name}: kind {config.kind} has no packets")
            if faults.any and not config.allow_faults:
                raise ConfigError(
                    f"transport {config.name}: allow_faults is off: set `allow_faults: true` for "
                    "it in the topology if this is a place for tests"
                )
            cut = self._cut_nodes(faults)
            for runtime in lanes:
                runtime.on_receiver(partial(_apply, runtime, faults, cut))
                runtime.refuse([*self._ctx.topology.node.quarantined, *cut])
            self._of[config.name] = faults
            self._ctx.note(
                rec.ALERT,
                rec.Code.FAULTS_CHANGED,
                lanes[0].index,
                round(faults.drop * 1e6),
                int(faults.delay_us * 1000),
                faults.seed,
            )

    def _cut_nodes(self, faults: FaultSettings) -> list[int]:
        """The ids of a partition: not this node's, and of names only the known names."""
        ids = {int(name) for name in faults.partition if name.isdigit()}
        wrong = [n for n in ids if not 1 <= n <= NODE_ID_MAX]
        if wrong:
            raise ConfigError(
                f"faults.partition: {wrong[0]}: allowed are names of nodes, ids 1..{NODE_ID_MAX}"
            )
        names = dict(self._ctx.names)
        ids.update(node_id for node_id in names if names[node_id] in faults.partition)
        return sorted(ids - {self._ctx.id})

    def name_seen(self, name: str) -> None:
        """A node has reported its name: cut it off where a partition waits for it."""
        with self._ctx.lock:
            for transport, faults in list(self._of.items()):
                if name in faults.partition:
                    self.set(transport, faults)

    def by_transport(self) -> dict[str, FaultSettings]:
        """Fault injection by transport."""
        return {name: self._of.get(name, FaultSettings()) for name in self._ctx.runtimes}


def _apply(runtime: TransportRuntime, faults: FaultSettings, cut: list[int]) -> None:
    """In the receiver's thread. Lanes draw different numbers."""
    apply_faults(
        runtime.rx_state.faults,
        drop=faults.drop,
        duplicate=faults.duplicate,
        reorder=faults.reorder,
        corrupt=faults.corrupt,
        delay_ns=int(faults.delay_us * 1000),
        cut_nodes=cut,
        seed=faults.seed + runtime.lane.number,
    )


def set_quarantine(runtime: TransportRuntime, node_ids: list[int]) -> None:
    """Refuse all packets of these nodes; their receivers hold no publication back."""
    bits = node_bits(node_ids)

    def put() -> None:
        runtime.rx_state.quarantine[:] = bits

    runtime.on_receiver(put)
    runtime.refuse(node_ids)
    runtime.drop_receivers(node_ids)
