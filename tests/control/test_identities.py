"""Identities of engines: enrolment, credentials that end, names that nobody takes over."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from tests.support.control import Service
from tests.support.patience import Patience
from tidecast_control.auth.service import digest
from tidecast_control.kit.problems import ProblemError
from tidecast_control.nodes import identity, repository
from tidecast_control.nodes.hello import INCARNATION_MAX, VERSION_MAX, Hello, read_hello

HELLO = {
    "type": "hello",
    "protocol": 1,
    "levels": [1, 2],
    "node": "n1",
    "node_id": 1,
    "incarnation": 1,
    "version": "1",
    "host": "h",
    "applied_version": 0,
}
ENGINE = "ws://localhost/api/v1/engine"
ACQUIRE = {
    "type": "Acquire",
    "serial": 1,
    "queue": "orders/0",
    "owner": "n1",
    "lease_ns": 10**12,
}


def hello(**said: Any) -> Hello:
    return read_hello(json.dumps(HELLO | said))


def token(service: Service, name: str = "e", **body: Any) -> str:
    answer = service.admin.post("/api/v1/enrolments", json={"name": name, **body})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def is_down(service: Service, node: Any) -> bool:
    """The service notes the end of a link itself: the client would cancel it as it leaves."""
    pause, patience = threading.Event(), Patience(20)
    while not patience.over():
        with service.ctx.db.begin() as session:
            states = repository.states(session)
        if node not in states or not states[node].connected:
            return True
        pause.wait(0.01)
    return False


@contextlib.contextmanager
def linked(service: Service, secret: str, node: Any = "n1") -> Iterator[tuple[Any, Any]]:
    """(link, the service's first answer) of an engine."""
    headers = {"Authorization": f"Bearer {secret}"}
    with service.admin.websocket_connect(ENGINE, headers=headers) as link:
        link.send_json(HELLO | {"node": node})
        yield link, link.receive_json()
        link.close()
        assert is_down(service, node), "the service did not note the end of the link"


def answer_of(service: Service, secret: str, node: Any = "n1") -> tuple[str, str]:
    """(type, credential or code) of the service's first answer."""
    try:
        with linked(service, secret, node) as (_, answer):
            return answer["type"], answer.get("code") or answer.get("credential") or ""
    except WebSocketDenialResponse as refusal:
        return "refused", refusal.json()["code"]


def until(link: Any, kind: str) -> Any:
    """The next message of a kind."""
    while True:
        message = link.receive_json()
        if message["type"] == kind:
            return message


def assert_dismissed(link: Any, why: str) -> None:
    assert why in until(link, "dismissed")["detail"]
    with pytest.raises(WebSocketDisconnect) as end:
        link.receive_json()
    assert end.value.code == 4403


ENDINGS: dict[str, tuple[str, str, Any, str, str]] = {
    "deleted": ("DELETE", "/nodes/n1?if_unused=false", None, "deleted", "unauthenticated"),
    "quarantined": (
        "PATCH",
        "/nodes/n1",
        {"spec": {"quarantined": True}},
        "quarantined",
        "denied",
    ),
    "revoked": ("POST", "/nodes/n1/revoke", None, "revoked", "unauthenticated"),
}


@pytest.mark.parametrize("how", list(ENDINGS))
def test_an_identity_that_ends_takes_link_and_leases_with_it(service: Service, how: str) -> None:
    method, path, body, why, code = ENDINGS[how]
    with linked(service, token(service)) as (link, welcome):
        credential = welcome["credential"]
        until(link, "topology")
        link.send_json({"type": "lease", "id": "1", "request": ACQUIRE})
        assert until(link, "leased")["reply"]["type"] == "Granted"
        planned = service.admin.request(
            method, f"/api/v1{path}{'&' if '?' in path else '?'}dry_run=true", json=body
        )
        assert planned.status_code == 200, planned.text
        answer = service.admin.request(method, f"/api/v1{path}", json=body)
        assert answer.status_code == 200, answer.text
        assert_dismissed(link, why)
    with service.ctx.db.begin() as session:
        owners = session.execute(text("SELECT owner FROM leases")).scalars().all()
    assert owners == [""]
    assert answer_of(service, credential) == ("refused", code)
    if how == "deleted":
        assert service.admin.get("/api/v1/nodes/n1").status_code == 404
    if how == "quarantined":
        ended = {"spec": {"quarantined": False}}
        assert service.admin.patch("/api/v1/nodes/n1", json=ended).status_code == 200
        assert answer_of(service, credential)[0] == "welcome"
    audited = service.admin.get("/api/v1/audit?kind=node").json()["items"]
    assert {entry["name"] for entry in audited} == {"n1"}


def test_a_rotated_credential_ends_when_the_engine_has_the_new_one(service: Service) -> None:
    with linked(service, token(service)) as (link, welcome):
        answers: list[Any] = []

        def rotate() -> None:
            answers.append(service.admin.post("/api/v1/nodes/n1/rotate"))

        asking = threading.Thread(target=rotate)
        asking.start()
        command = until(link, "command")
        fresh = command["args"]["credential"]
        assert command["name"] == "credential"
        link.send_json({"type": "result", "id": command["id"], "ok": True, "value": {}})
        asking.join(20)
        assert answers[0].status_code == 200, answers[0].text
        assert fresh not in answers[0].text
        service.admin.put("/api/v1/topics/t", json={"spec": {}})
        while "t" not in until(link, "topology")["topics"]:
            pass  # of before; the link stays
    assert answer_of(service, welcome["credential"]) == ("refused", "unauthenticated")
    assert answer_of(service, fresh)[0] == "welcome"


def test_a_rotation_that_ends_between_two_looks_dismisses_nobody(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link looks at the row after the credential of before has ended."""
    answer_of(service, token(service))
    of_before, of_after = digest("before"), digest("after")
    with service.ctx.db.begin() as session:
        state = repository.state(session, "n1", lock=True)
        assert state is not None
        state.credential = of_after
        session.add(state)
        shown = iter((of_before, of_after, of_before, of_before))
        assert identity.dismissal(session, "n1", lambda: next(shown)) is None
        said = identity.dismissal(session, "n1", lambda: next(shown))
    assert said == "the credential of node n1 was revoked"


def test_a_rotation_that_nobody_answers_locks_no_engine_out(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidecast_control.link.hub.COMMAND_TIMEOUT_S", 0.1)
    monkeypatch.setattr(type(service.ctx.hub).ask, "__defaults__", (0.1,))
    with linked(service, token(service)) as (link, welcome):
        assert service.admin.post("/api/v1/nodes/n1/rotate").status_code == 504
        fresh = until(link, "command")["args"]["credential"]
    assert answer_of(service, welcome["credential"])[0] == "welcome"
    assert answer_of(service, fresh)[0] == "welcome", "the engine may have stored it"
    assert answer_of(service, welcome["credential"]) == ("refused", "unauthenticated")
    assert service.admin.post("/api/v1/nodes/n1/rotate").json()["code"] == "no_node"


def test_a_token_takes_no_name_that_is_taken(service: Service) -> None:
    first = answer_of(service, token(service, "a"))
    assert first[0] == "welcome"
    again = token(service, "b", uses_max=9)
    assert answer_of(service, again) == ("refused", "conflict")
    assert answer_of(service, again, "n2")[0] == "welcome", "a refused use is none"
    assert answer_of(service, first[1])[0] == "welcome", "the engine of before is undisturbed"
    bound = token(service, "c", node="n3", uses_max=9)
    assert answer_of(service, bound, "n4") == ("refused", "denied")
    assert answer_of(service, bound, "n3")[0] == "welcome"
    assert answer_of(service, bound, "n3") == ("refused", "conflict")
    replacing = token(service, "d", node="n1", replace=True)
    assert answer_of(service, replacing)[0] == "welcome"
    assert answer_of(service, first[1]) == ("refused", "unauthenticated")
    refused = service.admin.post("/api/v1/enrolments", json={"name": "x", "replace": True})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/replace")
    listed = service.admin.get("/api/v1/enrolments").json()["items"]
    assert {each["name"]: (each["node"], each["replace"]) for each in listed}["d"] == ("n1", True)


def test_of_two_with_one_token_the_second_is_refused(service: Service) -> None:
    """The door looked before it opened a socket: two may pass it at the same time."""
    secret = token(service)
    with service.ctx.db.begin() as session:
        identity.admit(session, secret, hello(), "192.0.2.1")
        with pytest.raises(ProblemError) as refused:
            identity.admit(session, secret, hello(node="n2"), "192.0.2.2")
    assert refused.value.problem == "unauthenticated"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x\n", "é", "n" * 201, 7, None])
def test_an_engine_has_a_name_that_routes_can_say(service: Service, name: Any) -> None:
    secret = token(service, uses_max=5)
    assert answer_of(service, secret, name) == ("refused", "invalid_request")
    assert service.admin.get("/api/v1/nodes").json()["items"] == []


# --- hellos that are refused ----------------------------------------------------------------------


def denials(service: Service) -> list[Any]:
    """Rows of the audit about sockets of engines."""
    service.ctx.denials.flush()
    found = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    return [each for each in found if "/engine" in each["action"]]


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("node_id", 1 << 31, "1 to 65534"),
        ("node_id", 0, "1 to 65534"),
        ("node_id", True, "1 to 65534"),
        ("node_id", "1", "1 to 65534"),
        ("node_id", None, "1 to 65534"),
        ("incarnation", -1, f"0 to {INCARNATION_MAX}"),
        ("incarnation", 1 << 63, f"0 to {INCARNATION_MAX}"),
        ("incarnation", 1.5, f"0 to {INCARNATION_MAX}"),
        ("applied_version", 1 << 63, f"0 to {VERSION_MAX}"),
        ("applied_version", -1, f"0 to {VERSION_MAX}"),
        ("version", "v" * 51, "1 to 50 characters"),
        ("host", "h\x00", "0 to 200 characters"),
    ],
)
def test_a_hello_out_of_range_is_refused_by_its_field(
    service: Service, field: str, value: Any, allowed: str
) -> None:
    secret = token(service)
    headers = {"Authorization": f"Bearer {secret}"}
    with service.admin.websocket_connect(ENGINE, headers=headers) as link:
        link.send_json(HELLO | {field: value})
        answer = link.receive_json()
    assert (answer["type"], answer["code"]) == ("refused", "invalid_request")
    assert answer["detail"].startswith(f"{field}: ")
    assert allowed in answer["detail"]
    [entry] = denials(service)
    assert (entry["status"], entry["detail"]) == (422, f"invalid_request: {answer['detail']}")
    assert service.admin.get("/api/v1/nodes").json()["items"] == []
    assert answer_of(service, secret)[0] == "welcome", "the token was not used up"


@pytest.mark.parametrize("said", ["[]", "7", "{", '{"type": "applied"}'])
def test_what_is_no_hello_is_refused_and_in_the_audit(service: Service, said: str) -> None:
    headers = {"Authorization": f"Bearer {token(service)}"}
    with service.admin.websocket_connect(ENGINE, headers=headers) as link:
        link.send_text(said)
        assert link.receive_json()["type"] == "refused"
    assert len(denials(service)) == 1


def test_each_reason_to_refuse_a_hello_is_in_the_audit(service: Service) -> None:
    with linked(service, token(service, uses_max=9)) as (_, welcome):
        credential = welcome["credential"]
        headers = {"Authorization": f"Bearer {token(service, 'b')}"}
        with service.admin.websocket_connect(ENGINE, headers=headers) as second:
            second.send_json(HELLO)
            assert second.receive_json()["code"] == "conflict"
    assert answer_of(service, token(service, "c", node="other"), "n2") == ("refused", "denied")
    service.admin.patch("/api/v1/nodes/n1", json={"spec": {"quarantined": True}})
    for _ in range(3):
        assert answer_of(service, credential) == ("refused", "denied")
    assert answer_of(service, "tcn_unknown") == ("refused", "unauthenticated")
    found = [(e["actor"], e["status"], e["detail"]) for e in denials(service)]
    details = " / ".join(detail for _, _, detail in found)
    for words in ("connected already", "for node other", "quarantined", "unknown credential"):
        assert words in details
    assert sorted((actor, status) for actor, status, _ in found) == [
        ("", 401),
        ("n1", 403),
        ("n1", 409),
        ("n2", 403),
    ], "repeats are counted, not stored one by one"


def test_a_report_out_of_range_ends_the_link_and_changes_nothing(service: Service) -> None:
    with linked(service, token(service)) as (link, _):
        until(link, "topology")
        link.send_json({"type": "applied", "version": 1 << 63, "errors": {}, "restart_needed": []})
        with pytest.raises(WebSocketDisconnect) as end:
            until(link, "nothing more")
        assert (end.value.code, "version: " in end.value.reason) == (4400, True)
    [node] = service.admin.get("/api/v1/nodes").json()["items"]
    assert node["status"]["topology_version"] in (0, "0")
