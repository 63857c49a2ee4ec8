"""Users, sessions, keys, enrolments. Secrets are stored as digests only."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class UserRow(SQLModel, table=True):
    """A user. ``password_hash`` is argon2id's encoded form."""

    __tablename__ = "users"

    name: str = Field(primary_key=True, max_length=200)
    role: str
    password_hash: str
    display_name: str = ""
    disabled: bool = False
    must_change_password: bool = False
    generation: int = Field(default=1, sa_type=BigInteger)
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    updated_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    login_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class SessionRow(SQLModel, table=True):
    """A login. ``id`` is the SHA-256 of the cookie's value."""

    __tablename__ = "sessions"

    id: str = Field(primary_key=True, max_length=64)
    user: str = Field(foreign_key="users.name", ondelete="CASCADE", index=True)
    csrf: str
    address: str = ""
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    used_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    expires_at: datetime = Field(sa_column=time_column(index=True))


SEEDED = ""
"""The prefix of keys of a topology file: their secrets were never here."""


class KeyRow(SQLModel, table=True):
    """An API key. ``digest`` is the SHA-256 of a 256-bit random secret."""

    __tablename__ = "keys"

    id: str = Field(primary_key=True, max_length=36)
    name: str = Field(unique=True, max_length=200)
    prefix: str
    digest: str = Field(unique=True, max_length=64)
    role: str
    scopes: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))
    description: str = ""
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    created_by: str = ""
    expires_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    used_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    revoked_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
