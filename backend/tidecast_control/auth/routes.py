"""Routes of sessions, users, keys."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Path, Request, Response

from tidecast_control.api.http import (
    AnyActor,
    Conditions,
    Ctx,
    Db,
    DryRun,
    as_json,
    created_responses,
    needs,
    problem_responses,
)
from tidecast_control.auth import accounts, service
from tidecast_control.auth.schemas import (
    Identity,
    Key,
    KeyInput,
    KeySecret,
    Login,
    PasswordChange,
    TokenCheck,
    User,
    UserInput,
)
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.queries import Paged
from tidecast_control.kit.schemas import NAME_PATTERN, Model, Page, Plan
from tidecast_control.settings import Settings

router = APIRouter()
AccountName = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]


@router.post("/auth/login", tags=["auth"], responses=problem_responses())
async def login(
    request: Request, response: Response, session: Db, ctx: Ctx, body: Login
) -> Identity:
    """Log in: sets an httpOnly cookie; send `csrf_token` as X-CSRF-Token with every write."""
    log_in = partial(
        service.log_in,
        session,
        ctx.throttle,
        body.user,
        body.password,
        request.client.host if request.client else "",
        ctx.settings.session_hours,
        request.state.request_id,
    )
    token, actor = await ctx.passwords.run(log_in)
    request.state.actor = actor
    _set_cookie(response, ctx.settings, token, ctx.settings.session_hours * 3600)
    return service.identity(actor)


def _set_cookie(response: Response, settings: Settings, token: str, seconds: float) -> None:
    response.set_cookie(
        settings.session_cookie,
        token,
        max_age=int(seconds),
        httponly=True,
        secure=settings.secure_cookies,
        samesite="strict",
        path="/",
    )


@router.post("/auth/logout", tags=["auth"], status_code=204, responses=problem_responses())
def logout(response: Response, session: Db, ctx: Ctx, actor: AnyActor) -> None:
    """End this session."""
    service.log_out(session, actor)
    response.delete_cookie(
        ctx.settings.session_cookie,
        path="/",
        secure=ctx.settings.secure_cookies,
        httponly=True,
        samesite="strict",
    )


@router.get("/auth/me", tags=["auth"], responses=problem_responses())
def me(actor: AnyActor) -> Identity:
    """The actor of this session, with the CSRF token."""
    return service.identity(actor)


@router.post("/auth/password", tags=["auth"], responses=problem_responses())
async def change_password(
    response: Response, session: Db, ctx: Ctx, actor: AnyActor, body: PasswordChange
) -> Identity:
    """Change the password of this user: their sessions end, and this session is replaced."""
    change = partial(accounts.change_password, session, ctx.throttle, actor, body)
    token, renewed = await ctx.passwords.run(change)
    left_s = (renewed.expires_at - utc_now()).total_seconds() if renewed.expires_at else 0.0
    _set_cookie(response, ctx.settings, token, left_s)
    return service.identity(renewed)


class TokenInput(Model):
    """A client's token."""

    token: str


@router.post("/auth/check", tags=["auth"], responses=problem_responses())
async def check_token(
    ctx: Ctx, body: TokenInput, actor: Annotated[Actor, needs("tokens:check")]
) -> TokenCheck:
    """The rights of a client's token; engines ask this over their link."""
    del actor
    return await accounts.check_token(ctx.db.statements, body.token)


@router.get("/users", tags=["users"], responses=problem_responses())
def list_users(
    session: Db, query: Paged, actor: Annotated[Actor, needs("users:read")]
) -> Page[User]:
    """Users by name."""
    del actor
    return accounts.users(session, query)


@router.get("/users/{name}", tags=["users"], responses=problem_responses(404))
def get_user(
    session: Db, name: AccountName, response: Response, actor: Annotated[Actor, needs("users:read")]
) -> User:
    """One user."""
    del actor
    user = accounts.user(session, name)
    response.headers["ETag"] = accounts.etag(user)
    return user


@router.put(
    "/users/{name}",
    tags=["users"],
    responses={201: {"model": User, "description": "Created"}, **problem_responses(409, 412)},
)
def put_user(
    session: Db,
    name: AccountName,
    body: UserInput,
    response: Response,
    conditions: Conditions,
    actor: Annotated[Actor, needs("users:write")],
    dry_run: DryRun = False,
) -> User | Plan:
    """Create (201) or change (200) a user."""
    user, plan = accounts.put_user(session, name, body, actor, conditions.check, dry_run=dry_run)
    if dry_run:
        return plan
    response.status_code = 201 if plan.action == "create" else 200
    response.headers["ETag"] = accounts.etag(user)
    return user


@router.delete("/users/{name}", tags=["users"], responses=problem_responses(404, 409))
def delete_user(
    session: Db,
    name: AccountName,
    actor: Annotated[Actor, needs("users:write")],
    dry_run: DryRun = False,
) -> Plan:
    """Delete a user; the last admin stays."""
    return accounts.delete_user(session, name, actor, dry_run=dry_run)


@router.get("/keys", tags=["keys"], responses=problem_responses())
def list_keys(session: Db, query: Paged, actor: Annotated[Actor, needs("keys:read")]) -> Page[Key]:
    """API keys by name, without their secrets; revoked ones too."""
    del actor
    return accounts.keys(session, query)


@router.post(
    "/keys",
    tags=["keys"],
    status_code=201,
    response_model=KeySecret,
    responses=created_responses(409),
)
def create_key(
    session: Db,
    ctx: Ctx,
    body: KeyInput,
    actor: Annotated[Actor, needs("keys:write")],
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Any:
    """A new API key; its secret is shown once."""
    after.add_task(ctx.changed)  # once it is committed
    made = accounts.create_key(session, body, actor, dry_run=dry_run)
    return as_json(made) if isinstance(made, Plan) else made


@router.get("/keys/{name}", tags=["keys"], responses=problem_responses(404))
def get_key(session: Db, name: AccountName, actor: Annotated[Actor, needs("keys:read")]) -> Key:
    """One API key."""
    del actor
    return accounts.key(session, name)


@router.delete("/keys/{name}", tags=["keys"], responses=problem_responses(404))
def revoke_key(
    session: Db,
    ctx: Ctx,
    name: AccountName,
    actor: Annotated[Actor, needs("keys:write")],
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Plan:
    """Revoke an API key. It stays listed with `revoked_at`, for the audit."""
    after.add_task(ctx.changed)  # once it is committed
    return accounts.revoke_key(session, name, actor, dry_run=dry_run)
