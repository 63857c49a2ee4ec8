"""Requests, links and ends of identities at the same time, in the order that does harm."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from tests.conftest import Eventually
from tests.control.test_identities import HELLO, answer_of, linked, token, until
from tests.support.control import ADMIN_PASSWORD, Service, service_of
from tidecast_control import lifespan
from tidecast_control.api.idempotent import once
from tidecast_control.auth import repository as accounts
from tidecast_control.auth import service as auth
from tidecast_control.kit import repository as kit
from tidecast_control.kit.actor import SERVICE
from tidecast_control.kit.problems import ProblemError
from tidecast_control.link import hub as hubs
from tidecast_control.nodes import identity
from tidecast_control.nodes import service as nodes
from tidecast_control.settings import Settings

WAIT_S = 10.0


class Hold:
    """Holds the first call of a function after it has done its work, until `release`."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.done, self._released = threading.Event(), threading.Event()
        self._armed = threading.Event()

    def arm(self) -> None:
        """The next call is held."""
        self._armed.set()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        found = self._call(*arguments, **named)
        if self._armed.is_set():
            self._armed.clear()
            self.done.set()
            assert self._released.wait(WAIT_S)
        return found

    def wait(self) -> None:
        """Wait until a call is held."""
        assert self.done.wait(WAIT_S), "no call came"

    def release(self) -> None:
        """Let it continue."""
        self._released.set()


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], Future[Any]]]:
    """Run a request in a thread."""
    with ThreadPoolExecutor(4) as pool:
        yield pool.submit


def _epochs(message: Any) -> list[int]:
    return [each["epoch"] for rows in message.get("wire_keys", {}).values() for each in rows]


