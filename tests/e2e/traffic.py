"""Real traffic for the page to show: publishers, readers and consumers, each in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tidecast.sync
from tidecast.cli.messages.pub import url_of

TICK_S = 0.02
JOIN_S = 15.0


class Worker:
    """A thread with a connection of its own, and what it has done so far."""

    def __init__(
        self, data_dir: Path, name: str, work: Callable[[Worker, tidecast.sync.Connection], None]
    ) -> None:
        self.done = 0
        """Messages published, read or settled."""
        self.fast = threading.Event()
        self.ready = threading.Event()
        """It is connected, and its publisher made."""
        self.stopping = threading.Event()
        self._data_dir, self._name, self._work = data_dir, name, work
        self._threads = ThreadPoolExecutor(1)

    def _run(self) -> None:
        with tidecast.sync.connect(url_of(self._data_dir), name=self._name) as client:
            self._work(self, client)

    def __enter__(self) -> Worker:
        self._ended = self._threads.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._threads.shutdown(wait=False)
        self._ended.result(JOIN_S)


def publishing(
    data_dir: Path,
    topic: str,
    rate_per_s: float,
    *,
    size: int = 200,
    keys: int = 16,
    gate: bool = False,
) -> Worker:
    """Publish JSON at a rate until the end of the block; with ``gate`` only while `fast` is set."""
    filler = ("lorem ipsum dolor sit amet " * size)[: max(0, size - 60)]

    def work(worker: Worker, client: tidecast.sync.Connection) -> None:
        publisher = client.publisher(topic)
        worker.ready.set()
        owed = 0.0
        while not worker.stopping.wait(TICK_S):
            while gate and not worker.fast.wait(0.1) and not worker.stopping.is_set():
                pass
            owed += rate_per_s * TICK_S
            for _ in range(int(owed)):
                key = f"customer-{worker.done % keys}"
                order = {"order": worker.done, "total": worker.done % 97, "note": filler}
                publisher.publish(
                    json.dumps(order).encode(), key=key, headers={"source": "e2e"}, timestamp=True
                )
                worker.done += 1
            owed -= int(owed)
            publisher.flush()

    return Worker(data_dir, f"{topic} feed", work)


def reading(data_dir: Path, topic: str) -> Worker:
    """Read all of a topic, live."""

    def work(worker: Worker, client: tidecast.sync.Connection) -> None:
        with client.subscribe(topic, on_gap="skip") as messages:
            while not worker.stopping.is_set():
                worker.done += len(messages.poll(512) or ())
                worker.stopping.wait(0.001)

    return Worker(data_dir, f"{topic} reader", work)


def consuming(data_dir: Path, topic: str, name: str, *, slow_per_s: float) -> Worker:
    """A member of a durable subscription: slow until its event `fast` is set."""

    def work(worker: Worker, client: tidecast.sync.Connection) -> None:
        with client.consumer(topic, name) as consumer:
            while not worker.stopping.is_set():
                batch = consumer.fetch(500 if worker.fast.is_set() else 1, max_wait=0.1)
                if batch:
                    worker.done += len(batch)
                    batch.ack()
                if not worker.fast.is_set():
                    worker.stopping.wait(1 / slow_per_s)

    return Worker(data_dir, f"{name} worker", work)


def refusing(data_dir: Path, topic: str, name: str) -> Worker:
    """A member that gives every message up until `fast` is set; then it acks them."""

    def work(worker: Worker, client: tidecast.sync.Connection) -> None:
        with client.consumer(topic, name) as consumer:
            while not worker.stopping.is_set():
                for message in consumer.fetch(100, max_wait=0.1):
                    if worker.fast.is_set():
                        message.ack()
                        worker.done += 1
                    else:
                        message.term("not today")

    return Worker(data_dir, f"{name} worker", work)
