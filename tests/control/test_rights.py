"""Every route as every kind of caller: roles, and keys with topics in and out of their scopes.

Which route takes what is written down in `tests.support.rest_routes`, apart from the code. A route
that is not there fails; so does a 5xx; an allowed request has to do what it is for.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from tests.support.control import ADMIN_PASSWORD, Service
from tests.support.rest_routes import (
    OF_PLATFORM,
    ROUTES,
    SOCKETS,
    SPECS,
    Route,
    all_routes,
    all_sockets,
    filled,
    right_of,
)
from tidecast.access import RIGHTS, covers
from tidecast_control.alerts.models import AlertRow
from tidecast_control.kinds import KINDS
from tidecast_control.kit import rights
from tidecast_control.kit.actor import ROLES
from tidecast_control.kit.models import ResourceRow, utc_now
from tidecast_control.link.hub import Engine
from tidecast_control.live.channels import PLAIN
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.operations.models import OperationRow
from tidecast_control.pipelines.models import PipelineRunRow

IN, OUT = "mine", "other"
IDS = {side: {"run": f"0000-{i}", "operation": f"0001-{i}"} for i, side in enumerate((IN, OUT))}
OPERATOR_SCOPE = [{"pattern": f"{IN}.>", "rights": list(RIGHTS)}]
VIEWER_SCOPE = [{"pattern": f"{IN}.>", "rights": ["publish", "subscribe", "read_payloads"]}]
ALL_SCOPE = [{"pattern": ">", "rights": list(RIGHTS)}]
SEEING_SCOPE = [{"pattern": ">", "rights": ["subscribe"]}]
KEYS: dict[str, Any] = {
    "viewer": {"role": "viewer"},
    "operator": {"role": "operator"},
    "admin": {"role": "admin"},
    "scoped viewer": {"role": "viewer", "scopes": VIEWER_SCOPE},
    "scoped operator": {"role": "operator", "scopes": OPERATOR_SCOPE},
    "wide operator": {"role": "operator", "scopes": ALL_SCOPE},
    "seeing operator": {"role": "operator", "scopes": SEEING_SCOPE},
    "seeing admin": {"role": "admin", "scopes": SEEING_SCOPE},
    "scoped admin": {"role": "admin", "scopes": OPERATOR_SCOPE},
}
"""Admins with scopes cannot be made any more; there may be some from before."""
MESSAGE = {"topic": "t", "node": "n1", "session": "1", "size": 1, "payload": "eA=="}
ANSWERS: dict[str, Any] = {
    "browse": {"messages": [MESSAGE], "scanned": 1, "complete": True},
    "scheduled": {
        "records": [MESSAGE | {"deliver_at_ns": 1, "subscriptions": []}],
        "next": None,
    },
    "publish": {"topic": "t", "node": "n1", "ack": "engine"},
    "counters": {"node": "n1", "at_ns": 1, "counters": {}},
    "recorder": {"node": "n1", "records": []},
    "drain": {
        "drained": False,
        "empty": False,
        "keeps": [],
        "moving": [],
        "stays": [],
        "stays_total": 0,
        "moves": [],
    },
}


TABLES = [
    "users",
    "keys",
    "enrolments",
    "resources",
    "node_states",
    "operations",
    "alerts",
    "pipeline_runs",
]
"""Their rows are what requests of the matrix change."""
COLUMNS = """SELECT column_name FROM information_schema.columns
    WHERE table_schema = 'public' AND table_name = :table AND is_generated = 'NEVER'"""


def group_of(side: str) -> dict[str, Any]:
    """A Kafka group as an engine answers it: one that does not look at the caller's scopes."""
    return {
        "name": f"{side}-g",
        "state": "Empty",
        "kind": "consumer",
        "protocol": "",
        "generation": 1,
        "members": 0,
        "topics": [f"{side}.a"],
        "topics_total": 1,
        "queues": 1,
        "lag": 1,
        "lag_s": None,
        "committed_at": None,
        "offsets": [],
        "consumers": [],
    }


