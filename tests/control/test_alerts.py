"""Alert rules: when they fire, resolve, keep their state, are silenced, and call a webhook."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import http.server
import json
import socket
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from tests.support.control import Service
from tests.support.patience import wait_until
from tidecast_control.addresses import AddressPolicy
from tidecast_control.alerts.evaluate import CONNECT_S, Evaluator
from tidecast_control.alerts.webhooks import ATTEMPTS_MAX, NOT_PUBLIC, WebhookSender
from tidecast_control.kit.models import ResourceRow, utc_now
from tidecast_control.live.world import World
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.supervisor import Turn

NOW = utc_now()
SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
Call = tuple[dict[str, str], bytes]


class Hook:
    """A webhook: its URL, what it was sent, and the status that it answers with."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.status, self.location = 204, ""
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                hook.calls.append((dict(self.headers), body))
                self.send_response(hook.status)
                if hook.location:
                    self.send_header("Location", hook.location)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                return

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}/services/T0/B0/topsecret"

    @property
    def told(self) -> list[Any]:
        """The bodies."""
        return [json.loads(body) for _, body in self.calls]

    def close(self) -> None:
        """No more."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hook() -> Iterator[Hook]:
    """A webhook on this machine."""
    made = Hook()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def only_calls_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's own sender looks each second, and took calls that a test was about to make."""

    async def run(_sender: WebhookSender, _turn: Turn) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WebhookSender, "run", run)


def _world(fill: float, *nodes: str) -> World:
    world = World()
    world.topic("md.eu")["ring_fill"] = fill
    world.topic("md.eu")["lag_packets"] = "0"
    world.topic("md.eu")["nodes"] = list(nodes)
    world.nodes = {node: {} for node in nodes}
    return world


def _evaluator(service: Service, clock_s: Any = lambda: 0.0) -> Evaluator:
    """An evaluator beside the service's own, which has its second turn after five minutes."""
    tasks = service.ctx.supervisor.tasks
    wait_until(lambda: tasks["alerts"].turns, 60.0, "a turn of the service's evaluator")
    return Evaluator(service.ctx.db, service.ctx.hub, service.ctx.feed, 5, clock_s)


def _send(service: Service, now: datetime = NOW, **options: Any) -> int:
    """Make the calls that are due."""

    async def send() -> int:
        policy = options.pop("policy", service.ctx.settings.webhook_policy)
        sender = WebhookSender(service.ctx.db, policy, now=lambda: now, seed=1, **options)
        return await sender.step()

    return asyncio.run(send())


def _rule(service: Service, name: str = "full", **spec: Any) -> None:
    whole = {"metric": "ring_fill", "target": "md.>", "threshold": 0.8, "for_s": 0, **spec}
    answer = service.admin.put(f"/api/v1/alert-rules/{name}", json={"spec": whole})
    assert answer.status_code == 201, answer.text


def _alerts(service: Service, state: str = "firing") -> list[Any]:
    found = service.admin.get(f"/api/v1/alerts?state={state}").json()["items"]
    assert isinstance(found, list)
    return found


def _node(service: Service, name: str) -> None:
    """A node that has registered."""
    with service.ctx.db.begin() as session:
        session.add(ResourceRow(uid=str(uuid.uuid4()), kind="node", name=name))
        session.add(NodeStateRow(name=name, connected=True, node_id=1, incarnation=1))


def test_a_rule_fires_after_its_time_and_resolves(service: Service, hook: Hook) -> None:
    _rule(service, for_s=10, webhook=hook.url)
    evaluator = _evaluator(service)
    for seconds in (0.0, 9.0):
        assert evaluator.step(_world(0.9), NOW + timedelta(seconds=seconds)).needs_telemetry
    assert _send(service) == 0
    at = NOW + timedelta(seconds=10)
    evaluator.step(_world(0.9), at)
    evaluator.step(_world(0.95), at)
    assert _send(service, at) == 1
    assert [(t["state"], t["target"], t["value"]) for t in hook.told] == [("firing", "md.eu", 0.9)]
    [alert] = _alerts(service)
    assert (alert["rule"], alert["value"], alert["delivery"]) == ("full", 0.95, "HTTP 204")
    evaluator.step(_world(0.1), at)
    assert _send(service, at) == 1
    assert [t["state"] for t in hook.told] == ["firing", "resolved"]
    assert _alerts(service) == []


