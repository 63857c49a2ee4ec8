"""Shared by the routes: transaction, actor, preconditions, problems as responses."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Any

import anyio
import psycopg
from fastapi import Depends, FastAPI, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlmodel import Session
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from tidecast_control.addresses import network_of
from tidecast_control.audit.denials import Denial
from tidecast_control.auth import service as auth
from tidecast_control.context import Context
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.methods import methods_of
from tidecast_control.kit.problems import CATALOGUE, ProblemError, wrong
from tidecast_control.kit.schemas import Plan, Problem, ProblemItem

log = logging.getLogger("tidecast.control")

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
PROBLEM_JSON = "application/problem+json"


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of the problems that a route may answer with."""
    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    names = {entry.status: entry.title for entry in CATALOGUE.values()}
    return {
        status: {"description": names.get(status, "Problem"), "content": content}
        for status in sorted({400, 401, 403, 413, 415, 422, 429, 500, 503, *statuses})
    }


def created_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Of a POST that creates (201): 200 is its dry run."""
    plan = {200: {"model": Plan, "description": "With `dry_run=true`: what would be created"}}
    return plan | problem_responses(*statuses)


def context_of(connection: HTTPConnection) -> Context:
    """The service's own state."""
    found = connection.app.state.context
    assert isinstance(found, Context)
    return found


async def context(request: Request) -> Context:
    """The same, for requests."""
    return context_of(request)


Ctx = Annotated[Context, Depends(context)]


async def transaction(ctx: Ctx) -> AsyncIterator[Session]:
    """One transaction a request: committed before the response is sent, rolled back on error.

    It begins with the first query. Code that uses Postgres runs in threads.
    """
    block = ctx.db.begin()
    session = block.__enter__()  # makes an object, nothing more
    try:
        yield session
    except BaseException as problem:
        trace = type(problem), problem, problem.__traceback__
        with anyio.CancelScope(shield=True):
            if not await run_in_threadpool(block.__exit__, *trace):
                raise
    else:
        await run_in_threadpool(block.__exit__, None, None, None)


async def fresh(ctx: Ctx) -> None:
    """For routes whose status comes from telemetry: ask engines, unless they reported lately."""
    await ctx.feed.fresh()


Db = Annotated[Session, Depends(transaction, scope="function")]


async def actor_of(connection: HTTPConnection, ctx: Context) -> Actor:
    """The actor of a request, by a session's cookie or a key. Raises `unauthenticated`."""
    address = connection.client.host if connection.client else ""
    header = connection.headers.get("authorization", "")
    request_id = getattr(connection.state, "request_id", "")
    if header:
        scheme, _, secret = header.partition(" ")
        if scheme.lower() != "bearer" or not secret:
            raise ProblemError("unauthenticated", "Authorization: allowed is `Bearer KEY`")
        return await auth.actor_of_key(ctx.db.statements, secret.strip(), address, request_id)
    token = connection.cookies.get(ctx.settings.session_cookie, "")
    if not token:
        raise ProblemError("unauthenticated")
    idle = timedelta(hours=ctx.settings.session_idle_hours)
    return await auth.actor_of_session(ctx.db.statements, token, address, request_id, idle)


async def anyone(request: Request, ctx: Ctx) -> Actor:
    """The actor of a request. Raises `unauthenticated`, `csrf`."""
    actor = request.state.actor = await actor_of(request, ctx)
    if actor.csrf is not None and request.method not in SAFE_METHODS:
        sent = request.headers.get("x-csrf-token", "")
        if not secrets.compare_digest(sent.encode(), actor.csrf.encode()):
            raise ProblemError("csrf")
    return actor


async def settled(actor: Annotated[Actor, Depends(anyone, scope="function")]) -> Actor:
    """The actor of a request, once a first-run password was changed."""
    return checked(actor)


def checked(actor: Actor) -> Actor:
    """The actor. Raises `password_change_required`."""
    if actor.must_change_password:
        raise ProblemError("password_change_required")
    return actor


AnyActor = Annotated[Actor, Depends(anyone, scope="function")]
Who = Annotated[Actor, Depends(settled, scope="function")]
DryRun = Annotated[bool, Query(description="Report the changes without making them: a Plan")]


