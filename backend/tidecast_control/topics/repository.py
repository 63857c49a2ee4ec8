"""Queries on topics."""

from __future__ import annotations

from sqlalchemy import select
from sqlmodel import Session, col

from tidecast_control.kit.models import ResourceRow


def with_wire_id(session: Session, wire_id: int, transport: str, but: str) -> str | None:
    """Another topic of that transport with the same id in packets."""
    query = select(col(ResourceRow.name)).where(
        col(ResourceRow.kind) == "topic",
        col(ResourceRow.number) == wire_id,
        col(ResourceRow.name) != but,
        col(ResourceRow.spec)["transport"].astext == transport,
    )
    return session.execute(query.limit(1)).scalar_one_or_none()


def subscriptions_of(session: Session, topic: str) -> list[str]:
    """Subscriptions that name exactly this topic."""
    query = select(col(ResourceRow.name)).where(
        col(ResourceRow.kind) == "subscription",
        col(ResourceRow.spec)["topic"].astext == topic,
    )
    return list(session.execute(query.order_by(col(ResourceRow.name))).scalars())
