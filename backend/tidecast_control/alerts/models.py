"""Alerts that fire or fired, and the calls that are due to their webhooks."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Column, Index, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class AlertRow(SQLModel, table=True):
    """One rule that fired for one target."""

    __tablename__ = "alerts"
    __table_args__ = (
        Index(
            "ix_alerts_firing",
            "rule",
            "target",
            unique=True,
            postgresql_where=text("state = 'firing'"),
        ),
    )

    id: str = Field(primary_key=True, max_length=36)
    rule: str
    target: str
    severity: str
    metric: str
    value: float | None = None
    threshold: float
    state: str
    silenced: bool = False
    no_data: bool = Field(default=False, sa_column_kwargs={"server_default": text("false")})
    """A node that the value came from is not heard: the state is the last one that is known."""
    nodes: list[Any] = Field(
        default_factory=list,
        sa_column=Column(JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    )
    """The nodes that the value came from."""
    started_at: datetime = Field(default_factory=utc_now, sa_column=time_column(index=True))
    resolved_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    delivery: str = ""


class PendingAlertRow(SQLModel, table=True):
    """A rule whose condition holds for a target, though not for long enough yet."""

    __tablename__ = "alerts_pending"

    rule: str = Field(primary_key=True, max_length=200)
    target: str = Field(primary_key=True, max_length=300)
    since: datetime = Field(sa_column=time_column())
    nodes: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))


class WebhookSecretRow(SQLModel, table=True):
    """The masked parts of a rule's spec: the URL of its webhook, and the key that signs."""

    __tablename__ = "webhook_secrets"

    rule: str = Field(primary_key=True, max_length=200)
    masked: str = Field(primary_key=True, max_length=2100)
    value: str = Field(sa_column=Column(Text, nullable=False))


class DeliveryRow(SQLModel, table=True):
    """A call of a webhook that is not done yet: tried again until it is answered, or given up."""

    __tablename__ = "webhook_deliveries"

    id: str = Field(primary_key=True, max_length=36)
    alert: str = Field(max_length=36)
    target: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))
    """The URL, masked as in the rule: calls to one URL come in order."""
    url: str = Field(sa_column=Column(Text, nullable=False))
    """Sealed by the service's vault, as `secret` is."""
    secret: str = Field(default="", sa_column=Column(Text, nullable=False))
    body: str = Field(sa_column=Column(Text, nullable=False))
    attempts: int = 0
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    next_at: datetime = Field(default_factory=utc_now, sa_column=time_column(index=True))
