"""The pytest plugin: fixtures of a network in memory. The first one used imports Tidecast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tidecast.client.blocking import Connection
    from tidecast.testing.network import Network, SimulatedNode

MARKER = "tidecast"
NODE = "engine"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(topics=(), durable=(), **settings): topics of the node of the tidecast fixtures,"
        " and settings of tidecast.testing.Network, such as drop, seed, real_time.",
    )


def _settings(request: pytest.FixtureRequest) -> dict[str, object]:
    """The markers' settings: the nearest one wins, setting by setting."""
    found: dict[str, object] = {}
    for marker in request.node.iter_markers(MARKER):
        if marker.args:
            raise pytest.UsageError(f"{MARKER}: settings have names: {MARKER}(durable=[...])")
        found = marker.kwargs | found
    return found


@pytest.fixture
def tidecast_network(request: pytest.FixtureRequest) -> Iterator[Network]:
    """A network in memory, in real time unless the marker says ``real_time=False``."""
    from tidecast.testing import Network

    settings = {"real_time": True, **_settings(request)}
    for topics in ("topics", "durable"):
        settings.pop(topics, None)
    with Network(**settings) as network:  # type: ignore[arg-type]
        yield network


@pytest.fixture
def tidecast_node(request: pytest.FixtureRequest, tidecast_network: Network) -> SimulatedNode:
    """A node of the network, with the marker's topics. ``url``: for programs that connect to it."""
    settings = _settings(request)
    topics = {name: settings[name] for name in ("topics", "durable") if name in settings}
    return tidecast_network.node(NODE, **topics)  # type: ignore[arg-type]


@pytest.fixture
def tidecast_client(tidecast_node: SimulatedNode) -> Connection:
    """A blocking connection to the node. asyncio: ``tidecast.connect(tidecast_node.url)``."""
    return tidecast_node.connect()
