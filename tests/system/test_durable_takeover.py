"""Two engines on one host share the queues: one is stopped or killed, the other takes over."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.durable import rows_of
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.roles import NUMBER

from tidecast.config import TopicConfig
from tidecast.node.durable_topic import DurableTopic

TOPIC: dict[str, Any] = {"name": "orders", "mode": "durable", "owner": "*", "queues": 2,
                         "fsync_interval_ms": 5}  # fmt: skip
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
    progress = lab.directory / "progress"
    progress.write_bytes(bytes(NUMBER.size))
    child = lab.role("produce", second.url, "orders", str(progress))
    child.tell("go")

    def durable() -> int:
        return int(NUMBER.unpack(progress.read_bytes())[0])

    eventually(lambda: durable() > 1000, "acked by first", timeout_s=20.0)
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
            lambda: first.counters("queue").get("owner_fenced", 0) > 0, "first is fenced",
            timeout_s=20.0,
        )  # fmt: skip
    at = durable()
    eventually(lambda: durable() > at + 1000, "second goes on", timeout_s=20.0)
    child.kill()
    acked = durable()
    eventually(lambda: not second.overview().publications, "rings drained", timeout_s=20.0)
    second.stop()
    if how == "stopped":
        first.stop()
    prove(shared, acked)


def prove(directory: Path, acked: int) -> None:
    config = TopicConfig(**{**TOPIC, "owner": ""})
    topic = DurableTopic.open(config, directory, time.time_ns(), owner=1000, name="test")
    numbers = [NUMBER.unpack_from(payload)[0] for _, _, _, payload, _ in rows_of(topic)]
    topic.close()
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(numbers) >= acked
