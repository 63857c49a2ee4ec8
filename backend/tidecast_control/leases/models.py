"""Leases of queues."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Index, text
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column


class LeaseRow(SQLModel, table=True):
    """The owner of a queue. ``owner`` "": none. The epoch of a queue never goes back."""

    __tablename__ = "leases"

    queue: str = Field(primary_key=True, max_length=300)
    owner: str = Field(default="", max_length=200)
    epoch: int = Field(default=0, sa_type=BigInteger)
    ends_at: datetime = Field(sa_column=time_column())


class LeaseMoveRow(SQLModel, table=True):
    """A queue that moved from a node to another. ``to_node`` "": no node has it yet (open)."""

    __tablename__ = "lease_moves"
    __table_args__ = (
        Index("ix_lease_moves_open", "queue", unique=True, postgresql_where=text("to_node = ''")),
        Index("ix_lease_moves_topic", "topic", "id"),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BigInteger)
    queue: str = Field(max_length=300)
    topic: str = Field(max_length=300)
    at: datetime = Field(sa_column=time_column(index=True))
    taken_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    from_node: str = Field(max_length=200)
    to_node: str = Field(max_length=200)
    epoch: int = Field(sa_type=BigInteger)
    reason: str
