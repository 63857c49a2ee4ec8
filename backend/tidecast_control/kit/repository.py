"""Queries on resources. No rules here, no commits."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import ARRAY, BindParameter, Text, delete, func, literal, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from tidecast_control.kit.batch import add, batch_of
from tidecast_control.kit.models import (
    IdempotencyRow,
    OutboxRow,
    ResourceRow,
    TopologyClock,
    utc_now,
)
from tidecast_control.kit.rights import expression

CHANNEL = "tidecast_topology"


def find(session: Session, kind: str, name: str, *, lock: bool = False) -> ResourceRow | None:
    """One row; ``lock``: no other transaction changes it before this transaction ends."""
    batch = batch_of(session)
    if batch is not None and (kind, name) in batch.rows:
        return batch.rows[kind, name]
    query = select(ResourceRow).where(col(ResourceRow.kind) == kind, col(ResourceRow.name) == name)
    if lock:
        query = query.with_for_update()
    row = session.execute(query).scalar_one_or_none()
    if batch is not None:
        batch.rows[kind, name] = row
    return row


def names(session: Session, kind: str) -> list[str]:
    """All names of a kind, sorted."""
    query = select(col(ResourceRow.name)).where(col(ResourceRow.kind) == kind)
    return list(session.execute(query.order_by(col(ResourceRow.name))).scalars())


def all_of(session: Session, kind: str, wanted: Iterable[str] | None = None) -> list[ResourceRow]:
    """All rows of a kind, or those named."""
    batch = batch_of(session) if wanted is None else None
    if batch is not None:
        if kind not in batch.lists:
            session.flush()
            batch.lists[kind] = _all_of(session, kind, None)
        return batch.lists[kind]
    return _all_of(session, kind, wanted)


def _all_of(session: Session, kind: str, wanted: Iterable[str] | None) -> list[ResourceRow]:
    query = select(ResourceRow).where(col(ResourceRow.kind) == kind)
    if wanted is not None:
        query = query.where(col(ResourceRow.name).in_(list(wanted)))
    return list(session.execute(query.order_by(col(ResourceRow.name))).scalars())


def count(session: Session, kind: str) -> int:
    """How many of a kind."""
    query = select(func.count()).select_from(ResourceRow).where(col(ResourceRow.kind) == kind)
    return int(session.execute(query).scalar_one())


def patterns_of(shown: Iterable[str]) -> BindParameter[list[str]]:
    """Patterns of topics as regular expressions, for `~ ANY`."""
    return literal([expression(each) for each in shown], ARRAY(Text))


# --- topology -------------------------------------------------------------------------------------


def next_version(session: Session) -> int:
    """The topology's next version; locks the clock until the transaction ends.

    Writes of one batch share one version: engines see all of them or none.
    """
    batch = batch_of(session)
    if batch is not None and batch.version is not None:
        return batch.version
    raised = text(
        "INSERT INTO topology_clock (id, version, trimmed) VALUES (1, 1, 0) "
        "ON CONFLICT (id) DO UPDATE SET version = topology_clock.version + 1 RETURNING version"
    )
    version = int(session.execute(raised).scalar_one())
    if batch is not None:
        batch.version = version
    return version


def clock(session: Session) -> tuple[int, int]:
    """(version, newest trimmed version)."""
    row = session.get(TopologyClock, 1)
    return (row.version, row.trimmed) if row is not None else (0, 0)


def generations(session: Session, since: int) -> dict[str, int]:
    """``kind/name`` -> generation of resources that changed after a version."""
    columns = col(ResourceRow.kind), col(ResourceRow.name), col(ResourceRow.generation)
    found = session.execute(select(*columns).where(col(ResourceRow.version) > since))
    return {f"{kind}/{name}": int(generation) for kind, name, generation in found}


def announce(
    session: Session, version: int, kind: str, name: str, old: dict[str, Any] | None
) -> None:
    """Write an outbox row; listeners are notified when the transaction commits."""
    values = {"version": version, "kind": kind, "name": name, "old": old, "at": utc_now()}
    add(session, OutboxRow, values)
    batch = batch_of(session)
    if batch is None or not batch.announced:
        if batch is not None:
            batch.announced = True
        session.execute(
            text("SELECT pg_notify(:channel, :version)"),
            {"channel": CHANNEL, "version": str(version)},
        )


def outbox_after(session: Session, version: int, limit: int) -> list[OutboxRow]:
    """Changes after a version, oldest first."""
    query = select(OutboxRow).where(col(OutboxRow.version) > version)
    return list(session.execute(query.order_by(col(OutboxRow.id)).limit(limit)).scalars())


def trim_outbox(session: Session, before: datetime, keep: int) -> int:
    """Delete old outbox rows, but keep the newest ``keep``. Returns how many went."""
    newest = session.execute(select(func.max(col(OutboxRow.version)))).scalar_one() or 0
    bound = session.execute(
        select(func.max(col(OutboxRow.version))).where(
            col(OutboxRow.at) < before, col(OutboxRow.version) <= newest - keep
        )
    ).scalar_one()
    if bound is None:
        return 0
    gone = session.execute(delete(OutboxRow).where(col(OutboxRow.version) <= bound))
    session.execute(
        text("UPDATE topology_clock SET trimmed = GREATEST(trimmed, :bound)"), {"bound": bound}
    )
    return int(getattr(gone, "rowcount", 0))


# --- idempotency ----------------------------------------------------------------------------------


def claim_key(session: Session, row: IdempotencyRow) -> IdempotencyRow | None:
    """Take an Idempotency-Key; the row before when it was used already (waits for its writer)."""
    claimed = insert(IdempotencyRow).values(
        key=row.key,
        actor=row.actor,
        digest=row.digest,
        status=0,
        body={},
        created_at=row.created_at,
    )
    free = claimed.on_conflict_do_nothing().returning(col(IdempotencyRow.key))
    if session.execute(free).first() is not None:
        return None
    return session.get(IdempotencyRow, (row.key, row.actor))


def keep_answer(session: Session, key: str, actor: str, status: int, body: dict[str, Any]) -> None:
    """Keep the answer for a later use of the same key."""
    row = session.get(IdempotencyRow, (key, actor))
    assert row is not None
    row.status, row.body = status, body
    session.add(row)


def free_key(session: Session, key: str, actor: str) -> None:
    """Forget a key whose request failed."""
    session.execute(
        delete(IdempotencyRow).where(
            col(IdempotencyRow.key) == key, col(IdempotencyRow.actor) == actor
        )
    )


def forget_keys(session: Session, before: datetime) -> None:
    """Delete old Idempotency-Keys."""
    session.execute(delete(IdempotencyRow).where(col(IdempotencyRow.created_at) < before))
