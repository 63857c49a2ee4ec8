"""Keys and their scopes, sessions, throttling, the audit. Every route: `test_rights`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from starlette.testclient import TestClient

from tests.support.control import ADMIN_PASSWORD, Service, Transport, service_of
from tidecast.errors import ConfigError
from tidecast_control.auth import service as auth
from tidecast_control.auth.throttle import (
    FREE_FAILURES,
    NETWORK_FREE_FAILURES,
    NETWORKS_MAX,
    WAIT_S_MAX,
    Throttle,
)
from tidecast_control.settings import Settings, load_settings


def test_writes_with_a_cookie_need_the_csrf_token(service: Service) -> None:
    client = service.login("admin")
    token = client.headers.pop("X-CSRF-Token")
    refused = client.put("/api/v1/topics/t", json={"spec": {}})
    assert (refused.status_code, refused.json()["code"]) == (403, "csrf")
    assert client.get("/api/v1/topics").status_code == 200
    again = client.get("/api/v1/auth/me").json()["csrf_token"]
    assert again == token
    answer = client.put("/api/v1/topics/t", json={"spec": {}}, headers={"X-CSRF-Token": token})
    assert answer.status_code == 201


def test_the_cookie_is_out_of_reach_of_scripts(service: Service) -> None:
    body = {"user": "admin", "password": ADMIN_PASSWORD}
    cookie = service.client().post("/api/v1/auth/login", json=body).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert ADMIN_PASSWORD not in cookie


def test_the_first_password_must_be_changed(empty_database_url: str, tmp_path: Any) -> None:
    settings = load_settings(database_url=empty_database_url, data_dir=tmp_path, port=0)
    with service_of(settings, login=False) as service:
        password = service.secrets.admin_password
        assert password
        client = service.login("admin", password)
        refused = client.get("/api/v1/topics")
        assert refused.json()["code"] == "password_change_required"
        change = {"old": password, "new": ADMIN_PASSWORD}
        assert client.post("/api/v1/auth/password", json=change).status_code == 200
        assert client.get("/api/v1/topics").status_code == 200
    with service_of(settings, login=False) as service:
        assert service.secrets.admin_password is None


def _log_in(client: TestClient, password: str, address: str = "") -> Any:
    if address:
        assert isinstance(client._transport, Transport)
        client._transport.come_from(address)
    return client.post("/api/v1/auth/login", json={"user": "admin", "password": password})


def test_login_is_throttled_and_says_when(service: Service) -> None:
    client = service.client()
    for _ in range(FREE_FAILURES):
        assert _log_in(client, "guess").status_code == 401
    refused = _log_in(client, "guess")
    assert (refused.status_code, refused.json()["code"]) == (429, "throttled")
    assert int(refused.headers["retry-after"]) >= 1


def test_guesses_from_one_network_lock_nobody_out_elsewhere(service: Service) -> None:
    attacker, owner = service.client(), service.client()
    while _log_in(attacker, "guess", "2001:db8:1:2::66").status_code == 401:
        pass
    assert _log_in(attacker, "guess", "2001:db8:1:2::67").status_code == 429, "a /64 is one"
    assert _log_in(owner, ADMIN_PASSWORD, "2001:db8:1:3::1").status_code == 200


def test_parallel_guesses_are_counted_before_they_are_verified(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty at once were all heard: the count was read before, and written after."""
    verified = []

    def fits(_hash: str, password: str) -> bool:
        verified.append(password)
        return False

    monkeypatch.setattr(auth, "password_fits", fits)
    service.ctx.throttle = Throttle(lambda: 0.0)  # forty may take longer than the first wait
    client = service.client()
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: _log_in(client, f"guess {n}").status_code, range(40)))
    assert len(verified) == FREE_FAILURES
    assert sorted(answers) == [401] * FREE_FAILURES + [429] * (40 - FREE_FAILURES)


def test_the_throttle_doubles_to_a_minute_and_forgets() -> None:
    now = [0.0]
    throttle = Throttle(lambda: now[0])
    for _ in range(FREE_FAILURES):
        assert throttle.attempt("a", "net") == 0
    assert throttle.attempt("a", "net") == 1
    assert throttle.attempt("a", "net") == 1, "what is not heard does not count"
    assert throttle.attempt("b", "net") == throttle.attempt("a", "other") == 0
    for _ in range(20):
        now[0] += WAIT_S_MAX
        assert throttle.attempt("a", "net") == 0
    assert throttle.attempt("a", "net") == WAIT_S_MAX
    now[0] += WAIT_S_MAX
    assert throttle.attempt("a", "net") == 0
    throttle.succeeded("a", "net")
    assert throttle.attempt("a", "net") == 0