ANSWERS["kafka_groups"] = {"rows": [group_of(side) for side in (IN, OUT)], "next": None}


def rows() -> Iterator[Any]:
    """Rows that no request creates."""
    advice = [
        {
            "topic": f"{side}.a",
            "spec": {"linger_us": 9},
            "reasons": [],
            "peak_messages_per_s": 1.0,
            "peak_bytes_per_s": 1.0,
        }
        for side in IDS
    ]
    yield PipelineRunRow(
        id="0002-0",
        pipeline="capacity",
        job="capacity",
        trigger="user",
        state="done",
        finished_at=utc_now(),
        report={"advice": advice},
    )
    yield NodeStateRow(name="n1", connected=False, credential="0" * 64)
    for side, ids in IDS.items():
        run: dict[str, Any] = {"job": "replay", "trigger": "user", "spec": {"timeout_s": 1}}
        yield PipelineRunRow(id=ids["run"], pipeline=f"{side}-p", state="done", **run)
        yield PipelineRunRow(id=f"{ids['run']}b", pipeline=f"{side}-busy", state="running", **run)
        for i, (kind, name) in enumerate(
            (("topic", f"{side}.a"), ("queue", f"{side}.a:0"), ("subscription", f"{side}-s"))
        ):
            mark = ids["operation"] + "x" * i
            yield OperationRow(
                id=mark, action="pause", kind=kind, name=name, state="done", finished_at=utc_now()
            )
            yield AlertRow(
                id=mark,
                rule=f"{side}-l",
                target=name,
                severity="info",
                metric="lag_s",
                threshold=1,
                state="resolved",
            )


class World:
    """A service with two of everything: of topics in a key's scopes, and of others."""

    def __init__(self, service: Service, patch: pytest.MonkeyPatch) -> None:
        self.service = service

        async def ask(_node: str, command: str, args: Any, *_more: Any) -> Any:
            if command == "kafka_group":
                return group_of(args["name"].removesuffix("-g"))
            return ANSWERS.get(command, {})

        async def samples(*_given: Any) -> Any:
            return {}

        patch.setattr(service.ctx.hub, "ask", ask)
        patch.setattr(service.ctx.hub, "samples", samples)
        patch.setattr(service.ctx.feed, "fresh", samples)
        patch.setattr(service.ctx.feed, "hz", 1_000)  # nothing comes that a look waits for
        patch.setattr(service.ctx.hub, "connected", lambda: ["n1"])
        patch.setattr(
            service.ctx.hub, "engine", lambda _node: SimpleNamespace(name="n1", rotating=False)
        )
        patch.setattr(service.ctx.runner, "_take", lambda: (None, []))
        patch.setattr(service.ctx.mirrors, "_take", lambda: ({}, []))
        self.keys = {}
        for name, body in KEYS.items():
            scoped = body["role"] == "admin" and "scopes" in body
            told = body | ({"role": "operator"} if scoped else {})
            self.keys[name] = service.key(name.replace(" ", "-"), **told)
            if scoped:
                change_role(service, name.replace(" ", "-"), "admin")
        self.users = {role: service.user(f"a-{role}", role) for role in ROLES}
        self._make()
        self._copies = self._copied()

    def _make(self) -> None:
        admin = self.service.admin
        with self.service.ctx.db.begin() as session:
            node = {"quarantined": False, "site": ""}
            session.add(ResourceRow(uid="n1-n1-n1-n1", kind="node", name="n1", spec=node))
            session.add_all(rows())
        admin.post("/api/v1/enrolments", json={"name": "spare"})
        admin.post("/api/v1/keys", json={"name": "spare"})
        for name in ("vera", "spare"):
            admin.put(f"/api/v1/users/{name}", json={"password": ADMIN_PASSWORD})
        answer = admin.post("/api/v1/apply", json={"documents": list(documents())})
        assert answer.status_code == 200, answer.text

    def _copied(self) -> dict[str, str]:
        """Copy the tables; what copies each of them back. By requests that took 0.1 s of CPU."""
        back = {}
        with self.service.ctx.db.begin() as session:
            for table in TABLES:
                session.execute(text(f"CREATE TABLE {table}_kept AS TABLE {table}"))
                columns = ", ".join(session.execute(text(COLUMNS), {"table": table}).scalars())
                back[table] = (
                    f"INSERT INTO {table} ({columns}) OVERRIDING SYSTEM VALUE "
                    f"SELECT {columns} FROM {table}_kept"
                )
        return back

    def restore(self) -> None:
        """Everything is there again, as it was."""
        with self.service.ctx.db.begin() as session:
            # Rows of other tables that refer to these stay.
            session.execute(text("SET LOCAL session_replication_role = replica"))
            for table, back in self._copies.items():
                session.execute(text(f"DELETE FROM {table}"))
                session.execute(text(back))

    def call(self, client: TestClient, route: Route, side: str, *, dry_run: bool = False) -> Any:
        """The answer to a route's request."""
        words = {"s": side, "password": ADMIN_PASSWORD, **IDS[side]}
        prefix = "" if route.url.startswith(("/health", "/metrics")) else "/api/v1"
        url = prefix + filled(route.url, words)
        if dry_run:
            url += ("&" if "?" in url else "?") + "dry_run=true"
        return client.request(route.method, url, json=filled(route.body, words))


