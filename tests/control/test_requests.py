"""Requests do what they say: queries, dry runs, round trips, numbers, methods. For every route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.support import rest_routes
from tests.support.control import ADMIN_PASSWORD, Service, _app
from tidecast_control.kit.models import ResourceRow

WRITES = ("put", "patch", "post", "delete")
NO_DRY_RUN = {"login", "logout", "change_password", "check_token"}
"""They have no dry run: `dry_run` is a parameter that they do not know."""


def document() -> dict[str, Any]:
    """The OpenAPI document. It takes a second: each worker imports this file, one runs it."""
    found: dict[str, Any] = _app().openapi()
    return found


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of every route of the document."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def filled(path: str) -> str:
    """A path with names in it."""
    queue = "/queues/" in path
    path = path.replace("{name}", "x:0" if queue else "x").replace("{entry_id}", "0")
    return path.replace("{operation_id}", "0").replace("{run_id}", "0").replace("{code}", "denied")


def queries_of(operation: dict[str, Any]) -> set[str]:
    """Names of query parameters."""
    return {p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"}


def test_every_route_refuses_a_query_that_it_does_not_know(service: Service) -> None:
    api, wrong = service.admin, []
    for method, path, operation in operations():
        if operation["operationId"] == "logout":
            continue
        body: Any = {} if method in ("put", "post", "patch") else None
        answer = api.request(method, filled(path) + "?dry-run=true", json=body)
        pointers = [e["pointer"] for e in answer.json().get("errors", [])]
        if answer.status_code != 422 or pointers != ["query/dry-run"]:
            wrong.append((method, path, answer.status_code, answer.text[:200]))
    assert wrong == []


def test_a_query_given_twice_is_refused(api: TestClient) -> None:
    assert api.put("/api/v1/topics/t", json={"spec": {}}).status_code == 201
    answer = api.delete("/api/v1/topics/t?dry_run=true&dry_run=false")
    assert answer.status_code == 422
    assert answer.json()["errors"][0] == {
        "pointer": "query/dry_run",
        "detail": "given twice",
        "allowed": "once",
    }
    near = api.delete("/api/v1/topics/t?dryrun=true").json()["errors"][0]
    assert near["detail"] == "no such parameter: did you mean dry_run?"
    assert api.get("/api/v1/topics/t").status_code == 200


def test_every_write_has_a_dry_run() -> None:
    without = {
        operation["operationId"]
        for method, _, operation in operations()
        if method in WRITES and "dry_run" not in queries_of(operation)
    }
    assert without == NO_DRY_RUN


def _everything(service: Service) -> dict[str, Any]:
    """All that writes can change, as it is stored."""
    from sqlalchemy import text

    found = {}
    tables = (
        "resources",
        "users",
        "keys",
        "enrolments",
        "pipeline_runs",
        "outbox",
        "topology_clock",
        "idempotency",
    )
    with service.ctx.db.begin() as session:
        for table in tables:
            rows = session.execute(text(f"SELECT * FROM {table} ORDER BY 1")).all()
            found[table] = [tuple(map(repr, row)) for row in rows]
    return found


DRY: list[tuple[str, str, Any]] = [
    ("PUT", "/users/ghost", {"role": "viewer", "password": ADMIN_PASSWORD}),
    ("PUT", "/users/vera", {"role": "operator"}),
    ("DELETE", "/users/vera", None),
    ("POST", "/keys", {"name": "new"}),
    ("DELETE", "/keys/robot", None),
    ("POST", "/enrolments", {"name": "new"}),
    ("DELETE", "/enrolments/host", None),
    ("POST", "/traffic/t/start", None),
    ("POST", "/traffic/g/stop", None),
    ("POST", "/pipelines/capacity/start", None),
    ("PUT", "/topics/t", {"spec": {"linger_us": 7}}),
    ("PATCH", "/topics/t", {"spec": {"linger_us": 7}}),
    ("DELETE", "/topics/t", None),
    ("POST", "/apply", {"documents": [{"kind": "topic", "metadata": {"name": "z"}}]}),
]


def test_a_dry_run_changes_nothing_and_says_so(service: Service) -> None:
    api = service.admin
    for path, spec in (("topics/t", {}), ("topics/g", {}), ("traffic/g", {"running": True})):
        assert api.put(f"/api/v1/{path}", json={"spec": spec}).status_code == 201
    service.user("vera", "viewer")
    service.key("robot")
    assert api.post("/api/v1/enrolments", json={"name": "host"}).status_code == 201
    before = _everything(service)
    for method, path, body in DRY:
        headers = {"Idempotency-Key": "k"}
        answer = api.request(method, f"/api/v1{path}?dry_run=true", json=body, headers=headers)
        assert answer.status_code == 200, (method, path, answer.text)
        assert answer.json()["dry_run"] is True, (method, path)
        assert "secret" not in answer.json()
    assert _everything(service) == before
    vera = service.login("vera")
    assert vera.get("/api/v1/topics").status_code == 200


def test_an_answer_to_a_real_write_says_that_it_was_done(service: Service) -> None:
    api = service.admin
    documents = [{"kind": "topic", "metadata": {"name": n}} for n in ("a", "b")]
    applied = api.post("/api/v1/apply", json={"documents": documents}).json()
    assert applied["dry_run"] is False
    assert [plan["dry_run"] for plan in applied["plans"]] == [False, False]
    service.user("vera", "viewer")
    service.key("robot")
    assert api.post("/api/v1/enrolments", json={"name": "host"}).status_code == 201
    for path in ("topics/a", "users/vera", "keys/robot", "enrolments/host"):
        gone = api.delete(f"/api/v1/{path}")
        assert gone.status_code == 200, path
        assert (gone.json()["action"], gone.json()["dry_run"]) == ("delete", False), path


def test_a_dry_run_of_publish_publishes_nothing(service: Service) -> None:
    api = service.admin
    api.put("/api/v1/topics/t", json={"spec": {}})
    path = "/api/v1/topics/t/messages?dry_run=true"
    assert api.post(path, json={"text": "a"}).json()["code"] == "no_node"
    assert api.post(path, json={}).status_code == 422
    missing = api.post(path.replace("/t/", "/u/"), json={"text": "a"})
    assert missing.status_code == 404


# --- round trips ----------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "transports/shm": {"kind": "ipc"},
    "topics/t": {"mode": "durable", "queues": 2},
    "rate-limits/slow": {"pattern": "t.>", "rate_bytes_per_s": 10_000_000},
    "subscriptions/s": {"topic": "t", "start": {"at": "time", "time_ns": "17"}},
    "traffic/t": {"messages_per_s": 10},
    "faults/multicast": {"drop": 0.5},
    "alert-rules/lag": {"metric": "lag_s"},
    "silences/night": {"until": "2999-01-31T12:00:00+01:00"},
    "pipelines/capacity": {"job": "capacity"},
    "mirrors/orders": {
        "topic": "t",
        "servers": "127.0.0.1:9",
        "kafka_topic": "orders",
        "paused": True,
        "user": "me",
        "secret": "given once",
    },
}


def test_put_takes_what_get_gave_for_every_kind(service: Service) -> None:
    from tidecast_control.kinds import KINDS as ALL

    assert {path.partition("/")[0] for path in KINDS} == {k.path for k in ALL.values()} - {"nodes"}
    api = service.admin
    labels = {"labels": {"a": "b"}, "owner": "me", "description": "d"}
    for path, spec in KINDS.items():
        made = api.put(f"/api/v1/{path}", json={"spec": spec, "metadata": labels})
        assert made.status_code in (200, 201), (path, made.text)
    for path in KINDS:
        got = api.get(f"/api/v1/{path}")
        assert got.status_code == 200, path
        again = api.put(f"/api/v1/{path}", json=got.json())
        assert again.status_code == 200, (path, again.text)
        assert got.headers["etag"].startswith(again.headers["etag"][:-1] + "."), path
        assert again.json()["spec"] == got.json()["spec"], path
        assert again.json()["metadata"] == got.json()["metadata"], path
    service.user("vera", "viewer")
    got = api.get("/api/v1/users/vera").json()
    kept = api.put("/api/v1/users/vera", json=got).json()
    volatile = ("generation", "updated_at")
    assert {k: v for k, v in kept.items() if k not in volatile} == {
        k: v for k, v in got.items() if k not in volatile
    }


# --- numbers and types ----------------------------------------------------------------------------


def _integers(node: Any, at: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        if node.get("type") == "integer":
            yield at, node
        for key, each in node.items():
            yield from _integers(each, f"{at}/{key}")
    elif isinstance(node, list):
        for i, each in enumerate(node):
            yield from _integers(each, f"{at}/{i}")


def test_numbers_beyond_53_bits_are_strings() -> None:
    """JavaScript rounds them: every integer of the document is bounded, or it is a string."""
    most = 1 << 53
    found = list(_integers(document(), ""))
    assert len(found) > 100
    for at, schema in found:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        assert low is not None, at
        assert high is not None, at
        assert -most <= low <= high <= most, at


def test_what_engines_answer_has_no_number_beyond_53_bits() -> None:
    from tidecast_control.messages.decode import shown_message
    from tidecast_control.operations.service import _result

    cursors = {
        "cursors": [{"before": 17450, "paused": True}],
        "tokens": [[0, 1 << 60]],
        "lag_s": 0.5,
    }
    assert _result("n", cursors).value == {
        "cursors": [{"before": "17450", "paused": True}],
        "tokens": [["0", str(1 << 60)]],
        "lag_s": 0.5,
    }
    raw = {
        "topic": "t",
        "node": "n",
        "session": 1,
        "size": 0,
        "payload": "",
        "headers": {"id": 1 << 60},
    }
    assert shown_message(raw, withheld=False).headers == {"id": str(1 << 60)}


def test_values_of_another_type_are_refused_in_every_way(api: TestClient) -> None:
    path, spec = "/api/v1/topics/t", {"linger_us": "100"}
    assert api.put(path, json={"spec": spec}).status_code == 422
    assert api.put(path, json={"spec": {}}).status_code == 201
    refused = api.patch(path, json={"spec": spec})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == "/spec/linger_us"
    assert api.patch(path, json={"spec": {"spool": "yes"}}).status_code == 422
    document = {"kind": "topic", "metadata": {"name": "t"}, "spec": spec}
    assert api.post("/api/v1/apply", json={"documents": [document]}).status_code == 422
    assert api.patch(path, json={"spec": {"receiver_timeout_s": 3}}).status_code == 200


@pytest.mark.parametrize(("start", "field"), [("time", "time_ns"), ("token", "token")])
def test_a_browse_from_a_place_names_the_place(api: TestClient, start: str, field: str) -> None:
    assert api.put("/api/v1/topics/t", json={"spec": {"mode": "durable"}}).status_code == 201
    refused = api.get(f"/api/v1/topics/t/messages?start={start}")
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["pointer"] == f"query/{field}"


@pytest.mark.parametrize(
    ("path", "spec", "detail"),
    [
        ("rate-limits/r", {"pattern": "t*"}, "'t*': allowed a name or a pattern: * in place of"),
        ("rate-limits/r", {"pattern": "t", "rate_bytes_per_s": -1}, "-1: allowed >= 0"),
        ("topics/t", {"fsync": "often"}, "often: allowed 'none', 'interval' or 'batch'"),
        ("topics/t", {"linger_us": "100"}, "'100': Input should be a valid integer"),
        ("topics/t", {"lingers": 1}, "unknown: there is no such setting"),
        ("topics/t", {"owner": "no such"}, "'no such': allowed the name of a node, or *"),
        ("alert-rules/a", {}, "missing"),
        ("rate-limits/r", {"pattern": ""}, "allowed at least 1 characters"),
        ("topics/t", {"owner": "x" * 65}, "allowed at most 64 characters"),
    ],
)
def test_errors_name_the_value_and_the_allowed_ones(
    api: TestClient, path: str, spec: dict[str, Any], detail: str
) -> None:
    """As the catalogue of problems says."""
    refused = api.put(f"/api/v1/{path}", json={"spec": spec})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["detail"].startswith(detail), refused.text


def test_times_in_queries_are_instants(api: TestClient) -> None:
    for time in ("0.5", "17", "2026-01-31", "2026-01-31T12:00:00"):
        refused = api.get("/api/v1/audit", params={"until": time})
        assert refused.status_code == 422, time
        assert refused.json()["errors"][0]["detail"].startswith("allowed is ISO 8601"), time
    assert api.get("/api/v1/audit", params={"until": "2026-01-31T12:00:00Z"}).status_code == 200
    history = {"scope": "topic", "name": "t", "metric": "bytes_in"}
    for bad in (
        {"to": "0073-11-10T03:26:19+16:33"},
        {"to": "0001-01-01T00:00:00Z"},
        {"to": "1970-01-02T00:00:00Z", "from": "1969-12-31T00:00:00Z"},
    ):
        assert api.get("/api/v1/history", params=history | bad).status_code == 422, bad
    early = history | {"to": "1970-01-01T05:00:00Z"}
    assert api.get("/api/v1/history", params=early).status_code == 200


# --- lists ----------------------------------------------------------------------------------------


def _walk(api: TestClient, path: str, key: str) -> list[str]:
    """Names of a list, read in pages of two."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(f"/api/v1{path}", params={"limit": "2", "count": "true", **cursor}).json()
        found += [item[key] for item in page["items"]]
        if page["next_cursor"] is None:
            assert page["total"] == len(found)
            return found
        assert len(page["items"]) == 2
        cursor = {"cursor": page["next_cursor"]}


