"""The tables of engines' reports, and of the credentials that let them in."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Column
from sqlalchemy.dialects.postgresql import JSONB
from sqlmodel import Field, SQLModel

from tidecast_control.kit.models import time_column, utc_now


class NodeStateRow(SQLModel, table=True):
    """The last word of an engine. ``credential``: digest of the secret it was given; "": revoked.

    ``credential_next``: of the one that it is to use from now on. ``level``: that it writes;
    ``level_min``, ``level_max``: that it reads; ``refused``: why it was not let in last.
    ``addresses``: where other nodes reach its unicast transports, by transport: host and port.
    """

    __tablename__ = "node_states"

    name: str = Field(primary_key=True, max_length=200)
    credential: str = Field(default="", max_length=64)
    credential_next: str = Field(default="", max_length=64)
    connected: bool = False
    node_id: int = 0
    incarnation: int = Field(default=0, sa_type=BigInteger)
    software: str = ""
    host: str = ""
    address: str = ""
    applied_version: int = Field(default=0, sa_type=BigInteger)
    errors: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSONB, nullable=False))
    restart_needed: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))
    unwired: list[Any] = Field(default_factory=list, sa_column=Column(JSONB, nullable=False))
    level: int = 1
    level_min: int = 1
    level_max: int = 1
    refused: str = ""
    addresses: dict[str, Any] = Field(
        default_factory=dict, sa_column=Column(JSONB, nullable=False, server_default="{}")
    )
    connected_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    seen_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))


class ClusterRow(SQLModel, table=True):
    """The one row of the cluster: the level that its engines write."""

    __tablename__ = "cluster"

    id: int = Field(primary_key=True)
    level: int
    finalized_at: datetime | None = Field(default=None, sa_column=time_column(nullable=True))
    finalized_by: str = ""


class EnrolmentRow(SQLModel, table=True):
    """A token that lets engines register: digest only. ``node``: only of this name, if any.

    ``replace``: also a node that has registered before.
    """

    __tablename__ = "enrolments"

    id: str = Field(primary_key=True, max_length=36)
    name: str = Field(unique=True, max_length=200)
    digest: str = Field(unique=True, max_length=64)
    uses: int = 0
    uses_max: int = 1
    node: str = Field(default="", max_length=200)
    replace: bool = False
    created_at: datetime = Field(default_factory=utc_now, sa_column=time_column())
    created_by: str = ""
    expires_at: datetime = Field(sa_column=time_column())
