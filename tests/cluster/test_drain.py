"""Hosts that are drained while others are killed or cut off: the drain ends, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import Eventually
from tests.support.hosts.cluster import Cluster, Host
from tests.support.hosts.traffic import TIMEOUT_S, Traffic, begin, end
from tests.support.ledger import durable

pytestmark = pytest.mark.long
HOSTS = 3
NOBODY = "no engine that shares its queues, and is not drained, is up"


class Drains:
    """A cluster with traffic on a leased topic, and the drains of its hosts."""

    def __init__(self, cluster: Cluster, eventually: Eventually) -> None:
        self.cluster, self.eventually = cluster, eventually
        self.traffic: Traffic = begin(cluster, eventually)

    def owner(self) -> Host:
        """The host that keeps the topic; between two owners there is none for a moment."""
        keeper = self.cluster.service.keeper
        self.eventually(lambda: keeper("orders"), "an owner", timeout_s=TIMEOUT_S)
        name = keeper("orders")
        return next(host for host in self.cluster.hosts if host.name == name)

    def others(self, host: Host) -> list[Host]:
        return [each for each in self.cluster.hosts if each is not host]

    def set(self, host: Host, drained: bool) -> None:
        self.cluster.service.tell("PATCH", f"/nodes/{host.name}", {"spec": {"drained": drained}})

    def state(self, host: Host) -> dict[str, Any]:
        """As its engine reports it; empty while it does not answer."""
        answer = self.cluster.service.call("GET", f"/cluster/nodes/{host.name}/drain")
        found: dict[str, Any] = answer.json() if answer.status_code == 200 else {}
        return found

    def ends(self, host: Host, text: str) -> None:
        """The drain has ended: another host keeps the topic, and acks what is published."""
        self.eventually(
            lambda: self.state(host).get("empty", False), f"empty: {text}", timeout_s=TIMEOUT_S
        )
        keeper = self.cluster.service.keeper
        self.eventually(
            lambda: keeper("orders") not in ("", host.name),
            f"the next: {text}",
            timeout_s=TIMEOUT_S,
        )
        before = durable(self.traffic.progress)
        self.eventually(
            lambda: self.traffic.more(before), f"acks at all after: {text}", timeout_s=TIMEOUT_S
        )
        self.set(host, False)


def another_is_killed(drains: Drains) -> None:
    """Perhaps the one that is about to take the topic."""
    host = drains.owner()
    victim = drains.others(host)[0]
    drains.set(host, True)
    victim.node.kill()
    drains.eventually(lambda: drains.state(host).get("empty"), "empty", timeout_s=TIMEOUT_S)
    victim.again()
    drains.ends(host, "another is killed")


def the_drained_one_is_killed(drains: Drains) -> None:
    """It starts again drained, and takes nothing."""
    host = drains.owner()
    drains.set(host, True)
    host.node.kill()
    host.again()
    drains.ends(host, "the drained one is killed")


def the_drained_one_is_cut_off(drains: Drains) -> None:
    """The others take the topic when its lease is over, whatever it was doing."""
    host = drains.owner()
    drains.set(host, True)
    drains.cluster.network.cut(host.number)
    keeper = drains.cluster.service.keeper
    drains.eventually(
        lambda: keeper("orders") not in ("", host.name), "the next owner", timeout_s=TIMEOUT_S
    )
    drains.cluster.network.cut(host.number, off=False)
    drains.ends(host, "the drained one is cut off")


def all_others_are_dead(drains: Drains) -> None:
    """Nobody can take the topic: it stays, with the reason, and is served, until somebody can."""
    host = drains.owner()
    others = drains.others(host)
    for each in others:
        each.node.kill()
    drains.set(host, True)

    def said() -> bool:
        state = drains.state(host)
        why = {each["name"]: each["reason"] for each in state.get("stays", [])}
        return bool(state.get("drained")) and why.get("orders") == NOBODY

    drains.eventually(said, "the reason", timeout_s=TIMEOUT_S)
    state = drains.state(host)
    assert (state["empty"], state["keeps"], state["moving"]) == (False, ["orders"], [])
    mine = drains.cluster.hosts.index(host)
    before = durable(drains.traffic.progress)[mine]
    drains.eventually(
        lambda: durable(drains.traffic.progress)[mine] > before + 100,
        "acks of the drained one",
        timeout_s=TIMEOUT_S,
    )
    for each in others:
        each.again()
    drains.ends(host, "all others were dead")


def the_service_is_killed(drains: Drains) -> None:
    """Leases are its own: the drain goes on when it is back."""
    host = drains.owner()
    drains.set(host, True)
    drains.cluster.service.process.kill()
    drains.cluster.service.start()
    drains.ends(host, "the service is killed")


TROUBLES = (
    another_is_killed,
    the_drained_one_is_killed,
    the_drained_one_is_cut_off,
    all_others_are_dead,
    the_service_is_killed,
)


@pytest.mark.timeout(1200)
def test_a_drain_among_killed_and_cut_off_engines_loses_nothing_that_was_acked(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    drains = Drains(cluster(HOSTS), eventually)
    for trouble in TROUBLES:
        trouble(drains)
    moves = end(drains.cluster, drains.traffic, eventually)
    assert len({each["to_node"] for each in moves}) > 1