def test_state_and_time_outlive_the_service(service: Service, hook: Hook) -> None:
    """A new evaluator is what a service that starts again has: nothing resolves, nothing waits."""
    _node(service, "a")
    _rule(service, "full", webhook=hook.url)
    _rule(service, "soon", for_s=60)
    _evaluator(service).step(_world(0.9, "a"), NOW)
    assert _send(service) == 1
    again = _evaluator(service)
    again.step(World(), NOW + timedelta(seconds=30))
    [alert] = _alerts(service)
    assert (alert["rule"], alert["no_data"]) == ("full", True)
    again.step(_world(0.9, "a"), NOW + timedelta(seconds=60))
    assert {a["rule"]: a["no_data"] for a in _alerts(service)} == {"full": False, "soon": False}
    assert [t["state"] for t in hook.told] == ["firing"]
    assert _send(service, NOW + timedelta(seconds=60)) == 0


def test_what_a_silent_node_reported_last_stays(service: Service) -> None:
    """Another node that has the topic, and no lag there, resolves nothing; only the node does."""
    for name in ("a", "b"):
        _node(service, name)
    _rule(service)
    evaluator = _evaluator(service)
    evaluator.step(_world(0.9, "a", "b"), NOW)
    evaluator.step(_world(0.1, "b"), NOW)
    assert [a["no_data"] for a in _alerts(service)] == [True]
    evaluator.step(_world(0.1, "a", "b"), NOW)
    assert _alerts(service) == []
    evaluator.step(_world(0.9, "a"), NOW)
    with service.ctx.db.begin() as session:
        session.execute(text("DELETE FROM resources WHERE kind = 'node' AND name = 'a'"))
    evaluator.step(World(), NOW)
    assert _alerts(service) == [], "a node that was deleted reports nothing any more"


def test_a_service_that_starts_calls_no_node_down_at_once(service: Service) -> None:
    _node(service, "a")
    _rule(service, "down", metric="node_down", target=">", threshold=0.5)
    with service.ctx.db.begin() as session:
        session.execute(text("UPDATE node_states SET connected = false"))
    now_s = [0.0]
    evaluator = _evaluator(service, lambda: now_s[0])
    assert not evaluator.step(World(), NOW).needs_telemetry
    assert _alerts(service) == []
    now_s[0] = CONNECT_S + 1
    evaluator.step(World(), NOW)
    assert [a["target"] for a in _alerts(service)] == ["a"]


def test_drift_of_a_node_that_died_is_not_over(service: Service) -> None:
    _node(service, "a")
    _rule(service, "late", metric="drift", target=">", threshold=0.5)
    with service.ctx.db.begin() as session:
        session.execute(text("""UPDATE node_states SET errors = '{"topic/t": "x"}'"""))
    evaluator = _evaluator(service)
    evaluator.step(World(), NOW)
    with service.ctx.db.begin() as session:
        session.execute(text("UPDATE node_states SET connected = false"))
    evaluator.step(World(), NOW)
    assert [a["no_data"] for a in _alerts(service)] == [True]


def test_a_rule_that_cannot_be_read_stops_no_other(service: Service) -> None:
    _rule(service, "broken")
    _rule(service, "sound")
    evaluator = _evaluator(service)
    evaluator.step(_world(0.9), NOW)
    with service.ctx.db.begin() as session:
        session.execute(
            text("""UPDATE resources SET spec = '{"metric": "none"}' WHERE name = 'broken'""")
        )
    done = evaluator.step(_world(0.1), NOW)
    assert [str(p).partition(":")[0] for p in done.problems] == ["alert rule broken"]
    assert [a["rule"] for a in _alerts(service)] == ["broken"], "it keeps its state"
    assert [a["rule"] for a in _alerts(service, "resolved")] == ["sound"]


