"""Unicast peers that the service found, and a network that carries packets one way only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conftest import Eventually
from tests.support.gateways import until_event
from tests.support.hosts.cluster import PORT, Cluster, Host, Service
from tests.support.lab import topology
from tests.support.process import Child
from tidecast.events import PathNarrow

LAN = {"name": "lan", "kind": "udp-unicast", "interface": "eth0", "port": PORT}
SEALED = LAN | {"secure": "required"}
N = 50_000


def silent(host: Host) -> set[str]:
    """The peers that its engine has not heard of late."""
    rows = host.node.overview().peers
    return {row["node"] for row in rows if row["heard_age_s"] is None or row["heard_age_s"] > 10}


def receivers(host: Host) -> set[str]:
    return {row["node"] for row in host.node.overview().receivers}


def cut_ways(service: Service) -> list[tuple[str, str]]:
    """(from, to): ways on which nothing arrives, as the page shows them."""
    paths = service.ask("/cluster/peers")["paths"]
    return [(each["peer"], each["node"]) for each in paths if each["silent"]]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_way_that_is_cut_is_named_and_what_it_carried_comes_afterwards(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    """The second host hears nothing of the first until its session there is over, too."""
    made = cluster(3)
    first, second, third = made.hosts
    settings = topology(SEALED, topics=[{"name": "live.0", "history_bytes": 16 << 20}])
    service = made.serve(settings)
    service.tell("POST", "/transports/lan/keys/rotate?at_once=true")
    for host in made.hosts:
        made.join(host, settings)
    names = {host.name for host in made.hosts}
    for host in made.hosts:
        eventually(lambda h=host: not silent(h), f"the peers of {host.name}", timeout_s=60)
    tallies: dict[str, Child] = {
        host.name: host.role("tally", host.node.url, "live.*", "1", str(N)) for host in made.hosts
    }
    stream = first.role("stream", first.node.url, "live.0", "0", str(N))
    eventually(lambda: receivers(first) == names - {first.name}, "both receivers", timeout_s=60)

    second.port.hear(first.number, heard=False)
    eventually(lambda: silent(second) == {first.name}, "the silent peer", timeout_s=60)
    assert silent(first) == silent(third) == set(), "it is heard, and hears the others"
    cut = [(first.name, second.name)]
    eventually(lambda: cut_ways(service) == cut, "the way that is cut, at the service")
    stream.tell("go")
    for host in (first, third):
        assert tallies[host.name].line() == f"wrong 0 of {N}"
    second.port.hear(first.number, heard=True)
    assert tallies[second.name].line() == f"wrong 0 of {N}"
    eventually(lambda: not silent(second), "the peer that is heard again", timeout_s=30)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_packets_beyond_the_mtu_of_one_path_arrive_in_fragments_and_are_reported(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    """A tunnel on the way to one peer: the kernel refuses segments of that size to it."""
    made = cluster(3)
    first, second, third = made.hosts
    first.port.namespace.ip("route", "add", second.port.address, "dev", "eth0", "mtu", "1200")
    settings = topology(SEALED, topics=[{"name": "live.0", "history_bytes": 16 << 20}])
    service = made.serve(settings)
    service.tell("POST", "/transports/lan/keys/rotate?at_once=true")
    made.join(first, settings)
    client = first.node.connect()  # before it has a peer: the event comes once
    for host in (second, third):
        made.join(host, settings)
    for host in made.hosts:
        eventually(lambda h=host: not silent(h), f"the peers of {host.name}", timeout_s=60)
    tallies = [host.role("tally", host.node.url, "live.*", "1", str(N)) for host in (second, third)]
    stream = first.role("stream", first.node.url, "live.0", "0", str(N))
    names = {second.name, third.name}
    eventually(lambda: receivers(first) == names, "both receivers", timeout_s=60)
    stream.tell("go")
    for tally in tallies:
        assert tally.line() == f"wrong 0 of {N}"
    narrow = until_event(client, PathNarrow)
    assert narrow.address == f"{second.port.address}:{PORT}"
    assert (narrow.wire_bytes, narrow.mtu, narrow.packet_bytes_max) == (1_468, 1_200, 1_128)
    counters = first.node.counters("transport")
    assert (counters["path_mtu"], counters["targets_cut"]) == (1_200, 1)
    assert counters.get("sends_too_long", 0) == 0
    senders = first.node.counters("sender")
    assert senders["gso_refused"] <= 1, "the other peer still gets segments"
    first.port.namespace.ip("route", "replace", second.port.address, "dev", "eth0", "mtu", "1500")

    def wide() -> bool:
        now = first.node.counters("transport")
        return (now["path_mtu"], now.get("targets_cut", 0)) == (1_500, 0)

    eventually(wide, "the path that is wide again", timeout_s=30)
