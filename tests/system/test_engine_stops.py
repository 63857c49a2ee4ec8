"""Engines that stop in order while publishers continue: nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.lab import Lab, Platform, topology

import tidecast.sync
from tidecast.errors import TidecastError, Timeout

IPC: dict[str, Any] = {"name": "ipc", "kind": "ipc"}
DURABLE: dict[str, Any] = {"name": "orders", "mode": "durable", "fsync_interval_ms": 5}


class Traffic:
    """Numbered messages, published by a thread until `stop`."""

    def __init__(self, publisher: tidecast.sync.Publisher, seed: int) -> None:
        self.publisher, self._random = publisher, random.Random(seed)
        self.published = 0
        self.problems: list[Exception] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._random.random() * 0.003):
                for _ in range(self._random.randint(1, 200)):
                    self.publisher.publish(b"%d" % (self.published + 1), timeout=60.0)
                    self.published += 1
        except TidecastError as problem:
            self.problems.append(problem)

    def more(self) -> Callable[[], bool]:
        """Has it published more since now?"""
        before = self.published
        return lambda: self.published > before or bool(self.problems)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60.0)
        assert self.problems == []


def restart_in_order(platform: Platform) -> None:
    """SIGTERM, as `tidecast down` sends it; then the next engine."""
    assert platform.engine is not None
    assert platform.engine.end() == 0
    platform.start()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_durable_messages_survive_orderly_stops_with_their_sequences(
    lab: Lab, eventually: Callable[..., None]
) -> None:
    platform = lab.platform(topology(IPC, topics=[DURABLE]))
    publisher = platform.connect().publisher("orders")
    traffic = Traffic(publisher, seed=3)
    for _ in range(8):
        eventually(traffic.more(), "more messages", timeout_s=60.0)
        restart_in_order(platform)
    eventually(traffic.more(), "more messages", timeout_s=60.0)
    traffic.stop()
    publisher.wait_durable(timeout=60.0)
    assert publisher.durable_position == publisher.position == traffic.published
    found: list[int] = []
    with platform.connect().consumer("orders", "all") as consumer:
        while len(found) < traffic.published:
            batch = consumer.fetch(4096, max_wait=30.0)
            assert len(batch), f"{len(found)} of {traffic.published}"
            found += [int(bytes(each.data)) for each in batch]
            batch.ack()
    assert found == list(range(1, traffic.published + 1))


class Ledger:
    """The messages of a subscription, read by a thread until all of ``total`` is there."""

    def __init__(self, subscription: tidecast.sync.Subscription) -> None:
        self.found: list[int] = []
        self.problems: list[Exception] = []
        self.total = -1
        self._subscription = subscription
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while self.total < 0 or (len(self.found) < self.total and not self.problems):
            try:
                self.found.append(int(bytes(self._subscription.next(timeout=1.0).data)))
            except Timeout:
                continue  # it had all before it was told how much there is
            except TidecastError as problem:
                self.problems.append(problem)

    def end(self, total: int) -> list[int]:
        """Everything, once ``total`` messages were published."""
        self.total = total
        self._thread.join(120.0)
        return list(self.found)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_live_messages_survive_engines_that_stop_or_are_killed(
    lab: Lab, eventually: Callable[..., None]
) -> None:
    """Subscribers at the publisher's engine and at another get all of it, once, in order."""
    here, there = lab.pair()
    ledgers = [Ledger(platform.connect().subscribe("ticks").open()) for platform in (here, there)]
    writer = here.connect()
    publisher = writer.publisher("ticks")
    publisher.publish(b"0", flush=True)
    for ledger in ledgers:
        eventually(lambda ledger=ledger: ledger.found, "the first message", timeout_s=60.0)
    traffic = Traffic(publisher, seed=5)
    for stop in ("orderly", "kill", "orderly", "kill"):
        eventually(traffic.more(), "more messages", timeout_s=60.0)
        if stop == "kill":
            here.kill()
            here.start()
        else:
            restart_in_order(here)
    eventually(traffic.more(), "more messages", timeout_s=60.0)
    traffic.stop()
    publisher.flush()
    expected = list(range(traffic.published + 1))
    for ledger in ledgers:
        assert ledger.end(len(expected)) == expected
        assert ledger.problems == []
    assert writer.health().unsent == 0
