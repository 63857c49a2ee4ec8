"""Topics that are stored on Kafka or JetStream, measured: publishing until acked, and consuming."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidecast.sync
from tidecast.bench.brokers import feeds
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink

BATCH, TIMEOUT_S = 1000, 300.0
NAME = "stored"


def rounded(messages: int) -> int:
    """So many messages in whole batches; at least one."""
    return max(BATCH, messages // BATCH * BATCH)


@contextmanager
def topic(storage: str, queues: int) -> Iterator[Any]:
    """A client of an engine with a durable topic that has this storage."""
    settings = {
        "name": NAME,
        "mode": "durable",
        "queues": queues,
        "fsync_interval_ms": 5,
        "storage": storage,
    }
    raw = {"transports": [{"name": "ipc", "kind": "ipc"}], "topics": [settings]}
    with tempfile.TemporaryDirectory(prefix="tc-bench-") as directory:
        link = EmbeddedLink.open(topology_from(raw), data_dir=Path(directory))
        with tidecast.sync.connect(link=link) as client:
            yield client


def publish(client: Any, messages: int, size: int) -> float:
    """Messages a second of a publisher, until all are acked by the storage.

    One message more is published and acked before.
    """
    payloads = [bytes(size)] * BATCH
    with client.publisher(NAME) as publisher:
        publisher.publish(payloads[0], ack="durable", timeout=TIMEOUT_S)
        begun = time.perf_counter()
        for _ in range(messages // BATCH):
            publisher.publish_batch(payloads)
        publisher.wait_durable(timeout=TIMEOUT_S)
        return messages / (time.perf_counter() - begun)


def read(client: Any, messages: int) -> float:
    """Messages a second of a subscription that acks each, from connecting on."""
    begun = time.perf_counter()
    with client.consumer(NAME, "reader", max_in_flight=65_536) as consumer:
        feeds.drain(consumer, messages)
    return messages / (time.perf_counter() - begun)
