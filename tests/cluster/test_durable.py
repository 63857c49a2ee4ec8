"""Durable topics of hosts whose owners are killed, cut off, paused, and whose clocks step.

A control service on a host of its own keeps leases and keys, and is killed too.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest

from tests.conftest import Eventually
from tests.support.hosts.cluster import Cluster, Host
from tests.support.hosts.traffic import TIMEOUT_S, Traffic, begin, end
from tests.support.ledger import durable

pytestmark = pytest.mark.long
SECONDS = float(os.environ.get("TIDECAST_CLUSTER_SECONDS", "120"))
"""How long owners are troubled."""
SEED = int(os.environ.get("TIDECAST_CLUSTER_SEED", "18"))
HOSTS, LOSS = 4, 0.02
AHEAD_S = 3600


Trouble = tuple[Callable[[], object], Callable[[], object]]
"""Its begin, and its end."""


def troubles(cluster: Cluster, host: Host) -> dict[str, Trouble]:
    """Troubles of the host that keeps the topic."""
    net, number, service = cluster.network, host.number, cluster.service
    return {
        "kill -9": (host.node.kill, host.again),
        "cut off": (lambda: net.cut(number), lambda: net.cut(number, off=False)),
        "deaf": (lambda: net.deafen(number), lambda: net.deafen(number, deaf=False)),
        "mute": (lambda: net.mute(number), lambda: net.mute(number, muted=False)),
        "paused": (host.pause, host.resume),
        "clock ahead": (lambda: host.step_clock(AHEAD_S), lambda: host.step_clock(0)),
        "clock behind": (lambda: host.step_clock(-AHEAD_S), lambda: host.step_clock(0)),
        "no service": (service.process.kill, service.start),
    }


STAYS = {"clock ahead", "clock behind", "no service"}
"""The owner keeps the topic meanwhile."""


def trouble(
    cluster: Cluster, traffic: Traffic, eventually: Eventually, kind: str, host: Host
) -> None:
    """One round: others go on without the owner, and it comes back."""
    start, end = troubles(cluster, host)[kind]
    victim = cluster.hosts.index(host)
    before = durable(traffic.progress)
    start()
    text = f"{kind} at {host.name}"
    try:
        if kind not in STAYS:
            eventually(
                lambda: cluster.service.keeper("orders") != host.name,
                f"the next owner: {text}",
                timeout_s=TIMEOUT_S,
            )
        but = -1 if kind in STAYS else victim
        eventually(lambda: traffic.more(before, but), f"acks: {text}", timeout_s=TIMEOUT_S)
    finally:
        end()
    before = durable(traffic.progress)
    eventually(lambda: traffic.more(before), f"acks at all after {text}", timeout_s=TIMEOUT_S)


def owner(cluster: Cluster, eventually: Eventually) -> Host:
    """The host that keeps the topic. Between two owners there is none for a moment."""
    found: list[Host] = []

    def known() -> bool:
        name = cluster.service.keeper("orders")
        found[:] = [each for each in cluster.hosts if each.name == name]
        return bool(found)

    eventually(known, "an owner", timeout_s=TIMEOUT_S)
    return found[0]


@pytest.mark.timeout(2 * SECONDS + 600)
def test_owners_in_trouble_lose_nothing_that_was_acked(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    made, rand = cluster(HOSTS), random.Random(SEED)
    traffic = begin(made, eventually)
    made.lose(LOSS)
    ends_s, kinds = time.monotonic() + SECONDS, list[str]()
    while time.monotonic() < ends_s or kinds:
        if not kinds:  # each kind once, in another order each time
            kinds = sorted(troubles(made, made.hosts[0]))
            rand.shuffle(kinds)
            made.service.tell("POST", "/transports/multicast/keys/rotate")
        trouble(made, traffic, eventually, kinds.pop(), owner(made, eventually))
    made.lose(0.0)
    moves = end(made, traffic, eventually)
    assert len({each["to_node"] for each in moves}) > 1
    passed, dropped = made.network.counts()
    assert passed > dropped > 0
