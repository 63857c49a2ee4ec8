"""Hosts need root, namespaces and eBPF. Without these the tests are left out, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.support.hosts import clock
from tests.support.hosts.cluster import Cluster
from tests.support.hosts.network import missing
from tests.support.nursery import Nursery
from tidecast.agents.warmup import warm_up


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """A warm process that forks engines and clients into the hosts' namespaces."""
    if missing():
        pytest.skip(missing())
    warm_up()
    made = Nursery(clock.environment())
    yield made
    made.close()
    clock.forget()


@pytest.fixture
def cluster(nursery: Nursery) -> Iterator[Callable[[int], Cluster]]:
    """Make a cluster of so many hosts; it is gone at the end of the test."""
    made: list[Cluster] = []

    def make(hosts: int) -> Cluster:
        made.append(Cluster(nursery, hosts))
        return made[-1]

    yield make
    for one in made:
        one.close()