def test_a_topology_that_is_built_during_a_revocation_has_no_new_secret(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check of the identity and the secrets are of one moment."""
    api = service.admin
    assert api.post("/api/v1/transports/multicast/keys/rotate?at_once=true").status_code == 200
    hold = Hold(identity.dismissal)
    monkeypatch.setattr(identity, "dismissal", hold)
    with linked(service, token(service)) as (link, _):
        assert _epochs(until(link, "topology")) == [1]
        hold.arm()
        api.put("/api/v1/topics/t", json={"spec": {}})
        hold.wait()
        assert api.post("/api/v1/nodes/n1/revoke").status_code == 200
        hold.release()
        assert 2 not in _epochs(until(link, "topology"))
        until(link, "dismissed")


def test_an_engine_that_starts_during_its_revocation_gets_no_new_secret(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = service.admin
    assert api.post("/api/v1/transports/multicast/keys/rotate?at_once=true").status_code == 200
    _, credential = answer_of(service, token(service))
    hold = Hold(service.ctx.hub._admit)
    monkeypatch.setattr(service.ctx.hub, "_admit", hold)
    hold.arm()
    headers = {"Authorization": f"Bearer {credential}"}
    with api.websocket_connect("ws://localhost/api/v1/engine", headers=headers) as link:
        link.send_json(HELLO | {"fetch": True})
        hold.wait()
        assert api.post("/api/v1/nodes/n1/revoke").status_code == 200
        hold.release()
        assert link.receive_json()["type"] == "welcome"
        assert link.receive_json()["type"] == "dismissed"


def test_a_login_during_a_change_of_password_gives_no_session(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    beside: Callable[[Callable[[], Any]], Future[Any]],
) -> None:
    """The old password was right when it was checked, and is not when the session begins."""
    service.user("vera", "viewer")
    hold = Hold(auth.password_fits)
    monkeypatch.setattr(auth, "password_fits", hold)
    monkeypatch.setattr(type(auth._hasher), "check_needs_rehash", lambda *_: True)
    hold.arm()
    stranger = service.client()
    body = {"user": "vera", "password": ADMIN_PASSWORD}
    login = beside(lambda: stranger.post("/api/v1/auth/login", json=body))
    hold.wait()
    fresh = {"role": "viewer", "password": "another long password"}
    assert service.admin.put("/api/v1/users/vera", json=fresh).status_code == 200
    hold.release()
    assert login.result(WAIT_S).status_code == 401
    with service.ctx.db.begin() as session:
        query = text("SELECT count(*) FROM sessions WHERE \"user\" = 'vera'")
        assert session.execute(query).scalar_one() == 0
    service.login("vera", "another long password")


def test_a_second_rotation_waits_for_none_and_is_refused(
    service: Service, beside: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    """Of two at once the engine may store the one that the service forgot."""
    with linked(service, token(service)) as (link, _):
        first = beside(lambda: service.admin.post("/api/v1/nodes/n1/rotate"))
        command = until(link, "command")
        assert service.admin.post("/api/v1/nodes/n1/rotate").status_code == 409
        link.send_json({"type": "result", "id": command["id"], "ok": True, "value": {}})
        assert first.result(WAIT_S).status_code == 200
    assert answer_of(service, command["args"]["credential"])[0] == "welcome"


def test_a_report_that_postgres_did_not_take_is_asked_for_again(
    service: Service, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Else the node drifts for ever, until the topology changes."""
    noted, failures = nodes.report, [OperationalError("gone", {}, Exception("gone"))]

    def report(*arguments: Any) -> None:
        if failures:
            raise failures.pop()
        noted(*arguments)

    monkeypatch.setattr(nodes, "report", report)
    monkeypatch.setattr(hubs, "RETRY_S", 0.01)
    with linked(service, token(service)) as (link, _):
        for _ in range(2):
            version = until(link, "topology")["version"]
            link.send_json(
                {"type": "applied", "version": version, "errors": {}, "restart_needed": []}
            )
        url = "/api/v1/nodes/n1"

        def applied() -> bool:
            status = service.admin.get(url).json()["status"]
            return bool(status["topology_version"] == status["wanted_version"])

        eventually(applied, "the report in Postgres")


def test_a_deletion_that_waits_for_an_engine_keeps_no_other_write_waiting(
    service: Service,
    eventually: Eventually,
    beside: Callable[[Callable[[], Any]], Future[Any]],
) -> None:
    """The topology's clock is locked last: else a revocation and a deletion wait for each other."""
    answer_of(service, token(service))
    with service.ctx.db.engine.connect() as other:
        other.execute(text("SELECT 1 FROM node_states WHERE name = 'n1' FOR UPDATE"))
        deletion = beside(lambda: service.admin.delete("/api/v1/nodes/n1"))
        waiting = text(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND datname = current_database()"
        )

        def blocked() -> bool:
            with service.ctx.db.engine.connect() as connection:
                return bool(connection.execute(waiting).scalar_one())

        eventually(blocked, "the deletion waits")
        other.execute(text("SELECT 1 FROM topology_clock FOR UPDATE NOWAIT"))
        other.rollback()
    assert deletion.result(WAIT_S).status_code == 200


def test_of_two_last_admins_one_stays_and_neither_request_fails(
    service: Service,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
    beside: Callable[[Callable[[], Any]], Future[Any]],
) -> None:
    service.user("anna", "admin")
    both = threading.Barrier(2)
    users = accounts.user

    def user(session: Any, name: str, *, lock: bool = False) -> Any:
        found = users(session, name, lock=lock)
        if lock:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(1.0)
        return found

    monkeypatch.setattr(accounts, "user", user)
    key = service.key("k", role="admin")
    requests = [
        beside(lambda name=name: key.put(f"/api/v1/users/{name}", json={"role": "viewer"}))  # type: ignore[misc]
        for name in ("admin", "anna")
    ]
    assert sorted(each.result(WAIT_S).status_code for each in requests) == [200, 409]


def test_a_refusal_with_a_zero_byte_is_in_the_audit(service: Service) -> None:
    """One that cannot be stored kept all later refusals out."""
    stranger = service.client()
    headers = {"Host": "elsewhere.example"}
    assert stranger.get("/api/v1/topics/%00", headers=headers).status_code == 421
    service.ctx.denials.flush()
    found = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    assert [each["status"] for each in found] == [421]


class _Answer(BaseModel):
    n: int


def _gone(*_: Any) -> None:
    raise OperationalError("gone", {}, Exception("gone"))


def test_work_that_is_done_is_answered_so_without_postgres_and_is_not_done_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer was 503, "try again"."""
    done: list[int] = []

    async def work() -> _Answer:
        done.append(1)
        return _Answer(n=len(done))

    async def repeat() -> _Answer:
        return await once(service.ctx.db, "key", SERVICE, {}, _Answer, work)

    with monkeypatch.context() as patch:
        patch.setattr(kit, "keep_answer", _gone)
        assert asyncio.run(repeat()).n == 1
    with pytest.raises(ProblemError, match="could not be stored"):
        asyncio.run(repeat())
    assert done == [1]


def test_the_reason_of_a_failure_is_answered_without_postgres(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> _Answer:
        raise ProblemError("node_failed", "its disk is full")

    monkeypatch.setattr(kit, "free_key", _gone)
    with pytest.raises(ProblemError, match="its disk is full"):
        asyncio.run(once(service.ctx.db, "key", SERVICE, {}, _Answer, fails))


@pytest.mark.parametrize(
    "body", ['{"value": "\\ud800"}', '{"text": "", "headers": {"\\ud800": ""}}']
)
def test_half_a_surrogate_pair_is_refused(service: Service, body: str) -> None:
    service.admin.put("/api/v1/topics/t", json={"spec": {}})
    url = "/api/v1/topics/t/messages?dry_run=true"
    answer = service.admin.post(url, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


@pytest.fixture
def deaf(settings: Settings, template: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """A service whose connection for notices of Postgres is away."""

    async def listens(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(lifespan, "_listen", listens)
    with service_of(settings) as made:
        template.login.put_on(made.admin)
        yield made


SCOPES = [{"pattern": ">", "rights": ["publish"]}]
CHANGES = {
    "a key": ("POST", "/keys", {"name": "k", "scopes": SCOPES}, lambda m: m.get("keys")),
    "a revoked key": ("DELETE", "/keys/before", None, lambda m: m.get("keys") == []),
    "traffic": ("POST", "/traffic/t/start", None, lambda m: m["traffic"]),
    "no traffic": ("POST", "/traffic/s/stop", None, lambda m: not m["traffic"]),
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_change_reaches_engines_without_a_notice_of_postgres(
    deaf: Service, what: str, beside: Callable[[Callable[[], Any]], Future[Any]]
) -> None:
    """Engines are looked after once the change is committed, not before."""
    api = deaf.admin
    for name in ("t", "s"):
        api.put(f"/api/v1/topics/{name}", json={"spec": {}})
    if what == "no traffic":
        api.post("/api/v1/traffic/s/start")
    elif what == "a revoked key":
        api.post("/api/v1/keys", json={"name": "before"})
    method, path, body, seen = CHANGES[what]
    with linked(deaf, token(deaf)) as (link, _):
        until(link, "topology")
        assert api.request(method, f"/api/v1{path}", json=body).is_success
        assert seen(beside(lambda: until(link, "topology")).result(WAIT_S))
