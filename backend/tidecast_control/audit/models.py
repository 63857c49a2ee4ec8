"""The audit table: only ever appended to."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column, Index
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class AuditRow(SQLModel, table=True):
    """One write or denial."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_kind_name", "kind", "name", "id"),)

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger)
    at: datetime = Field(default_factory=utc_now, sa_column=time_column(index=True))
    actor: str = Field(index=True)
    actor_kind: str
    action: str
    kind: str
    name: str
    outcome: str = Field(index=True)
    status: int = 200
    before: Any = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))
    after: Any = Field(default=None, sa_column=Column(JSONB(none_as_null=True)))
    detail: str = ""
    request_id: str = ""
    address: str = ""
