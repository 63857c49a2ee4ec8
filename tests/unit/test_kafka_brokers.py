"""The brokers of Apache Kafka that tests start: what other tests rely on."""

from __future__ import annotations

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