def test_a_silence_keeps_it_quiet(service: Service, hook: Hook) -> None:
    _rule(service, threshold=0.5, webhook=hook.url)
    silence = {"rule": "full", "target": "md.*", "until": "2100-01-01T00:00:00Z"}
    answer = service.admin.put("/api/v1/silences/night", json={"spec": silence})
    assert answer.json()["status"]["active"]
    _evaluator(service).step(_world(0.9), NOW)
    assert _send(service) == 0
    assert hook.told == []
    assert [a["silenced"] for a in _alerts(service)] == [True]


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_is_tried_again_with_back_off_and_in_order(service: Service, hook: Hook) -> None:
    _rule(service, webhook=hook.url)
    hook.status = 500
    evaluator = _evaluator(service)
    evaluator.step(_world(0.9), NOW)
    evaluator.step(_world(0.1), NOW)
    at = NOW
    assert _send(service, at) == 1
    [alert] = _alerts(service, "resolved")
    assert alert["delivery"].startswith("HTTP 500; attempt 1, again at ")
    assert _send(service, at) == 0, "nothing is due, and `resolved` waits for `firing`"
    hook.status = 204
    at += timedelta(seconds=5)
    assert (_send(service, at), _send(service, at), _send(service, at)) == (1, 1, 0)
    assert [t["state"] for t in hook.told] == ["firing", "firing", "resolved"]
    ids = [headers["webhook-id"] for headers, _ in hook.calls]
    assert ids[0] == ids[1] != ids[2]


def test_a_call_is_given_up_in_the_end(service: Service, hook: Hook) -> None:
    _rule(service, webhook=hook.url)
    hook.status = 410
    _evaluator(service).step(_world(0.9), NOW)
    for n in range(ATTEMPTS_MAX):
        assert _send(service, NOW + timedelta(hours=2 * n)) == 1
    assert _send(service, NOW + timedelta(days=9)) == 0
    [alert] = _alerts(service)
    assert alert["delivery"] == f"HTTP 410; given up after {ATTEMPTS_MAX} attempts"


def test_calls_are_signed(service: Service, hook: Hook) -> None:
    """As https://www.standardwebhooks.com says, computed here by hand."""
    _rule(service, webhook=hook.url, webhook_secret=SECRET)
    _evaluator(service).step(_world(0.9), NOW)
    _send(service)
    [(headers, body)] = hook.calls
    signed = b".".join(
        (headers["webhook-id"].encode(), headers["webhook-timestamp"].encode(), body)
    )
    digest = hmac.new(bytes(range(32)), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert headers["webhook-timestamp"] == str(int(NOW.timestamp()))
    assert headers["Host"] == f"127.0.0.1:{hook.port}"


def test_redirects_are_not_followed(service: Service, hook: Hook) -> None:
    other = Hook()
    hook.status, hook.location = 307, other.url
    _rule(service, webhook=hook.url)
    _evaluator(service).step(_world(0.9), NOW)
    _send(service)
    other.close()
    assert other.calls == []
    assert _alerts(service)[0]["delivery"].startswith("HTTP 307; attempt 1")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1%2",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
    ],
)
def test_addresses_that_are_not_public_are_refused(
    service: Service, hook: Hook, address: str
) -> None:
    """Whatever a name resolves to; the answer does not say what was there."""
    url = f"http://hook.example:{hook.port}/x"
    _rule(service, webhook=url)
    _evaluator(service).step(_world(0.9), NOW)

    async def resolve(host: str, port: int) -> list[str]:
        assert (host, port) == ("hook.example", hook.port)
        return [address]

    _send(service, policy=AddressPolicy(), resolve=resolve)
    assert hook.calls == []
    assert _alerts(service)[0]["delivery"].startswith(NOT_PUBLIC)


def test_the_address_that_was_checked_is_connected_to(service: Service, hook: Hook) -> None:
    """The name is resolved once: a second answer, of an attacker's server, is never asked for."""
    _rule(service, webhook=f"http://hook.example:{hook.port}/x")
    _evaluator(service).step(_world(0.9), NOW)
    answers = [["10.0.0.1", "127.0.0.1"], ["10.0.0.1"]]

    async def resolve(_host: str, _port: int) -> list[str]:
        return answers.pop(0)

    _send(service, resolve=resolve)
    assert len(answers) == 1
    assert hook.calls[0][0]["Host"] == f"hook.example:{hook.port}"


