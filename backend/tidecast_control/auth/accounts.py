"""Users and keys: making, changing, revoking."""

from __future__ import annotations

import re
import secrets
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
from sqlmodel import Session, col, select

from tidecast.access import RIGHTS, ClientKey
from tidecast_control.addresses import network_of
from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.auth import repository, service
from tidecast_control.auth.models import SEEDED, KeyRow, UserRow
from tidecast_control.auth.schemas import (
    Key,
    KeyInput,
    KeySecret,
    PasswordChange,
    TokenCheck,
    User,
    UserInput,
)
from tidecast_control.auth.throttle import Throttle
from tidecast_control.kit import repository as kit_repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.paging import PageQuery, by_name
from tidecast_control.kit.problems import ProblemError, invalid, not_found
from tidecast_control.kit.rights import EVERY_TOPIC
from tidecast_control.kit.schemas import NAME_PATTERN, Page, Plan
from tidecast_control.statements import Statements

PREFIX_CHARS = 12


def users(session: Session, query: PageQuery) -> Page[User]:
    """Users by name."""
    rows = select(UserRow)
    return by_name(session, rows, col(UserRow.name), query, User.model_validate)


def user(session: Session, name: str) -> User:
    """One user. Raises `not_found`."""
    row = repository.user(session, name)
    if row is None:
        raise not_found("user", name)
    return User.model_validate(row)


def etag(user: User | UserRow) -> str:
    """The strong ETag of a user."""
    return f'"{user.generation}"'


def _public(row: UserRow) -> dict[str, object]:
    return {
        "role": row.role,
        "display_name": row.display_name,
        "disabled": row.disabled,
        "must_change_password": row.must_change_password,
    }


def put_user(
    session: Session,
    name: str,
    body: UserInput,
    actor: Actor,
    precondition: Callable[[str | None], None],
    *,
    dry_run: bool = False,
) -> tuple[User, Plan]:
    """The user, and the changes. Raises `conflict` when no admin would be left."""
    actor.need_to_grant("a user", body.role, None)
    with resources.trial(session, dry_run=dry_run):
        return _put_user(session, name, body, actor, precondition, dry_run=dry_run)


def _put_user(
    session: Session,
    name: str,
    body: UserInput,
    actor: Actor,
    precondition: Callable[[str | None], None],
    *,
    dry_run: bool,
) -> tuple[User, Plan]:
    repository.lock_with_admins(session, name)
    row = repository.user(session, name, lock=True)
    precondition(etag(row) if row is not None else None)
    before = _public(row) if row is not None else None
    created = row is None
    if row is None:
        if body.password is None:
            raise invalid("/password", "missing", "10..256 characters for a new user")
        row = UserRow(name=name, role=body.role, password_hash="")
    else:
        if row.role == "admin" and (body.role != "admin" or body.disabled):
            _keep_an_admin(session, row)
        row.generation += 1
    row.role, row.display_name, row.disabled = body.role, body.display_name, body.disabled
    if body.must_change_password is not None:
        row.must_change_password = body.must_change_password
    row.updated_at = utc_now()
    if body.password is not None:
        row.password_hash = service.hash_password(body.password)
    session.add(row)
    session.flush()
    if not created and (body.password is not None or body.disabled):
        repository.end_sessions(session, name, keep=actor.session_id)
    after = _public(row) | ({"password": "changed"} if body.password is not None else {})
    audit.record(session, actor, "create" if created else "update", "user", name, before, after)
    return User.model_validate(row), resources.plan_of("user", name, before, after, dry_run=dry_run)


def _keep_an_admin(session: Session, row: UserRow) -> None:
    if not row.disabled and repository.admins(session) <= 1:
        raise ProblemError("conflict", f"{row.name} is the last admin")


def delete_user(session: Session, name: str, actor: Actor, *, dry_run: bool = False) -> Plan:
    """Delete a user. Raises `conflict` for the last admin and for oneself."""
    repository.lock_with_admins(session, name)
    row = repository.user(session, name, lock=True)
    if row is None:
        raise not_found("user", name)
    if actor.kind == "user" and actor.name == name:
        raise ProblemError("conflict", "a user cannot delete the account of this session")
    if row.role == "admin":
        _keep_an_admin(session, row)
    plan = resources.plan_of("user", name, _public(row), None, dry_run=dry_run)
    if not dry_run:
        audit.record(session, actor, "delete", "user", name, _public(row), None)
        session.delete(row)
    return plan


def change_password(
    session: Session, throttle: Throttle, actor: Actor, body: PasswordChange
) -> tuple[str, Actor]:
    """Change one's own password: all sessions end, (cookie value, actor) is of a new one.

    Raises `denied` when the old one is wrong.
    """
    if actor.kind != "user":
        raise ProblemError("denied", "a key has no password")
    network = network_of(actor.address)
    wait_s = throttle.attempt(actor.name, network)
    if wait_s > 0:
        raise ProblemError("throttled", "too many wrong passwords", retry_after_s=wait_s)
    row = repository.user(session, actor.name, lock=True)
    if row is None or not service.password_fits(row.password_hash, body.old):
        raise ProblemError("denied", "the old password is wrong")
    throttle.succeeded(actor.name, network)
    if body.new == body.old:
        raise invalid("/new", "the same as the old one", "another password")
    row.password_hash = service.hash_password(body.new)
    row.must_change_password, row.updated_at = False, utc_now()
    row.generation += 1
    session.add(row)
    repository.end_sessions(session, actor.name)
    audit.record(session, actor, "password", "user", actor.name)
    ends_at = actor.expires_at or utc_now()
    return service.begin_session(session, row, actor.address, ends_at)


