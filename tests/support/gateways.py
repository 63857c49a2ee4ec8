"""A gateway to a node of this process, and its clients."""

from __future__ import annotations

from typing import Any

import tidecast.sync
from tests.support.lab import Lab, topology
from tests.support.patience import next_event
from tests.support.ports import free_port
from tidecast.config.store import TopologyStore
from tidecast.embedded import EmbeddedLink
from tidecast.gateway.server import Gateway

TOKEN = "a-token-of-tests"
TIMEOUT_S = 20.0


def make_gateway(
    node: EmbeddedLink, *, store: TopologyStore | None = None, **options: Any
) -> Gateway:
    """One that listens on a free port."""

    def make_link(name: str) -> Any:
        return EmbeddedLink(node.node, name, owns_node=False, store=store)

    made = Gateway(make_link, TOKEN, port=0, **options)
    made.start()
    return made


def remote(url: str, name: str = "far", token: str = TOKEN) -> tidecast.sync.Connection:
    """A client through a gateway."""
    return tidecast.sync.connect(url, token=token, name=name)


def local(node: EmbeddedLink) -> tidecast.sync.Connection:
    """A client of the node itself."""
    link: Any = EmbeddedLink(node.node, "near", owns_node=False)
    return tidecast.sync.connect(link=link)


def until_event(client: Any, kind: type) -> Any:
    """The next event of a kind; others are skipped."""
    return next_event(client, kind, TIMEOUT_S)


class Served:
    """An engine with a gateway, on a port that stays the same over restarts."""

    def __init__(
        self, lab: Lab, topics: list[dict[str, Any]] | None = None, *transports: dict[str, Any]
    ) -> None:
        """Without ``transports``: ipc alone."""
        self.port = free_port()
        chosen = transports or ({"name": "ipc", "kind": "ipc"},)
        settings = topology(*chosen, topics=topics or [])
        self.lab, self.platform = lab, lab.platform(settings, start=False)
        self.start()

    def start(self) -> None:
        """Start the engine; ready when this returns."""
        engine = self.lab.spawn(
            "engine", "--gateway", f"127.0.0.1:{self.port}", platform=self.platform
        )
        assert f"gateway tidecast://127.0.0.1:{self.port}" in engine.line()
        self.platform.engine = engine

    @property
    def token(self) -> str:
        """The token in its file."""
        return (self.platform.directory / "gateway.token").read_text().strip()

    def connect(self, port: int | None = None) -> Any:
        """A remote client in this process."""
        url = f"tidecast://127.0.0.1:{port or self.port}"
        return self.lab.connect(url, token=self.token, name="far")
