"""Callers without a login: they may do little, for a short time, and block nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from sqlalchemy.exc import OperationalError
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from tests.support.control import ADMIN_PASSWORD, Running, Service, running, service_of
from tidecast_control import server, shell
from tidecast_control.live import limits
from tidecast_control.mirrors.schemas import CA_CHARS_MAX
from tidecast_control.settings import Settings, load_settings


@pytest.fixture
def control(settings: Settings, template: Any) -> Iterator[Running]:
    """A service that listens."""
    with running(settings, template.login) as made:
        yield made


def _raw(control: Running, data: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", control.port), timeout=20)
    made.sendall(data)
    return made


def _head(control: Running, path: str, length: int) -> socket.socket:
    return _raw(
        control,
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n".encode(),
    )


@pytest.mark.parametrize(
    ("path", "bytes_max", "status"),
    [
        ("/api/v1/auth/login", shell.LOGIN_BODY_BYTES_MAX, 413),
        ("/api/v1/topics/t", shell.BODY_BYTES_MAX, 413),
        ("/api/v1/apply", shell.BODY_BYTES_MAX, 401),
        ("/api/v1/topics/t/messages", shell.BODY_BYTES_MAX, 401),
    ],
)
def test_a_large_body_is_refused_before_it_is_read(
    control: Running, path: str, bytes_max: int, status: int
) -> None:
    """The answer comes when no byte of the body has been sent."""
    with _head(control, path, bytes_max + 1) as connection:
        answer = connection.recv(4096)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer


def test_a_body_without_a_length_is_bounded(service: Service) -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"user": "'
        for _ in range(100):
            yield b"x" * 1000

    headers = {"Content-Type": "application/json"}
    answer = service.client().post("/api/v1/auth/login", content=parts(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


def test_who_is_known_may_send_what_apply_takes(service: Service) -> None:
    body = "#" + "x" * (2 * shell.BODY_BYTES_MAX) + "\n"
    headers = {"Content-Type": "application/yaml"}
    answer = service.admin.post("/api/v1/apply?dry_run=true", content=body, headers=headers)
    assert answer.status_code != 413, answer.text
    text = "x" * 1_000_000
    answer = service.admin.post("/api/v1/topics/t/messages", json={"text": text})
    assert answer.status_code == 404
    begin = "-----BEGIN CERTIFICATE-----"
    spec = {"servers": "k:9092", "kafka_topic": "t", "topic": "t", "tls": True, "paused": True}
    for size, status in ((CA_CHARS_MAX, 201), (CA_CHARS_MAX + 1, 422)):
        mirror = {"spec": spec | {"ca": begin + "\n" * (size - len(begin))}}
        answer = service.admin.put("/api/v1/mirrors/m", json=mirror)
        assert answer.status_code == status, answer.text


def test_a_silent_connection_is_closed(control: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a head, with half of one, and with half of a body."""
    monkeypatch.setattr(server, "HEAD_S", 0.2)
    monkeypatch.setattr(server, "BODY_IDLE_S", 0.2)
    half = b"GET /health/live HTTP/1.1\r\nHost: local"
    for connection in (
        _raw(control, b""),
        _raw(control, half),
        _head(control, "/api/v1/auth/login", 100),
    ):
        with connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    monkeypatch.undo()
    with _raw(control, half + b"host\r\n\r\n") as connection:  # the client's own may be closed
        assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_one_address_takes_no_more_than_its_share(
    control: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_PER_PEER_MAX", 5)
    control.api.close()
    kept = [_raw(control, b"") for _ in range(5)]
    request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with _raw(control, request) as more, contextlib.suppress(ConnectionResetError):
        assert more.recv(100) == b""
    for connection in kept:
        connection.close()


def test_peers_are_counted_by_network() -> None:
    peers = server.Peers(load_settings().trusted_proxies)
    for n in range(server.CONNECTIONS_PER_PEER_MAX):
        assert peers.enter(f"2001:db8:1:2::{n:x}")
    assert not peers.enter("2001:db8:1:2:ffff::1")
    assert peers.enter("2001:db8:1:3::1")
    peers.leave("2001:db8:1:2::1")
    assert peers.enter("2001:db8:1:2:ffff::1")
    for _ in range(2 * server.CONNECTIONS_PER_PEER_MAX):
        assert peers.enter("127.0.0.1"), "a proxy that is trusted brings everybody"


@pytest.mark.parametrize("token", ["", "Bearer tce_wrong", "Bearer tcn_wrong", "Basic x"])
def test_an_engines_socket_is_not_opened_without_a_token(control: Running, token: str) -> None:
    url = control.url.replace("http", "ws", 1) + "/api/v1/engine"
    headers = {"Authorization": token} if token else {}
    with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
        pass
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["code"] == "unauthenticated"


def test_a_socket_may_say_little_until_it_is_known(control: Running) -> None:
    """An engine that is admitted may send more than one that only has a token."""
    url = control.url.replace("http", "ws", 1) + "/api/v1/engine"
    headers = {"Authorization": f"Bearer {control.enrol()}"}
    with connect(url, additional_headers=headers) as link:
        link.send("x" * (server.MESSAGE_BYTES_MAX + 1))
        with pytest.raises(ConnectionClosed) as closed:
            link.recv(timeout=20)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


# --- hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/health/live", "/metrics", "/api/v1/problems", "/"])
def test_another_host_is_refused(service: Service, path: str) -> None:
    """A page of evil.example whose name resolves to this machine reads nothing."""
    client = service.client()
    answer = client.get(path, headers={"Host": "evil.example:7480"})
    assert (answer.status_code, answer.json()["code"]) == (421, "misdirected")
    assert client.get(path).status_code != 421


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("localhost:7480", True),
        ("127.0.0.1:80", True),
        ("[::1]:80", True),
        ("[::1]", True),
        ("10.1.2.3", True),
        ("LOCALHOST.", True),
        ("control.example", True),
        ("a.apps.example:443", True),
        ("apps.example", False),
        ("", False),
        ("x", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("*", False),
    ],
)
def test_hosts(host: str, allowed: bool) -> None:
    settings = load_settings(allowed_hosts="control.example, *.apps.example")
    assert shell.allows_host(settings, host) is allowed


