"""Two engines on one host share the queues: one is stopped or killed, the other takes over."""

from __future__ import annotations

import os
import signal
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.durable import rows_of
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.progress import NUMBER, noted, progress_file

from tidecast.config.topology import TopicConfig
from tidecast.node.durable.topic import DurableTopic
from tidecast.queues.subscription_store import SubscriptionStore, read_subscription

TOPIC: dict[str, Any] = {
    "name": "orders",
    "mode": "durable",
    "owner": "*",
    "queues": 2,
    "fsync_interval_ms": 5,
}
LEASE_S = 1.0


def keeps(platform: Platform) -> bool:
    return platform.counters("queue").get("owner_epoch", 0) > 0


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_other_engine_takes_over_and_nothing_is_lost_or_doubled(
    lab: Lab, eventually: Eventually, how: str
) -> None:
    shared = lab.directory / "shared"
    wire = multicast()
    leases = {"directory": str(shared), "lease_s": LEASE_S}
    first = lab.platform(topology(wire, topics=[TOPIC], name="first", leases=leases))
    eventually(lambda: keeps(first), "first keeps the topic", timeout_s=20.0)
    second = lab.platform(topology(wire, topics=[TOPIC], name="second", leases=leases))
    progress = progress_file(lab.directory / "progress")
    child = lab.role("produce", second.url, "orders", str(progress))
    seen = [lab.directory / name for name in ("seen by first", "seen by second")]
    at_first = lab.role("consume", first.url, "orders", str(seen[0]))
    lab.role("consume", second.url, "orders", str(seen[1]))  # it stands by
    child.tell("go")

    def durable() -> int:
        return noted(progress)

    eventually(lambda: durable() > 1000, "acked by first", timeout_s=20.0)
    stored: dict[int, int] = {}

    def consumed() -> bool:
        stored.update(positions(shared))
        return sum(stored.values()) > 1000

    eventually(consumed, "positions are stored", timeout_s=20.0)
    assert seen[1].stat().st_size == 0
    assert first.engine is not None
    if how == "stopped":
        os.kill(first.engine.pid, signal.SIGSTOP)
    else:
        first.kill()
    eventually(lambda: keeps(second), "second keeps it", timeout_s=20.0)
    at = durable()
    eventually(lambda: durable() > at + 1000, "acked by second", timeout_s=20.0)
    if how == "stopped":
        os.kill(first.engine.pid, signal.SIGCONT)
        eventually(
            lambda: first.counters("queue").get("owner_fenced", 0) > 0,
            "first is fenced",
            timeout_s=20.0,
        )
    at = durable()
    eventually(lambda: durable() > at + 1000, "second goes on", timeout_s=20.0)
    child.kill()
    acked = durable()
    eventually(lambda: not second.overview().publications, "rings drained", timeout_s=20.0)
    eventually(
        lambda: len(numbers(seen[0]) | numbers(seen[1])) >= acked, "all consumed", timeout_s=20.0
    )
    at_first.kill()
    second.stop()
    if how == "stopped":
        first.stop()
    prove(shared, acked, stored, *map(numbers, seen))


def positions(shared: Path) -> dict[int, int]:
    """By queue, what the subscription's owner has stored."""
    store = SubscriptionStore(shared / "queues" / "orders" / "subscriptions")
    saved = read_subscription(store.path("orders", "handler"))
    return {} if saved is None else {cursor.queue: cursor.position for cursor in saved.cursors}


def numbers(seen: Path) -> set[int]:
    """The numbers that a consumer has noted."""
    raw = seen.read_bytes()
    return set(struct.unpack(f"<{len(raw) // NUMBER.size}Q", raw))


def prove(
    directory: Path, acked: int, stored: dict[int, int], by_first: set[int], by_second: set[int]
) -> None:
    """All that was acked is in the log once, was consumed, and not again from the beginning."""
    config = TopicConfig(**{**TOPIC, "owner": ""})
    topic = DurableTopic.open(config, directory, time.time_ns(), owner=1000, name="test")
    found = [(q, t, NUMBER.unpack_from(payload)[0]) for q, t, _, payload, _ in rows_of(topic)]
    topic.close()
    assert sorted(n for _, _, n in found) == list(range(1, len(found) + 1))
    assert len(found) >= acked
    assert by_first | by_second >= set(range(1, acked + 1)), "nothing is skipped"
    settled = {n for q, t, n in found if t < stored[q]}
    assert not settled & by_second, "it goes on where the owner before had stored that it was"
