"""Queries on alerts."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete, func, select
from sqlmodel import Session, col

from tidecast_control.alerts.models import AlertRow


def newest(session: Session, state: str | None, limit: int) -> list[AlertRow]:
    """Alerts, newest first."""
    query = select(AlertRow)
    if state is not None:
        query = query.where(col(AlertRow.state) == state)
    query = query.order_by(col(AlertRow.started_at).desc(), col(AlertRow.id)).limit(limit)
    return list(session.execute(query).scalars())


def firing(session: Session) -> list[AlertRow]:
    """All that fire."""
    query = select(AlertRow).where(col(AlertRow.state) == "firing")
    return list(session.execute(query).scalars())


def firing_by_rule(session: Session) -> dict[str, int]:
    """How many fire, by rule."""
    query = select(col(AlertRow.rule), func.count()).where(col(AlertRow.state) == "firing")
    return {rule: int(n) for rule, n in session.execute(query.group_by(col(AlertRow.rule)))}


def forget(session: Session, before: datetime) -> None:
    """Delete alerts resolved before an instant."""
    session.execute(delete(AlertRow).where(col(AlertRow.resolved_at) < before))