# --- keys -----------------------------------------------------------------------------------------


def keys(session: Session, query: PageQuery) -> Page[Key]:
    """Keys by name, revoked ones too."""
    return by_name(session, select(KeyRow), col(KeyRow.name), query, Key.model_validate)


def key(session: Session, name: str) -> Key:
    """One key. Raises `not_found`."""
    row = repository.key_by_name(session, name)
    if row is None:
        raise not_found("key", name)
    return Key.model_validate(row)


def create_key(
    session: Session, body: KeyInput, actor: Actor, *, dry_run: bool = False
) -> KeySecret | Plan:
    """A new key; its secret is shown once. Raises `conflict`, `invalid_request`, `denied`."""
    _check_scopes(body)
    actor.need_to_grant("a key", body.role, body.scopes)
    if repository.key_by_name(session, body.name) is not None:
        raise ProblemError("conflict", f"a key {body.name!r} exists already, perhaps revoked")
    values = body.model_dump(mode="json")
    if dry_run:
        return resources.plan_of("key", body.name, None, values, dry_run=True)
    secret = service.KEY_PREFIX + secrets.token_urlsafe(32)
    now = utc_now()
    row = KeyRow(
        id=str(uuid.uuid4()),
        name=body.name,
        prefix=secret[:PREFIX_CHARS],
        digest=service.digest(secret),
        role=body.role,
        scopes=[scope.model_dump(mode="json") for scope in body.scopes],
        description=body.description,
        created_by=actor.name,
        expires_at=now + timedelta(seconds=body.expires_s) if body.expires_s else None,
    )
    session.add(row)
    session.flush()
    _notify_engines(session, body.name)
    audit.record(session, actor, "create", "key", body.name, None, values)
    return KeySecret(**Key.model_validate(row).model_dump(), secret=secret)


def _check_scopes(body: KeyInput) -> None:
    """Raise `invalid_request` for scopes that would not limit the key, or not allow a right."""
    if body.role == "admin" and body.scopes:
        raise invalid(
            "/scopes",
            "an admin may do everything: scopes cannot limit the key",
            "no scopes with the role admin; scopes with the roles operator and viewer",
        )
    for i, scope in enumerate(body.scopes):
        if body.role == "viewer" and "manage" in scope.rights:
            raise invalid(
                f"/scopes/{i}/rights",
                f"manage on {scope.pattern}: a viewer changes nothing",
                "publish, subscribe, read_payloads; manage with the role operator",
            )


def seed_key(session: Session, key: ClientKey) -> None:
    """Take over a key of a topology file: its rights on topics, none of the service's own."""
    name = key.name if re.fullmatch(NAME_PATTERN, key.name) else key.id
    if repository.key_by_name(session, name) is not None:
        return
    session.add(
        KeyRow(
            id=key.id,
            name=name,
            prefix=SEEDED,
            digest=key.sha256,
            role="viewer",
            scopes=msgspec.to_builtins(key.scopes),
            description="From the topology file.",
            created_by="service",
            expires_at=key.expires,
        )
    )
    session.flush()
    _notify_engines(session, name)


def revoke_key(session: Session, name: str, actor: Actor, *, dry_run: bool = False) -> Plan:
    """Revoke a key; a repeat changes nothing. It stays listed."""
    row = repository.key_by_name(session, name)
    if row is None:
        raise not_found("key", name)
    if row.revoked_at is not None:
        return resources.plan_of("key", name, {}, {}, dry_run=dry_run)
    known = Key.model_validate(row).model_dump(mode="json", exclude={"id", "name", "revoked_at"})
    if not dry_run:
        row.revoked_at = utc_now()
        session.add(row)
        _notify_engines(session, name)
        audit.record(session, actor, "revoke", "key", name)
    return resources.plan_of("key", name, known, None, dry_run=dry_run)


def scopes_at_engines(role: str, scopes: list[Any]) -> list[dict[str, Any]]:
    """The scopes that engines check: a role bounds them there as it does here."""
    if role == "admin" and not scopes:
        return [{"pattern": EVERY_TOPIC, "rights": list(RIGHTS)}]
    if role != "viewer":
        return scopes
    rights = [[r for r in scope["rights"] if r != "manage"] for scope in scopes]
    return [s | {"rights": r} for s, r in zip(scopes, rights, strict=True) if r]


def _notify_engines(session: Session, name: str) -> None:
    """Engines check the tokens of clients themselves: they are notified when keys change."""
    version = kit_repository.next_version(session)
    kit_repository.announce(session, version, "key", name, None)


async def check_token(statements: Statements, token: str) -> TokenCheck:
    """The rights of a client's token."""
    try:
        actor = await service.actor_of_key(statements, token, "", "")
    except ProblemError:
        return TokenCheck(valid=False)
    return TokenCheck(
        valid=True,
        name=actor.name,
        role=actor.role,
        scopes=list(actor.scopes),
        expires_at=actor.expires_at,
    )
