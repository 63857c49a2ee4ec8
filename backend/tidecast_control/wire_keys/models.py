"""Epochs of sealed transports."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Column, Text
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column


class WireEpochRow(SQLModel, table=True):
    """One secret of a transport. Engines alone get it: no route, export, audit or log has it."""

    __tablename__ = "wire_epochs"

    transport: str = Field(primary_key=True, max_length=200)
    epoch: int = Field(primary_key=True, sa_type=BigInteger)
    secret: str = Field(sa_column=Column(Text, nullable=False), repr=False)
    """Sealed by the service's vault."""
    created_at: datetime = Field(sa_column=time_column())
    activate_at: datetime = Field(sa_column=time_column())
    retire_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