def change_role(service: Service, key: str, role: str) -> None:
    """Set the role of a key in the database: no request can."""
    with service.ctx.db.begin() as session:
        session.execute(text("UPDATE keys SET role = :r WHERE name = :k"), {"r": role, "k": key})


def documents() -> Iterator[Any]:
    """Every resource, as `POST /apply` takes it."""
    lab = {"port": 7600, "allow_faults": True}
    yield {"kind": "transport", "metadata": {"name": "lab"}, "spec": lab}
    for side in IDS:
        for topic in ("b", "dead"):
            named = {"name": f"{side}.{topic}"}
            yield {"kind": "topic", "metadata": named, "spec": {"mode": "durable"}}
        busy = {"job": "replay", "source": f"{side}.a", "topic": f"{side}.b"}
        yield {"kind": "pipeline", "metadata": {"name": f"{side}-busy"}, "spec": busy}
        for kind, (_path, name, spec, _change) in SPECS.items():
            if kind not in OF_PLATFORM:
                yield filled({"kind": kind, "metadata": {"name": name}, "spec": spec}, {"s": side})
    for kind in OF_PLATFORM:
        _path, name, spec, _change = SPECS[kind]
        yield {"kind": kind, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def world(service: Service, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(service, monkeypatch)


@functools.cache
def service_rights() -> dict[str, str]:
    return {route.name: right_of(route) for route in all_routes()}


def test_every_route_is_known() -> None:
    names = {route.name for route in all_routes()}
    assert names == set(ROUTES), "add the route to tests/support/rest_routes.py"
    assert all_sockets() == SOCKETS
    assert set(SPECS) == set(KINDS)
    without = {name for name, right in service_rights().items() if not right}
    assert without == {
        n for n, r in ROUTES.items() if r.access in ("public", "anyone") and n != "system_info"
    } | {"metrics"}
    for name, right in service_rights().items():
        if right and ROUTES[name].method != "GET" and name != "check_token":
            assert right.endswith((":write", ":publish")), (name, right)


def is_allowed(name: str, caller: str, side: str) -> bool:
    """Whether a caller may, by the table: a role, or "scoped operator" and so on."""
    route, right = ROUTES[name], service_rights()[name] or "metrics:read"
    kind, _, role = caller.rpartition(" ")
    if route.access in ("public", "anyone"):
        return True
    by_role = right in ROLES[role]  # type: ignore[index]
    if kind == "user" or caller == "admin":
        return by_role
    inside = kind == "wide" or (kind == "scoped" and side == IN)
    match route.access:
        case "publish":
            return inside
        case "topic":
            return by_role and inside and (kind != "scoped" or role != "viewer")
        case "list":
            return by_role
        case "seen":
            return by_role and (inside or kind in ("", "seeing"))
        case "whole":
            return by_role and kind != "scoped"
        case "platform":
            return by_role and kind not in ("scoped", "seeing")
    raise AssertionError(route.access)


CALLERS = [*KEYS, *(f"user {role}" for role in ROLES)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_each_route_does_what_role_and_scopes_say(world: World, method: str) -> None:
    wrong: list[Any] = []
    clients = world.keys | {f"user {role}": client for role, client in world.users.items()}
    names = [n for n, r in ROUTES.items() if r.method == method and r.access not in SKIPPED]
    for name, caller, side in itertools.product(names, CALLERS, IDS):
        route, allowed = ROUTES[name], is_allowed(name, caller, side)
        if side == OUT and not route.of_topics:
            continue
        answer = world.call(clients[caller], route, side)
        created = route.method == "PUT" and answer.status_code == 201
        right = answer.status_code in ((route.status,) if allowed else (403, route.hidden))
        if not (right or (allowed and created)):
            wrong.append((caller, name, side, answer.status_code, answer.text[:300]))
        elif allowed and caller.startswith("scoped") and f"{OUT}." in answer.text:
            wrong.append((caller, name, "shows topics out of its scopes", answer.text[:300]))
        if allowed and route.undo:
            world.restore()
        elif not allowed and method != "GET" and name not in NO_PLAN:
            planned = world.call(clients[caller], route, side, dry_run=True).status_code
            if planned not in (403, route.hidden):
                wrong.append((caller, name, side, "a plan needs the same rights", planned))
    assert not wrong, "\n".join(map(str, wrong))


SKIPPED, NO_PLAN = ("public", "anyone"), ("check_token",)


@pytest.mark.parametrize("kind", list(SPECS))
def test_apply_asks_for_what_each_document_does(world: World, kind: str) -> None:
    key = world.keys["scoped operator"]
    for each, status in ({IN: 403} if kind in OF_PLATFORM else {IN: 200, OUT: 403}).items():
        _path, name, spec, change = SPECS[kind]
        document = filled(
            {"kind": kind, "metadata": {"name": name}, "spec": spec | change}, {"s": each}
        )
        for query in ("?dry_run=true", ""):
            answer = key.post(f"/api/v1/apply{query}", json={"documents": [document]})
            assert answer.status_code == status, answer.text
    pruned = key.post("/api/v1/apply?prune=true&managed_by=x", json={"documents": []})
    assert pruned.status_code == 200


EFFECTS = {
    "dead letters": ("subscriptions", {"topic": f"{IN}.a", "dead_letter": f"{OUT}.dead"}),
    "all topics": ("subscriptions", {"topic": ">"}),
    "limit of all": ("rate-limits", {"pattern": ">", "priority": 1000, "rate_bytes_per_s": 1}),
    "limit of a wider pattern": ("rate-limits", {"pattern": "*.a", "rate_bytes_per_s": 1}),
    "silence of all": ("silences", {"target": ">", "until": "2030-01-01T00:00:00Z"}),
    "rule about nodes": ("alert-rules", {"metric": "node_down", "target": f"{IN}.>"}),
    "rule about all": ("alert-rules", {"metric": "lag_s"}),
    "replay of a secret": (
        "pipelines",
        {"job": "replay", "source": f"{OUT}.a", "topic": f"{IN}.a"},
    ),
    "replay elsewhere": ("pipelines", {"job": "replay", "source": f"{IN}.a", "topic": f"{OUT}.a"}),
    "archive of all": ("pipelines", {"job": "archive", "topic": ">"}),
    "rollup of a topic": ("pipelines", {"job": "rollup", "topic": f"{IN}.a"}),
    "capacity": ("pipelines", {"job": "capacity"}),
    "traffic elsewhere": ("traffic", {"topic": f"{OUT}.a"}),
}


def test_what_reaches_beyond_the_scopes_is_refused(world: World, subtests: pytest.Subtests) -> None:
    key = world.keys["scoped operator"]
    for what, (path, spec) in EFFECTS.items():
        with subtests.test(what):
            refused = key.put(f"/api/v1/{path}/fresh", json={"spec": spec})
            assert (refused.status_code, refused.json()["code"]) == (403, "denied"), refused.text
            assert "its scopes do not give `" in refused.json()["detail"]
            assert world.service.admin.get(f"/api/v1/{path}/fresh").status_code == 404


def test_a_change_needs_the_rights_of_before_and_after(world: World) -> None:
    key, admin = world.keys["scoped operator"], world.service.admin
    theirs = {"spec": {"pattern": f"{OUT}.*", "rate_bytes_per_s": 9}}
    assert admin.put("/api/v1/rate-limits/r", json=theirs).status_code == 201
    mine = {"spec": {"pattern": f"{IN}.*"}}
    assert key.patch("/api/v1/rate-limits/r", json=mine).status_code == 403
    assert key.put("/api/v1/rate-limits/r", json=mine).status_code == 403
    enabled = {"spec": {"enabled": True, "schedule": "@hourly"}}
    assert key.patch(f"/api/v1/pipelines/{OUT}-p", json=enabled).status_code == 403
    assert key.patch(f"/api/v1/pipelines/{IN}-p", json=enabled).status_code == 200


def test_a_schedule_publishes_only_with_the_right_to(world: World) -> None:
    scopes = [{"pattern": f"{IN}.>", "rights": ["manage", "read_payloads"]}]
    key = world.service.key("quiet", role="operator", scopes=scopes)
    spec = {"job": "replay", "source": f"{IN}.a", "topic": f"{IN}.b"}
    scheduled = {"spec": spec | {"enabled": True, "schedule": "@hourly"}}
    refused = key.put("/api/v1/pipelines/fresh", json=scheduled)
    assert refused.status_code == 403
    assert f"`publish` on {IN}.b" in refused.json()["detail"]
    assert key.patch(f"/api/v1/pipelines/{IN}-p", json={"spec": {"rate": 3}}).status_code == 403
    assert key.post(f"/api/v1/pipelines/{IN}-p/start").status_code == 403
    assert key.post(f"/api/v1/traffic/{IN}.a/start").status_code == 403, "traffic publishes"
    assert key.put(f"/api/v1/traffic/{IN}.b", json={"spec": {}}).status_code == 403


def test_dead_letters_go_where_the_key_may_publish(world: World) -> None:
    key = world.keys["scoped operator"]
    for to, status in ((f"{IN}.b", 200), (f"{OUT}.a", 403)):
        answer = key.post(f"/api/v1/subscriptions/{IN}-s/redrive", json={"to": to})
        assert answer.status_code == status, answer.text
    body = {"to": f"{IN}.b"}
    assert key.post(f"/api/v1/subscriptions/{OUT}-s/redrive", json=body).status_code == 403


# --- keys that bound nothing, keys that grant ---------------------------------------------------
def test_scopes_that_would_not_bound_are_refused(service: Service) -> None:
    def made(**body: Any) -> Any:
        return service.admin.post("/api/v1/keys", json={"name": "k", **body})

    refused = made(role="admin", scopes=OPERATOR_SCOPE)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/scopes")
    assert "an admin may do everything" in refused.text
    refused = made(role="viewer", scopes=OPERATOR_SCOPE)
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (
        422,
        "/scopes/0/rights",
    )
    assert made(role="admin").status_code == 201


def test_nobody_grants_more_than_they_have(world: World) -> None:
    wide = {"pattern": ">", "rights": ["manage", "subscribe"]}
    key = world.service.key("wide", role="operator", scopes=[wide])
    change_role(world.service, "wide", "admin")  # of before scopes were refused for admins
    grants: list[tuple[str, str, Any, int]] = [
        ("POST", "/keys", {"name": "k1", "role": "admin"}, 403),
        ("POST", "/keys", {"name": "k2", "scopes": [wide | {"rights": ["publish"]}]}, 403),
        ("POST", "/keys", {"name": "k3", "scopes": [wide | {"rights": ["subscribe"]}]}, 201),
        ("PUT", "/users/x", {"role": "admin", "password": ADMIN_PASSWORD}, 403),
        ("PUT", "/users/x", {"role": "operator", "password": ADMIN_PASSWORD}, 403),
        ("PUT", "/users/vera", {"role": "viewer", "password": ADMIN_PASSWORD}, 403),
        ("POST", "/enrolments", {"name": "x"}, 403),
    ]
    for method, path, body, status in grants:
        answer = key.request(method, f"/api/v1{path}", json=body)
        assert answer.status_code == status, (path, body, answer.text)


def test_a_role_bounds_a_key_at_engines_too(service: Service) -> None:
    from tidecast_control.link.topology import message

    service.key("old", role="operator", scopes=OPERATOR_SCOPE)
    service.key("plain", role="viewer")
    service.key("root", role="admin")
    change_role(service, "old", "viewer")
    with service.ctx.db.begin() as session:
        told = {key["name"]: key["scopes"] for key in message(session, 0, "n", [])["keys"]}
    assert told == {
        "old": [{"pattern": f"{IN}.>", "rights": ["publish", "subscribe", "read_payloads"]}],
        "root": ALL_SCOPE,
    }


# --- the live feed --------------------------------------------------------------------------------
LIVE = "ws://localhost/api/v1/live"


def channels() -> dict[str, str]:
    """Each channel that can be watched, and the route that shows the same; "": none does."""
    found = {name: f"live_{name}" for name in PLAIN}
    found |= {"alerts": "", "audit": "list_audit", "recorder:n1": "get_recorder"}
    found["moves"] = "list_moves"
    for side in IDS:
        found |= {f"topic:{side}.a": "live_topic", f"messages:{side}.a": "browse_messages"}
    return found


@pytest.mark.parametrize("caller", CALLERS)
def test_a_channel_takes_what_its_route_takes(
    world: World, caller: str, subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stream(*_given: Any) -> str:
        return "stream"

    async def end_stream(*_given: Any) -> None: ...

    monkeypatch.setattr(world.service.ctx.hub, "stream", stream)
    monkeypatch.setattr(world.service.ctx.hub, "end_stream", end_stream)
    clients = world.keys | {f"user {role}": client for role, client in world.users.items()}
    client = clients[caller]
    key = {"Authorization": client.headers.get("Authorization", "")}
    headers = {name: text for name, text in key.items() if text}
    for channel, route in channels().items():
        side = OUT if f"{OUT}." in channel else IN
        allowed = is_allowed(route or "live_overview", caller, side)
        with subtests.test(channel), client.websocket_connect(LIVE, headers=headers) as feed:
            feed.send_json({"watch": [channel]})
            frame = next(f for f in iter(feed.receive_json, None) if f["kind"] != "ping")
            code = frame["data"]["code"] if frame["kind"] == "error" else ""
            assert (frame["channel"], code) == (channel, "" if allowed else "denied")


def test_a_live_tail_withholds_payloads(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = base64.b64encode(b"secret").decode()
    message = {
        "topic": "t",
        "node": "n1",
        "session": "1",
        "size": 6,
        "payload": secret,
        "key": "secret",
    }

    async def stream(name: str, kind: str, asked: Any, on_items: Callable[[Any], None]) -> str:
        on_items({"skipped": 0, "messages": [message]})
        return "stream"

    async def end_stream(name: str, stream: str) -> None: ...

    async def send_text(text: str) -> None: ...

    connected = Engine("n1", cast("Any", SimpleNamespace(send_text=send_text)), 0)
    monkeypatch.setitem(service.ctx.hub._engines, "n1", connected)
    for name, stands_in in (
        ("engine", lambda name: None),
        ("stream", stream),
        ("end_stream", end_stream),
    ):
        monkeypatch.setattr(service.ctx.hub, name, stands_in)
    for client, shown in ((service.admin, True), (service.user("vera", "viewer"), False)):
        with client.websocket_connect(LIVE) as feed:
            feed.send_json({"watch": ["messages:t"]})
            while not (frame := feed.receive_json())["data"]:
                pass
        assert len(frame["data"]["messages"]) == 1
        assert ("secret" in json.dumps(frame)) is shown


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:8080"])
def test_pages_of_other_origins_get_no_live_feed(service: Service, origin: str) -> None:
    with (
        pytest.raises(WebSocketDisconnect) as end,
        service.admin.websocket_connect(LIVE, headers={"Origin": origin}),
    ):
        pass
    assert end.value.code == 4403
    own = {"Origin": "http://localhost"}
    with service.admin.websocket_connect(LIVE, headers=own) as feed:
        feed.send_json({"watch": ["overview"]})
        frames = iter(feed.receive_json, None)
        assert next(f["kind"] for f in frames if f["kind"] != "ping") == "snapshot"


def shown_by(feed: Any, channel: str) -> None:
    """Read until a channel's first frame."""
    while feed.receive_json()["channel"] != channel:
        pass


def end_of(feed: Any, withheld: str) -> int:
    """The code that a live feed ends with; ``withheld`` is in no frame before."""
    try:
        while True:
            assert withheld not in json.dumps(feed.receive_json()), "shown to a viewer"
    except WebSocketDisconnect as end:
        return end.code


def test_a_live_feed_loses_its_rights_with_the_role(service: Service) -> None:
    client = service.user("otto", "operator")
    with client.websocket_connect(LIVE) as feed:
        feed.send_json({"watch": ["audit", "overview"]})
        shown_by(feed, "overview")
        service.admin.put("/api/v1/users/otto", json={"role": "viewer"})
        entry = service.admin.get("/api/v1/audit").json()["items"][0]
        assert (entry["action"], entry["name"]) == ("update", "otto")
        assert len(entry["request_id"]) > 8
        assert end_of(feed, withheld=entry["request_id"]) == 4409
    with client.websocket_connect(LIVE) as feed:
        feed.send_json({"watch": ["audit"]})
        assert feed.receive_json()["data"]["code"] == "denied"
    key = service.key("k", role="operator")
    with key.websocket_connect(LIVE, headers=dict(key.headers)) as feed:
        feed.send_json({"watch": ["overview"]})
        shown_by(feed, "overview")
        assert service.admin.delete("/api/v1/keys/k").status_code == 200
        assert end_of(feed, withheld="no such text") == 4401


# --- browsers -------------------------------------------------------------------------------------
def test_each_write_with_a_cookie_needs_its_csrf_token(world: World) -> None:
    client = world.users["admin"]
    token = client.headers.pop("X-CSRF-Token")
    other = world.users["operator"].headers["X-CSRF-Token"]
    let_through = []
    for name, route in ROUTES.items():
        if route.method == "GET" or route.access == "public":
            continue
        for headers in ({}, {"X-CSRF-Token": ""}, {"X-CSRF-Token": other}):
            client.headers.update(headers)
            answer = world.call(client, route, IN)
            if (answer.status_code, answer.json()["code"]) != (403, "csrf"):
                let_through.append((name, headers, answer.status_code))
            client.headers.pop("X-CSRF-Token", None)
    assert let_through == []
    client.headers["X-CSRF-Token"] = token
    assert world.call(client, ROUTES["put_topic"], IN).status_code == 200


# --- patterns -------------------------------------------------------------------------------------
TOKENS = st.lists(st.sampled_from(["a", "b.c", "*", "x-1", "p+q"]), min_size=1, max_size=3)
PATTERNS = st.builds(lambda ts, tail: ".".join(ts + tail), TOKENS, st.sampled_from([[], [">"]]))


@given(PATTERNS, PATTERNS)
def test_lists_leave_out_exactly_what_is_not_covered(wide: str, narrow: str) -> None:
    import re

    assert bool(re.search(rights.expression(wide), narrow)) == covers(wide, narrow)
