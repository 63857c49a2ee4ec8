"""Queries on durable topics."""

from __future__ import annotations

from sqlalchemy import Integer, cast, select
from sqlmodel import Session, col

from tidecast_control.kit.models import ResourceRow


def durable_topics(session: Session, topic: str, after: str) -> list[tuple[str, int]]:
    """(name, queues) of durable topics from ``after`` on, or of the one named."""
    spec = col(ResourceRow.spec)
    query = select(col(ResourceRow.name), cast(spec["queues"].astext, Integer)).where(
        col(ResourceRow.kind) == "topic", spec["mode"].astext == "durable"
    )
    if topic:
        query = query.where(col(ResourceRow.name) == topic)
    query = query.where(col(ResourceRow.name) >= after).order_by(col(ResourceRow.name))
    return [(str(name), int(count or 1)) for name, count in session.execute(query)]
