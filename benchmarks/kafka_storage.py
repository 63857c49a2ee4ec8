"""A topic that is stored on Kafka beside a bare idempotent producer, in turns, on one cluster.

``python -m benchmarks.kafka_storage --servers 127.0.0.1:9092``. Both send messages of one size from
one Python thread to four partitions, and their time ends when all are acked with ``acks=all``. The
topics are made on the cluster and stay there.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import click

import tidecast.sync
from tidecast.bench.measure import machine
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink

QUEUES, BATCH, TIMEOUT_S = 4, 1000, 300.0


def stored(servers: str, topic: str, payload: bytes, messages: int) -> float:
    """Messages a second of a publisher of Tidecast, acked."""
    settings = {
        "name": "stored",
        "mode": "durable",
        "queues": QUEUES,
        "fsync_interval_ms": 5,
        "history_bytes": 16 << 20,
        "storage": f"kafka://{servers}/{topic}",
    }
    raw = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": [settings]}
    with tempfile.TemporaryDirectory() as directory:
        link = EmbeddedLink.open(topology_from(raw), data_dir=Path(directory))
        with tidecast.sync.connect(link=link) as client, client.publisher("stored") as publisher:
            publisher.publish(payload, ack="durable", timeout=TIMEOUT_S)
            begun = time.perf_counter()
            for _ in range(messages // BATCH):
                publisher.publish_batch([payload] * BATCH)
            publisher.wait_durable(timeout=TIMEOUT_S)
            return messages / (time.perf_counter() - begun)


def bare(servers: str, topic: str, payload: bytes, messages: int) -> float:
    """Messages a second of confluent-kafka's idempotent producer, acked."""
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, num_partitions=QUEUES)])[topic].result(TIMEOUT_S)
    settings: dict[str, Any] = {
        "bootstrap.servers": servers,
        "enable.idempotence": True,
        "linger.ms": 5,
    }
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, payload)
    producer.flush(TIMEOUT_S)
    begun = time.perf_counter()
    for i in range(messages):
        while True:
            try:
                producer.produce(topic, payload)
                break
            except BufferError:
                producer.poll(0.01)
        if i % BATCH == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise click.ClickException(f"messages are not acked after {TIMEOUT_S:g} s")
    return messages / (time.perf_counter() - begun)


@click.command()
@click.option("--servers", required=True, help="HOST:PORT of brokers.")
@click.option("--messages", type=click.IntRange(BATCH), default=500_000, show_default=True)
@click.option("--message-bytes", type=click.IntRange(1, 1 << 20), default=100, show_default=True)
@click.option("--turns", type=click.IntRange(1, 100), default=5, show_default=True)
def main(servers: str, messages: int, message_bytes: int, turns: int) -> None:
    """Print one JSON object: the medians, and the ratio of each turn."""
    payload, name = bytes(message_bytes), f"bench-{uuid.uuid4().hex[:8]}"
    pairs = [
        (
            stored(servers, f"{name}-stored-{turn}", payload, messages),
            bare(servers, f"{name}-bare-{turn}", payload, messages),
        )
        for turn in range(turns)
    ]
    outcome = {
        "bench": "kafka-storage",
        "config": {"messages": messages, "message_bytes": message_bytes, "turns": turns},
        "metrics": {
            "stored_per_s": round(statistics.median(a for a, _ in pairs)),
            "bare_per_s": round(statistics.median(b for _, b in pairs)),
            "ratios": [round(a / b, 2) for a, b in pairs],
        },
        "machine": machine(),
    }
    click.echo(json.dumps(outcome))


if __name__ == "__main__":
    main()
