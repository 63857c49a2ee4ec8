"""Durable traffic on the hosts of a cluster, and its account at the end."""

from __future__ import annotations

from typing import Any

from tests.conftest import Eventually
from tests.support.builds import NEW, Build
from tests.support.hosts.cluster import LEASE_S, Cluster, transport
from tests.support.lab import topology
from tests.support.ledger import (
    all_of,
    durable,
    first_deliveries_keep_order,
    log_is_whole,
    numbers_of,
    one_owner_at_a_time,
)
from tests.support.process import Child
from tests.support.progress import progress_file

TIMEOUT_S = 90.0
TOPIC: dict[str, Any] = {"mode": "durable", "owner": "*", "queues": 2, "fsync_interval_ms": 5}


class Traffic:
    """Producers and consumers of a topic at each host."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        home = cluster.hosts[0].directory
        self.seen = [home / f"seen by {host.name}" for host in cluster.hosts]
        self.progress = [progress_file(home / f"durable of {h.name}") for h in cluster.hosts]
        for host, path in zip(cluster.hosts, self.seen, strict=True):
            host.role("note", host.node.url, topic, str(path))
        self.producers: list[Child] = []
        for mark, (host, path) in enumerate(zip(cluster.hosts, self.progress, strict=True)):
            made = host.role("keyed", host.node.url, topic, str(mark), str(path), "0.05")
            self.producers.append(made)

    def more(self, before: list[int], but: int = -1) -> bool:
        """Each producer, save one, had more acked than ``before``."""
        now = durable(self.progress)
        return all(now[i] > before[i] + 100 for i in range(len(now)) if i != but)

    def stop(self) -> list[int]:
        """All is published and durable; the last number of each producer."""
        for one in self.producers:
            one.tell("stop")
        return [
            int(one.line("the producer's last ack").removeprefix("durable "))
            for one in self.producers
        ]


def begin(
    cluster: Cluster, eventually: Eventually, builds: dict[str, Build] | None = None
) -> Traffic:
    """Service, engines, the topic, and traffic on it. ``builds``: of hosts, by name."""
    wire = transport()
    service = cluster.serve(
        topology(wire, {"name": "ipc", "kind": "ipc"}), next(iter((builds or {}).values()), None)
    )
    service.tell("POST", "/transports/multicast/keys/rotate?at_once=true")
    shared = cluster.hosts[0].directory / "shared"
    settings = topology(wire, leases={"directory": str(shared), "lease_s": LEASE_S})
    for host in cluster.hosts:
        cluster.join(host, settings, build=(builds or {}).get(host.name, NEW))
    service.tell("PUT", "/topics/orders", {"spec": TOPIC})
    eventually(lambda: knows_topics(cluster), "the topic at each engine", timeout_s=TIMEOUT_S)
    eventually(lambda: service.keeper("orders"), "an owner", timeout_s=TIMEOUT_S)
    traffic = Traffic(cluster, "orders")
    eventually(lambda: traffic.more([0] * len(cluster.hosts)), "acked", timeout_s=TIMEOUT_S)
    return traffic


def knows_topics(cluster: Cluster) -> bool:
    """Each engine has the topics of the service."""
    nodes = cluster.service.ask("/nodes")["items"]
    return len(nodes) == len(cluster.hosts) and all(not n["status"]["drift"] for n in nodes)


def end(cluster: Cluster, traffic: Traffic, eventually: Eventually) -> list[Any]:
    """Nothing acked is lost, each is stored once, keys keep their order; the owners' moves."""
    last = traffic.stop()
    wanted = all_of(last)
    eventually(lambda: numbers_of(traffic.seen) >= wanted, "all are consumed", timeout_s=TIMEOUT_S)
    moves = cluster.service.ask("/cluster/moves?topic=orders&limit=500")["items"][::-1]
    for host in cluster.hosts:
        host.node.stop()
    shared = cluster.hosts[0].directory / "shared"
    one_owner_at_a_time(moves)
    log_is_whole(shared, {**TOPIC, "name": "orders"}, last)
    first_deliveries_keep_order(traffic.seen)
    return moves
