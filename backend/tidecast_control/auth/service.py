"""Sessions and keys become actors. Passwords are argon2id, other secrets SHA-256."""

from __future__ import annotations

import functools
import hashlib
import secrets
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlmodel import Session

from tidecast_control.addresses import network_of
from tidecast_control.audit import service as audit
from tidecast_control.auth import repository
from tidecast_control.auth.models import SessionRow, UserRow
from tidecast_control.auth.schemas import Identity
from tidecast_control.auth.throttle import Throttle
from tidecast_control.kit.actor import ROLES, Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import Role, Scope
from tidecast_control.statements import Statements

KEY_PREFIX = "tck_"
USED_NOTED_EVERY = timedelta(minutes=1)
FIRST_USER = "admin"
IDLE = timedelta(hours=2)

_hasher = PasswordHasher()


def digest(secret: str) -> str:
    """SHA-256 of a random secret, which needs no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


def hash_password(password: str) -> str:
    """The argon2id hash to store."""
    return _hasher.hash(password)


@functools.cache
def _nobody() -> str:
    """A hash that takes as long to verify as any, for users that do not exist."""
    return _hasher.hash(secrets.token_urlsafe(16))


def password_fits(password_hash: str, password: str) -> bool:
    """Whether the password is right."""
    try:
        return _hasher.verify(password_hash, password)
    except (VerificationError, InvalidHashError):
        return False


# --- logging in -----------------------------------------------------------------------------------


def log_in(
    session: Session,
    throttle: Throttle,
    name: str,
    password: str,
    address: str,
    hours: float,
    request_id: str = "",
) -> tuple[str, Actor]:
    """(cookie value, actor). Raises `unauthenticated` (not saying why), `throttled`."""
    network = network_of(address)
    wait_s = throttle.attempt(name, network)
    if wait_s > 0:
        raise ProblemError("throttled", "too many failed logins", retry_after_s=wait_s)
    user = repository.user(session, name) if "\x00" not in name else None
    stored = user.password_hash if user is not None else _nobody()
    fits = password_fits(stored, password)
    if user is not None and fits:  # it takes long: the password may have been changed meanwhile
        user = repository.user(session, name, lock=True)
    if user is None or not fits or user.disabled or user.password_hash != stored:
        raise ProblemError("unauthenticated", "wrong user or password")
    throttle.succeeded(name, network)
    if _hasher.check_needs_rehash(user.password_hash):
        user.password_hash = hash_password(password)
    user.login_at = utc_now()
    session.add(user)
    repository.forget_sessions(session, utc_now())
    token, actor = begin_session(session, user, address, utc_now() + timedelta(hours=hours))
    actor = replace(actor, request_id=request_id)
    audit.record(session, actor, "login", "user", user.name)
    return token, actor


def begin_session(
    session: Session, user: UserRow, address: str, expires_at: datetime
) -> tuple[str, Actor]:
    """A new session of a user: (cookie value, actor)."""
    token = secrets.token_urlsafe(32)
    row = SessionRow(
        id=digest(token),
        user=user.name,
        csrf=secrets.token_urlsafe(24),
        address=address,
        expires_at=expires_at,
    )
    session.add(row)
    session.flush()
    login = repository.UserSession(
        row.id,
        user.name,
        row.csrf,
        row.used_at,
        row.expires_at,
        user.role,
        user.disabled,
        user.must_change_password,
    )
    return token, _actor(login, address, "")


def log_out(session: Session, actor: Actor) -> None:
    """End the actor's session."""
    if actor.session_id is not None:
        repository.end_session(session, actor.session_id)
        audit.record(session, actor, "logout", "user", actor.name)


async def actor_of_session(
    statements: Statements, token: str, address: str, request_id: str, idle: timedelta = IDLE
) -> Actor:
    """The actor of a cookie. Raises `unauthenticated`, after ``idle`` without a request too."""
    found = await repository.login(statements, digest(token))
    now = utc_now()
    if found is None or found.expires_at < now or found.disabled:
        raise ProblemError("unauthenticated", "the session ended: log in again")
    if now - found.used_at > idle:
        raise ProblemError("unauthenticated", "the session was unused for long: log in again")
    if now - found.used_at > USED_NOTED_EVERY:
        await repository.note_session(statements, found.id, now)
    return _actor(found, address, request_id)


def _actor(login: repository.UserSession, address: str, request_id: str) -> Actor:
    role = cast("Role", login.role)
    return Actor(
        kind="user",
        name=login.user,
        role=role,
        session_id=login.id,
        csrf=login.csrf,
        must_change_password=login.must_change_password,
        expires_at=login.expires_at,
        request_id=request_id,
        address=address,
        rights=ROLES[role],
    )


async def actor_of_key(statements: Statements, secret: str, address: str, request_id: str) -> Actor:
    """The actor of an API key. Raises `unauthenticated`."""
    found = await repository.known_key(statements, digest(secret))
    now = utc_now()
    if found is None or found.revoked_at is not None or _is_over(found.expires_at, now):
        raise ProblemError("unauthenticated", "the key is unknown, expired or revoked")
    if found.used_at is None or now - found.used_at > USED_NOTED_EVERY:
        await repository.note_key(statements, found.id, now)
    role = cast("Role", found.role)
    return Actor(
        kind="key",
        name=found.name,
        role=role,
        scopes=tuple(Scope.model_validate(s) for s in found.scopes),
        expires_at=found.expires_at,
        request_id=request_id,
        address=address,
        rights=ROLES[role],
    )


def _is_over(expires_at: datetime | None, now: datetime) -> bool:
    return expires_at is not None and expires_at < now


def identity(actor: Actor) -> Identity:
    """The answer of `GET /auth/me`."""
    return Identity(
        kind="key" if actor.kind == "key" else "user",
        name=actor.name,
        role=actor.role,
        rights=sorted(right for right in actor.rights if actor.may(right)),
        scopes=list(actor.scopes),
        must_change_password=actor.must_change_password,
        expires_at=actor.expires_at,
        csrf_token=actor.csrf,
    )


# --- first run ------------------------------------------------------------------------------------


def first_run_secret(session: Session) -> str | None:
    """Make the first admin when there is no user; the password, to be shown once, or None."""
    if repository.users_exist(session):
        return None
    password = secrets.token_urlsafe(15)
    session.add(
        UserRow(
            name=FIRST_USER,
            role="admin",
            password_hash=hash_password(password),
            display_name="First admin",
            must_change_password=True,
        )
    )
    return password
