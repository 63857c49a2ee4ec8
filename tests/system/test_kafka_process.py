"""The endpoint in an engine of its own that is killed during a producer's work."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.kafka import TIMEOUT_S
from tests.support.lab import Lab, Platform, topology
from tests.support.ports import free_port

TOPICS = [{"name": "orders", "mode": "durable", "queues": 2, "fsync_interval_ms": 5}]
ROUNDS, PER_ROUND = 3, 3000


def start(lab: Lab, platform: Platform, port: int) -> None:
    """An engine that listens there; ready when this returns."""
    engine = lab.spawn("engine", "--kafka", f"127.0.0.1:{port}", platform=platform)
    platform.engine = engine
    assert f", kafka 127.0.0.1:{port}" in engine.line()


@pytest.mark.long
def test_nothing_is_lost_or_doubled_when_the_engine_is_killed(lab: Lab) -> None:
    platform = lab.platform(topology({"name": "ipc", "kind": "ipc"}, topics=TOPICS), start=False)
    port = free_port()
    start(lab, platform, port)
    stored: list[tuple[int, int, bytes]] = []

    def told(problem: Any, message: Any) -> None:
        assert problem is None, problem
        stored.append((message.partition(), message.offset(), message.value()))

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 200,
        }
    )
    for turn in range(ROUNDS):
        for i in range(PER_ROUND):
            value = b"%d" % (turn * PER_ROUND + i)
            producer.produce("orders", value, partition=i % 2, on_delivery=told)
            producer.poll(0)
        platform.kill()
        start(lab, platform, port)
    assert producer.flush(6 * TIMEOUT_S) == 0
    n = ROUNDS * PER_ROUND
    assert sorted(int(value) for _, _, value in stored) == list(range(n))

    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": f"127.0.0.1:{port}", "group.id": "none"}
    )
    consumer.assign(
        [
            confluent_kafka.TopicPartition("orders", q, confluent_kafka.OFFSET_BEGINNING)
            for q in range(2)
        ]
    )
    got: list[tuple[int, bytes]] = []
    while len(got) < n:
        messages = consumer.consume(n, TIMEOUT_S)
        assert messages
        got += [(each.partition(), each.value()) for each in messages]
    ends = [
        consumer.get_watermark_offsets(confluent_kafka.TopicPartition("orders", q))[1]
        for q in range(2)
    ]
    consumer.close()
    assert sum(ends) == n
    for queue in range(2):
        mine = [int(value) for q, value in got if q == queue]
        assert mine == sorted(mine)
    platform.stop()


def test_the_topology_file_says_where_it_listens(lab: Lab) -> None:
    port = free_port()
    settings = topology({"name": "ipc", "kind": "ipc"}, topics=TOPICS)
    settings["kafka"] = {"listen": f":{port}"}
    platform = lab.platform(settings, start=False)
    platform.engine = lab.spawn("engine", platform=platform)
    assert f", kafka 127.0.0.1:{port}" in platform.engine.line()
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    admin.create_topics([NewTopic("made", 3)])["made"].result(TIMEOUT_S)
    platform.stop()
    saved = yaml.safe_load((platform.directory / "topology.yaml").read_text())
    made = next(each for each in saved["topics"] if each["name"] == "made")
    assert (made["mode"], made["queues"]) == ("durable", 3)
    assert saved["kafka"] == {"listen": f":{port}"}
    engine = lab.spawn("engine", "--kafka", "off", platform=platform)
    platform.engine = engine
    assert "kafka" not in engine.line()
    platform.stop()
