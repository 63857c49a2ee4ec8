"""Engine, server, producer and consumer of a topic on JetStream, killed at random."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.conftest import Eventually
from tests.support.jetstream_storage import read_by_adapter
from tests.support.lab import Lab
from tests.support.nats_server import NatsServer, missing, nats_cluster, nats_server
from tests.support.progress import NUMBER
from tests.system.test_durable_kills import TOPIC, Crashes, in_log

PROGRESS_S = 90.0


def check_streams(server: NatsServer, crashes: Crashes) -> None:
    """Each acked record is there once, and each key in order."""
    streams = read_by_adapter(server, TOPIC["queues"])
    found = [[NUMBER.unpack_from(raw)[0] for raw in rows] for rows in streams]
    assert sorted(n for each in found for n in each) == in_log(
        crashes.owner.directory, crashes.acked
    )
    for each in found:
        for key in range(7):
            mine = [n for n in each if n % 7 == key]
            assert mine == sorted(mine)


def stream_info(server: NatsServer, stream: str) -> Any:
    """As nats-py has it."""
    return server.do(lambda _, js: js.stream_info(stream))


def progress(crashes: Crashes, eventually: Eventually, more: int) -> None:
    goal = crashes.durable() + more
    eventually(lambda: crashes.durable() >= goal, "progress", timeout_s=PROGRESS_S)


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2))
def test_kills_lose_no_acked_record_and_store_none_twice(
    lab: Lab, eventually: Eventually, seed: int
) -> None:
    chance = random.Random(seed)
    with nats_server() as server:
        storage = f"jetstream://{server.address}/ORDERS"
        crashes = Crashes(lab, eventually, where="shared", spool=bool(seed), storage=storage)
        names = ["server", "keeper", "producer", "consumer"]
        victims: list[Any] = names
        for _ in range(5):
            progress(crashes, eventually, chance.randrange(1, 5_000))
            if "server" in victims:
                server.kill()
            crashes.kill([victim for victim in victims if victim != "server"])
            if "server" in victims:
                server.start()
            victims = chance.sample(names, chance.choice([1, 1, 2, 4]))
        crashes.finish()
        check_streams(server, crashes)


@pytest.mark.long
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.timeout(600)
def test_leaders_of_a_cluster_are_killed(lab: Lab, eventually: Eventually) -> None:
    with nats_cluster() as servers:
        storage = f"jetstream://{','.join(one.address for one in servers)}/ORDERS?replicas=3"
        crashes = Crashes(lab, eventually, where="shared", spool=False, storage=storage)
        for turn in range(3):
            progress(crashes, eventually, 2_000)
            stream = f"ORDERS_{turn % TOPIC['queues']}"
            info = stream_info(servers[0], stream)
            assert info.config.num_replicas == 3
            [leader] = [one for one in servers if one.name == info.cluster.leader]
            leader.kill()
            if turn == 1:
                crashes.kill(["keeper"])
            progress(crashes, eventually, 2_000)
            leader.start()
        crashes.finish()
        check_streams(servers[0], crashes)
