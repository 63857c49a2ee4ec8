"""Recording and reading the audit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from sqlmodel import Session

from tidecast_control.audit import repository
from tidecast_control.audit.models import AuditRow
from tidecast_control.audit.schemas import AuditEntry
from tidecast_control.db import Database
from tidecast_control.kit import cursor as cursors
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.batch import add
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError, invalid
from tidecast_control.kit.schemas import Page


def record(
    session: Session,
    actor: Actor,
    action: str,
    kind: str,
    name: str,
    before: Any = None,
    after: Any = None,
    detail: str = "",
) -> None:
    """Note a write, in the write's own transaction."""
    values = {
        "at": utc_now(),
        "actor": actor.name,
        "actor_kind": actor.kind,
        "action": action,
        "kind": kind,
        "name": name,
        "outcome": "done",
        "status": 200,
        "before": before,
        "after": after,
        "detail": detail[:1000],
        "request_id": actor.request_id,
        "address": actor.address,
    }
    add(session, AuditRow, values)


def page(session: Session, query: repository.AuditQuery) -> Page[AuditEntry]:
    """Newest first."""
    before = None
    if query.cursor:
        value, _ = cursors.decode(query.cursor, "-id")
        if not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise invalid("query/cursor", "not a cursor of this list", "next_cursor")
        before = value
    rows = repository.page(session, query, before)
    following = None
    if len(rows) > query.limit:
        rows = rows[: query.limit]
        following = cursors.encode("-id", rows[-1].id, "")
    return Page(
        items=[AuditEntry.model_validate(row) for row in rows],
        next_cursor=following,
        total=repository.count(session, query) if query.count else None,
    )


def export(db: Database, query: repository.AuditQuery) -> Iterator[bytes]:
    """All that match, as JSON lines; a transaction for each `query.limit` of them."""
    before: int | None = None
    while True:
        with db.begin() as session:
            rows = repository.page(session, query, before)[: query.limit]
            lines = [AuditEntry.model_validate(row).model_dump_json().encode() for row in rows]
            before = rows[-1].id if rows else None
        if not lines:
            return
        yield b"\n".join((*lines, b""))


def entry(session: Session, entry_id: int) -> AuditEntry:
    """One entry. Raises `not_found`."""
    row = session.get(AuditRow, entry_id) if entry_id < 1 << 63 else None
    if row is None:
        raise ProblemError("not_found", f"no audit entry {entry_id}")
    return AuditEntry.model_validate(row)


def forget(session: Session, days: float) -> int:
    """Delete entries older than ``days``. Returns how many."""
    return repository.forget(session, utc_now() - timedelta(days=days))
