"""Queries on users, sessions and keys."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlmodel import Session, col

from tidecast_control.auth.models import KeyRow, SessionRow, UserRow


def user(session: Session, name: str, *, lock: bool = False) -> UserRow | None:
    """One user."""
    return session.get(UserRow, name, with_for_update=lock)


def users(session: Session) -> list[UserRow]:
    """All users by name."""
    return list(session.execute(select(UserRow).order_by(col(UserRow.name))).scalars())


def users_exist(session: Session) -> bool:
    """Whether there is any."""
    return session.execute(select(col(UserRow.name)).limit(1)).first() is not None


def admins(session: Session) -> int:
    """Enabled admins; their rows are locked, so that the last one cannot vanish in a race."""
    query = select(col(UserRow.name)).where(
        col(UserRow.role) == "admin", col(UserRow.disabled).is_(False)
    )
    return len(session.execute(query.with_for_update()).all())


def login(session: Session, digest: str) -> tuple[SessionRow, UserRow] | None:
    """A session with its user."""
    query = (
        select(SessionRow, UserRow)
        .join(UserRow, col(UserRow.name) == col(SessionRow.user))
        .where(col(SessionRow.id) == digest)
    )
    found = session.execute(query).first()
    return (found[0], found[1]) if found is not None else None


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


def key_by_digest(session: Session, digest: str) -> KeyRow | None:
    """A key by its secret's digest."""
    return session.execute(select(KeyRow).where(col(KeyRow.digest) == digest)).scalar_one_or_none()


def key_by_name(session: Session, name: str) -> KeyRow | None:
    """A key by name."""
    return session.execute(select(KeyRow).where(col(KeyRow.name) == name)).scalar_one_or_none()


def keys(session: Session) -> list[KeyRow]:
    """All keys by name."""
    return list(session.execute(select(KeyRow).order_by(col(KeyRow.name))).scalars())


def count_keys(session: Session) -> int:
    """How many keys there are."""
    return int(session.execute(select(func.count()).select_from(KeyRow)).scalar_one())
