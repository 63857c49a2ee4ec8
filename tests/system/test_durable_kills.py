"""kill -9 of producers, engines and consumers at random points, with real processes and faults on.

Each message's payload is its sequence, so what the logs must hold is plain: every number from 1 to
the last, once, each key's in order, and never less than what was said to be durable. A consumer
that notes what it has seen before it acks, and drops what it has noted, has each of them once.

*Shared*: producer and consumer on one engine. *Apart*: the producer's engine sends over a network
that loses, doubles and reorders to the engine that keeps the topic. *Moving*: the producer begins
again at another engine each time, while its ring at the one before may not be acked.
"""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.durable import rows_of
from tests.support.lab import Lab, Platform, multicast, topology
from tests.support.process import Child
from tests.support.progress import NUMBER, noted, progress_file

from tidecast.client.links.socket_session import EngineControl
from tidecast.config.topology import FaultSettings, TopicConfig
from tidecast.node.durable.topic import DurableTopic

TOPIC: dict[str, Any] = {
    "name": "orders",
    "mode": "durable",
    "queues": 3,
    "segment_bytes": 1 << 20,
    "fsync_interval_ms": 5,
}
FAULTS = FaultSettings(drop=0.02, duplicate=0.02, reorder=0.05, seed=7)
ENGINES = {"apart": ("keeper", "source"), "moving": ("keeper", "source", "elsewhere")}
WAIT_S = 30.0
KILLS = 20


class Crashes:
    """Engines, one producer and one consumer, killed and started again."""

    def __init__(
        self, lab: Lab, eventually: Eventually, *, where: str, spool: bool, storage: str = "local"
    ) -> None:
        self.lab, self.eventually = lab, eventually
        topic = TOPIC | {"spool": spool, "storage": storage}
        self.engines: dict[str, Platform] = {}
        if where == "shared":
            settings = topology({"name": "ipc", "kind": "ipc"}, topics=[topic])
            self.engines["keeper"] = lab.platform(settings)
            self.sources = itertools.cycle(self.engines.values())
        else:
            wire = multicast()
            topic |= {"owner": "keeper"}
            for name in ENGINES[where]:
                settings = topology(wire, topics=[topic], name=name)
                self.engines[name] = lab.platform(settings)
            self.sources = itertools.cycle(list(self.engines.values())[1:])
        self.owner = self.engines["keeper"]
        self.progress = progress_file(lab.directory / "progress")
        self.seen = lab.directory / "seen"
        self.seen.touch()
        self.acked = 0
        self.set_faults()
        self.producer, self.consumer = self.start_producer(), self.start_consumer()

    def set_faults(self) -> None:
        if len(self.engines) > 1:
            for each in self.engines.values():
                with EngineControl(each.directory) as control:
                    control.set_faults("multicast", FAULTS)

    def start_producer(self) -> Child:
        child = self.lab.role("produce", next(self.sources).url, "orders", str(self.progress))
        child.tell("go")
        return child

    def start_consumer(self) -> Child:
        return self.lab.role("keep", self.owner.url, "orders", str(self.seen))

    def durable(self) -> int:
        return noted(self.progress)

    def kill(self, victims: list[str]) -> None:
        """Kill these at once, then start them again."""
        if "producer" in victims:
            self.producer.kill()
        if "consumer" in victims:
            self.consumer.kill()
        self.acked = max(self.acked, self.durable())
        engines = [each for name, each in self.engines.items() if name in victims]
        for each in engines:
            each.kill()
        for each in engines:  # side by side: most of it is waiting
            each.engine = self.lab.spawn("engine", platform=each)
        for each in engines:
            assert each.engine is not None
            assert "ready" in each.engine.line()
        if engines:
            self.set_faults()
        if "producer" in victims:
            self.producer = self.start_producer()
        if "consumer" in victims:
            self.consumer = self.start_consumer()

    def noted(self) -> str:
        """The output of clients and engines, and the end of the engines' flight recorders."""
        clients = {"producer": self.producer, "consumer": self.consumer}
        told = [
            f"{name}: {'runs' if each.running else 'ended'}\n{each.log.read_text()}"
            for name, each in clients.items()
        ]
        rare = ["recorder", "--section", "alert", "--section", "low", "--last", "200"]
        for name, each in self.engines.items():
            if each.engine is not None:
                told.append(f"{name}: log\n{each.engine.log.read_text()}")
            for command in (["top", "--once"], rare):
                done = each.run(*command, check=False)
                told.append(f"{name}: {' '.join(command)}\n{done.stdout}{done.stderr}")
        return "\n".join(told)

    def finish(self) -> None:
        """No more is sent; all is drained and consumed; then the proof."""
        self.producer.kill()
        self.acked = max(self.acked, self.durable())
        for each in self.engines.values():
            self.eventually(
                lambda each=each: not each.overview().publications,
                "rings drained",
                timeout_s=WAIT_S,
            )
        last = self.owner.counters("queue")["next_token"]

        def all_consumed() -> bool:
            assert self.consumer.running, f"the consumer ended:\n{self.consumer.log.read_text()}"
            return self.seen.stat().st_size >= last * NUMBER.size

        self.eventually(all_consumed, "all consumed", timeout_s=WAIT_S)
        self.consumer.kill()
        for each in self.engines.values():
            each.stop()
        numbers = in_log(self.owner.directory, self.acked)
        seen = [n for (n,) in NUMBER.iter_unpack(self.seen.read_bytes())]
        assert sorted(seen) == numbers, "each message once, to a consumer that drops duplicates"
        for key in range(7):
            mine = [n for n in seen if n % 7 == key]
            assert mine == sorted(mine)


