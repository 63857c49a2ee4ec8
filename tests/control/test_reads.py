"""Reads: how many statements they are, what they keep, and what a restart of Postgres does."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from tests.conftest import Eventually
from tests.control.conftest import Template
from tests.support.control import Service, running
from tidecast_control.kit.models import utc_now
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.settings import SESSION_COOKIE, Settings
from tidecast_control.statements import LIFE_S, RECENT_MAX, Recent


@pytest.fixture
def statements(service: Service, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Statements in the event loop, and sessions (`session`), as they happen."""
    db, told = service.ctx.db, []
    rows, begin = db.statements.rows, db.begin

    async def counted(sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        told.append(sql)
        return await rows(sql, *parameters)

    def begun() -> Any:
        told.append("session")
        return begin()

    monkeypatch.setattr(db.statements, "recent", Recent(lambda: 0.0))
    monkeypatch.setattr(db.statements, "rows", counted)
    monkeypatch.setattr(db, "begin", begun)
    return told


@pytest.mark.parametrize(
    "path", ["/topics/one", "/topics", "/topics?sort=-updated_at&label=a&q=o", "/transports"]
)
def test_a_read_is_one_statement(
    service: Service, api: TestClient, statements: list[str], path: str, eventually: Eventually
) -> None:
    """The service knows a session for a second, and what statuses need until a change."""
    api.put("/api/v1/topics/one", json={"metadata": {"labels": {"a": "1"}}, "spec": {}})
    recent = service.ctx.db.statements.recent

    def read_undisturbed() -> bool:
        """Read twice. True if no job of the service cleared `recent` by a transaction meanwhile."""
        changes = recent.changes
        api.get(f"/api/v1{path}")
        del statements[:]
        answer = api.get(f"/api/v1{path}")
        assert answer.status_code == 200
        assert answer.json()
        return recent.changes == changes

    eventually(read_undisturbed, "a read beside which nothing is written")
    assert len(statements) == 1, statements
    assert "FROM resources" in statements[0]


def test_a_change_shows_in_the_next_read(api: TestClient) -> None:
    api.put("/api/v1/topics/md.one", json={"spec": {}})
    assert _rate(api) == (0, "none")
    api.put("/api/v1/rate-limits/all", json={"spec": {"pattern": "md.*", "rate_bytes_per_s": 7}})
    assert _rate(api) == (7, "rate_limit/all")
    matched = api.get("/api/v1/rate-limits/all").json()["status"]["topics_matched"]
    api.put("/api/v1/topics/md.two", json={"spec": {}})
    assert api.get("/api/v1/rate-limits/all").json()["status"]["topics_matched"] == matched + 1
    api.delete("/api/v1/rate-limits/all")
    assert _rate(api) == (0, "none")


def _rate(api: TestClient) -> tuple[int, str]:
    rate = api.get("/api/v1/topics/md.one").json()["status"]["effective_rate"]
    return rate["bytes_per_s"], rate["bytes_source"]


def test_an_engines_word_shows_in_the_next_read(service: Service, api: TestClient) -> None:
    api.put("/api/v1/topics/md.one", json={"spec": {}})
    assert api.get("/api/v1/topics/md.one").json()["status"]["nodes"] == []
    with service.ctx.db.begin() as session:
        session.add(
            NodeStateRow(
                name="n",
                credential="x",
                connected=True,
                node_id=1,
                incarnation=1,
                applied_version=999999,
                seen_at=utc_now(),
            )
        )
    try:
        assert api.get("/api/v1/topics/md.one").json()["status"]["nodes"] == ["n"]
    finally:
        with service.ctx.db.begin() as session:
            session.execute(text("DELETE FROM node_states WHERE name = 'n'"))
    assert api.get("/api/v1/topics/md.one").json()["status"]["nodes"] == []


def test_search_takes_every_character_as_it_is(api: TestClient) -> None:
    described = {"metadata": {"description": "100% Größe_x \\"}, "spec": {}}
    api.put("/api/v1/topics/search.me", json=described)
    for part in ("100%", "GRÖSSE"[:3], "größe_", "\\", "RCH.M"):
        found = api.get("/api/v1/topics", params={"q": part}).json()["items"]
        assert "search.me" in [each["metadata"]["name"] for each in found], part
    for part in ("100_", "größe%", "h_me"):
        assert api.get("/api/v1/topics", params={"q": part}).json()["items"] == [], part


def test_connections_that_postgres_ended_are_replaced(service: Service, api: TestClient) -> None:
    assert api.get("/api/v1/topics").status_code == 200
    end = (
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
        "WHERE application_name = 'tidecast-control-reads' AND datname = current_database()"
    )
    with service.ctx.db.begin() as session:
        assert session.execute(text(end)).scalar_one() >= 1
    assert api.get("/api/v1/topics").status_code == 200


def test_topics_that_name_no_transport_count_for_the_first(api: TestClient) -> None:
    """The first is the oldest: so it is for engines, too, after a restart."""
    before = _counts(api)
    api.put("/api/v1/topics/count.a", json={"spec": {}})
    api.put("/api/v1/topics/count.b", json={"spec": {"transport": "multicast"}})
    api.put("/api/v1/topics/count.c", json={"spec": {"transport": "ipc"}})
    after = _counts(api)
    assert after["multicast"] == before["multicast"] + 2
    assert after["ipc"] == before["ipc"] + 1
    same = {"spec": {"transport": "multicast", "wire_id": 4242}}
    assert api.put("/api/v1/topics/count.b", json=same).status_code == 200
    rival = api.put("/api/v1/topics/count.a", json={"spec": {"wire_id": 4242}})
    assert rival.status_code == 422, "no transport and the first one are the same"


def _counts(api: TestClient) -> dict[str, int]:
    items = api.get("/api/v1/transports").json()["items"]
    return {each["metadata"]["name"]: each["status"]["topics"] for each in items}


def test_who_asked_is_known_for_a_moment() -> None:
    now = [0.0]
    recent = Recent(lambda: now[0])
    recent.put("a", 1, recent.changes)
    now[0] = LIFE_S * 0.9
    assert recent.get("a") == 1
    now[0] = LIFE_S
    assert recent.get("a") is None
    for n in range(RECENT_MAX + 5):
        recent.put(str(n), n, recent.changes)
    assert recent.get("0") is None
    assert recent.get(str(RECENT_MAX + 4)) == RECENT_MAX + 4
    asked_at = recent.changes
    recent.clear()
    assert recent.get(str(RECENT_MAX + 4)) is None
    recent.put("b", "as it was before the change", asked_at)
    assert recent.get("b") is None


def test_a_session_is_no_key_and_a_key_no_session(service: Service) -> None:
    """Not even while it is known from a moment ago."""
    user, key = service.user("wrong", "viewer"), service.key("way", role="viewer")
    stranger = service.client()
    for client in (user, key):
        assert client.get("/api/v1/topics").status_code == 200
    bearer = {"Authorization": f"Bearer {user.cookies[SESSION_COOKIE]}"}
    assert stranger.get("/api/v1/topics", headers=bearer).status_code == 401
    secret = key.headers["Authorization"].removeprefix("Bearer ")
    cookie = {"Cookie": f"{SESSION_COOKIE}={secret}"}
    assert stranger.get("/api/v1/topics", headers=cookie).status_code == 401


def test_who_is_shut_out_is_out_at_once(service: Service) -> None:
    """A session that was just used ends with the next request, and so does a key."""
    user, key = service.user("short", "viewer"), service.key("brief", role="viewer")
    for client in (user, key):
        assert client.get("/api/v1/topics").status_code == 200
    body = {"role": "viewer", "disabled": True}
    assert service.admin.put("/api/v1/users/short", json=body).status_code == 200
    assert user.get("/api/v1/topics").status_code == 401
    assert key.get("/api/v1/topics").status_code == 200
    assert service.admin.delete("/api/v1/keys/brief").status_code == 200
    assert key.get("/api/v1/topics").status_code == 401


def test_a_head_that_never_ends_is_refused(settings: Settings, template: Template) -> None:
    with running(settings, template.login) as service:
        address = ("127.0.0.1", service.port)
        for head in (b"GET /" + b"a" * 70_000, b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000):
            with socket.create_connection(address, timeout=20) as connection:
                connection.sendall(head)
                assert connection.makefile("rb").readline().startswith(b"HTTP/1.1 400")
        assert service.api.get("/topics").status_code == 200
