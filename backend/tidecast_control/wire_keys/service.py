"""Epochs of sealed transports: state, rotation, and the secrets that engines get.

A new epoch is sent to all engines before it is used, and the one before it is taken for a while
longer: no message is lost. When a node is removed each transport gets an epoch that the node never
sees: its link has ended by then.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.kit import repository as kit
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.problems import ProblemError, not_found
from tidecast_control.kit.schemas import Plan
from tidecast_control.vault import renew_rows, vault_of
from tidecast_control.wire_keys import repository
from tidecast_control.wire_keys.models import WireEpochRow
from tidecast_control.wire_keys.schemas import WireEpoch, WireKeyState

ACTIVATE_S = 10.0
"""Engines get a new epoch within a second or two; absent engines get it when they connect."""
RETIRE_S = 20.0
"""How long packets of the epoch before are still taken."""
SECRET_BYTES = 32


def state(session: Session, name: str) -> WireKeyState:
    """The epochs of a transport. Raises `not_found`."""
    _transport(session, name)
    now = utc_now()
    rows = [row for row in repository.epochs(session, name) if not _is_over(row, now)]
    active = _active(rows, now)
    return WireKeyState(
        transport=name,
        epochs=[
            WireEpoch(
                epoch=row.epoch,
                created_at=row.created_at,
                activate_at=row.activate_at,
                retire_at=row.retire_at,
                state="waiting"
                if row.activate_at > now
                else "active"
                if row is active
                else "accepted",
            )
            for row in rows
        ],
    )


def rotate(session: Session, name: str, actor: Actor, *, at_once: bool, dry_run: bool) -> Plan:
    """The first or the next epoch. ``at_once``: all others end now: for a secret that leaked.

    Raises `not_found`; `conflict` for a transport without packets.
    """
    spec = _transport(session, name)
    if spec.get("kind") == "ipc":
        raise ProblemError(
            "conflict", f"transport {name} is of kind ipc: it has no packets to seal"
        )
    rows = repository.epochs(session, name, lock=not dry_run)
    newest = max((row.epoch for row in rows), default=0)
    before = {"epoch": newest} if rows else None
    if not dry_run:
        # engines that send no plain packets have nothing to wait for before their first secret
        _next(session, name, rows, at_once=at_once or (not rows and _is_required(spec)))
        audit.record(
            session,
            actor,
            "revoke" if at_once else "rotate",
            "wire_key",
            name,
            before,
            {"epoch": newest + 1},
        )
    return resources.plan_of("wire_key", name, before, {"epoch": newest + 1}, dry_run=dry_run)


def rotate_all(session: Session) -> None:
    """A node is out: each transport that has secrets gets one that the node does not know."""
    _next_of(session, {row.transport for row in repository.living(session, utc_now())})


def tend(session: Session, rotate_after_s: float) -> None:
    """Delete secrets of ended epochs; rotate secrets older than ``rotate_after_s``, 0: never."""
    now = utc_now()
    repository.forget_ended(session, now)
    if not rotate_after_s:
        return
    limit = now - timedelta(seconds=rotate_after_s)
    newest: dict[str, WireEpochRow] = {}
    for row in repository.living(session, now):
        newest[row.transport] = row
    _next_of(session, {name for name, row in newest.items() if row.created_at < limit})


def for_engines(session: Session) -> dict[str, list[dict[str, Any]]]:
    """By transport, as `wire-keys.json` of an engine has them. With secrets: for the link alone."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in repository.living(session, utc_now()):
        found.setdefault(row.transport, []).append(
            {
                "epoch": row.epoch,
                "secret_hex": vault_of(session).open(row.secret, _place(row.transport, row.epoch)),
                "activate_at_ns": _ns(row.activate_at),
                "retire_at_ns": _ns(row.retire_at) if row.retire_at else 0,
            }
        )
    return found


def reseal(session: Session, *, forget: bool) -> None:
    """Seal secrets with the vault's first key. Raises `vault.Unopened`.

    ``forget``: a transport with a secret that cannot be opened gets a new one, used at once.
    """
    lost = renew_rows(
        session,
        repository.all_(session),
        lambda row: {"secret": _place(row.transport, row.epoch)},
        forget=forget,
    )
    for name in dict.fromkeys(row.transport for row in lost):
        _next(session, name, repository.epochs(session, name, lock=True), at_once=True)


def _place(transport: str, epoch: int) -> str:
    return f"wire_epochs/{transport}/{epoch}"


def _next_of(session: Session, names: Iterable[str]) -> None:
    """Add an epoch of each; all are locked before the first locks the topology's clock."""
    locked = {name: repository.epochs(session, name, lock=True) for name in sorted(names)}
    for name, rows in locked.items():
        _next(session, name, rows, at_once=False)


def _next(session: Session, name: str, rows: list[WireEpochRow], *, at_once: bool) -> None:
    """Add an epoch. One that waited is replaced, and the one in use ends when the new one is."""
    now = utc_now()
    active = None if at_once else _active(rows, now)
    activate_at = now if at_once else now + timedelta(seconds=ACTIVATE_S)
    for row in rows:
        if row is not active:
            session.delete(row)
    if active is not None:
        active.retire_at = activate_at + timedelta(seconds=RETIRE_S)
        session.add(active)
    epoch = max((row.epoch for row in rows), default=0) + 1
    session.add(
        WireEpochRow(
            transport=name,
            epoch=epoch,
            secret=vault_of(session).seal(secrets.token_hex(SECRET_BYTES), _place(name, epoch)),
            created_at=now,
            activate_at=activate_at,
        )
    )
    session.flush()
    kit.announce(session, kit.next_version(session), "wire_key", name, None)


def _active(rows: list[WireEpochRow], now: datetime) -> WireEpochRow | None:
    """The epoch in use. Of one made in the future the service's clock was set back: it counts."""
    living = [row for row in rows if not _is_over(row, now)]
    begun = [row for row in living if row.activate_at <= now or row.created_at > now]
    return begun[-1] if begun else None


def _is_over(row: WireEpochRow, now: datetime) -> bool:
    return row.retire_at is not None and row.retire_at <= now


def _is_required(spec: dict[str, Any]) -> bool:
    return spec.get("secure") == "required"


def _transport(session: Session, name: str) -> dict[str, Any]:
    row = kit.find(session, "transport", name)
    if row is None:
        raise not_found("transport", name)
    return row.spec


def _ns(at: datetime) -> int:
    return int(at.timestamp() * 1e9)