def test_every_list_is_read_to_its_end_by_cursors(service: Service) -> None:
    from tidecast_control.alerts.models import AlertRow
    from tidecast_control.kit.models import utc_now
    from tidecast_control.operations.models import OperationRow

    api, now = service.admin, utc_now()
    names = [f"n{i}" for i in range(5)]
    for name in names:
        service.user(name, "viewer")
        service.key(name)
        assert api.post("/api/v1/enrolments", json={"name": name}).status_code == 201
    with service.ctx.db.begin() as session:
        for name in names:
            session.add(
                AlertRow(
                    id=name,
                    rule="r",
                    target=name,
                    severity="info",
                    metric="drift",
                    threshold=0,
                    state="firing",
                    started_at=now,
                )
            )
            session.add(
                OperationRow(
                    id=name, action="pause", kind="topic", name="t", state="done", created_at=now
                )
            )
    assert _walk(api, "/users", "name") == ["admin", *names]
    assert _walk(api, "/keys", "name") == names
    assert _walk(api, "/enrolments", "name") == names
    assert _walk(api, "/alerts", "id") == names[::-1]
    assert _walk(api, "/operations", "id") == names[::-1]


def test_a_cursor_that_no_list_made_is_refused(api: TestClient) -> None:
    lists = [
        p
        for p in document()["paths"]
        if "cursor" in queries_of(document()["paths"][p].get("get", {}))
    ]
    assert len(lists) > 15
    for path in lists:
        for wrong in ("a b", "{}", "x" * 1001, "bm8"):
            answer = api.get(filled(path), params={"cursor": wrong})
            assert answer.status_code in (404, 422), (path, wrong)


