"""Queries on users, sessions and keys."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import delete, func, or_, select
from sqlmodel import Session, col

from tidecast_control.auth.models import KeyRow, SessionRow, UserRow
from tidecast_control.statements import Statements

_T = TypeVar("_T")


def user(session: Session, name: str, *, lock: bool = False) -> UserRow | None:
    """One user; ``lock``: as it is now, and locked until this transaction ends."""
    return session.get(UserRow, name, with_for_update=lock, populate_existing=lock)


def users_exist(session: Session) -> bool:
    """Whether there is any."""
    return session.execute(select(col(UserRow.name)).limit(1)).first() is not None


def lock_with_admins(session: Session, name: str) -> None:
    """Lock a user and all admins, in one order: the last admin cannot vanish in a race."""
    either = or_(col(UserRow.name) == name, col(UserRow.role) == "admin")
    query = select(col(UserRow.name)).where(either).order_by(col(UserRow.name))
    session.execute(query.with_for_update()).all()


def admins(session: Session) -> int:
    """How many admins are enabled."""
    query = select(func.count()).where(
        col(UserRow.role) == "admin", col(UserRow.disabled).is_(False)
    )
    return int(session.execute(query).scalar_one())


class UserSession(NamedTuple):
    """A session with its user."""

    id: str
    user: str
    csrf: str
    used_at: datetime
    expires_at: datetime
    role: str
    disabled: bool
    must_change_password: bool


class KnownKey(NamedTuple):
    """The key that a request shows."""

    id: str
    name: str
    role: str
    scopes: list[Any]
    expires_at: datetime | None
    used_at: datetime | None
    revoked_at: datetime | None


_LOGIN = """
SELECT s.id, s."user", s.csrf, s.used_at, s.expires_at, u.role, u.disabled, u.must_change_password
FROM sessions s JOIN users u ON u.name = s."user" WHERE s.id = %s"""
_KEY = f"SELECT {', '.join(KnownKey._fields)} FROM keys WHERE digest = %s"


async def _known(statements: Statements, kind: type[_T], sql: str, digest: str) -> _T | None:
    recent = statements.recent
    known: _T | None = recent.get((kind, digest))
    if known is None:
        changes = recent.changes
        found = await statements.rows(sql, digest)
        if found:
            known = kind(*found[0])
            recent.put((kind, digest), known, changes)
    return known


async def login(statements: Statements, digest: str) -> UserSession | None:
    """A session with its user."""
    return await _known(statements, UserSession, _LOGIN, digest)


async def note_session(statements: Statements, session: str, now: datetime) -> None:
    """A session was used."""
    await statements.rows("UPDATE sessions SET used_at = %s WHERE id = %s", now, session)
    statements.recent.clear()


async def known_key(statements: Statements, digest: str) -> KnownKey | None:
    """A key by its secret's digest."""
    return await _known(statements, KnownKey, _KEY, digest)


async def note_key(statements: Statements, key: str, now: datetime) -> None:
    """A key was used."""
    await statements.rows("UPDATE keys SET used_at = %s WHERE id = %s", now, key)
    statements.recent.clear()


def end_sessions(session: Session, user_name: str, keep: str | None = None) -> None:
    """Log a user out everywhere, but for ``keep``."""
    gone = delete(SessionRow).where(col(SessionRow.user) == user_name)
    session.execute(gone.where(col(SessionRow.id) != keep) if keep else gone)


def end_session(session: Session, digest: str) -> None:
    """Log out."""
    session.execute(delete(SessionRow).where(col(SessionRow.id) == digest))


def forget_sessions(session: Session, now: datetime) -> None:
    """Delete expired sessions."""
    session.execute(delete(SessionRow).where(col(SessionRow.expires_at) < now))


def key_by_name(session: Session, name: str) -> KeyRow | None:
    """A key by name."""
    return session.execute(select(KeyRow).where(col(KeyRow.name) == name)).scalar_one_or_none()


def keys(session: Session) -> list[KeyRow]:
    """All keys by name."""
    return list(session.execute(select(KeyRow).order_by(col(KeyRow.name))).scalars())
