"""kill -9 of remote producers, remote consumers and engines, and connections cut, all at random.

As `test_durable_kills`, over websockets: the logs hold each number once, in the order of its key,
never less than was said to be durable; and the consumers have handled all of it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.conftest import Eventually
from tests.support.gateways import Served
from tests.support.lab import Lab
from tests.support.process import Child
from tests.support.progress import NUMBER, noted, progress_file
from tests.support.proxy import Proxy
from tests.system.test_durable_kills import TOPIC, in_log

VICTIMS = ("engine", "producer", "consumer", "connections")


def handled(seen: Path) -> set[int]:
    """Numbers that consumers wrote down."""
    raw = seen.read_bytes()
    whole = raw[: len(raw) // NUMBER.size * NUMBER.size]
    return {number for (number,) in NUMBER.iter_unpack(whole)}


def kill_in_turn(
    lab: Lab, eventually: Eventually, victims: Sequence[str], rng: random.Random
) -> None:
    served = Served(lab, [TOPIC])
    proxy = Proxy(served.port)
    directory = served.platform.directory
    progress, seen = directory / "progress", directory / "seen"
    progress_file(progress)

    def producer() -> Child:
        child = lab.role("produce", proxy.url, "orders", str(progress), "0.01")
        child.tell("go")
        return child

    def consumer() -> Child:
        return lab.role("consume", proxy.url, "orders", str(seen))

    try:
        roles = {"producer": producer(), "consumer": consumer()}
        acked = 0
        for victim in victims:
            goal = noted(progress) + rng.randrange(1, 3000)
            eventually(lambda goal=goal: noted(progress) >= goal, "progress", timeout_s=60.0)
            acked = max(acked, noted(progress))
            if victim == "engine":
                served.platform.kill()
                served.start()
            elif victim == "connections":
                proxy.cut_after(rng.randrange(1, 200_000))
            else:  # a first connection that is cut is an error, not a loss
                eventually(lambda: not proxy.cuts, "the cut")
                roles[victim].kill()
                roles[victim] = producer() if victim == "producer" else consumer()
        roles["producer"].kill()
        acked = max(acked, noted(progress))
        wanted = set(range(1, acked + 1))
        eventually(lambda: wanted <= handled(seen), "all handled", timeout_s=90.0)
        roles["consumer"].kill()
        served.platform.stop()
        in_log(directory, acked)
    finally:
        proxy.close()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients find the token where a user would put it."""
    start = Served.start

    def with_token(self: Served) -> None:
        start(self)
        monkeypatch.setenv("TIDECAST_TOKEN", self.token)

    monkeypatch.setattr(Served, "start", with_token)


def test_kills_of_all_three_lose_nothing(lab: Lab, eventually: Eventually) -> None:
    victims = ("engine", "consumer", "connections", "producer")
    kill_in_turn(lab, eventually, victims, random.Random(1))


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(3))
def test_many_kills_at_random(lab: Lab, eventually: Eventually, seed: int) -> None:
    rng = random.Random(seed)
    kill_in_turn(lab, eventually, [rng.choice(VICTIMS) for _ in range(40)], rng)
