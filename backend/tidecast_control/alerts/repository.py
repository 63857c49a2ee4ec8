"""Queries on alerts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, any_, case, delete, func, not_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlmodel import Session, col

from tidecast_control.alerts.models import (
    AlertRow,
    DeliveryRow,
    PendingAlertRow,
    WebhookSecretRow,
)
from tidecast_control.kit.models import ResourceRow
from tidecast_control.kit.repository import patterns_of
from tidecast_control.kit.rights import NODE_METRICS


def in_state(state: str | None, shown: Sequence[str] | None) -> Select[Any]:
    """Alerts in a state, or all. ``shown``: patterns of topics; None: all."""
    query = select(AlertRow)
    if shown is not None:
        query = query.where(_about(shown))
    return query if state is None else query.where(col(AlertRow.state) == state)


def _about(shown: Sequence[str]) -> ColumnElement[bool]:
    """Alerts of a topic, of one of its queues, or of a subscription that reads it."""
    of_subscription = select(col(ResourceRow.spec)["topic"].astext).where(
        col(ResourceRow.kind) == "subscription", col(ResourceRow.name) == col(AlertRow.target)
    )
    topic: Any = func.coalesce(
        case((col(AlertRow.metric).like("lag%"), of_subscription.scalar_subquery())),
        func.regexp_replace(col(AlertRow.target), ":[0-9]+$", ""),
    )
    about_nodes = col(AlertRow.metric).in_(NODE_METRICS)
    return and_(topic.op("~")(any_(patterns_of(shown))), not_(about_nodes))


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


def pending(session: Session) -> list[PendingAlertRow]:
    """Conditions that hold, and have not held for long enough."""
    return list(session.execute(select(PendingAlertRow)).scalars())


def deliveries(session: Session) -> int:
    """How many calls of webhooks wait."""
    return int(session.execute(select(func.count()).select_from(DeliveryRow)).scalar_one())


def forget_secrets(session: Session) -> None:
    """Delete the secrets of rules that are gone."""
    rules = select(col(ResourceRow.name)).where(col(ResourceRow.kind) == "alert_rule")
    session.execute(
        delete(WebhookSecretRow).where(col(WebhookSecretRow.rule).not_in(rules)),
        execution_options={"synchronize_session": False},
    )


def claim(session: Session, now: datetime, until: datetime, limit: int) -> list[DeliveryRow]:
    """Take due calls, the oldest to each target, so that they come in order; no other task may."""
    oldest = (
        select(col(DeliveryRow.id))
        .ext(distinct_on(col(DeliveryRow.target)))
        .order_by(col(DeliveryRow.target), col(DeliveryRow.created_at), col(DeliveryRow.id))
    )
    query = (
        select(DeliveryRow)
        .where(col(DeliveryRow.id).in_(oldest), col(DeliveryRow.next_at) <= now)
        .order_by(col(DeliveryRow.next_at))
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = list(session.execute(query).scalars())
    for row in rows:
        row.next_at, row.attempts = until, row.attempts + 1
        session.add(row)
    return rows
