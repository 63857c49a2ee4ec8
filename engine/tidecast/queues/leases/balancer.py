"""Queue balancers: queue -> node, as pure functions of data that is the same on all nodes.

Each takes the number of queues and the nodes, and returns for each node the queues that it should
read, ascending. The counts of two nodes differ by at most one, unless a balancer documents another
rule. A plan is only a wish: leases (`tidecast.queues.leases.store`) decide which node may read and
append, also while two nodes have different plans.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection

from tidecast.queues.mapper import hash_of

RING_POINTS = 30
"""Points of a node on the consistent ring."""

Plan = dict[str, tuple[int, ...]]
"""Node -> its queues, ascending. Every node has an entry."""


def targets(queues: int, nodes: Collection[str]) -> dict[str, int]:
    """Number of queues that each node should hold: equal shares; the first nodes get one more."""
    if not nodes:
        return {}
    share, extra = divmod(queues, len(set(nodes)))
    return {node: share + (i < extra) for i, node in enumerate(sorted(set(nodes)))}


def best_fit(queues: int, nodes: Collection[str], active: Collection[str]) -> Plan:
    """Runs of neighbouring queues over all configured ``nodes``.

    The queues of nodes that are not ``active`` go to the least loaded nodes, so a node that leaves
    or comes back moves its own queues and no others. Active nodes that are not configured get no
    queue.
    """
    plan: dict[str, list[int]] = {}
    first = 0
    for node, count in targets(queues, nodes).items():
        plan[node] = list(range(first, first + count))
        first += count
    orphans = [q for node in list(plan) if node not in active for q in plan.pop(node)]
    if plan:
        for queue in orphans:
            plan[min(plan, key=lambda node: (len(plan[node]), node))].append(queue)
    return {node: tuple(sorted(held)) for node, held in plan.items()}


def static(queues: int, nodes: Collection[str], active: Collection[str]) -> Plan:
    """The plan over all configured ``nodes``, active or not; the part of the active nodes.

    The queues of a node that left wait for it.
    """
    plan = best_fit(queues, nodes, nodes)
    return {node: held for node, held in plan.items() if node in active}


def consistent_ring(queues: int, _nodes: Collection[str], active: Collection[str]) -> Plan:
    """Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam 2016).

    A queue goes to the next point on a ring whose node has room, so most queues stay when any node
    comes or goes, and no node needs to be configured.
    """
    names = sorted(set(active))
    if not names:
        return {}
    points = sorted((_point(f"{node}#{i}"), node) for node in names for i in range(RING_POINTS))
    at = [point for point, _ in points]
    share, extra = divmod(queues, len(names))
    plan: dict[str, list[int]] = {node: [] for node in names}
    for queue in sorted(range(queues), key=lambda q: (_point(f"queue {q}"), q)):
        start = bisect_right(at, _point(f"queue {queue}"))
        for i in range(len(points)):
            held = plan[points[(start + i) % len(points)][1]]
            if len(held) < share or (len(held) == share and extra > 0):
                extra -= len(held) == share
                held.append(queue)
                break
    return {node: tuple(sorted(held)) for node, held in plan.items()}


def _point(name: str) -> int:
    return hash_of(name.encode())


Balancer = Callable[[int, Collection[str], Collection[str]], Plan]
BALANCERS: dict[str, Balancer] = {
    "best-fit": best_fit,
    "consistent-ring": consistent_ring,
    "static": static,
}
"""By the name that a topology gives. The fourth way, `leases`, has no plan: see `LeaseKeeper`."""
