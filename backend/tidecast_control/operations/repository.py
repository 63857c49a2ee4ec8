"""Queries on operations."""

from __future__ import annotations

from sqlalchemy import select
from sqlmodel import Session, col

from tidecast_control.operations.models import OperationRow


def newest(session: Session, limit: int, name: str) -> list[OperationRow]:
    """Newest first, of one thing or of all."""
    query = select(OperationRow)
    if name:
        query = query.where(col(OperationRow.name) == name)
    query = query.order_by(col(OperationRow.created_at).desc(), col(OperationRow.id))
    return list(session.execute(query.limit(limit)).scalars())
