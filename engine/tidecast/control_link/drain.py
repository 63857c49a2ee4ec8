"""Resources of a node that a drain moves, and that stay: for `tidecast cluster drain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidecast.config.internal import is_internal
from tidecast.config.leases import SHARED

if TYPE_CHECKING:
    from tidecast.node.node import Node

STAYS_MAX = 1000
"""Things that stay, of which the names are sent; `stays_total` counts all."""
_OPEN = "live publications of clients of this node: they end when the clients close"


def drain_state(node: Node) -> dict[str, Any]:
    """Leased topics that the node still has, resources that stay, and the newest moves."""
    leases = node.durable.leases
    keeps, stays = sorted(leases.holds()), [each._asdict() for each in leases.stays()]
    kept = {each["name"] for each in stays}
    stays += _topics(node) + _publications(node)
    return {
        "drained": leases.drained,
        "empty": leases.drained and not keeps,
        "keeps": keeps,
        "moving": [name for name in keeps if name not in kept] if leases.drained else [],
        "stays": stays[:STAYS_MAX],
        "stays_total": len(stays),
        "moves": [each._asdict() for each in list(leases.moves)],
    }


def _topics(node: Node) -> list[dict[str, str]]:
    """Durable topics without a lease: their queues are on this node alone."""
    reason = "its queues are in the directory of this node alone: owner is not *"
    return [
        {"kind": "topic", "name": topic.name, "reason": reason}
        for topic in node.topics()
        if topic.mode == "durable"
        and topic.owner != SHARED
        and not is_internal(topic.name)
        and topic.name in node.durable.topics
    ]


def _publications(node: Node) -> list[dict[str, str]]:
    """Live topics that clients of this node publish to."""
    live = {topic.name for topic in node.topics() if topic.mode != "durable"}
    open_here: dict[str, int] = {}
    for row in node.publications():
        name = str(row["topic"])
        if name in live and not is_internal(name):
            open_here[name] = open_here.get(name, 0) + 1
    return [
        {"kind": "publication", "name": name, "reason": f"{count} {_OPEN}"}
        for name, count in sorted(open_here.items())
    ]
