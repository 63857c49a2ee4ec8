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


@pytest.fixture
def lab() -> Iterator[Lab]:
    """Engines, commands and clients; all ended afterwards."""
    with open_lab() as made:
        yield made


@pytest.fixture(scope="session")
def nursery(_warm: None) -> Iterator[Nursery]:
    """A warm process that forks engines and clients."""
    made = Nursery()
    yield made
    made.close()


@pytest.fixture
def quick_lab(nursery: Nursery) -> Iterator[Lab]:
    """A lab whose engines and clients are forked: for tests that kill many of them."""
    with open_lab(nursery) as made:
        yield made
