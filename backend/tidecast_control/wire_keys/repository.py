"""Queries on epochs of sealed transports."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import delete
from sqlmodel import Session, col, select

from tidecast_control.wire_keys.models import WireEpochRow


def epochs(session: Session, transport: str, *, lock: bool = False) -> list[WireEpochRow]:
    """Of a transport, the oldest first."""
    query = (
        select(WireEpochRow)
        .where(WireEpochRow.transport == transport)
        .order_by(col(WireEpochRow.epoch))
    )
    return list(session.exec(query.with_for_update() if lock else query))


def living(session: Session, now: datetime) -> list[WireEpochRow]:
    """Epochs of all transports that have not ended."""
    ended = col(WireEpochRow.retire_at)
    query = select(WireEpochRow).where((ended.is_(None)) | (ended > now))
    return list(session.exec(query.order_by(WireEpochRow.transport, col(WireEpochRow.epoch))))


def all_(session: Session) -> list[WireEpochRow]:
    """Epochs of all transports, also ended ones."""
    return list(session.exec(select(WireEpochRow)))


def forget_ended(session: Session, now: datetime) -> None:
    """Delete the secrets of ended epochs: packets sealed under them cannot be read afterwards."""
    session.execute(delete(WireEpochRow).where(col(WireEpochRow.retire_at) <= now))