def test_made_up_names_push_no_count_out() -> None:
    throttle = Throttle(lambda: 0.0)
    while throttle.attempt("admin", "net") == 0:
        pass
    heard = sum(throttle.attempt(f"user {n}", "net") == 0 for n in range(10_000))
    assert heard <= NETWORK_FREE_FAILURES
    assert throttle.attempt("admin", "net") > 0
    for n in range(NETWORKS_MAX + 10):
        throttle.attempt("admin", f"net {n}")
    assert len(throttle._networks) == NETWORKS_MAX


def test_a_session_ends(service: Service) -> None:
    client = service.user("vera", "viewer")
    other = service.login("vera")
    assert client.post("/api/v1/auth/logout").status_code == 204
    assert client.get("/api/v1/topics").status_code == 401
    assert other.get("/api/v1/topics").status_code == 200
    disabled = {"role": "viewer", "disabled": True}
    assert service.admin.put("/api/v1/users/vera", json=disabled).status_code == 200
    assert other.get("/api/v1/topics").status_code == 401
    wrong = service.client().post(
        "/api/v1/auth/login", json={"user": "vera", "password": ADMIN_PASSWORD}
    )
    assert (wrong.status_code, wrong.json()["code"]) == (401, "unauthenticated")


def test_an_unused_session_ends(service: Service) -> None:
    client = service.user("vera", "viewer")
    settings = service.ctx.settings
    assert client.get("/api/v1/auth/me").status_code == 200
    service.ctx.settings = settings.model_copy(update={"session_idle_hours": 1e-9})
    assert client.get("/api/v1/auth/me").status_code == 401
    service.ctx.settings = settings


def test_a_session_ends_absolutely(service: Service) -> None:
    client = service.user("vera", "viewer")
    with service.ctx.db.begin() as session:
        found = session.execute(
            text("SELECT expires_at - created_at FROM sessions WHERE \"user\" = 'vera'")
        ).scalar_one()
        hours = service.ctx.settings.session_hours
        assert abs(found - timedelta(hours=hours)) < timedelta(seconds=30)
        session.execute(
            text("UPDATE sessions SET expires_at = now() - interval '1 second', used_at = now()")
        )
    service.ctx.db.statements.recent.clear()
    refused = client.get("/api/v1/auth/me")
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")


def test_an_edit_of_a_user_keeps_what_it_does_not_name(service: Service) -> None:
    body = {"role": "viewer", "password": ADMIN_PASSWORD, "must_change_password": True}
    path = "/api/v1/users/vera"
    assert service.admin.put(path, json=body).json()["must_change_password"]
    edited = service.admin.put(path, json={"role": "operator", "display_name": "Vera"})
    assert edited.json()["must_change_password"], "the reset password still has to be changed"
    client = service.login("vera")
    assert client.get("/api/v1/topics").json()["code"] == "password_change_required"
    body = {"role": "operator", "must_change_password": False}
    assert not service.admin.put(path, json=body).json()["must_change_password"]


def test_the_last_admin_stays(service: Service) -> None:
    answer = service.admin.put("/api/v1/users/admin", json={"role": "viewer"})
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
    assert service.admin.delete("/api/v1/users/admin").status_code == 409
    service.user("second", "admin")
    assert service.admin.put("/api/v1/users/second", json={"role": "viewer"}).status_code == 200


def test_a_keys_scopes_hold(service: Service) -> None:
    scope = {"pattern": "md.>", "rights": ["manage"]}
    key = service.key("robot", role="operator", scopes=[scope])
    assert key.put("/api/v1/topics/md.eu", json={"spec": {}}).status_code == 201
    refused = key.put("/api/v1/topics/other", json={"spec": {}})
    assert (refused.status_code, refused.json()["code"]) == (403, "denied")
    assert "other" in refused.json()["detail"]
    assert service.admin.put("/api/v1/topics/other", json={"spec": {}}).status_code == 201
    assert key.delete("/api/v1/topics/other").status_code == 403
    assert key.get("/api/v1/topics/other").status_code == 404
    assert key.post("/api/v1/topics/md.eu/messages", json={"text": "x"}).status_code == 403
    unscoped = service.key("plain", role="operator")
    assert unscoped.put("/api/v1/topics/md.eu", json={"spec": {}}).status_code == 403


