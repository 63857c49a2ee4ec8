"""The control service under test: in this process, on a real Postgres."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx2 as httpx
from fastapi import FastAPI
from starlette.testclient import TestClient
from websockets.sync.client import ClientConnection, connect

from tests.support.process_state import kept_loggers
from tidecast_control.api.resources import merged
from tidecast_control.app import create_app
from tidecast_control.context import Context
from tidecast_control.first_run import Secrets
from tidecast_control.lifespan import lifespan_of
from tidecast_control.server import make_server
from tidecast_control.settings import SESSION_COOKIE, Settings

ADMIN_PASSWORD = "correct horse battery"
BASE = "http://localhost"
SERVER_LOGGERS = "uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"
"""A server that is made configures them."""
_serial = itertools.count(1)


class Transport(httpx.BaseTransport):
    """Hands a request to the service's thread once, and its whole answer back.

    The client's own transport crosses between the threads eight times for each. ``address``: where
    requests come from.
    """

    def __init__(self, client: TestClient) -> None:
        self._client, self._upgrading = client, client._transport
        self._app = httpx.ASGITransport(client.app, raise_app_exceptions=False)
        self.come_from("testclient")

    def come_from(self, address: str) -> None:
        """Requests come from this address from now on."""
        self._app.client = (address, 50_000)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport`. It needs the client's portal."""
        if request.url.scheme in ("ws", "wss"):
            return self._upgrading.handle_request(request)
        request.read()
        assert self._client.portal is not None
        return self._client.portal.call(self._answer, request)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        answer = await self._app.handle_async_request(request)
        body = b"".join([part async for part in answer.aiter_raw()])
        return httpx.Response(
            answer.status_code,
            headers=answer.headers,
            stream=httpx.ByteStream(body),
            request=request,
        )


def client_of(app: Any) -> TestClient:
    """A client of an application; to be entered, or given a portal."""
    made = TestClient(app, base_url=BASE, raise_server_exceptions=False)
    made._transport = Transport(made)
    return made


@dataclass
class Service:
    """A running service, and its admin's client."""

    ctx: Context
    secrets: Secrets
    admin: TestClient

    def client(self) -> TestClient:
        """A client that is not logged in. It runs in the service's loop: one of its own for each
        request took longer than most requests."""
        made = client_of(self.admin.app)
        made.portal = self.admin.portal
        return made

    def login(self, user: str, password: str = ADMIN_PASSWORD) -> TestClient:
        """A client of a user."""
        client = self.client()
        answer = client.post("/api/v1/auth/login", json={"user": user, "password": password})
        assert answer.status_code == 200, answer.text
        client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
        return client

    def user(self, name: str, role: str) -> TestClient:
        """A new user, logged in."""
        body = {"role": role, "password": ADMIN_PASSWORD}
        answer = self.admin.put(f"/api/v1/users/{name}", json=body)
        assert answer.status_code == 201, answer.text
        return self.login(name)

    def key(self, name: str, **body: Any) -> TestClient:
        """A client with a new API key."""
        answer = self.admin.post("/api/v1/keys", json={"name": name, **body})
        assert answer.status_code == 201, answer.text
        client = self.client()
        client.headers["Authorization"] = f"Bearer {answer.json()['secret']}"
        return client


@functools.cache
def _app() -> FastAPI:
    """Made once: making the routes takes a quarter of a second."""
    return create_app()


@contextlib.contextmanager
def service_of(settings: Settings, *, login: bool = True) -> Iterator[Service]:
    """Run a service until the end of the block; its admin is logged in."""
    told: list[tuple[Context, Secrets]] = []
    app = _app()
    app.router.lifespan_context = lifespan_of(
        settings, lambda ctx, secrets: told.append((ctx, secrets))
    )
    with client_of(app) as admin:
        ctx, secrets = told[0]
        service = Service(ctx, secrets, admin)
        if secrets.admin_password is not None and login:
            log_in_first_admin(admin, secrets.admin_password)
        yield service


def log_in_first_admin(client: TestClient, password: str) -> None:
    """Log in as the first admin, and change the first password."""
    answer = client.post("/api/v1/auth/login", json={"user": "admin", "password": password})
    assert answer.status_code == 200, answer.text
    client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
    change = {"old": password, "new": ADMIN_PASSWORD}
    answer = client.post("/api/v1/auth/password", json=change)
    assert answer.status_code == 200, answer.text
    client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]