# --- paths, methods, bodies -----------------------------------------------------------------------


def test_a_body_that_is_too_large_is_413(api: TestClient) -> None:
    long = {"spec": {}, "metadata": {"description": "x" * (300 << 10)}}
    refused = api.put("/api/v1/topics/t", json=long)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    assert refused.json()["detail"] == "allowed are 65536 bytes"

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/yaml"}
    refused = api.post("/api/v1/apply", content=chunks(), headers=headers)
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large")
    login = api.post("/api/v1/auth/login", content=b'{"user":[' + b"{}," * (1 << 20))
    assert login.status_code == 413


def test_apply_of_nothing_is_refused(api: TestClient) -> None:
    yaml = {"content-type": "application/yaml"}
    for raw in (b"null", b"", b"---\n---\n", b"# nothing\n"):
        assert api.post("/api/v1/apply", content=raw, headers=yaml).status_code == 422, raw
    for raw in (b"null", b"", b"[]", b"{}"):
        answer = api.post(
            "/api/v1/apply", content=raw, headers={"content-type": "application/json"}
        )
        assert answer.status_code in (400, 422), raw


def test_options_and_allow_name_every_method(api: TestClient) -> None:
    paths = document()["paths"]
    group = "/api/v1/kafka/groups/{name}"
    for path, methods in paths.items():
        wanted = {m.upper() for m in methods} | {"OPTIONS"}
        if path.startswith(group):  # names of Kafka's groups have slashes: x/reset may be one
            wanted |= {m.upper() for m in paths[group]}
        said = api.options(filled(path))
        assert (said.status_code, set(said.headers["allow"].split(", "))) == (204, wanted), path
        wrong = next(m for m in ("PATCH", "DELETE", "TRACE") if m not in wanted)
        refused = api.request(wrong, filled(path))
        assert (refused.status_code, refused.json()["code"]) == (405, "method_not_allowed"), path
        assert set(refused.headers["allow"].split(", ")) == wanted


