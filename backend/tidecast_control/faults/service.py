"""Fault injection: guarded by the service's setting and by the transport's own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlmodel import Session

from tidecast_control.api import applied, resources
from tidecast_control.faults.schemas import Fault, FaultInput, FaultSpec, FaultStatus
from tidecast_control.kit import repository
from tidecast_control.kit.actor import SERVICE
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row, utc_now
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import ProblemItem, Status
from tidecast_control.live.world import World

PROBABILITIES = ("drop", "duplicate", "reorder", "corrupt")


def is_over(row: Row) -> bool:
    """The faults have expired."""
    expires_s = float(row.spec.get("expires_s", 0.0))
    return expires_s > 0 and utc_now() > row.updated_at + timedelta(seconds=expires_s)


def expire(session: Session, name: str) -> None:
    """Switch off faults whose time is over. Their own limit of time outranks the protection."""
    row = repository.find(session, KIND.name, name, lock=True)
    if row is None or not is_over(row):
        return
    row.deletion_protection = False
    resources.delete(session, KIND, name, SERVICE)


def allow(allowed: bool) -> None:
    """Raise `denied` when this service does not inject faults."""
    if not allowed:
        raise ProblemError(
            "denied",
            "fault injection is off: start the service with "
            "TIDECAST_CONTROL_ALLOW_FAULTS=true if this is a place for tests",
        )


def _check(session: Session, name: str, spec: FaultSpec, row: ResourceRow | None) -> list[Any]:
    del row
    transport = repository.find(session, "transport", name)
    if transport is None:
        known = ", ".join(repository.names(session, "transport")) or "none"
        return [ProblemItem(pointer="path/name", detail=f"no transport {name!r}", allowed=known)]
    active = any(getattr(spec, field) for field in (*PROBABILITIES, "delay_us", "partition"))
    if active and not transport.spec.get("allow_faults"):
        return [
            ProblemItem(
                pointer="/spec",
                detail=f"transport {name}: allow_faults is off",
                allowed="a transport with allow_faults: true",
            )
        ]
    return []


def _status(
    states: Sequence[applied.Seen], _world: World | None, rows: Sequence[Row]
) -> list[Status]:
    return [
        FaultStatus(
            **applied.applied(states, row),
            active=not is_over(row)
            and any(row.spec.get(f) for f in (*PROBABILITIES, "delay_us", "partition")),
        )
        for row in rows
    ]


KIND = Kind(
    name="fault",
    path="faults",
    rights="faults",
    spec=FaultSpec,
    resource=Fault,
    input=FaultInput,
    in_topology=True,
    order=5,
    check=_check,
    learn=applied.connected,
    status=_status,
)
