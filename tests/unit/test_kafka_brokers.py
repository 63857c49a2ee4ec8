"""The brokers of Apache Kafka that tests start: what other tests rely on."""

from __future__ import annotations

import os
import signal

import confluent_kafka
import pytest
from tests.support.kafka_brokers import Brokers, brokers, missing


def test_a_broker_keeps_what_was_produced(real_kafka: Brokers) -> None:
    real_kafka.create("kept", 2)
    real_kafka.fill("kept", [b"a", None, b"c"], partition=1)
    assert real_kafka.leader("kept", 1) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": real_kafka.address, "group.id": "none"}
    )
    consumer.assign([confluent_kafka.TopicPartition("kept", 1, confluent_kafka.OFFSET_BEGINNING)])
    assert [message.value() for message in consumer.consume(3, 30.0)] == [b"a", None, b"c"]
    consumer.close()


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_another_of_three_brokers_leads_when_one_is_killed() -> None:
    with brokers(3) as made:
        made.create("kept")
        made.fill("kept", [b"a"], acks="all")
        first = made.leader("kept")
        made.kill(first)
        made.fill("kept", [b"b"], acks="all")
        assert made.leader("kept") != first
        made.start(first)
        made.wait_up(first)


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
def test_a_broker_that_ends_by_itself_is_named_and_started_again() -> None:
    with brokers() as made:
        made.create("kept")
        made.fill("kept", [b"a"])
        assert made.ended() == {}
        process = made._processes[0]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert made.ended()[0].startswith("exit code -9: ")
        assert "Kafka Server started" in made.ended()[0]
        made.restart_ended()
        assert made.ended() == {}
        made.fill("kept", [b"b"])
        assert made.end("kept") == 2
        made.kill(0)
        assert made.ended() == {}, "a test killed it"
