"""Leases: response shapes."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from tidecast_control.kit.schemas import Int64, View


class LeaseMove(View):
    """A leased topic that went from a node to another."""

    id: Int64
    at: datetime = Field(description="`from_node` had it until then")
    taken_at: datetime | None = Field(None, description="`to_node` has it since then")
    away_s: float | None = Field(None, description="Seconds without an owner")
    topic: str
    from_node: str = Field(description="Empty: no node had it")
    to_node: str = Field(description="Empty: no node has it yet")
    epoch: Int64 = Field(description="Of the new owner; until there is one, of the one before")
    reason: str
