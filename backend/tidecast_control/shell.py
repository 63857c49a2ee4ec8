"""Around every request: its id, limits of its body, the host it names, headers of its answer."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import uuid
from typing import Any

import msgspec
import psycopg
from fastapi import HTTPException
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidecast_control.api.http import DENIED, actor_of, context_of, note_denial
from tidecast_control.kit.problems import CATALOGUE, ProblemError
from tidecast_control.kit.schemas import Problem
from tidecast_control.settings import Settings

BODY_BYTES_MAX, LOGIN_BODY_BYTES_MAX = 64 << 10, 4 << 10
APPLY_BODY_BYTES_MAX, MESSAGE_BODY_BYTES_MAX = 32 << 20, 8 << 20
"""Large bodies need a session or a key. A message has 1 MiB; JSON escapes are longer."""
MIRROR_BODY_BYTES_MAX = 1 << 20
"""Certificates of a mirror have up to 256 KiB."""
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
MESSAGES = re.compile(r"/topics/[^/]+/messages\Z")
MIRROR = re.compile(r"/mirrors/[^/]+\Z")
LOOPBACK_NAMES = ("localhost", "*.localhost")
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (
        b"content-security-policy",
        (
            b"default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
            b"connect-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'self'; "
            b"form-action 'self'"
        ),
    ),
)
HSTS = (b"strict-transport-security", b"max-age=31536000")


class RequestShell:
    """See module."""

    def __init__(self, app: ASGIApp, prefix: str) -> None:
        self.app, self._prefix = app, prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        settings = context_of(HTTPConnection(scope)).settings
        if scope["type"] == "websocket":
            if allows_host(settings, headers.get("host", "")):
                await self.app(scope, receive, send)
            else:
                note_denial(HTTPConnection(scope), _misdirected(), "WS any path")
                await send({"type": "websocket.close", "code": 4421, "reason": "host"})
            return
        own = [(b"x-request-id", request_id.encode()), *SECURITY_HEADERS]
        own += [HSTS] if settings.secure_cookies else []

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *own]
            await send(message)

        problem = await self._refusal(scope, headers, settings)
        if problem is not None:
            if CATALOGUE[problem.problem].status in DENIED:
                route = f"{scope['method']} any path"
                note_denial(HTTPConnection(scope), problem, route)
            await _refuse(scope, headed, problem, self._prefix)
            return
        await self.app(scope, self._bounded(scope, receive), headed)

    async def _refusal(
        self, scope: Scope, headers: Headers, settings: Settings
    ) -> ProblemError | None:
        if not allows_host(settings, headers.get("host", "")):
            return _misdirected()
        allowed = self._limit(scope)
        length = headers.get("content-length", "")
        if length and (not length.isdigit() or int(length) > allowed):
            return _too_large(allowed)
        chunked = "transfer-encoding" in headers
        if allowed > BODY_BYTES_MAX and (chunked or (length and int(length) > BODY_BYTES_MAX)):
            connection = HTTPConnection(scope)
            try:
                await actor_of(connection, context_of(connection))
            except ProblemError as problem:
                return problem
            except (psycopg.Error, SQLAlchemyError):
                return ProblemError("database_unavailable", retry_after_s=2.0)
        return None

    def _limit(self, scope: Scope) -> int:
        """Bytes that a body may have."""
        path = str(scope["path"]).removeprefix(self._prefix)
        if path.startswith("/auth/"):
            return LOGIN_BODY_BYTES_MAX
        if scope["method"] == "POST" and path == "/apply":
            return APPLY_BODY_BYTES_MAX
        if scope["method"] == "POST" and MESSAGES.fullmatch(path):
            return MESSAGE_BODY_BYTES_MAX
        if scope["method"] in ("PUT", "PATCH") and MIRROR.fullmatch(path):
            return MIRROR_BODY_BYTES_MAX
        return BODY_BYTES_MAX

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """``receive`` of a body that said no length, or a wrong one."""
        allowed, received = self._limit(scope), 0

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > allowed:
                raise HTTPException(413, f"allowed are {allowed} bytes")
            return message

        return bounded


def allows_host(settings: Settings, host: str) -> bool:
    """A page of another site whose name resolves to this address is not served (DNS rebinding).

    Such a page has a name of its own: addresses are always allowed.
    """
    name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
    name = name.lower().rstrip(".")
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        known = (*LOOPBACK_NAMES, *settings.own_names, *settings.allowed_hosts)
        return bool(name) and any(fnmatch.fnmatchcase(name, each.lower()) for each in known)
    return True


def _misdirected() -> ProblemError:
    return ProblemError("misdirected", "Host: not a name of this service")


def _too_large(allowed: int) -> ProblemError:
    return ProblemError("too_large", f"allowed are {allowed} bytes")


async def _refuse(scope: Scope, send: Send, problem: ProblemError, prefix: str) -> None:
    """Answer without reading the body, and close: the rest of the body is dropped."""
    entry = CATALOGUE[problem.problem]
    body: dict[str, Any] = Problem(
        type=f"{prefix}/problems/{problem.problem}",
        title=entry.title,
        status=entry.status,
        code=problem.problem,
        detail=problem.detail,
        instance=str(scope["path"]),
        request_id=scope["state"]["request_id"],
        retry_after_s=problem.retry_after_s,
    ).model_dump(mode="json", exclude_none=True)
    headers = [(b"content-type", b"application/problem+json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": entry.status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(body)})
