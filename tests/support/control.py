"""The control service under test: in this process, on a real Postgres."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from tidecast_control.app import create_app
from tidecast_control.context import Context
from tidecast_control.first_run import Secrets
from tidecast_control.kit.http import SESSION_COOKIE
from tidecast_control.lifespan import lifespan_of
from tidecast_control.settings import Settings

ADMIN_PASSWORD = "correct horse battery"
BASE = "http://testserver"


@dataclass
class Service:
    """A running service, and its admin's client."""

    ctx: Context
    secrets: Secrets
    admin: TestClient

    def client(self) -> TestClient:
        """A client that is not logged in."""
        return TestClient(self.admin.app, base_url=BASE, raise_server_exceptions=False)

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
    with TestClient(app, base_url=BASE, raise_server_exceptions=False) as admin:
        ctx, secrets = told[0]
        service = Service(ctx, secrets, admin)
        if secrets.admin_password is not None and login:
            log_in_first_admin(admin, secrets.admin_password)
        yield service


def log_in_first_admin(client: TestClient, password: str) -> None:
    """What a person does on a first run."""
    answer = client.post("/api/v1/auth/login", json={"user": "admin", "password": password})
    assert answer.status_code == 200, answer.text
    client.headers["X-CSRF-Token"] = answer.json()["csrf_token"]
    change = {"old": password, "new": ADMIN_PASSWORD}
    answer = client.post("/api/v1/auth/password", json=change)
    assert answer.status_code == 200, answer.text


@dataclass(frozen=True)
class Login:
    """What a logged-in client holds."""

    cookie: str
    csrf: str

    @staticmethod
    def of(client: TestClient) -> Login:
        """That of a client."""
        return Login(str(client.cookies[SESSION_COOKIE]), str(client.headers["X-CSRF-Token"]))

    def put_on(self, client: TestClient) -> None:
        """Make a client a logged-in one."""
        client.cookies.set(SESSION_COOKIE, self.cookie, domain="testserver.local", path="/")
        client.headers["X-CSRF-Token"] = self.csrf
