"""Queries on users of transports."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlmodel import Session, col

from tidecast_control.kit import repository
from tidecast_control.kit.models import ResourceRow


def in_order(session: Session) -> list[ResourceRow]:
    """All transports, the oldest first. Topics that name none are on the first, here and there."""
    rows = repository.all_of(session, "transport")
    return sorted(rows, key=lambda row: (row.created_at, row.name))


def first(session: Session) -> str:
    """The name of the first; "" when there is none."""
    rows = in_order(session)
    return rows[0].name if rows else ""


def topic_counts(session: Session) -> dict[str, int]:
    """How many topics are on each transport."""
    named = col(ResourceRow.spec)["transport"].astext
    query = select(named, func.count()).where(col(ResourceRow.kind) == "topic").group_by(named)
    found: dict[str, int] = {row[0]: row[1] for row in session.execute(query)}
    unnamed = found.pop("", 0)
    if unnamed:
        name = first(session)
        found[name] = found.get(name, 0) + unnamed
    return found
