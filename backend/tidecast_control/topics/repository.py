"""Queries on topics."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlmodel import Session, col

from tidecast_control.kit import repository
from tidecast_control.kit.batch import Batch, batch_of
from tidecast_control.kit.models import ResourceRow
from tidecast_control.transports import repository as transports


def with_wire_id(session: Session, wire_id: int, transport: str, but: str) -> str | None:
    """Another topic of that transport ("": the first) that is given the same id in packets."""
    first = transports.first(session)
    same = {"", first} if transport in ("", first) else {transport}
    batch = batch_of(session)
    if batch is not None:
        return _rival(session, batch, wire_id, same, but)
    query = select(col(ResourceRow.name)).where(
        col(ResourceRow.kind) == "topic",
        col(ResourceRow.number) == wire_id,
        col(ResourceRow.spec)["wire_id"].astext == str(wire_id),
        col(ResourceRow.name) != but,
        col(ResourceRow.spec)["transport"].astext.in_(same),
    )
    return session.execute(query.limit(1)).scalar_one_or_none()


def _rival(
    session: Session, batch: Batch, wire_id: int, same: Collection[str], but: str
) -> str | None:
    known = batch.numbers.get("topic")
    if known is None:
        known = batch.numbers["topic"] = {}
        for row in repository.all_of(session, "topic"):
            if row.number is not None:
                known.setdefault(row.number, set()).add(row.name)
    for name in sorted(known.get(wire_id, ())):
        rival = repository.find(session, "topic", name) if name != but else None
        if rival is None or rival.spec["transport"] not in same:
            continue
        if rival.spec.get("wire_id") == wire_id:
            return name
    return None


def subscriptions_of(session: Session, topic: str) -> list[str]:
    """Subscriptions that name exactly this topic."""
    if batch_of(session) is not None:
        found = repository.all_of(session, "subscription")
        return [row.name for row in found if row.spec["topic"] == topic]
    query = select(col(ResourceRow.name)).where(
        col(ResourceRow.kind) == "subscription",
        col(ResourceRow.spec)["topic"].astext == topic,
    )
    return list(session.execute(query.order_by(col(ResourceRow.name))).scalars())
