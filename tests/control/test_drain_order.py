"""Nodes are drained and undrained under load: nothing acked is lost, and keys keep their order."""

from __future__ import annotations

import itertools
import os
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.control.test_link import control
from tests.support.control import Running
from tests.support.durable import rows_of
from tests.support.lab import Lab, Platform, multicast, open_lab, topology
from tests.support.roles import KEYS, MARKED, NUMBER
from tidecast.config.topology import TopicConfig
from tidecast.node.durable.topic import DurableTopic

FIXTURES = (control,)
NODES, ROUNDS, LEASE_S = ("a", "b", "c"), 6, 2.0
TOPIC: dict[str, Any] = {"mode": "durable", "owner": "*", "queues": 2, "fsync_interval_ms": 5}
NOTED = struct.Struct("<QQQ")
"""When a consumer got a record; its producer; its number."""


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
            assert "ready" in made.engine.line()

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
        progress = [lab.directory / f"durable of {name}" for name in NODES]
        producers = []
        for mark, (name, path) in enumerate(zip(NODES, progress, strict=True)):
            path.write_bytes(bytes(NUMBER.size))
            url = cluster.engines[name].url
            producers.append(lab.role("keyed", url, "orders", str(mark), str(path), "0.05"))

        def durable() -> list[int]:
            return [int(NUMBER.unpack(path.read_bytes())[0]) for path in progress]

        def more(before: list[int]) -> bool:
            return all(now > then + 100 for now, then in zip(durable(), before, strict=True))

        eventually(lambda: more([0] * 3), "acked", timeout_s=60)
        owners = []
        for _ in range(ROUNDS):
            name = cluster.keeper("orders")
            owners.append(name)
            cluster.drain(name, True)
            eventually(lambda name=name: cluster.is_empty(name), f"{name} is empty", timeout_s=60)
            eventually(lambda: cluster.keeper("orders"), "the next owner", timeout_s=60)
            before = durable()
            eventually(lambda before=before: more(before), "acked by the next", timeout_s=60)
            cluster.drain(name, False)
        for one in producers:
            one.tell("stop")
        last = [int(one.line().removeprefix("durable ")) for one in producers]
        eventually(
            lambda: numbers_of(seen) >= {(m, n) for m in range(3) for n in range(1, last[m] + 1)},
            "all are consumed",
            timeout_s=120,
        )
        moves = cluster.ask("/cluster/moves?topic=orders&limit=500")["items"]
        for engine in cluster.engines.values():
            engine.stop()
        assert len(set(owners)) > 1
        one_owner_at_a_time(moves)
        log_is_whole(cluster.shared, last)
        first_deliveries_keep_order(seen)


def events(seen: list[Path]) -> list[tuple[int, int, int]]:
    """The notes of all consumers, in the order of time."""
    found = []
    for path in seen:
        raw = path.read_bytes()
        found += list(NOTED.iter_unpack(raw[: len(raw) // NOTED.size * NOTED.size]))
    return sorted(found, key=lambda each: each[0])


def numbers_of(seen: list[Path]) -> set[tuple[int, int]]:
    return {(mark, number) for _, mark, number in events(seen)}


def first_deliveries_keep_order(seen: list[Path]) -> None:
    """A record that is new to the group is the next of its key; others were delivered before."""
    newest: dict[tuple[int, int], int] = {}
    for _, mark, number in events(seen):
        key = mark, number % KEYS
        before = newest.get(key, 0)
        if number > before:
            assert number == (before + KEYS if before else number), (key, before, number)
            assert before or number <= KEYS
            newest[key] = number


def one_owner_at_a_time(moves: list[Any]) -> None:
    """Each owner took the topic from the one before, later, with a higher epoch."""
    moves.reverse()
    assert len(moves) > ROUNDS
    for before, after in itertools.pairwise(moves):
        assert after["from_node"] == before["to_node"]
        assert int(after["epoch"]) > int(before["epoch"])
        assert before["taken_at"] <= after["at"] <= after["taken_at"]
    reasons = [each["reason"] for each in moves]
    assert reasons.count("the node is drained") >= ROUNDS // 2, reasons


def log_is_whole(shared: Path, last: list[int]) -> None:
    """Each record once, each key in one queue and in order."""
    config = TopicConfig(**{**TOPIC, "name": "orders", "owner": ""})
    topic = DurableTopic.open(config, shared, time.time_ns(), owner=1000, name="test")
    rows = rows_of(topic)
    topic.close()
    newest: dict[bytes, tuple[int, int]] = {}
    for queue, _, key, payload, _ in rows:
        assert key is not None
        mark, number = MARKED.unpack_from(payload)
        assert key == f"{mark}-{number % KEYS}".encode()
        there, before = newest.get(key, (queue, 0))
        assert there == queue
        assert number == before + KEYS if before else number <= KEYS, (key, before, number)
        newest[key] = queue, number
    assert len(rows) == sum(last)
