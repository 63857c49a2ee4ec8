"""Operations that were asked of engines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class OperationRow(SQLModel, table=True):
    """One operation and its results."""

    __tablename__ = "operations"

    id: str = Field(primary_key=True, max_length=36)
    action: str
    kind: str
    name: str = Field(index=True)
    state: str
    dry_run: bool = False
    request: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSONB, nullable=False))
    results: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))
    cli: str = ""
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column(index=True))
    finished_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    created_by: str = ""