@dataclass(frozen=True)
class Login:
    """The cookies and the token of a client that is logged in."""

    cookie: str
    csrf: str

    @staticmethod
    def of(client: TestClient) -> Login:
        """That of a client."""
        return Login(str(client.cookies[SESSION_COOKIE]), str(client.headers["X-CSRF-Token"]))

    def put_on(self, client: TestClient) -> None:
        """Make a client a logged-in one."""
        client.cookies.set(SESSION_COOKIE, self.cookie, domain="localhost.local", path="/")
        client.headers["X-CSRF-Token"] = self.csrf


class Feed:
    """A live websocket of the admin."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._data: dict[str, Any] = {}

    def read(self) -> Any:
        """The next frame that is no ping."""
        while True:
            frame = json.loads(self._connection.recv(timeout=20))
            if frame["kind"] == "snapshot":
                self._data[frame["channel"]] = frame["data"]
            elif frame["kind"] == "delta":
                before = self._data.get(frame["channel"], {})
                self._data[frame["channel"]] = merged(before, frame["data"])
            if frame["kind"] != "ping":
                return frame

    def next(self, channel: str, kind: str) -> Any:
        """The next frame of a channel and kind."""
        while True:
            frame = self.read()
            assert frame["kind"] != "error", frame
            if (frame["channel"], frame["kind"]) == (channel, kind):
                return frame

    def until(self, channel: str, holds: Callable[[Any], bool]) -> Any:
        """The channel's data once a condition holds."""
        while not holds(self._data.get(channel, {"topic": {"rates": {"packets_out": 0}}})):
            self.read()
        return self._data[channel]


class Running:
    """A service that listens on a port, in a thread."""

    def __init__(
        self, settings: Settings, login: Login, verify: ssl.SSLContext | bool = True
    ) -> None:
        self._login, self._verify = login, verify
        self._cookie_name = settings.session_cookie
        ready = threading.Event()
        told: list[str] = []

        def on_ready(url: str, _secrets: Secrets) -> None:
            told.append(url)
            ready.set()

        with kept_loggers(*SERVER_LOGGERS):
            self._server = make_server(settings, on_ready)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        assert ready.wait(30), "the service did not start"
        self.url = told[0]
        self.port = int(self.url.rpartition(":")[2])
        self.api = self._client()

    def _client(self) -> httpx.Client:
        headers = {"X-CSRF-Token": self._login.csrf}
        cookies = {self._cookie_name: self._login.cookie}
        base = f"{self.url}/api/v1"
        return httpx.Client(
            base_url=base, headers=headers, cookies=cookies, timeout=30, verify=self._verify
        )

    def enrol(self) -> str:
        """A new enrolment token."""
        name = f"e{next(_serial)}"
        answer = self.api.post("/enrolments", json={"name": name})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["token"])

    @contextlib.contextmanager
    def as_viewer(self) -> Iterator[httpx.Client]:
        """A client of a new viewer."""
        body = {"role": "viewer", "password": ADMIN_PASSWORD}
        assert self.api.put("/users/vera", json=body).status_code == 201
        with httpx.Client(base_url=f"{self.url}/api/v1", timeout=30) as client:
            client.post("/auth/login", json={"user": "vera", "password": ADMIN_PASSWORD})
            yield client

    @contextlib.contextmanager
    def live(self, *channels: str, after: str | dict[str, str] = "") -> Iterator[Feed]:
        """A live feed that watches these. ``after``: the seq that it has of each, or of some."""
        headers = {"Cookie": f"{self._cookie_name}={self._login.cookie}"}
        url = self.url.replace("http", "ws", 1) + "/api/v1/live"
        with connect(url, additional_headers=headers, max_size=None) as connection:
            if isinstance(after, str):
                after = dict.fromkeys(channels, after) if after else {}
            connection.send(json.dumps({"watch": list(channels), "after": after}))
            yield Feed(connection)

    def stop(self) -> None:
        """Stop the service; nothing when it has stopped."""
        self.api.close()
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextlib.contextmanager
def running(
    settings: Settings, login: Login, verify: ssl.SSLContext | bool = True
) -> Iterator[Running]:
    """A listening service until the end of the block. ``verify``: whose certificates count."""
    made = Running(settings, login, verify)
    try:
        yield made
    finally:
        made.stop()
