"""Simulated nodes of a sealed transport, and an intruder who records what they send."""

from __future__ import annotations

from typing import Any

from tidecast.layout import packet as wire
from tidecast.layout import sealed as lay
from tidecast.node.sealing.wire_keys import FILE_NAME, WireEpoch, WireKeys, save_wire_keys
from tidecast.testing import Network, SimulatedNode
from tidecast.testing.switch import Packet

FAR_NS = 1 << 61
"""A time that no test reaches, ns since 1970."""


def epoch(number: int, *, begins: bool = True, ends_ns: int = 0) -> WireEpoch:
    """An epoch that is active, or that begins far ahead."""
    return WireEpoch(
        epoch=number,
        secret_hex=f"{number:02x}" * 32,
        activate_at_ns=1 if begins else FAR_NS,
        retire_at_ns=ends_ns,
    )


def keys_of(*epochs: WireEpoch) -> WireKeys:
    """Of the transport that simulated nodes have."""
    return WireKeys(transports={"memory": list(epochs)})


FIRST = keys_of(epoch(1))


def sealed_node(
    net: Network,
    name: str,
    *,
    secure: str = "required",
    keys: WireKeys | None = FIRST,
    transport: dict[str, Any] | None = None,
    **settings: Any,
) -> SimulatedNode:
    """A node whose transport is sealed."""
    return net.node(
        name,
        transport={"secure": secure, **(transport or {})},
        wire_keys=keys,
        **({"topics": ["t"]} | settings),
    )


def give(net: Network, node: SimulatedNode, keys: WireKeys) -> None:
    """Replace a node's key file, and let the node see that."""
    save_wire_keys(keys, node.data_dir / FILE_NAME)
    net.run(1_200_000)


class Recorder:
    """Everything that passes the switch, by receiver."""

    def __init__(self, net: Network) -> None:
        self.packets: list[Packet] = []
        net.intercept(self._look)

    def _look(self, packet: Packet) -> None:
        self.packets.append(packet)

    def of(self, kind: int, target: int) -> list[Packet]:
        """Packets of a type to a node."""
        return [p for p in self.packets if p.type == kind and p.target == target]

    @property
    def versions(self) -> set[int]:
        return {packet.data[0] for packet in self.packets}


def is_control(kind: int) -> bool:
    """It goes to its publisher."""
    return kind in (wire.NAK, wire.STATUS, wire.ACK)


def number_of(packet: bytes) -> int:
    return int.from_bytes(packet[lay.NUMBER_AT : lay.NUMBER_AT + 8], "little")
