"""Queries on operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, any_, case, func, select
from sqlmodel import Session, col

from tidecast_control.kit.models import ResourceRow
from tidecast_control.kit.repository import patterns_of
from tidecast_control.operations.models import OperationRow


def _shown(shown: Sequence[str] | None) -> Select[OperationRow]:
    """Operations on topics that are covered; on subscriptions and mirrors by their topics today."""
    query = select(OperationRow)
    if shown is None:
        return query
    reads = select(col(ResourceRow.spec)["topic"].astext).where(
        col(ResourceRow.kind) == col(OperationRow.kind),
        col(ResourceRow.name) == col(OperationRow.name),
    )
    topic: Any = case(
        (col(OperationRow.kind).in_(("subscription", "mirror")), reads.scalar_subquery()),
        (col(OperationRow.kind) == "kafka_group", ""),  # names of groups are not those of topics
        else_=func.regexp_replace(col(OperationRow.name), ":[0-9]+$", ""),
    )
    return query.where(topic.op("~")(any_(patterns_of(shown))))


def one(session: Session, operation_id: str, shown: Sequence[str] | None) -> OperationRow | None:
    """One operation, if it is shown."""
    query = _shown(shown).where(col(OperationRow.id) == operation_id)
    return session.execute(query).scalar_one_or_none()


def of(name: str, shown: Sequence[str] | None) -> Select[Any]:
    """Operations on one thing, or all. ``shown``: patterns of topics; None: all."""
    query = _shown(shown)
    return query.where(col(OperationRow.name) == name) if name else query
