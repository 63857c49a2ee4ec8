"""Consumers of an adapter, measured: rates, and the bytes that the adapter fetched for them."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidecast.sync
from tidecast.config.topology import topology_from
from tidecast.embedded import EmbeddedLink
from tidecast.errors import Timeout

FETCH, TIMEOUT_S = 4096, 300.0
PAUSED_BYTES, PAUSED_QUEUES, PAUSED_RECORDS, PAUSED_POLLS = 1000, 10, 1000, 200
POLL_S = 0.05
FAST = 9
SEED = 7
Make = Callable[[], Any]
"""Makes an adapter, which counts."""


@contextmanager
def fed(make: Make) -> Iterator[tuple[Any, Any]]:
    """A client of an engine that reads an adapter as ``feed``, and the adapter."""
    feed = make()
    topology = topology_from({"transports": [{"name": "ipc", "kind": "ipc"}]})
    with tempfile.TemporaryDirectory(prefix="tc-bench-") as directory:
        link = EmbeddedLink.open(topology, data_dir=Path(directory), adapters={"feed": feed})
        with tidecast.sync.connect(link=link) as client:
            yield client, feed


def drain(consumer: Any, n: int, most: int = FETCH) -> None:
    """Fetch and ack ``n`` messages, every payload as bytes, ``most`` at once. Raises Timeout."""
    done = 0
    while done < n:
        batch = consumer.fetch(min(most, n - done), TIMEOUT_S)
        got = len(batch.payloads())
        if not got:
            raise Timeout(f"bench: {done} of {n} messages came, none for {TIMEOUT_S:g} s")
        done += got
        batch.ack()


def read(make: Make, messages: int) -> float:
    """Messages a second of a consumer, from connecting on."""
    with fed(make) as (client, _):
        begun = time.perf_counter()
        with client.consumer("feed", "reader", max_in_flight=65_536) as consumer:
            drain(consumer, messages)
        return messages / (time.perf_counter() - begun)


def once(make: Make, messages: int) -> int:
    """Bytes of the records of a topic, each fetched once by a reader that never pauses."""
    with fed(make) as (client, feed):
        with client.consumer("feed", "reader") as consumer:
            drain(consumer, messages)
        return int(feed.counted().bytes)


def paused(make: Make, whole: int) -> tuple[float, float]:
    """KAFKA-7548: (bytes fetched by byte delivered, seconds) when all queues but one are paused.

    ``whole``: the bytes of the records.
    """
    chance, held, done = random.Random(SEED), set[int](), 0
    with fed(make) as (client, feed):
        consumer = client.consumer("feed", "reader", max_in_flight=20)
        begun = time.perf_counter()
        for _ in range(PAUSED_POLLS):
            wanted = set(range(PAUSED_QUEUES)) - {chance.randrange(PAUSED_QUEUES)}
            for queue in wanted ^ held:
                change = client.topics.pause if queue in wanted else client.topics.resume
                change("feed", queue=queue)
            held = wanted
            batch = consumer.fetch(20, POLL_S)
            done += len(batch.payloads())
            batch.ack()
        for queue in held:
            client.topics.resume("feed", queue=queue)
        drain(consumer, PAUSED_QUEUES * PAUSED_RECORDS - done)
        seconds = time.perf_counter() - begun
        consumer.close()
        return feed.counted().bytes / whole, seconds


def slow_beside_fast(make: Make, messages: int, whole: int) -> float:
    """Bytes fetched by byte stored: one slow subscription beside nine fast ones."""
    with fed(make) as (client, feed):
        slow = client.consumer("feed", "slow", max_in_flight=10)
        drain(slow, 10, 10)
        fast = [client.consumer("feed", f"fast {i}", max_in_flight=4096) for i in range(FAST)]
        threads = [threading.Thread(target=drain, args=(one, messages)) for one in fast]
        for thread in threads:
            thread.start()
        drain(slow, messages - 10, 10)
        for thread in threads:
            thread.join(TIMEOUT_S)
        for one in (slow, *fast):
            one.close()
        return float(feed.counted().bytes / whole)


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median of figures of turns by those of a peer in the same turns."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
