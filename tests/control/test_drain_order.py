"""Nodes are drained and undrained under load: nothing acked is lost, and keys keep their order."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.control.test_link import control
from tests.support.control import Running
from tests.support.lab import Lab, Platform, multicast, open_lab, topology
from tests.support.ledger import (
    all_of,
    durable,
    first_deliveries_keep_order,
    log_is_whole,
    numbers_of,
    one_owner_at_a_time,
)
from tests.support.progress import progress_file

FIXTURES = (control,)
NODES, ROUNDS, LEASE_S = ("a", "b", "c"), 6, 2.0
TOPIC: dict[str, Any] = {"mode": "durable", "owner": "*", "queues": 2, "fsync_interval_ms": 5}


class Cluster:
    """Engine processes that share a directory of queues, and the service that drains them."""

    def __init__(self, lab: Lab, control: Running) -> None:
        self.control, self.shared = control, lab.directory / "shared"
        leases = {"directory": str(self.shared), "lease_s": LEASE_S}
        wire = multicast()
        self.engines: dict[str, Platform] = {}
        for name in NODES:
            settings = topology(wire, name=name, leases=leases)
            made = self.engines[name] = lab.platform(settings, start=False)
            token = {**os.environ, "TIDECAST_ENROL_TOKEN": control.enrol()}
            arguments = ("engine", "--control", control.url)
            made.engine = lab.spawn(*arguments, platform=made, env=token)
            assert "ready" in made.engine.line("the engine is ready")

    def ask(self, path: str) -> Any:
        return self.control.api.get(path).json()

    def knows_topics(self) -> bool:
        """Each engine has the topics: clients may open them."""
        nodes = self.ask("/nodes")["items"]
        return all(not each["status"]["drift"] for each in nodes)

    def keeper(self, topic: str) -> str:
        """The node that has the topic; empty: none, at this moment."""
        found = self.ask(f"/cluster/moves?topic={topic}&limit=1")["items"]
        return str(found[0]["to_node"]) if found else ""

    def drain(self, name: str, drained: bool) -> None:
        answer = self.control.api.patch(f"/nodes/{name}", json={"spec": {"drained": drained}})
        assert answer.status_code == 200, answer.text

    def is_empty(self, name: str) -> bool:
        return bool(self.ask(f"/cluster/nodes/{name}/drain")["empty"])


@pytest.mark.long
@pytest.mark.timeout(600)
def test_keys_keep_their_order_while_nodes_are_drained(
    control: Running, eventually: Eventually
) -> None:
    with open_lab() as lab:
        cluster = Cluster(lab, control)
        for topic in ("orders", "other"):
            assert control.api.put(f"/topics/{topic}", json={"spec": TOPIC}).status_code == 201
        eventually(cluster.knows_topics, "the topics at each engine", timeout_s=60)
        eventually(lambda: cluster.keeper("orders"), "an owner", timeout_s=60)
        seen = [lab.directory / f"seen by {name}" for name in NODES]
        for name, path in zip(NODES, seen, strict=True):
            lab.role("note", cluster.engines[name].url, "orders", str(path))
        progress = [progress_file(lab.directory / f"durable of {name}") for name in NODES]
        producers = []
        for mark, (name, path) in enumerate(zip(NODES, progress, strict=True)):
            url = cluster.engines[name].url
            producers.append(lab.role("keyed", url, "orders", str(mark), str(path), "0.05"))

        def more(before: list[int]) -> bool:
            return all(
                now > then + 100 for now, then in zip(durable(progress), before, strict=True)
            )

        eventually(lambda: more([0] * 3), "acked", timeout_s=60)
        owners = []
        for _ in range(ROUNDS):
            name = cluster.keeper("orders")
            owners.append(name)
            cluster.drain(name, True)
            eventually(lambda name=name: cluster.is_empty(name), f"{name} is empty", timeout_s=60)
            eventually(lambda: cluster.keeper("orders"), "the next owner", timeout_s=60)
            before = durable(progress)
            eventually(lambda before=before: more(before), "acked by the next", timeout_s=60)
            cluster.drain(name, False)
        for one in producers:
            one.tell("stop")
        last = [
            int(one.line("the producer's last ack").removeprefix("durable ")) for one in producers
        ]
        eventually(
            lambda: numbers_of(seen) >= all_of(last),
            "all are consumed",
            timeout_s=120,
        )
        moves = cluster.ask("/cluster/moves?topic=orders&limit=500")["items"][::-1]
        for engine in cluster.engines.values():
            engine.stop()
        assert len(set(owners)) > 1
        assert len(moves) > ROUNDS
        reasons = [each["reason"] for each in moves]
        assert reasons.count("the node is drained") >= ROUNDS // 2, reasons
        one_owner_at_a_time(moves)
        log_is_whole(cluster.shared, {**TOPIC, "name": "orders"}, last)
        first_deliveries_keep_order(seen)