def in_log(directory: Path, acked: int) -> list[int]:
    """The numbers in the logs: all, once, in key order, and none missing that was acked."""
    topic = DurableTopic.open(TopicConfig(**TOPIC), directory, time.time_ns())
    rows = rows_of(topic)
    topic.close()
    numbers = [NUMBER.unpack_from(payload)[0] for _, _, _, payload, _ in rows]
    assert [seq for *_, seq in rows] == numbers
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert len(numbers) >= acked
    for key in range(7):
        mine = [n for n, (_, _, k, *_) in zip(numbers, rows, strict=True) if k == b"k%d" % key]
        assert mine == sorted(mine)
    return sorted(numbers)


def kill_at_random(
    lab: Lab, eventually: Eventually, kills: int, seed: int, *, where: str, spool: bool
) -> None:
    """``kills`` processes are killed, one or more at a time, each kind at least once."""
    rng = random.Random(seed)
    crashes = Crashes(lab, eventually, where=where, spool=spool)
    names = ["producer", "consumer", *crashes.engines]
    done, victims = 0, rng.sample(names, len(names))
    try:
        while done < kills:
            goal = crashes.durable() + rng.randrange(1, 5_000)
            eventually(lambda goal=goal: crashes.durable() >= goal, "progress", timeout_s=WAIT_S)
            crashes.kill(victims)
            done += len(victims)
            victims = rng.sample(names, rng.choice([1, 1, 2, len(names)]))
        crashes.finish()
    except (AssertionError, pytest.fail.Exception) as problem:
        about = f"after {done} kills, the last of {victims}"
        raise AssertionError(f"{problem}\n{about}\n{crashes.noted()}") from problem


@pytest.mark.parametrize("where", ["shared", "moving"])
def test_kills_lose_nothing_and_double_nothing(
    lab: Lab, eventually: Eventually, where: str
) -> None:
    moving = where == "moving"
    kill_at_random(lab, eventually, KILLS // 2, seed=int(moving), where=where, spool=moving)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(14))
def test_two_hundred_kills(lab: Lab, eventually: Eventually, seed: int) -> None:
    where = "moving" if seed >= 10 else ("shared", "apart")[seed % 2]
    kill_at_random(
        lab, eventually, 2 * KILLS, seed=100 + seed, where=where, spool=seed // 2 % 2 == 1
    )