def test_a_websocket_of_another_host_or_origin_is_refused(control: Running) -> None:
    url = control.url.replace("http", "ws", 1) + "/api/v1/live"
    login = {"Cookie": f"tidecast_session={control._login.cookie}"}
    evil = url.replace("127.0.0.1", "evil.example")
    origin = {"Origin": "http://evil.example"}
    for where, headers in ((evil, login), (url, login | origin)):
        raw = socket.create_connection(("127.0.0.1", control.port))
        with pytest.raises(InvalidStatus) as refused:
            connect(where, additional_headers=headers, sock=raw)
        assert refused.value.response.status_code == 403
    own = {"Origin": control.url}
    with connect(url, additional_headers=login | own) as feed:
        feed.send(json.dumps({"watch": ["nodes"]}))
        assert json.loads(feed.recv(timeout=20))["channel"] == "nodes"


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
def test_metrics_by_way_of_a_proxy_need_a_key(control: Running, name: str) -> None:
    import httpx2 as httpx

    assert httpx.get(control.url + "/metrics", timeout=30).status_code == 200
    assert httpx.get(control.url + "/metrics", headers={name: "x"}, timeout=30).status_code == 401


# --- live feeds -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem", [OperationalError("SELECT", {}, Exception()), psycopg.OperationalError("away")]
)
def test_a_live_feed_without_the_database_says_so(
    control: Running, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    """It answered 500 and logged a failed handshake: a page could not tell this from a defect."""

    async def away(*_: Any) -> None:
        raise problem

    monkeypatch.setattr("tidecast_control.live.socket.actor_of", away)
    with pytest.raises(ConnectionClosed) as closed, control.live("nodes") as feed:
        feed.read()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "database_unavailable")


