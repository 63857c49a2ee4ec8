"""Live topics of engines on hosts of their own: each port loses packets, and each one is sealed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Eventually
from tests.support.hosts.cluster import Cluster, transport
from tests.support.lab import topology
from tidecast.node.sealing.wire_keys import FILE_NAME

LOSS = 0.05
PUBLISHERS = 4
MESSAGES = int(os.environ.get("TIDECAST_CLUSTER_MESSAGES", "1000000"))
"""In all; each subscriber gets each of them."""
TIMEOUT_S = 900.0


def share_keys(cluster: Cluster) -> None:
    """One secret for all hosts, as an operator copies it."""
    first = cluster.hosts[0].node
    first.run("wire", "keys", "new", "multicast")
    for host in cluster.hosts[1:]:
        shutil.copy(first.directory / FILE_NAME, Path(host.node.directory, FILE_NAME))


def joined(cluster: Cluster, publishers: int) -> bool:
    """Each publication has the receivers of all other hosts."""
    return all(
        [each["receivers"] for each in host.node.overview().publications]
        == [len(cluster.hosts) - 1]
        for host in cluster.hosts[:publishers]
    )


def live_messages_arrive(
    cluster: Cluster,
    eventually: Eventually,
    *,
    publishers: int,
    each: int,
    lanes: tuple[int, ...] = (1,),
) -> None:
    """All messages at all hosts, each once and in order, and the figures agree.

    ``lanes``: of the hosts, in turn.
    """
    wire, topics = transport(), [{"name": f"live.{n}"} for n in range(publishers)]
    for number, host in enumerate(cluster.hosts):
        settings = topology(wire | {"lanes": lanes[number % len(lanes)]}, topics=topics)
        host.make(settings | {"node": {"name": host.name}})
    share_keys(cluster)
    for host in cluster.hosts:
        host.begin()
    tallies = [
        host.role("tally", host.node.url, "live.*", str(publishers), str(each))
        for host in cluster.hosts
    ]
    streams = [
        host.role("stream", host.node.url, f"live.{n}", str(n), str(each))
        for n, host in enumerate(cluster.hosts[:publishers])
    ]
    eventually(lambda: joined(cluster, publishers), "all receivers", timeout_s=60.0)
    cluster.lose(LOSS)
    for stream in streams:
        stream.tell("go")
    for tally in tallies:
        assert tally.line() == f"wrong 0 of {publishers * each}"
    passed, dropped = cluster.network.counts()
    assert dropped > 0.8 * LOSS * (passed + dropped), (passed, dropped)
    totals: dict[str, int] = {}
    for host in cluster.hosts:
        for kind in ("publication", "sender", "receiver", "image"):
            for name, value in host.node.counters(kind).items():
                totals[f"{kind}.{name}"] = totals.get(f"{kind}.{name}", 0) + value
    assert totals.get("receiver.plain_refused", 0) == 0
    assert totals.get("receiver.tag_failed", 0) == 0
    assert totals["publication.packets_resent"] > 0


@pytest.mark.long
@pytest.mark.timeout(TIMEOUT_S)
def test_eight_sealed_hosts_that_lose_packets_get_every_message_once(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    live_messages_arrive(cluster(8), eventually, publishers=PUBLISHERS, each=MESSAGES // PUBLISHERS)


def test_three_sealed_hosts_that_lose_packets_get_every_message_once(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    live_messages_arrive(cluster(3), eventually, publishers=2, each=50_000)


def test_three_sealed_hosts_with_different_lanes_get_every_message_once(
    cluster: Callable[[int], Cluster], eventually: Eventually
) -> None:
    """Hosts of two, three and one lane: a rolling change of ``lanes``."""
    live_messages_arrive(cluster(3), eventually, publishers=3, each=30_000, lanes=(2, 3, 1))
