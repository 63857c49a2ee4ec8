"""A lease store in Postgres: the same answers as `tidecast.queues.leases.store.LeaseTable`.

Requests and replies are the structures of that module as plain values, tagged by ``type``. Each is
one transaction on one locked row, and the only clock is that of Postgres.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy import select, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlmodel import Session, col

from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import Model
from tidecast_control.leases.models import LeaseRow

EPOCH_MAX = (1 << 32) - 1
LEASE_NS_MAX = 3_600_000_000_000


class LeaseRequest(Model):
    """What an engine asks: see `tidecast.queues.leases.store`."""

    type: Literal["Acquire", "Renew", "Release", "ListLeases"]
    serial: int
    queue: str = Field("", max_length=300)
    owner: str = Field("", max_length=200)
    lease_ns: int = Field(0, ge=0, le=LEASE_NS_MAX)
    above: int = Field(0, ge=0, le=EPOCH_MAX)
    epoch: int = Field(0, ge=0, le=EPOCH_MAX)


_REQUEST = TypeAdapter(LeaseRequest)


def handle(session: Session, node: str, raw: Any) -> dict[str, Any]:
    """Answer a request of ``node``. Raises `invalid_request`, `denied`."""
    try:
        request = _REQUEST.validate_python(raw)
    except ValidationError as problem:
        raise ProblemError("invalid_request", f"lease: {problem}"[:500]) from None
    if request.type == "ListLeases":
        return {"type": "Listing", "owners": _owners(session)}
    if request.owner != node:
        raise ProblemError("denied", f"{node} asks for a lease in the name of {request.owner}")
    row, now = _locked(session, request.queue)
    reply = _answer(row, request, now)
    session.add(row)
    return reply


def end(session: Session, owner: str) -> None:
    """Others may have what a node holds, at once. Epochs stay: its writes are fenced."""
    held = update(LeaseRow).where(col(LeaseRow.owner) == owner)
    session.execute(held.values(owner="", ends_at=_now(session)))


def _now(session: Session) -> datetime:
    found = session.execute(text("SELECT clock_timestamp()")).scalar_one()
    assert isinstance(found, datetime)
    return found


def _owners(session: Session) -> dict[str, str]:
    query = select(LeaseRow).where(col(LeaseRow.owner) != "", col(LeaseRow.ends_at) > _now(session))
    return {row.queue: row.owner for row in session.execute(query).scalars()}


def _locked(session: Session, queue: str) -> tuple[LeaseRow, datetime]:
    """The row of a queue, and the time once it is ours: waiting for it counts for nobody."""
    made = insert(LeaseRow).values(queue=queue, owner="", epoch=0, ends_at=_now(session))
    session.execute(made.on_conflict_do_nothing())
    query = select(LeaseRow).where(col(LeaseRow.queue) == queue).with_for_update()
    row = session.execute(query).scalar_one()
    return row, _now(session)


def _answer(row: LeaseRow, request: LeaseRequest, now: datetime) -> dict[str, Any]:
    free = not row.owner or now >= row.ends_at
    mine = row.owner == request.owner
    refused = {"type": "Refused", "owner": row.owner, "epoch": row.epoch}
    match request.type:
        case "Acquire":
            if not (free or mine) or max(row.epoch, request.above) >= EPOCH_MAX:
                return refused
            row.owner, row.epoch = request.owner, max(row.epoch, request.above) + 1
        case "Renew":
            if free or not mine or row.epoch != request.epoch:
                return refused | {"owner": "" if free else row.owner}
        case _:
            if mine and row.epoch == request.epoch:
                row.owner = ""
            return {"type": "Released"}
    row.ends_at = now + timedelta(microseconds=request.lease_ns / 1000)
    return {"type": "Granted", "epoch": row.epoch}
