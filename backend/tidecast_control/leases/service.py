"""A lease store in Postgres: the same answers as `tidecast.queues.leases.store.LeaseTable`.

Requests and replies are the structures of that module as plain values, tagged by ``type``. Each is
one transaction on the locked rows that it names, and the only clock is that of Postgres.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy import select, text
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from tidecast.queues.leases.store import BATCH_MAX, EPOCH_MAX, REASON_MAX
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import Model
from tidecast_control.leases.models import LeaseRow
from tidecast_control.leases.moves import Moves

LEASE_NS_MAX = 3_600_000_000_000
TEXT = r"^[^\x00]*$"


class LeaseRequest(Model):
    """The request of an engine: see `tidecast.queues.leases.store`."""

    type: Literal["Acquire", "Renew", "Release"]
    serial: int
    queue: str = Field("", max_length=300, pattern=TEXT)
    owner: str = Field("", max_length=200, pattern=TEXT)
    lease_ns: int = Field(0, ge=0, le=LEASE_NS_MAX)
    above: int = Field(0, ge=0, le=EPOCH_MAX)
    epoch: int = Field(0, ge=0, le=EPOCH_MAX)
    reason: str = Field("", max_length=REASON_MAX, pattern=TEXT)


class LeaseBatch(Model):
    """Requests of one engine in one transaction, each answered as if it came alone."""

    type: Literal["Batch"]
    serial: int
    requests: list[LeaseRequest] = Field(max_length=BATCH_MAX)


class LeaseListing(Model):
    """All leases that have not ended."""

    type: Literal["ListLeases"]
    serial: int


_REQUEST: TypeAdapter[LeaseRequest | LeaseBatch | LeaseListing] = TypeAdapter(
    Annotated[LeaseRequest | LeaseBatch | LeaseListing, Field(discriminator="type")]
)


def handle(session: Session, node: str, raw: Any) -> dict[str, Any]:
    """Answer a request of ``node``. Raises `invalid_request`, `denied`."""
    try:
        request = _REQUEST.validate_python(raw)
    except ValidationError as problem:
        raise ProblemError("invalid_request", f"lease: {problem}"[:500]) from None
    if isinstance(request, LeaseListing):
        return {"type": "Listing", "owners": _owners(session)}
    asked = request.requests if isinstance(request, LeaseBatch) else [request]
    for each in asked:
        if each.owner != node:
            raise ProblemError("denied", f"{node} asks for a lease in the name of {each.owner}")
    rows, now = _locked(session, sorted({each.queue for each in asked}))
    free = [e.queue for e in asked if e.type == "Acquire" and not rows[e.queue].owner]
    noted = Moves(session, free)
    replies = [_answer(rows[each.queue], each, now, noted) for each in asked]
    session.add_all(rows.values())
    return {"type": "Answers", "replies": replies} if request.type == "Batch" else replies[0]


def end(session: Session, owner: str, reason: str) -> None:
    """End all leases of a node, so that other nodes may take its queues at once.

    Epochs stay: the node's writes are fenced.
    """
    held = select(LeaseRow).where(col(LeaseRow.owner) == owner).order_by(col(LeaseRow.queue))
    rows = list(session.execute(held.with_for_update()).scalars())
    now, noted = _now(session), Moves(session, [])
    for row in rows:
        noted.left(row, reason, now)
        row.owner, row.ends_at = "", now
    session.add_all(rows)


def _now(session: Session) -> datetime:
    found = session.execute(text("SELECT clock_timestamp()")).scalar_one()
    assert isinstance(found, datetime)
    return found


def _owners(session: Session) -> dict[str, str]:
    query = select(LeaseRow).where(col(LeaseRow.owner) != "", col(LeaseRow.ends_at) > _now(session))
    return {row.queue: row.owner for row in session.execute(query).scalars()}


def _locked(session: Session, queues: Sequence[str]) -> tuple[dict[str, LeaseRow], datetime]:
    """Lock the rows of queues. Returns them, and the time after all are locked.

    So the wait for locks shortens no lease. ``queues`` are sorted. All rows are created before the
    first is locked, both in this order, so that no two engines wait for each other.
    """
    there = select(col(LeaseRow.queue)).where(col(LeaseRow.queue).in_(queues))
    known = set(session.execute(there).scalars())
    fresh = [queue for queue in queues if queue not in known]
    if fresh:
        blank = {"owner": "", "epoch": 0, "ends_at": _now(session)}
        made = insert(LeaseRow).values([{"queue": queue, **blank} for queue in fresh])
        session.execute(made.on_conflict_do_nothing())
    query = select(LeaseRow).where(col(LeaseRow.queue).in_(queues)).order_by(col(LeaseRow.queue))
    rows = {row.queue: row for row in session.execute(query.with_for_update()).scalars()}
    return rows, _now(session)


def _answer(row: LeaseRow, request: LeaseRequest, now: datetime, noted: Moves) -> dict[str, Any]:
    free = not row.owner or now >= row.ends_at
    mine = row.owner == request.owner
    refused = {"type": "Refused", "owner": row.owner, "epoch": row.epoch}
    match request.type:
        case "Acquire":
            if not (free or mine) or max(row.epoch, request.above) >= EPOCH_MAX:
                return refused
            epoch = max(row.epoch, request.above) + 1
            noted.taken(row, request.owner, epoch, now)
            row.owner, row.epoch = request.owner, epoch
        case "Renew":
            if free or not mine or row.epoch != request.epoch:
                return refused | {"owner": "" if free else row.owner}
        case _:
            if mine and row.epoch == request.epoch:
                noted.left(row, request.reason, now)
                row.owner = ""
            return {"type": "Released"}
    row.ends_at = now + timedelta(microseconds=request.lease_ns / 1000)
    return {"type": "Granted", "epoch": row.epoch}