def needs(right: str) -> Any:
    """A dependency that returns the actor and checks the right. The matrix test reads `.right`."""

    async def check(actor: Who) -> Actor:
        actor.need(right)
        return actor

    check.right = right  # type: ignore[attr-defined]
    return Depends(check, scope="function")


def as_json(model: BaseModel, headers: dict[str, str] | None = None) -> Response:
    """A model as a response, without FastAPI's validation: the service has built it itself."""
    return Response(model.model_dump_json(), 200, headers, media_type="application/json")


class Preconditions:
    """If-Match and If-None-Match."""

    def __init__(
        self,
        if_match: Annotated[str | None, Header(description="ETag; else 412")] = None,
        if_none_match: Annotated[str | None, Header(description="`*` = create only")] = None,
    ) -> None:
        self.if_match, self.if_none_match = if_match, if_none_match

    def check(self, etag: str | None) -> None:
        """Raise `precondition_failed`. ``etag`` None: the resource does not exist."""
        if self.if_match is not None:
            tags = [_version(tag) for tag in entity_tags(self.if_match)]
            if etag is None or ("*" not in tags and etag not in tags):
                raise ProblemError("precondition_failed", f"the ETag is {etag or 'none'}")
        if self.if_none_match is not None and etag is not None:
            tags = [_version(tag) for tag in entity_tags(self.if_none_match)]
            if "*" in tags or etag in tags:
                raise ProblemError("precondition_failed", f"it exists, with ETag {etag}")


Conditions = Annotated[Preconditions, Depends()]


def etag_of(uid: str, generation: int) -> str:
    """The version of a resource, as an ETag: every generation and every re-creation has its own."""
    return f'"{uid[:8]}-{generation}"'


def etag_of_body(uid: str, generation: int, body: bytes) -> str:
    """The ETag of an answer: the version, and a digest of the body, whose status changes alone."""
    return f'{etag_of(uid, generation)[:-1]}.{digest(body)[:12]}"'


def entity_tags(header: str) -> list[str]:
    """The tags of an If-Match or If-None-Match."""
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


def _version(tag: str) -> str:
    """A tag without the digest: a write depends on the desired state, not on the status."""
    version, dot, _ = tag.partition(".")
    return f'{version}"' if dot else tag


def digest(*parts: bytes) -> str:
    """SHA-256 of parts, hex."""
    made = hashlib.sha256()
    for part in parts:
        made.update(len(part).to_bytes(8, "little") + part)
    return made.hexdigest()


# --- problems -------------------------------------------------------------------------------------


DENIED = (401, 403, 413, 421, 429)


def respond(request: Request, problem: ProblemError) -> Response:
    """A problem as RFC 9457 JSON. A denial is audited, in a transaction of its own."""
    entry = CATALOGUE[problem.problem]
    request_id = getattr(request.state, "request_id", "")
    if entry.status in DENIED and request.url.path.startswith("/api/"):
        _audit_denial(request, problem)
    body = Problem(
        type=f"/api/v1/problems/{problem.problem}",
        title=entry.title,
        status=entry.status,
        code=problem.problem,
        detail=problem.detail,
        instance=request.url.path,
        errors=problem.errors,
        request_id=request_id,
        retry_after_s=problem.retry_after_s,
    )
    headers = {}
    if problem.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(problem.retry_after_s)))
    if entry.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="tidecast"'
    return JSONResponse(
        body.model_dump(mode="json", exclude_none=True),
        entry.status,
        headers,
        media_type=PROBLEM_JSON,
    )


def _audit_denial(request: Request, problem: ProblemError) -> None:
    actor = getattr(request.state, "actor", None)
    if actor is None and problem.problem == "unauthenticated" and request.method in SAFE_METHODS:
        return  # pages continue to poll after their session ended: no entry for that
    path = getattr(request.scope.get("route"), "path_format", "unknown path")
    note_denial(request, problem, f"{request.method} {path}", actor)


