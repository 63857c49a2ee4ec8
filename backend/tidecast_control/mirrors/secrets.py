"""The write-only parts of mirrors: stored apart from the spec, which has them masked."""

from __future__ import annotations

import hashlib
import re
import secrets

from sqlalchemy import delete
from sqlmodel import Session, col, select

from tidecast_control.kit import repository
from tidecast_control.kit.problems import invalid
from tidecast_control.mirrors.models import MirrorSecretRow
from tidecast_control.mirrors.schemas import MirrorSpec
from tidecast_control.vault import Unopened, renew_rows, vault_of

MASK = re.compile(r"\*{8}-[0-9a-f]{12}")
"""Random: a digest of a short password would reveal it."""
BOUND = {
    "secret": ("servers", "user", "mechanism", "tls", "ca"),
    "token": ("gateway",),
}
"""By secret: the settings that decide which server gets it. When a setting changes, the secret must
be given again: else an editor of the mirror could send its password to another server."""


def seal(session: Session, mirror: str, spec: MirrorSpec, *, store: bool) -> MirrorSpec:
    """The spec with its secrets masked; ``store``: they are kept, and older ones are deleted.

    Raises `invalid_request` for a masked value that stands for no secret.
    """
    shown: dict[str, str] = {}
    for field, settings in BOUND.items():
        value, bound = getattr(spec, field), _bound(spec, field)
        row = session.get(MirrorSecretRow, (mirror, field))
        if not value:
            if row is not None and store:
                session.delete(row)
            continue
        if MASK.fullmatch(value):
            if row is None and _is_lost(session, mirror, field, value):
                shown[field] = value  # the mirror says so; it may be paused and deleted
                continue
            if row is None or row.shown != value:
                raise invalid(f"/spec/{field}", "it is masked, and none is stored", "the secret")
            if row.bound != bound:
                allowed = f"the secret, because one of these changed: {', '.join(settings)}"
                raise invalid(f"/spec/{field}", "it is masked", allowed)
        shown[field] = _shown(session, row, value, bound)
        if store and (row is None or row.shown != shown[field]):
            sealed = vault_of(session).seal(value, _place(mirror, field))
            made = MirrorSecretRow(
                mirror=mirror, field=field, shown=shown[field], bound=bound, value=sealed
            )
            session.merge(made)
    return spec.model_copy(update=shown)


def _is_lost(session: Session, mirror: str, field: str, value: str) -> bool:
    """The spec has this masked value, and its secret was given up with the vault's key."""
    found = repository.find(session, "mirror", mirror)
    return found is not None and found.spec.get(field) == value


def _shown(session: Session, row: MirrorSecretRow | None, value: str, bound: str) -> str:
    """The mask: that of before, when the secret is the same; so a repeat changes nothing."""
    if row is not None and row.bound == bound:
        if row.shown == value:
            return value
        try:
            if vault_of(session).open(row.value, _place(row.mirror, row.field)) == value:
                return row.shown
        except Unopened:
            pass  # it is replaced
    return f"********-{secrets.token_hex(6)}"


def reveal(session: Session, mirror: str, field: str, shown: str) -> str:
    """The secret behind a masked value; "" is itself. Raises Unopened, also when it is lost."""
    if not shown:
        return ""
    row = session.get(MirrorSecretRow, (mirror, field))
    if row is None or row.shown != shown:
        raise Unopened(f"{field}: it is lost, give it again")
    return vault_of(session).open(row.value, _place(mirror, field))


def forget(session: Session, mirror: str) -> None:
    """Delete the secrets of a mirror."""
    session.execute(delete(MirrorSecretRow).where(col(MirrorSecretRow.mirror) == mirror))


def reseal(session: Session, *, forget: bool) -> None:
    """Seal secrets with the vault's first key. Raises Unopened.

    ``forget``: a secret that no key opens is deleted. Its mirror then reports that it is lost.
    """
    rows = session.exec(select(MirrorSecretRow)).all()
    for row in renew_rows(
        session, rows, lambda row: {"value": _place(row.mirror, row.field)}, forget=forget
    ):
        session.delete(row)


def _bound(spec: MirrorSpec, field: str) -> str:
    parts = "\x00".join(str(getattr(spec, name)) for name in BOUND[field])
    return hashlib.sha256(parts.encode()).hexdigest()


def _place(mirror: str, field: str) -> str:
    return f"mirror_secrets/{mirror}/{field}"
