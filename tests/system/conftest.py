"""System tests run real processes over real sockets; kernels are compiled before the first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.lab import Lab, open_lab
from tests.support.nursery import Nursery

from tidecast.agents.warmup import warm_up


@pytest.fixture(scope="session", autouse=True)
def _warm() -> None:
    """Kernels are in the cache, those of the client too: no test waits for a compiler."""
    warm_up()
    with open_lab() as lab:
        client = lab.platform().connect()
        subscription, publisher = client.subscribe("warm"), client.publisher("warm")
        publisher.publish(b"x")
        publisher.publish(b"x", key=b"k")
        publisher.publish_batch([b"x"], flush=True).check()
        for _ in range(3):
            subscription.next(timeout=30.0)


@pytest.fixture(scope="session")
def nursery(_warm: None) -> Iterator[Nursery]:
    """A warm process that forks engines, commands and clients."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def lab(nursery: Nursery) -> Iterator[Lab]:
    """Engines, commands and clients, forked from a warm process; all ended afterwards."""
    with open_lab(nursery) as made:
        yield made


@pytest.fixture
def cold_lab() -> Iterator[Lab]:
    """A lab whose processes begin as a user's do: for how they start, and what they weigh."""
    with open_lab() as made:
        yield made
