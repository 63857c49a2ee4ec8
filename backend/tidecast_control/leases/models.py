"""Leases of queues."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column


class LeaseRow(SQLModel, table=True):
    """Who holds a queue. ``owner`` "": nobody. The epoch of a queue never goes back."""

    __tablename__ = "leases"

    queue: str = Field(primary_key=True, max_length=300)
    owner: str = Field(default="", max_length=200)
    epoch: int = Field(default=0, sa_type=BigInteger)
    ends_at: datetime = Field(sa_column=time_column())
