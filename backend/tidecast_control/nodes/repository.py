"""Queries on nodes' states and enrolments."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, or_, select, update
from sqlmodel import Session, col

from tidecast_control.nodes.models import EnrolmentRow, NodeStateRow


def states(session: Session) -> dict[str, NodeStateRow]:
    """All states by name."""
    query = select(NodeStateRow).order_by(col(NodeStateRow.name))
    return {row.name: row for row in session.execute(query).scalars()}


def connected(session: Session) -> list[NodeStateRow]:
    """The states of nodes that are connected."""
    query = select(NodeStateRow).where(col(NodeStateRow.connected).is_(True))
    return list(session.execute(query.order_by(col(NodeStateRow.name))).scalars())


def state(session: Session, name: str, *, lock: bool = False) -> NodeStateRow | None:
    """One state."""
    return session.get(NodeStateRow, name, with_for_update=lock)


def state_by_credential(session: Session, digest: str) -> NodeStateRow | None:
    """The state that a credential belongs to, the present one or the one to use from now on."""
    held = or_(col(NodeStateRow.credential) == digest, col(NodeStateRow.credential_next) == digest)
    query = select(NodeStateRow).where(held)
    return session.execute(query).scalar_one_or_none()


def all_down(session: Session) -> None:
    """A service that starts has no connections."""
    session.execute(update(NodeStateRow).values(connected=False))


def enrolment_by_digest(session: Session, digest: str) -> EnrolmentRow | None:
    """An enrolment, locked: its uses are counted."""
    query = select(EnrolmentRow).where(col(EnrolmentRow.digest) == digest).with_for_update()
    return session.execute(query).scalar_one_or_none()


def enrolment_by_name(session: Session, name: str) -> EnrolmentRow | None:
    """An enrolment by name."""
    query = select(EnrolmentRow).where(col(EnrolmentRow.name) == name)
    return session.execute(query).scalar_one_or_none()


def enrolments() -> Select[Any]:
    """All enrolments."""
    return select(EnrolmentRow)
