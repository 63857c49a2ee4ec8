"""Alert rules: when they fire, resolve, are silenced, and tell a webhook."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.control import Service
from tidecast_control.alerts.evaluate import Evaluator
from tidecast_control.live.world import World


@pytest.fixture
def hook() -> Iterator[tuple[str, list[Any]]]:
    """A webhook: its URL and what it was told."""
    told: list[Any] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", told
    server.shutdown()
    server.server_close()


def _world(fill: float) -> World:
    world = World()
    world.topic("md.eu")["ring_fill"] = fill
    world.topic("md.eu")["lag_packets"] = "0"
    return world


def _deliver(evaluator: Evaluator, world: World, now_s: float) -> bool:
    told, needed = evaluator.step(world, now_s)
    for each in told:
        evaluator._deliver(*each)
    return needed


def test_a_rule_fires_after_its_time_and_resolves(
    service: Service, hook: tuple[str, list[Any]]
) -> None:
    url, told = hook
    spec = {"metric": "ring_fill", "target": "md.>", "threshold": 0.8, "for_s": 10, "webhook": url}
    assert service.admin.put("/api/v1/alert-rules/full", json={"spec": spec}).status_code == 201
    ctx = service.ctx
    evaluator = Evaluator(ctx.db, ctx.hub, ctx.feed, 5)
    for now_s in (0.0, 9.0):
        assert _deliver(evaluator, _world(0.9), now_s)
    assert told == []
    _deliver(evaluator, _world(0.9), 10.0)
    _deliver(evaluator, _world(0.95), 11.0)
    assert [(t["state"], t["target"], t["value"]) for t in told] == [("firing", "md.eu", 0.9)]
    alert = service.admin.get("/api/v1/alerts?state=firing").json()["items"][0]
    assert (alert["rule"], alert["value"], alert["delivery"]) == ("full", 0.95, "HTTP 204")
    _deliver(evaluator, _world(0.1), 12.0)
    assert [t["state"] for t in told] == ["firing", "resolved"]
    assert service.admin.get("/api/v1/alerts?state=firing").json()["items"] == []


def test_a_silence_keeps_it_quiet(service: Service, hook: tuple[str, list[Any]]) -> None:
    url, told = hook
    spec = {"metric": "ring_fill", "threshold": 0.5, "for_s": 0, "webhook": url}
    service.admin.put("/api/v1/alert-rules/full", json={"spec": spec})
    silence = {"rule": "full", "target": "md.*", "until": "2100-01-01T00:00:00Z"}
    answer = service.admin.put("/api/v1/silences/night", json={"spec": silence})
    assert answer.json()["status"]["active"]
    evaluator = Evaluator(service.ctx.db, service.ctx.hub, service.ctx.feed, 5)
    _deliver(evaluator, _world(0.9), 0.0)
    assert told == []
    assert service.admin.get("/api/v1/alerts").json()["items"][0]["silenced"]


def test_rules_about_nodes_need_no_telemetry(service: Service) -> None:
    spec = {"metric": "node_down", "threshold": 0.5, "for_s": 0}
    service.admin.put("/api/v1/alert-rules/gone", json={"spec": spec})
    evaluator = Evaluator(service.ctx.db, service.ctx.hub, service.ctx.feed, 5)
    assert not _deliver(evaluator, World(), 0.0)


def test_a_webhook_that_fails_is_noted(service: Service) -> None:
    spec = {"metric": "ring_fill", "threshold": 0.5, "for_s": 0, "webhook": "http://127.0.0.1:9/"}
    service.admin.put("/api/v1/alert-rules/full", json={"spec": spec})
    evaluator = Evaluator(service.ctx.db, service.ctx.hub, service.ctx.feed, 5)
    _deliver(evaluator, _world(0.9), 0.0)
    alert = service.admin.get("/api/v1/alerts").json()["items"][0]
    assert alert["delivery"].startswith("failed")