def test_a_path_that_is_no_page_is_404(api: TestClient) -> None:
    for path in ("/nope", "/api/v1/nope", "/api/nope", "/swagger.json", "/.env", "/assets/x.js"):
        for method in ("GET", "POST", "OPTIONS"):
            answer = api.request(method, path)
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), path
    moved = api.get("/openapi.json", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (308, "/api/v1/openapi.json")
    assert api.get("/openapi.json").json()["openapi"]


def test_the_service_knows_the_pages_of_the_dashboard() -> None:
    import re

    from tests.project import ROOT
    from tidecast_control.page import PAGES

    source = (ROOT / "frontend" / "src" / "app" / "router.tsx").read_text("utf-8")
    paths = re.findall(r'(?:page\(|path: )"/([a-z-]*)', source)
    assert set(paths) == PAGES


def test_an_unknown_node_is_not_found(api: TestClient) -> None:
    for rest in ("counters", "recorder"):
        answer = api.get(f"/api/v1/nodes/nobody/{rest}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


NAMES_A_NODE = [
    ["GET", "/topics/t/messages?node={node}", None],
    ["POST", "/topics/t/messages", {"text": "a", "node": "{node}"}],
    ["POST", "/topics/t/messages?dry_run=true", {"text": "a", "node": "{node}"}],
    ["GET", "/kafka/groups?node={node}", None],
    ["GET", "/kafka/groups/g?node={node}", None],
    ["DELETE", "/kafka/groups/g?node={node}", None],
    ["POST", "/kafka/groups/g/reset?node={node}", {"to": "latest"}],
    ["GET", "/kafka/clients?node={node}", None],
]


def test_a_request_that_names_an_unknown_node_is_no_server_error(service: Service) -> None:
    """It may be repeated for ever: 503 is for engines that are away."""
    service.admin.put("/api/v1/topics/t", json={"spec": {}})
    with service.ctx.db.begin() as session:
        session.add(ResourceRow(uid="away-away", kind="node", name="away", spec={"site": ""}))
    for node, expected in (("nobody", (404, "not_found")), ("away", (503, "no_node"))):
        for method, path, body in rest_routes.filled(NAMES_A_NODE, {"node": node}):
            answer = service.admin.request(method, f"/api/v1{path}", json=body)
            found = answer.status_code, answer.json()["code"]
            assert found == expected, (method, path, node, answer.text)


def test_public_routes_are_documented_as_public() -> None:
    public = {o["operationId"] for _, _, o in operations() if o.get("security") == []}
    assert public == {
        "login",
        "list_problems",
        "get_problem",
        "health_live",
        "health_ready",
        "metrics",
    }
