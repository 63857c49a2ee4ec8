"""Queries on transports."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlmodel import Session, col

from tidecast_control.kit.models import ResourceRow


def topics_on(session: Session, transport: str) -> int:
    """How many topics name a transport."""
    query = select(func.count()).where(
        col(ResourceRow.kind) == "topic",
        col(ResourceRow.spec)["transport"].astext == transport,
    )
    return int(session.execute(query).scalar_one())