def note_denial(
    connection: HTTPConnection, problem: ProblemError, route: str, actor: Actor | None = None
) -> None:
    """A refused request or socket, for the audit. ``route``: such of one route count as one."""
    address = connection.client.host if connection.client else ""
    method = connection.scope.get("method", "WS")
    context_of(connection).denials.note(
        Denial(
            actor=actor.name if actor is not None else "",
            actor_kind=actor.kind if actor is not None else "anonymous",
            route=route,
            action=f"{method} {connection.url.path}"[:300],
            status=CATALOGUE[problem.problem].status,
            code=problem.problem,
            detail=problem.detail,
            address=address,
            request_id=getattr(connection.state, "request_id", ""),
            network=network_of(address),
        )
    )


def _pointer(location: tuple[Any, ...]) -> str:
    place, *rest = [str(part) for part in location]
    if place == "body":
        return "/" + "/".join(part.replace("~", "~0").replace("/", "~1") for part in rest)
    return "/".join([place, *rest])


def validation_problem(errors: list[Any]) -> ProblemError:
    """Pydantic's errors as one problem."""
    items = [
        ProblemItem(
            pointer=_pointer(tuple(e["loc"])),
            detail=wrong(e),
            allowed=_allowed(e.get("ctx") or {}),
        )
        for e in errors[:100]
    ]
    if any(e["type"] == "json_invalid" for e in errors):
        return ProblemError("bad_request", items[0].detail, items)
    return ProblemError("invalid_request", f"{len(errors)} problem(s)", items)


def _allowed(facts: dict[str, Any]) -> str | None:
    for key in ("expected", "pattern"):
        if key in facts:
            return str(facts[key])
    words = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    found = [f"{words[k]} {v}" for k, v in facts.items() if k in words]
    found += [f"{k.replace('_', ' ')} {v}" for k, v in facts.items() if k.endswith("_length")]
    return ", ".join(found) or None


_HTTP_CODES = {400: "bad_request", 413: "too_large", 415: "unsupported_media_type"}


def _no_route(request: Request) -> Response:
    """No route has this path, or only with other methods; OPTIONS lists the methods."""
    methods = methods_of(request.app, request.url.path)
    if not methods:
        return respond(request, ProblemError("not_found", f"no path {request.url.path}"[:300]))
    allow = {"Allow": ", ".join(sorted({*methods, "OPTIONS"}))}
    if request.method == "OPTIONS":
        return Response(status_code=204, headers=allow)
    problem = ProblemError("method_not_allowed", f"{request.method}: allowed {allow['Allow']}")
    response = respond(request, problem)
    response.headers["Allow"] = allow["Allow"]
    return response


def install_handlers(app: FastAPI) -> None:
    """Every error becomes a problem; none shows a stack trace."""

    @app.exception_handler(ProblemError)
    def on_problem(request: Request, error: ProblemError) -> Response:
        return respond(request, error)

    @app.exception_handler(RequestValidationError)
    def on_invalid(request: Request, error: RequestValidationError) -> Response:
        return respond(request, validation_problem(list(error.errors())))

    @app.exception_handler(HTTPException)
    def on_http(request: Request, error: HTTPException) -> Response:
        if error.status_code in (404, 405):
            return _no_route(request)
        code = _HTTP_CODES.get(error.status_code, "bad_request")
        response = respond(request, ProblemError(code, str(error.detail)))
        for name, value in (error.headers or {}).items():
            response.headers[name] = value
        return response

    @app.exception_handler(IntegrityError)
    def on_integrity(request: Request, error: IntegrityError) -> Response:
        log.info("integrity: %s", error.orig)
        return respond(request, ProblemError("conflict", "another request was first: try again"))

    @app.exception_handler(DataError)
    @app.exception_handler(psycopg.DataError)
    def on_data(request: Request, error: Exception) -> Response:
        log.info("data: %s", error)
        return respond(request, ProblemError("invalid_request", "a value that cannot be stored"))

    @app.exception_handler(OperationalError)
    @app.exception_handler(InterfaceError)
    @app.exception_handler(PoolTimeout)
    @app.exception_handler(psycopg.OperationalError)
    @app.exception_handler(psycopg.InterfaceError)
    def on_database(request: Request, error: Exception) -> Response:
        log.warning("database: %s", str(error).splitlines()[0])
        return respond(request, ProblemError("database_unavailable", retry_after_s=2.0))

    @app.exception_handler(Exception)
    def on_defect(request: Request, error: Exception) -> Response:
        log.error("request %s failed", request.state.request_id, exc_info=error)
        return respond(request, ProblemError("internal"))
