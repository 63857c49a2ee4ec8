"""Queries on the audit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import ColumnElement, delete, func, or_, select
from sqlmodel import Session, col

from tidecast_control.audit.models import AuditRow


@dataclass(frozen=True)
class AuditQuery:
    """Which entries."""

    limit: int
    cursor: str | None = None
    actor: str = ""
    kind: str = ""
    name: str = ""
    outcome: str = ""
    q: str = ""
    since: datetime | None = None
    until: datetime | None = None
    count: bool = False


def _filters(query: AuditQuery) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for field in ("actor", "kind", "name", "outcome"):
        wanted = getattr(query, field)
        if wanted:
            found.append(col(getattr(AuditRow, field)) == wanted)
    if query.since is not None:
        found.append(col(AuditRow.at) >= query.since)
    if query.until is not None:
        found.append(col(AuditRow.at) < query.until)
    if query.q:
        like = "%" + query.q.replace("\\", r"\\").replace("%", r"\%").replace("_", r"\_") + "%"
        found.append(
            or_(*[col(f).ilike(like) for f in (AuditRow.name, AuditRow.action, AuditRow.detail)])
        )
    return found


def page(session: Session, query: AuditQuery, before: int | None) -> list[AuditRow]:
    """One more than the limit, so that the caller knows whether there are more."""
    filters = _filters(query)
    if before is not None:
        filters.append(col(AuditRow.id) < before)
    found = select(AuditRow).where(*filters).order_by(col(AuditRow.id).desc())
    return list(session.execute(found.limit(query.limit + 1)).scalars())


def count(session: Session, query: AuditQuery) -> int:
    """How many match."""
    found = select(func.count()).select_from(AuditRow).where(*_filters(query))
    return int(session.execute(found).scalar_one())


def forget(session: Session, before: datetime) -> int:
    """Delete entries older than an instant."""
    gone = session.execute(delete(AuditRow).where(col(AuditRow.at) < before))
    return int(getattr(gone, "rowcount", 0))
