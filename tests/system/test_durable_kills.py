"""kill -9 of producers and engines at random points, with real processes.

Each message's payload is its sequence, so what the logs must hold is plain: every number from 1 to
the last, once, each key's in order; and never less than what was said to be durable.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from tests.conftest import Eventually
from tests.support.durable import rows_of
from tests.support.lab import Lab, Platform, Process, topology
from tests.support.roles import NUMBER

from tidecast.config import TopicConfig
from tidecast.node.durable_topic import DurableTopic

TOPIC = {"name": "orders", "mode": "durable", "queues": 3, "segment_bytes": 1 << 20,
         "fsync_interval_ms": 5}  # fmt: skip


def producer(lab: Lab, platform: Platform, progress: Path) -> Process:
    child = lab.role("produce", platform.url, "orders", str(progress))
    assert child.popen.stdin is not None
    child.popen.stdin.write("go\n")
    child.popen.stdin.flush()
    return child


def durable(progress: Path) -> int:
    return int(NUMBER.unpack(progress.read_bytes())[0])


def kill_at_random(lab: Lab, eventually: Eventually, kills: int, seed: int, spool: bool) -> None:
    rng = random.Random(seed)
    settings = topology({"name": "ipc", "kind": "ipc"}, topics=[TOPIC | {"spool": spool}])
    platform = lab.platform(settings)
    progress = platform.directory / "progress"
    progress.write_bytes(bytes(NUMBER.size))
    child = producer(lab, platform, progress)
    acked = 0
    for _ in range(kills):
        goal = durable(progress) + rng.randrange(1, 20_000)
        eventually(lambda goal=goal: durable(progress) >= goal, "progress", timeout_s=30.0)
        victims = rng.choice(["engine", "producer", "both"])
        if victims != "engine":
            child.kill()
        acked = max(acked, durable(progress))
        if victims != "producer":
            platform.kill()
            platform.start()
        if victims != "engine":
            child = producer(lab, platform, progress)
    child.kill()
    acked = max(acked, durable(progress))
    eventually(lambda: not platform.overview().publications, "the ring drained", timeout_s=30.0)
    platform.stop()
    prove(platform.directory, acked)


def prove(directory: Path, acked: int) -> None:
    topic = DurableTopic.open(TopicConfig(**TOPIC), directory, time.time_ns())  # type: ignore[arg-type]
    rows = rows_of(topic)
    topic.close()
    numbers = [NUMBER.unpack_from(payload)[0] for _, _, _, payload, _ in rows]
    assert [seq for *_, seq in rows] == numbers
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(numbers) >= acked
    for key in range(7):
        mine = [
            n for (queue, token, k, *_), n in zip(rows, numbers, strict=True) if k == b"k%d" % key
        ]
        assert mine == sorted(mine)


@pytest.mark.parametrize("spool", [False, True], ids=["memory", "spool"])
def test_kills_lose_nothing_and_double_nothing(
    lab: Lab, eventually: Eventually, spool: bool
) -> None:
    kill_at_random(lab, eventually, 2, seed=int(spool), spool=spool)


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(10))
def test_two_hundred_kills(lab: Lab, eventually: Eventually, seed: int) -> None:
    kill_at_random(lab, eventually, 20, seed=100 + seed, spool=seed % 2 == 1)
