"""What a topology may say and seldom means, each with what to do about it."""

from __future__ import annotations

from tidecast.config.topology import Topology


def topology_warnings(topology: Topology) -> list[str]:
    """As problems are named: the field, then the rest."""
    return [
        f"transports[{i}].peers: none: {each.name} sends to nobody, and only receives: name the "
        "other engines as host:port if this one publishes"
        for i, each in enumerate(topology.transports)
        if each.sends_to_nobody
    ]