def test_one_user_has_a_share_of_live_feeds(
    control: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SOCKETS_PER_ACTOR_MAX", 2)
    monkeypatch.setattr(limits, "CHANNELS_PER_ACTOR_MAX", 3)
    with control.live("nodes", "topics") as first:
        first.next("nodes", "snapshot")
        first.next("topics", "snapshot")  # it has two of the three
        with control.live("nodes", "queues", "flow") as second:
            while (frame := second.read())["kind"] != "error":
                pass
            assert (frame["channel"], frame["data"]["code"]) == ("flow", "throttled")
            with pytest.raises(ConnectionClosed) as closed, control.live("nodes") as third:
                third.read()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4429


# --- sessions -------------------------------------------------------------------------------------


def test_logins_and_logouts_are_audited(service: Service) -> None:
    client = service.user("vera", "viewer")
    client.post("/api/v1/auth/logout")
    rows = service.admin.get("/api/v1/audit?actor=vera").json()["items"]
    assert [row["action"] for row in rows] == ["logout", "login"]
    assert all(row["request_id"] for row in rows)


def test_a_new_password_is_a_new_session(service: Service) -> None:
    client = service.user("vera", "viewer")
    old = client.cookies["tidecast_session"]
    csrf = client.headers["X-CSRF-Token"]
    body = {"old": ADMIN_PASSWORD, "new": ADMIN_PASSWORD + "!"}
    answer = client.post("/api/v1/auth/password", json=body)
    assert answer.status_code == 200, answer.text
    assert client.cookies["tidecast_session"] != old
    assert answer.json()["csrf_token"] != csrf
    assert client.get("/api/v1/topics").status_code == 200
    stale = service.client()
    stale.cookies.set("tidecast_session", old)
    assert stale.get("/api/v1/topics").status_code == 401


def test_headers_behind_tls(settings: Settings) -> None:
    plain = {"default-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"}
    with service_of(settings, login=False) as service:
        headers = service.client().get("/health/live").headers
        assert plain <= {part.strip() for part in headers["content-security-policy"].split(";")}
        assert "strict-transport-security" not in headers
    secure = settings.model_copy(update={"behind_tls_proxy": True})
    with service_of(secure, login=False) as service:
        body = {"user": "admin", "password": ADMIN_PASSWORD}
        answer = service.client().post("/api/v1/auth/login", json=body)
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-tidecast_session=")
        assert "Secure" in cookie
        assert "Domain" not in cookie


def test_logins_wait_for_their_turn_and_the_rest_is_sent_away(service: Service) -> None:
    from tidecast_control.auth.passwords import AT_ONCE_MAX, WAITING_MAX, Passwords
    from tidecast_control.kit.problems import ProblemError

    async def main() -> tuple[int, int]:
        import threading

        passwords, gate, most, running = Passwords(), threading.Event(), [0], [0]
        lock = threading.Lock()

        def work() -> None:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            assert gate.wait(20)
            with lock:
                running[0] -= 1

        tasks = [asyncio.create_task(passwords.run(work)) for _ in range(100)]
        await asyncio.sleep(0)
        gate.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        passwords.close()
        return most[0], sum(isinstance(each, ProblemError) for each in found)

    at_once, refused = asyncio.run(main())
    assert at_once <= AT_ONCE_MAX
    assert refused == 100 - AT_ONCE_MAX - WAITING_MAX


# --- the audit of what is refused at the door -----------------------------------------------------


def test_refusals_at_the_door_are_a_few_rows_of_the_audit(service: Service) -> None:
    client = service.client()
    for i in range(40):
        evil = client.get(f"/api/v1/topics/t{i}", headers={"Host": "evil.example"})
        assert evil.status_code == 421
        large = client.post("/api/v1/auth/login", content=b"x" * (shell.LOGIN_BODY_BYTES_MAX + 1))
        assert large.status_code == 413

    def pieces() -> Iterator[bytes]:  # a body without a length
        yield from [b"x" * 1024] * 99

    assert service.admin.put("/api/v1/topics/t", content=pieces()).status_code == 413
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect("ws://localhost/api/v1/live", headers={"Host": "evil.example"}),
    ):
        pass
    with (
        pytest.raises(WebSocketDisconnect),
        client.websocket_connect(
            "ws://localhost/api/v1/live", headers={"Origin": "http://evil.example"}
        ),
    ):
        pass
    service.ctx.denials.flush(windows_end=True)
    found = service.admin.get("/api/v1/audit?outcome=denied").json()["items"]
    counts = Counter((e["action"].split(" ")[0], e["status"]) for e in found)
    assert counts == {
        ("GET", 421): 2,
        ("POST", 413): 2,
        ("PUT", 413): 1,
        ("WS", 421): 1,
        ("WS", 403): 1,
    }
    repeated = [e["detail"] for e in found if "39 times more" in e["detail"]]
    assert len(repeated) == 2, "the first at once, its repeats as one row"
