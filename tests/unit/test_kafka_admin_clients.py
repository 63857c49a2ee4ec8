"""Administration clients of librdkafka and kafka-python, unmodified, against the endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import kafka.admin
import kafka.errors
import pytest
from confluent_kafka import admin
from tests.support.kafka import TIMEOUT_S, Served

TOPICS = [{"name": "kept", "mode": "durable", "queues": 2}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    made = Served(tmp_path_factory.mktemp("node"), TOPICS)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    assert made.endpoint.counters.of("bad_requests") == 0
    made.close()


@pytest.fixture
def rd(served: Served) -> admin.AdminClient:
    return admin.AdminClient({"bootstrap.servers": served.endpoint.address})


def done(futures: dict[Any, Any]) -> list[Any]:
    return [each.result(TIMEOUT_S) for each in futures.values()]


def refused(futures: dict[Any, Any]) -> tuple[int, str]:
    """(code, text) of the error of one future."""
    with pytest.raises(confluent_kafka.KafkaException) as found:
        done(futures)
    error = found.value.args[0]
    return error.code(), error.str()


def consume_one(served: Served, topic: str, group: str) -> None:
    """Produce a record, and commit it as consumed by a group."""
    address = served.endpoint.address
    producer = confluent_kafka.Producer({"bootstrap.servers": address})
    producer.produce(topic, b"a")
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(TIMEOUT_S)
    assert message is not None
    assert message.error() is None
    consumer.commit(message, asynchronous=False)
    consumer.close()


def test_librdkafka_topics(served: Served, rd: admin.AdminClient) -> None:
    topic = admin.NewTopic("orders", 3, 1, config={"retention.ms": "60000"})
    done(rd.create_topics([topic], validate_only=True))
    assert "orders" not in served.link.node.topic_by_name
    done(rd.create_topics([topic]))
    code, _ = refused(rd.create_topics([topic]))
    assert code == confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS
    compacted = admin.NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"})
    code, text = refused(rd.create_topics([compacted]))
    assert code == confluent_kafka.KafkaError.INVALID_CONFIG
    assert "cleanup.policy" in text
    done(rd.create_partitions([admin.NewPartitions("orders", 5)]))
    found = rd.list_topics(timeout=TIMEOUT_S).topics
    assert len(found["orders"].partitions) == 5
    described = done(rd.describe_topics(confluent_kafka.TopicCollection(["orders"])))
    assert len(described[0].partitions) == 5
    done(rd.delete_topics(["orders"]))
    assert "orders" not in served.link.node.topic_by_name


def test_librdkafka_settings(served: Served, rd: admin.AdminClient) -> None:
    kind = confluent_kafka.admin.ResourceType.TOPIC
    resource = admin.ConfigResource(kind, "kept")
    entry = admin.ConfigEntry(
        "retention.ms", "5000", incremental_operation=admin.AlterConfigOpType.SET
    )
    done(
        rd.incremental_alter_configs(
            [admin.ConfigResource(kind, "kept", incremental_configs=[entry])]
        )
    )
    assert served.link.node.topic_by_name["kept"].retention_s == 5.0
    (found,) = done(rd.describe_configs([resource]))
    assert found["retention.ms"].value == "5000"
    assert found["cleanup.policy"].is_read_only
    done(rd.alter_configs([admin.ConfigResource(kind, "kept", {"segment.bytes": "70000"})]))
    config = served.link.node.topic_by_name["kept"]
    assert (config.retention_s, config.segment_bytes) == (0, 70_000)
    unknown = admin.ConfigResource(kind, "kept", {"segment.ms": "70000"})
    code, text = refused(rd.alter_configs([unknown]))
    assert code == confluent_kafka.KafkaError.INVALID_CONFIG
    assert "segment.ms" in text
    broker = admin.ConfigResource(
        confluent_kafka.admin.ResourceType.BROKER, str(served.link.node.id)
    )
    (found,) = done(rd.describe_configs([broker]))
    assert found["message.max.bytes"].value == str(16 << 20)
    cluster = rd.describe_cluster().result(TIMEOUT_S)
    assert [each.port for each in cluster.nodes] == [served.endpoint.port]


def test_librdkafka_groups(served: Served, rd: admin.AdminClient) -> None:
    consume_one(served, "kept", "rd")
    listed = rd.list_consumer_groups().result(TIMEOUT_S)
    assert [(each.group_id, each.state.name) for each in listed.valid] == [("rd", "EMPTY")]
    (described,) = done(rd.describe_consumer_groups(["rd"]))
    assert described.members == []
    asked = confluent_kafka.ConsumerGroupTopicPartitions("rd")
    (offsets,) = done(rd.list_consumer_group_offsets([asked]))
    assert [(each.topic, each.offset) for each in offsets.topic_partitions if each.offset > 0] == [
        ("kept", 1)
    ]
    back = [
        confluent_kafka.TopicPartition("kept", each.partition, 0)
        for each in offsets.topic_partitions
    ]
    done(
        rd.alter_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions("rd", back)])
    )
    done(rd.delete_consumer_groups(["rd"]))
    assert rd.list_consumer_groups().result(TIMEOUT_S).valid == []
    code, _ = refused(rd.delete_consumer_groups(["rd"]))
    assert code == confluent_kafka.KafkaError.GROUP_ID_NOT_FOUND


def test_kafka_python(served: Served) -> None:
    python = kafka.admin.KafkaAdminClient(bootstrap_servers=served.endpoint.address)
    (node,) = python.describe_log_dirs(["kept"])
    (topic,) = node["log_dirs"][0]["topics"]
    assert (topic["name"], len(topic["partitions"])) == ("kept", 2)
    python.create_topics([kafka.admin.NewTopic("made", 2, 1)])
    assert served.link.node.topic_by_name["made"].queues == 2
    python.create_partitions({"made": kafka.admin.NewPartitions(4)})
    assert served.link.node.topic_by_name["made"].queues == 4
    resource = kafka.admin.ConfigResource(
        kafka.admin.ConfigResourceType.TOPIC, "made", {"retention.bytes": "100000"}
    )
    python.alter_configs([resource])
    assert served.link.node.topic_by_name["made"].retention_bytes == 100_000
    consume_one(served, "made", "python")
    assert {each["group_id"] for each in python.list_groups()} >= {"python"}
    offsets = python.list_group_offsets(["python"])
    assert offsets
    python.delete_groups(["python"])
    python.delete_topics(["made"])
    assert "made" not in served.link.node.topic_by_name
    python.close()
