"""Kafka's own tools for Java against the endpoint: topics, settings, groups, console clients."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.kafka import Served
from tests.support.kafka_brokers import missing, run_java

TIMEOUT_S = 120.0
TOPICS = [{"name": "kept", "mode": "durable", "queues": 2, "fsync_interval_ms": 2}]
pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture
def served(short_dir: Path) -> Iterator[Served]:
    made = Served(short_dir, TOPICS)
    yield made
    assert made.endpoint.counters.of("faults") == 0
    assert made.endpoint.counters.of("bad_requests") == 0
    made.close()


def run(served: Served, main: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
    """The output of a tool; it must succeed, or with ``fails`` fail."""
    command = run_java(main)
    address = ["--bootstrap-server", served.endpoint.address]
    ran = subprocess.run(
        [*command, *arguments[:1], *address, *arguments[1:]]
        if not arguments[0].startswith("--")
        else [*command, *address, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    told = ran.stdout + ran.stderr
    assert (ran.returncode != 0) == fails, told
    return told


def test_topics_and_settings(served: Served) -> None:
    topics, configs = "org.apache.kafka.tools.TopicCommand", "kafka.admin.ConfigCommand"
    name = ("--topic", "java")
    run(served, topics, "--create", *name, "--partitions", "3", "--config", "retention.ms=60000")
    found = served.link.node.topic_by_name
    assert (found["java"].queues, found["java"].retention_s) == (3, 60.0)
    told = run(served, topics, "--create", *name, fails=True)
    assert "exists already" in told
    run(served, topics, "--alter", *name, "--partitions", "5")
    assert found["java"].queues == 5
    told = run(served, topics, "--describe", *name)
    assert "PartitionCount: 5" in told
    assert "retention.ms=60000" in told
    assert set(run(served, topics, "--list").split()) >= {"java", "kept"}
    entity = ("--entity-type", "topics", "--entity-name", "java")
    run(served, configs, "--alter", *entity, "--add-config", "retention.bytes=1000000")
    assert found["java"].retention_bytes == 1_000_000
    told = run(served, configs, "--alter", *entity, "--add-config", "segment.ms=5", fails=True)
    assert "segment.ms" in told
    assert "retention.bytes=1000000" in run(served, configs, "--describe", *entity)
    run(served, configs, "--alter", *entity, "--delete-config", "retention.bytes")
    assert found["java"].retention_bytes == 0
    dirs = "org.apache.kafka.tools.LogDirsCommand"
    told = run(served, dirs, "--describe", "--topic-list", "java")
    assert '"partition":"java-0"' in told
    run(served, topics, "--delete", *name)
    assert "java" not in found
    told = run(served, "org.apache.kafka.tools.ClusterTool", "cluster-id")
    assert f"tidecast-{served.link.node.name}" in told


def test_clients_and_groups(served: Served) -> None:
    groups = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    lines = "".join(f"value {i}\n" for i in range(100))
    run(served, "org.apache.kafka.tools.ConsoleProducer", "--topic", "kept", stdin=lines)
    told = run(
        served,
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--topic",
        "kept",
        "--group",
        "java",
        "--from-beginning",
        "--max-messages",
        "100",
    )
    assert sorted(x for x in told.splitlines() if x.startswith("value")) == sorted(
        lines.splitlines()
    )
    assert "java" in run(served, groups, "--list").split()
    told = run(served, groups, "--describe", "--group", "java")
    rows = [row.split() for row in told.splitlines() if row.startswith("java")]
    assert sum(int(row[3]) for row in rows) == 100  # offsets
    assert [row[5] for row in rows] == ["0", "0"]  # lag
    reset = ("--reset-offsets", "--to-earliest", "--execute", "--group", "java", "--topic", "kept")
    run(served, groups, *reset)
    told = run(served, groups, "--describe", "--group", "java")
    rows = [row.split() for row in told.splitlines() if row.startswith("java")]
    assert sum(int(row[5]) for row in rows) == 100
    run(served, groups, "--delete-offsets", "--group", "java", "--topic", "kept")
    assert "java" not in run(served, groups, "--list").split()
