"""Owners of a topic that is stored on Kafka, killed every few seconds: no directory is shared."""

from __future__ import annotations

import os
import random
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.control.test_link import control
from tests.support.control import Running
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.support.lab import Lab, Platform, multicast, open_lab, topology
from tests.support.ledger import events, first_deliveries_keep_order, numbers_of
from tests.support.progress import noted, progress_file
from tests.support.roles import KEYS, MARKED

FIXTURES = (control,)
NODES, KILLS, LEASE_S = ("a", "b"), 8, 2.0


class Owners:
    """Two engine processes with directories of their own, the service, and a broker."""

    def __init__(self, lab: Lab, control: Running, storage: str) -> None:
        self.lab, self.control = lab, control
        wire, self.engines = multicast(), dict[str, Platform]()
        for name in NODES:
            settings = topology(wire, name=name, leases={"lease_s": LEASE_S})
            self.engines[name] = lab.platform(settings, start=False)
            self.start(name)
        spec = {"mode": "durable", "owner": "*", "queues": 2, "fsync_interval_ms": 5}
        answer = control.api.put("/topics/orders", json={"spec": {**spec, "storage": storage}})
        assert answer.status_code == 201, answer.text

    def start(self, name: str) -> None:
        made = self.engines[name]
        token = {**os.environ, "TIDECAST_ENROL_TOKEN": self.control.enrol()}
        arguments = ("engine", "--control", self.control.url)
        made.engine = self.lab.spawn(*arguments, platform=made, env=token)
        assert "ready" in made.engine.line("the engine is ready")

    def ask(self, path: str) -> Any:
        return self.control.api.get(path).json()

    def knows_topics(self) -> bool:
        return all(not each["status"]["drift"] for each in self.ask("/nodes")["items"])

    def keeper(self) -> str:
        """The engine that has the queues open."""
        for name, each in self.engines.items():
            assert each.engine is not None
            if each.engine.running and each.counters("queue").get("owner_epoch", 0) > 0:
                return name
        return ""


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
def test_owners_that_are_killed_lose_nothing_and_repeat_nothing(
    control: Running, eventually: Eventually, seed: int
) -> None:
    chance = random.Random(seed)
    with open_lab() as lab, brokers() as kafka:
        owners = Owners(lab, control, f"kafka://{kafka.address}/orders")
        eventually(owners.knows_topics, "the topic at each engine", timeout_s=60)
        eventually(owners.keeper, "an owner", timeout_s=60)
        seen = [lab.directory / f"seen by {name}" for name in NODES]
        for name, path in zip(NODES, seen, strict=True):
            lab.role("note", owners.engines[name].url, "orders", str(path))
        progress = [lab.directory / f"durable of {name}" for name in NODES]
        producers = []
        for mark, (name, path) in enumerate(zip(NODES, progress, strict=True)):
            progress_file(path)
            url = owners.engines[name].url
            producers.append(lab.role("keyed", url, "orders", str(mark), str(path), "0.05"))

        def durable() -> list[int]:
            return [noted(path) for path in progress]

        def more(before: list[int], n: int) -> bool:
            for one in producers:
                assert one.running, one.log.read_text()
            return all(now > then + n for now, then in zip(durable(), before, strict=True))

        eventually(lambda: more([0] * 2, 100), "acked", timeout_s=90)
        keepers = []
        for _ in range(KILLS):
            name = owners.keeper()
            if not name:
                eventually(owners.keeper, "an owner", timeout_s=60)
                name = owners.keeper()
            keepers.append(name)
            owners.engines[name].kill()
            other = next(each for each in NODES if each != name)
            if chance.random() < 0.7:
                eventually(lambda o=other: owners.keeper() == o, f"{other} has it", timeout_s=60)
                keepers.append(other)  # the topic may go back when the first engine is back
            owners.start(name)
            before = durable()
            eventually(lambda b=before: more(b, 200), "acked by the next", timeout_s=120)
        for one in producers:
            one.tell("stop")
        last = [
            int(one.line("the producer's last ack").removeprefix("durable ")) for one in producers
        ]
        wanted = {(mark, n) for mark in range(2) for n in range(1, last[mark] + 1)}
        eventually(lambda: numbers_of(seen) >= wanted, "all are consumed", timeout_s=120)
        for engine in owners.engines.values():
            engine.stop()
        assert len(set(keepers)) > 1
        stored_once_and_in_order(kafka, last)
        assert numbers_of(seen) == wanted
        first_deliveries_keep_order(seen)
        assert len(events(seen)) < 3 * len(wanted), "positions come along"


def stored_once_and_in_order(kafka: Brokers, last: list[int]) -> None:
    """Each record is on the cluster once, each key in one partition and in order."""
    newest, rows = dict[bytes, tuple[int, int]](), 0
    for partition, key, payload in in_kafka(kafka, "orders", 2):
        mark, number = MARKED.unpack_from(payload)
        assert key == f"{mark}-{number % KEYS}".encode()
        there, before = newest.get(key, (partition, 0))
        assert there == partition
        assert number == before + KEYS if before else number <= KEYS, (key, before, number)
        newest[key] = partition, number
        rows += 1
    assert rows == sum(last)


def in_kafka(kafka: Brokers, topic: str, partitions: int) -> list[tuple[int, bytes, bytes]]:
    import confluent_kafka

    settings = {"bootstrap.servers": kafka.address, "group.id": "proof"}
    reader = confluent_kafka.Consumer(settings)
    found: list[tuple[int, bytes, bytes]] = []
    for partition in range(partitions):
        where = confluent_kafka.TopicPartition(topic, partition, 0)
        reader.assign([where])
        end = reader.get_watermark_offsets(where, 30.0)[1]
        while reader.position([where])[0].offset < end:
            for message in reader.consume(5000, 5.0):
                assert message.error() is None
                found.append((partition, message.key(), message.value()))
    reader.close()
    return found
