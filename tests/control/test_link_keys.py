"""Keys made in the control service are checked at an engine's gateway, also without the service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from tests.conftest import Eventually
from tests.support.control import Running, running
from tests.support.gateways import remote
from tests.support.lab import topology
from tidecast.config.topology import topology_from
from tidecast.control_link.link import ControlLink
from tidecast.engine.process import Engine
from tidecast.errors import AuthError
from tidecast_control.settings import Settings


@pytest.fixture
def control(settings: Settings, template: Any) -> Iterator[Running]:
    with running(settings, template.login) as made:
        yield made


def test_a_key_made_in_the_service_opens_the_gateway_until_it_is_revoked(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    links: list[ControlLink] = []

    def link(node: Any, store: Any) -> ControlLink:
        links.append(ControlLink(node, store, control.url, token=control.enrol(), seed=1))
        return links[0]

    plain = topology_from(topology({"name": "ipc", "kind": "ipc"}))
    engine = Engine(short_dir, plain, gateway="0.0.0.0:0", companions=(link,))
    state = engine.start()
    try:
        url = f"tidecast://127.0.0.1:{state.gateway.rpartition(':')[2]}"
        assert links[0].connected.wait(20)
        scopes = [{"pattern": "orders.*", "rights": ["publish"]}]
        answer = control.api.post("/keys", json={"name": "shop", "scopes": scopes})
        assert answer.status_code == 201, answer.text
        secret = answer.json()["secret"]
        node: Any = engine.node
        eventually(lambda: bool(node.keys), "the key at the engine")
        with remote(url, token=secret) as client:
            client.publish("orders.eu", b"1", flush=True)
            with pytest.raises(AuthError, match="key shop lacks the right publish on secret"):
                client.publish("secret", b"1")
            text = httpx.get(control.url + "/metrics").text
            counted = [
                x for x in text.splitlines() if x.startswith("tidecast_gateway_denied_total")
            ]
            assert [x.rpartition(" ")[2] for x in counted] == ["1.0"]
            assert 'name="gateway"' in counted[0]
            assert control.api.delete("/keys/shop").is_success
            eventually(lambda: not node.keys, "the engine told")
        with pytest.raises(AuthError):
            remote(url, token=secret)
    finally:
        engine.stop()
