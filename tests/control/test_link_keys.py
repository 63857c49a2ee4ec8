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
from tidecast.control_link.link import ControlLink, load_state, websocket_url
from tidecast.engine.process import Engine
from tidecast.errors import AuthError, ConfigError
from tidecast.gateway.settings import GatewaySettings
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
    where = GatewaySettings("0.0.0.0:0", insecure=True)
    engine = Engine(short_dir, plain, gateway=where, keys_come=True, companions=(link,))
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
            text = httpx.get(control.url + "/metrics", timeout=30).text
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


def test_an_engine_stores_a_new_credential_and_forgets_keys_when_it_is_dismissed(
    control: Running, short_dir: Path, eventually: Eventually
) -> None:
    links: list[ControlLink] = []

    def link(node: Any, store: Any) -> ControlLink:
        links.append(ControlLink(node, store, control.url, token=control.enrol(), seed=1))
        return links[0]

    plain = topology_from(topology({"name": "ipc", "kind": "ipc"}))
    engine = Engine(short_dir, plain, companions=(link,))
    state = engine.start()
    try:
        assert links[0].connected.wait(20)
        scopes = [{"pattern": "orders.*", "rights": ["publish"]}]
        made = control.api.post("/keys", json={"name": "shop", "scopes": scopes})
        assert made.status_code == 201, made.text
        node: Any = engine.node
        eventually(lambda: bool(node.keys), "the key at the engine")
        before = load_state(short_dir).credential
        rotated = control.api.post(f"/nodes/{state.node_name}/rotate")
        assert rotated.status_code == 200, rotated.text
        assert load_state(short_dir).credential not in ("", before)
        spec = {"spec": {"quarantined": True}}
        assert control.api.patch(f"/nodes/{state.node_name}", json=spec).is_success
        eventually(lambda: not node.keys, "no keys of the service's")
        eventually(lambda: "quarantined" in links[0].problem, "the reason")
        assert load_state(short_dir).credential, "it is kept: the quarantine may end"
    finally:
        engine.stop()


def test_a_service_elsewhere_is_not_reached_in_clear_text() -> None:
    for url in ("http://10.0.0.7:7480", "http://db1.example:7480", "ws://[fd00::7]:7480"):
        with pytest.raises(ConfigError, match=r"clear text.*--insecure-control"):
            websocket_url(url)
        assert websocket_url(url, insecure=True).startswith("ws://")
    for url in ("http://127.0.0.1:7480", "http://localhost:7480", "https://10.0.0.7:7480"):
        assert websocket_url(url)
