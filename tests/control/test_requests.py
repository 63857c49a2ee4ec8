"""Requests do what they say: queries, dry runs, round trips, numbers, methods. For every route."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from starlette.testclient import TestClient

from tests.support.control import ADMIN_PASSWORD, Service, _app

WRITES = ("put", "patch", "post", "delete")
DOCUMENT = _app().openapi()
NO_DRY_RUN = {"login", "logout", "change_password", "check_token"}
"""They have no dry run: `dry_run` is a parameter that they do not know."""


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, operation) of every route of the document."""
    for path, methods in DOCUMENT["paths"].items():
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
        "pointer": "query/dry_run", "detail": "given twice", "allowed": "once",
    }  # fmt: skip
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
        "resources", "users", "keys", "enrolments", "pipeline_runs", "outbox", "topology_clock",
        "idempotency",
    )  # fmt: skip
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
