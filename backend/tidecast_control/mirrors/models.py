"""How mirrors do, and their secrets."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class MirrorStateRow(SQLModel, table=True):
    """How a mirror does, written by the service that runs it.

    ``holder``: that service, until ``held_until``: no other one runs the mirror.
    """

    __tablename__ = "mirror_states"

    mirror: str = Field(primary_key=True, max_length=200)
    holder: str = Field(default="", max_length=36)
    held_until: datetime = Field(default_factory=utc_now, sa_column=time_column())
    state: str = "starting"
    started_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    updated_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    retry_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    error: str = Field(default="", sa_column=Column(Text, nullable=False))
    error_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    failures: int = Field(default=0, sa_type=BigInteger)
    records: int = Field(default=0, sa_type=BigInteger)
    bytes: int = Field(default=0, sa_type=BigInteger)
    repeated: int = Field(default=0, sa_type=BigInteger)
    gone: int = Field(default=0, sa_type=BigInteger)
    left_out: int = Field(default=0, sa_type=BigInteger)
    retries: int = Field(default=0, sa_type=BigInteger)
    rate: float = 0.0
    lag: int = Field(default=0, sa_type=BigInteger)
    queues: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))
    events: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))


class MirrorSecretRow(SQLModel, table=True):
    """A secret of a mirror, sealed. ``shown``: its mask; ``bound``: digest of `secrets.BOUND`."""

    __tablename__ = "mirror_secrets"

    mirror: str = Field(primary_key=True, max_length=200)
    field: str = Field(primary_key=True, max_length=20)
    shown: str = Field(max_length=40)
    bound: str = Field(max_length=64)
    value: str = Field(sa_column=Column(Text, nullable=False))
