"""Peers of unicast transports: the nodes that an engine sends to, as their engines announce them.

A node is a peer from its first hello until it is quarantined, deleted, or its credential is
revoked; also while its engine is down, or its link is: packets do not depend on the service.
"""

from __future__ import annotations

import ipaddress
from typing import Any

from sqlmodel import Session

from tidecast_control.kit import repository as kit
from tidecast_control.nodes import repository
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.transports import repository as transports


def of_node(session: Session, node: str) -> dict[str, list[dict[str, Any]]]:
    """The peers of a node by transport, by name; transports with a list of their own are left out.

    An address on the loopback is for engines of the same host alone.
    """
    wanted = [
        row.name
        for row in transports.in_order(session)
        if row.spec["kind"] == "udp-unicast" and not row.spec["peers"]
    ]
    if not wanted:
        return {}
    states = repository.states(session)
    host = states[node].host if node in states else ""
    members = [
        states[row.name]
        for row in sorted(kit.all_of(session, "node"), key=lambda row: row.name)
        if row.name != node and row.name in states and not row.spec.get("quarantined")
    ]
    others = [each for each in members if each.credential or each.credential_next]
    return {
        name: [
            {"node": each.name, "node_id": each.node_id, **each.addresses[name]}
            for each in others
            if name in each.addresses and _reaches(host, each, each.addresses[name]["host"])
        ]
        for name in wanted
    }


def _reaches(host: str, other: NodeStateRow, address: str) -> bool:
    return other.host == host or not ipaddress.IPv4Address(address).is_loopback
