"""For tests: whole nodes on a network in memory, in virtual or in real time.

In real time, for the tests of a program that publishes and subscribes:

    import tidecast.testing

    with tidecast.testing.connect() as client, client.subscribe("prices") as prices:
        client.publish("prices", b"1.25")
        assert bytes(prices.next(timeout=1.0).data) == b"1.25"

In virtual time, to test faults of a network; the same seed gives the same run, packet by packet,
and ten seconds of silence take milliseconds:

    with tidecast.testing.Network(seed=7, drop=0.05, reorder=0.05) as network:
        a, b = network.node("a", topics=["t"]), network.node("b", topics=["t"])
        messages = b.connect().subscribe("t")
        a.connect().publish("t", b"hello")
        network.settle()
        assert messages.poll().payloads() == [b"hello"]

Agents, protocol and client are the real code. Only the sockets are replaced, by inboxes in memory
with a switch between them: it drops, doubles, delays and cuts, and shows every packet to the
functions of `Network.intercept`. Faults hit data and control packets alike.

Loaded when first used: importing this package, as pytest does for its plugin, is quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidecast.client.links.open import NetworkSettings
    from tidecast.testing.memory import connect, connect_async, memory_link
    from tidecast.testing.network import Network, SimulatedLink, SimulatedNode
    from tidecast.testing.switch import Packet
else:
    _HOMES = {
        **dict.fromkeys(("NetworkSettings", "connect", "connect_async", "memory_link"), "memory"),
        **dict.fromkeys(("Network", "SimulatedLink", "SimulatedNode"), "network"),
        "Packet": "switch",
    }

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tidecast.testing.{_HOMES[name]}"), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "Network",
    "NetworkSettings",
    "Packet",
    "SimulatedLink",
    "SimulatedNode",
    "connect",
    "connect_async",
    "memory_link",
]
