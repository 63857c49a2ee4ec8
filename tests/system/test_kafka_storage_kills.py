"""Engine, broker, producer and consumer of a topic that is stored on Kafka, killed at random."""

from __future__ import annotations

import random
from typing import Any

import confluent_kafka
import pytest
from tests.conftest import Eventually
from tests.support.kafka_brokers import Brokers, brokers, missing
from tests.support.lab import Lab
from tests.support.progress import NUMBER
from tests.system.test_durable_kills import TOPIC, Crashes, in_log

PROGRESS_S = 90.0
"""A broker takes several seconds to start."""


def in_kafka(kafka: Brokers, topic: str, partitions: int) -> list[list[int]]:
    """The numbers in each partition, as a consumer of Kafka reads them."""
    settings = {"bootstrap.servers": kafka.address, "group.id": "proof"}
    reader = confluent_kafka.Consumer(settings)
    found: list[list[int]] = []
    for partition in range(partitions):
        where = confluent_kafka.TopicPartition(topic, partition, 0)
        reader.assign([where])
        end, numbers = reader.get_watermark_offsets(where, 30.0)[1], list[int]()
        while reader.position([where])[0].offset < end:
            for message in reader.consume(5000, 5.0):
                assert message.error() is None
                numbers.append(NUMBER.unpack_from(message.value())[0])
        found.append(numbers)
    reader.close()
    return found


def kill(crashes: Crashes, kafka: Brokers, victims: list[str]) -> None:
    """Kill these at once, then start them again."""
    if "broker" in victims:
        kafka.kill(0)
    crashes.kill([victim for victim in victims if victim != "broker"])
    if "broker" in victims:
        kafka.start(0)
        kafka.wait_up(0)


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
def test_kills_lose_no_acked_record_and_store_none_twice(
    lab: Lab, eventually: Eventually, seed: int
) -> None:
    chance = random.Random(seed)
    with brokers() as kafka:
        storage = f"kafka://{kafka.address}/orders"
        crashes = Crashes(lab, eventually, where="shared", spool=bool(seed), storage=storage)
        names = ["broker", "keeper", "producer", "consumer"]
        victims: list[Any] = names
        for _ in range(8):
            goal = crashes.durable() + chance.randrange(1, 5_000)
            eventually(
                lambda goal=goal: crashes.durable() >= goal, "progress", timeout_s=PROGRESS_S
            )
            kill(crashes, kafka, victims)
            victims = chance.sample(names, chance.choice([1, 1, 2, 4]))
        crashes.finish()
        stored = in_kafka(kafka, "orders", TOPIC["queues"])
        assert sorted(n for each in stored for n in each) == in_log(
            crashes.owner.directory, crashes.acked
        )
        for each in stored:
            for key in range(7):
                mine = [n for n in each if n % 7 == key]
                assert mine == sorted(mine)
