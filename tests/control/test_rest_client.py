"""`tidecast.Control` and `tidecast.sync.Control` against a service that listens on a port."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

import tidecast
import tidecast.sync
from tests.control.conftest import Template
from tests.support.control import Running, running
from tidecast.errors import (
    AuthError,
    ConfigError,
    Conflict,
    ConnectionLost,
    NotFound,
    RateLimited,
    TidecastError,
    Timeout,
)
from tidecast.rest import Scope, aio, blocking
from tidecast.rest import http as rest_http
from tidecast_control.settings import Settings


@pytest.fixture
def served(settings: Settings, template: Template) -> Iterator[Running]:
    with running(settings, template.login) as made:
        yield made


def secret_of(served: Running, role: str, scopes: list[dict[str, Any]] | None = None) -> str:
    body = {"name": f"a-{role}", "role": role, "scopes": scopes or []}
    answer = served.api.post("/keys", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["secret"])


@pytest.fixture
def control(served: Running) -> tidecast.sync.Control:
    return tidecast.sync.Control(served.url, key=secret_of(served, "admin"))


def test_topics(control: tidecast.sync.Control) -> None:
    made = control.topics.create(
        "orders", mode="durable", queues=3, labels={"team": "a"}, description="all of them"
    )
    assert (made.kind, made.name, made.spec["queues"]) == ("topic", "orders", 3)
    assert (made.metadata.labels, made.metadata.description) == ({"team": "a"}, "all of them")
    there = control.topics.get("orders")
    assert (there.metadata, there.spec) == (made.metadata, made.spec)
    with pytest.raises(Conflict, match="412"):
        control.topics.create("orders")
    assert control.topics.ensure("orders", mode="durable", labels={"a": "b"}).spec == made.spec
    with pytest.raises(Conflict, match="queues is 3, not 4, fsync is 'interval', not 'batch'"):
        control.topics.ensure("orders", queues=4, fsync="batch")
    plan = control.topics.preview("orders", queues=5)
    assert [(each.path, each.old, each.new) for each in plan.changes] == [("/spec/queues", 3, 5)]
    assert plan.dry_run
    edited = control.topics.edit("orders", retention_s=60, if_match=there.etag)
    assert (edited.spec["retention_s"], edited.spec["queues"]) == (60, 3)
    with pytest.raises(Conflict, match="Changed in the meantime"):
        control.topics.edit("orders", retention_s=61, if_match=made.etag)
    control.topics.ensure("orders.eu")
    assert [each.name for each in control.topics.list()] == ["orders", "orders.eu"]
    assert [each.name for each in control.topics.list(label="team=a")] == ["orders"]
    assert [each.name for each in control.topics.list(q=".eu")] == ["orders.eu"]
    gone = control.topics.delete("orders", dry_run=True)
    assert (gone.action, gone.dry_run) == ("delete", True)
    assert control.topics.delete("orders").action == "delete"
    with pytest.raises(NotFound, match="404"):
        control.topics.get("orders")


def test_a_list_has_many_pages(
    control: tidecast.sync.Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking, "_PAGE_ROWS", 2)
    names = [f"t{n}" for n in range(5)]
    applied = control.apply([{"kind": "topic", "metadata": {"name": n}, "spec": {}} for n in names])
    assert (applied.created, applied.dry_run) == (5, False)
    assert [each.name for each in control.topics.list()] == names


def test_subscriptions_and_other_kinds(control: tidecast.sync.Control) -> None:
    control.topics.create("orders", mode="durable")
    made = control.subscriptions.create("billing", topic="orders", max_deliver=3)
    assert (made.spec["topic"], made.spec["max_deliver"]) == ("orders", 3)
    assert control.subscriptions.edit("billing", max_deliver=None).spec["max_deliver"] == 5
    limits = control.resources("rate-limits")
    limits.create("slow", pattern="orders", rate_packets_per_s=100)
    assert [each.name for each in limits.list()] == ["slow"]
    text = "kind: topic\nmetadata: {name: more}\nspec: {}\n"
    assert control.apply(text, dry_run=True).plans[0].action == "create"
    with pytest.raises(NotFound):
        control.topics.get("more")
    assert control.request("GET", "/topics", query={"q": "ord", "count": True})["total"] == 1


def test_an_operation_that_no_engine_does_is_an_error(control: tidecast.sync.Control) -> None:
    control.topics.create("orders", mode="durable")
    control.subscriptions.create("billing", topic="orders")
    with pytest.raises(TidecastError, match="engine"):
        control.subscriptions.operate("billing", "seek", at="latest")


def test_keys(control: tidecast.sync.Control, served: Running) -> None:
    scope = Scope(pattern="orders.*", rights=["publish"])
    made = control.keys.create("shop", role="viewer", scopes=[scope], expires_s=3600.0)
    assert made.secret
    assert made.secret not in repr(made)
    assert made.scopes == [scope]
    assert control.keys.get("shop").secret == ""
    assert {each.name for each in control.keys.list()} == {"a-admin", "shop"}
    shop = tidecast.sync.Control(served.url, key=made.secret)
    with pytest.raises(AuthError, match="403"):
        shop.topics.create("orders.eu")
    control.keys.revoke("shop")
    with pytest.raises(AuthError, match="401"):
        shop.topics.list()


def test_refusals_name_the_field(control: tidecast.sync.Control) -> None:
    with pytest.raises(ConfigError, match="/spec/queues") as refused:
        control.topics.create("orders", mode="durable", queues=0)
    assert any("/spec/queues" in each for each in refused.value.problems)
    with pytest.raises(ConfigError, match="/spec/quues"):
        control.topics.create("orders", quues=1)
    assert control.topics.list() == []


def test_where_and_with_what_key(monkeypatch: pytest.MonkeyPatch, served: Running) -> None:
    monkeypatch.delenv("TIDECAST_KEY", raising=False)
    with pytest.raises(ConfigError, match="no key: set TIDECAST_KEY"):
        tidecast.sync.Control(served.url)
    monkeypatch.setenv("TIDECAST_KEY", "wrong")
    monkeypatch.setenv("TIDECAST_CONTROL_URL", served.url)
    with pytest.raises(AuthError):
        tidecast.sync.Control().topics.list()
    with pytest.raises(ConfigError, match="ftp://x: an address that begins with"):
        tidecast.sync.Control("ftp://x")
    with pytest.raises(ConnectionLost, match="does not answer"):
        tidecast.sync.Control("http://127.0.0.1:9", timeout=5.0).topics.list()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(429, RateLimited), (502, TidecastError), (503, ConnectionLost), (504, Timeout)],
)
def test_each_status_is_an_error_of_its_kind(status: int, kind: type[TidecastError]) -> None:
    import email.message
    import io
    import urllib.error

    headers = email.message.Message()
    headers["Retry-After"] = "7"
    refused = urllib.error.HTTPError("http://x", status, "No", headers, io.BytesIO(b"<html>"))
    found = rest_http._error_of(refused)
    assert type(found) is kind
    assert str(found) == f"{status} No: <html>"
    assert getattr(found, "retry_after_s", 7.0) == 7.0


def test_the_key_does_not_follow_a_redirect() -> None:
    asked: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(302)
            self.send_header("Location", f"http://127.0.0.1:{server.server_port}/stolen")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ConfigError, match="302"):
            tidecast.sync.Control(url, key="secret").topics.get("orders")
        server.shutdown()
        thread.join(5)
    assert asked == ["/api/v1/topics/orders"]


def test_asyncio(served: Running) -> None:
    async def main() -> None:
        control = tidecast.Control(served.url, key=secret_of(served, "admin"))
        made = await control.topics.ensure("orders", mode="durable")
        assert (await control.topics.get("orders")).metadata == made.metadata
        assert [each.name for each in await control.topics.list()] == ["orders"]
        await control.subscriptions.create("billing", topic="orders")
        assert (await control.subscriptions.preview("billing", max_deliver=2)).dry_run
        assert (await control.subscriptions.edit("billing", max_deliver=2)).spec["max_deliver"] == 2
        key = await control.keys.create("shop")
        assert (await control.keys.get("shop")).id == key.id
        assert len(await control.keys.list()) == 2
        await control.keys.revoke("shop")
        applied = await control.apply("kind: topic\nmetadata: {name: more}\nspec: {}\n")
        assert applied.created == 1
        with pytest.raises(TidecastError):
            await control.topics.pause("orders")
        with pytest.raises(TidecastError):
            await control.topics.resume("orders")
        await control.resources("topics").delete("more")
        assert (await control.request("GET", "/topics"))["items"][0]["metadata"]["name"] == "orders"

    asyncio.run(main())


def test_both_have_the_same_calls() -> None:
    for name in ("Resources", "Keys", "Control"):
        one, other = getattr(blocking, name), getattr(aio, name)
        calls = {each for each in vars(one) if not each.startswith("_")}
        assert calls == {each for each in vars(other) if not each.startswith("_")}
        for each in calls:
            here, there = getattr(one, each), getattr(other, each)
            assert inspect.signature(here) == inspect.signature(there), each
            assert here.__doc__ == there.__doc__, each
