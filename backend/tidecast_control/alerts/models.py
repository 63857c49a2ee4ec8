"""Alerts that fire or fired."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index, text
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class AlertRow(SQLModel, table=True):
    """One rule that fired for one target."""

    __tablename__ = "alerts"
    __table_args__ = (
        Index("ix_alerts_firing", "rule", "target", unique=True,
              postgresql_where=text("state = 'firing'")),
    )  # fmt: skip

    id: str = Field(primary_key=True, max_length=36)
    rule: str
    target: str
    severity: str
    metric: str
    value: float | None = None
    threshold: float
    state: str
    silenced: bool = False
    started_at: datetime = Field(default_factory=utc_now, sa_column=time_column(index=True))
    resolved_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    delivery: str = ""