def test_keys_expire_and_are_revoked(service: Service) -> None:
    key = service.key("k", expires_s=0.001)
    assert key.get("/api/v1/topics").status_code == 401
    key = service.key("k2")
    assert key.get("/api/v1/topics").status_code == 200
    listed = service.admin.get("/api/v1/keys").json()["items"]
    assert all("secret" not in k and "digest" not in k for k in listed)
    assert service.admin.delete("/api/v1/keys/k2").json()["action"] == "delete"
    assert service.admin.get("/api/v1/keys/k2").json()["revoked_at"]
    assert key.get("/api/v1/topics").status_code == 401


def test_engines_and_gateways_check_tokens(service: Service) -> None:
    scope = {"pattern": "a", "rights": ["publish"]}
    made = {"name": "k", "role": "viewer", "scopes": [scope]}
    secret = service.admin.post("/api/v1/keys", json=made).json()["secret"]
    found = service.admin.post("/api/v1/auth/check", json={"token": secret}).json()
    assert (found["valid"], found["scopes"]) == (True, [scope])
    assert not service.admin.post("/api/v1/auth/check", json={"token": "x"}).json()["valid"]


def test_writes_and_denials_are_audited(service: Service) -> None:
    viewer = service.user("vera", "viewer")
    service.admin.put("/api/v1/topics/t", json={"spec": {}})
    service.admin.patch("/api/v1/topics/t", json={"spec": {"linger_us": 7}})
    assert viewer.delete("/api/v1/topics/t").status_code == 403
    service.ctx.denials.flush()
    done = service.admin.get("/api/v1/audit?kind=topic&name=t").json()["items"]
    assert [(e["action"], e["actor"]) for e in done] == [("update", "admin"), ("create", "admin")]
    assert done[0]["before"]["spec"]["linger_us"] == 20
    assert done[0]["after"]["spec"]["linger_us"] == 7
    assert done[0]["request_id"]
    denied = service.admin.get("/api/v1/audit?outcome=denied&actor=vera").json()["items"]
    assert [e["action"] for e in denied] == ["DELETE /api/v1/topics/t"]
    secrets = service.admin.get("/api/v1/audit?limit=500").text
    assert ADMIN_PASSWORD not in secrets


def test_the_audit_pages(service: Service) -> None:
    for i in range(7):
        service.admin.put(f"/api/v1/topics/t{i}", json={"spec": {}})
    names, cursor = [], ""
    while True:
        query = f"?kind=topic&limit=3{cursor}"
        page = service.admin.get(f"/api/v1/audit{query}").json()
        names += [e["name"] for e in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert names == [f"t{i}" for i in reversed(range(7))]


def test_the_audit_is_exported_by_time_and_filter(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidecast_control.audit.routes.LIMIT_MAX", 2)
    for i in range(5):
        service.admin.put(f"/api/v1/topics/t{i}", json={"spec": {}})
    entries = service.admin.get("/api/v1/audit?kind=topic").json()["items"]
    since, until = entries[3]["at"], entries[0]["at"]

    def exported(**query: str) -> list[dict[str, Any]]:
        answer = service.admin.get("/api/v1/audit/export", params={"kind": "topic", **query})
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert 'filename="audit.jsonl"' in answer.headers["content-disposition"]
        return [json.loads(line) for line in answer.text.splitlines()]

    assert exported() == entries
    assert [e["name"] for e in exported(since=since, until=until)] == ["t3", "t2", "t1"]
    assert exported(name="nobody") == []
    assert service.user("vera", "viewer").get("/api/v1/audit/export").status_code == 403


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"host": "0.0.0.0"}, "needs TLS"),
        ({"host": "10.1.2.3"}, "needs TLS"),
        ({"database_url": "sqlite:///x"}, "postgresql://"),
        ({"tls_key": "missing.pem"}, "set both"),
        ({"port": 70_000}, "port"),
        ({"allowed_origins": "*"}, "not allowed"),
    ],
)
def test_unsafe_settings_are_refused(told: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(**told)


def test_safe_settings_are_taken(settings: Settings) -> None:
    assert load_settings(host="0.0.0.0", behind_tls_proxy=True).secure_cookies
    assert load_settings(host="::1").host == "::1"
    assert not settings.secure_cookies
    assert "postgresql" not in repr(settings)