@pytest.fixture
def banner() -> Iterator[str]:
    """The URL of a server that does not speak HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"


def test_what_does_not_speak_http_is_an_answer(service: Service, banner: str) -> None:
    _rule(service, webhook=banner)
    _evaluator(service).step(_world(0.9), NOW)
    assert _send(service) == 1
    assert _alerts(service)[0]["delivery"].startswith("failed: no answer in HTTP; attempt 1")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1:9/", "failed: no connection"),
        ("http://no-such-host.invalid/", "failed: no such host"),
        ("http://xn--a/", "failed: no such host"),
        ("http://h:65536/", "failed: the URL cannot be called"),
        ("http://x/a b", "failed: "),
    ],
)
def test_calls_that_fail_are_noted(service: Service, url: str, words: str) -> None:
    """Also of URLs that an older release stored, when they were hardly checked."""
    _rule(service, webhook="http://127.0.0.1:9/")
    with service.ctx.db.begin() as session:
        session.execute(text("UPDATE webhook_secrets SET value = :url"), {"url": url})
    _evaluator(service).step(_world(0.9), NOW)
    assert _send(service) == 1
    assert _alerts(service)[0]["delivery"].startswith(words)


def test_urls_that_nobody_can_call_are_refused(service: Service, subtests: pytest.Subtests) -> None:
    for url in (
        "http://x/a b",
        "http://h:abc/",
        "http://h:99999/",
        "http://h:0/",
        "http://ex\u00e4mple/",
        "http://u:p@h/",
        "ftp://h/",
        "http:///x",
        "http://h/#f",
        "http://[::1/",
        "http://a..b/",
    ):
        with subtests.test(url):
            spec = {"metric": "ring_fill", "webhook": url}
            answer = service.admin.put("/api/v1/alert-rules/full", json={"spec": spec})
            assert answer.status_code == 422, answer.text
            assert "allowed is an http or https URL" in answer.text


# --- secrets --------------------------------------------------------------------------------------


def test_the_url_and_the_secret_are_write_only(service: Service, hook: Hook) -> None:
    """No answer, plan, export, audit or search has them, for no role."""
    spec = {
        "metric": "ring_fill",
        "target": "md.>",
        "threshold": 0.8,
        "for_s": 0,
        "webhook": hook.url,
        "webhook_secret": SECRET,
    }
    path = "/api/v1/alert-rules/full"
    answers = [
        service.admin.put(f"{path}?dry_run=true", json={"spec": spec}),
        service.admin.put(path, json={"spec": spec}),
        service.admin.patch(f"{path}?dry_run=true", json={"spec": {"webhook": hook.url + "2"}}),
        service.admin.patch(path, json={"spec": {"webhook": hook.url + "2"}}),
        service.user("vera", "viewer").get(path),
        service.admin.get("/api/v1/alert-rules"),
        service.admin.get("/api/v1/export"),
        service.admin.get("/api/v1/audit?kind=alert_rule"),
        service.admin.delete(f"{path}?dry_run=true"),
    ]
    for answer in answers:
        assert answer.status_code in (200, 201), answer.text
        assert "topsecret" not in answer.text
        assert SECRET[6:] not in answer.text
        assert f"http://127.0.0.1:{hook.port}/********-" in answer.text, answer.text
    changed = [c["path"] for c in answers[2].json()["changes"]]
    assert changed == ["/spec/webhook"], "another URL is another mask"


def test_a_masked_value_means_the_one_that_is_stored(service: Service, hook: Hook) -> None:
    """A spec from GET or an export, its secret masked, is written back: the stored secret stays."""
    _rule(service, webhook=hook.url, webhook_secret=SECRET)
    path = "/api/v1/alert-rules/full"
    shown = service.admin.get(path).json()["spec"]
    answer = service.admin.put(path, json={"spec": shown | {"severity": "critical"}})
    assert answer.status_code == 200, answer.text
    _evaluator(service).step(_world(0.9), NOW)
    assert _send(service) == 1
    assert "webhook-signature" in hook.calls[0][0]
    other = service.admin.put("/api/v1/alert-rules/other", json={"spec": shown})
    assert other.status_code == 422
    assert "masked" in other.text
    answer = service.admin.put(path, json={"spec": shown | {"webhook": "", "webhook_secret": ""}})
    assert answer.status_code == 200
    assert service.admin.put(path, json={"spec": shown}).status_code == 422, "it was deleted"
