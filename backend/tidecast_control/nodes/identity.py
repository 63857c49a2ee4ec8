"""Identities of engines: the credentials that let an engine in, their names, and their ends.

An engine registers once with an enrolment token and gets a credential of its own. It loses it when
its node is deleted or quarantined, when the credential is revoked, and when it is rotated: then its
link ends, and others may have its leases.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlmodel import Session

from tidecast_control.api import resources
from tidecast_control.audit import service as audit
from tidecast_control.auth.service import digest
from tidecast_control.kit import repository as resources_repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import ResourceRow, utc_now
from tidecast_control.kit.problems import ProblemError, not_found
from tidecast_control.kit.schemas import Plan
from tidecast_control.leases import service as leases
from tidecast_control.nodes import levels, repository
from tidecast_control.nodes.hello import Hello
from tidecast_control.nodes.models import NodeStateRow
from tidecast_control.nodes.schemas import NodeSpec
from tidecast_control.wire_keys import service as wire_keys

CREDENTIAL_PREFIX = "tcn_"


@dataclass(frozen=True)
class Admitted:
    """An engine that was let in.

    ``issued``: its new credential, if it has one. ``since``: when its connection began: no
    other connection of the node has this time. None: the engine only asks for the transports.
    """

    name: str
    digest: str
    issued: str | None
    since: datetime | None


def admit(session: Session, secret: str, hello: Hello, address: str) -> Admitted:
    """Let an engine in by its credential, or by an enrolment token.

    Raises `unauthenticated`, `denied` (quarantined), `conflict` (another node has the name, or the
    engine does not read the cluster's level).
    """
    name = hello.node
    state = repository.state(session, name, lock=True)
    resource = resources_repository.find(session, "node", name)
    if resource is not None and resource.spec.get("quarantined"):
        raise ProblemError("denied", f"node {name} is quarantined: an admin may end that")
    issued, shown = None, digest(secret)
    if secret.startswith(CREDENTIAL_PREFIX):
        if state is None or not _fits(state, shown):
            raise ProblemError("unauthenticated", "unknown credential: enrol this engine again")
        if shown == state.credential_next:
            state.credential, state.credential_next = shown, ""
    else:
        _use_token(session, secret, name, state)
        issued = CREDENTIAL_PREFIX + secrets.token_urlsafe(32)
        shown = digest(issued)
        state = state or NodeStateRow(name=name)
        state.credential, state.credential_next = shown, ""
        actor = Actor(kind="engine", name=name, role="viewer", address=address)
        audit.record(session, actor, "register", "node", name, None, {"address": address})
    reads = levels.check(session, name, hello)
    state.level_min, state.level_max, state.refused = reads.low, reads.high, ""
    since = _note_hello(state, hello, address)
    session.add(state)
    if resource is None:
        session.add(
            ResourceRow(
                uid=str(uuid.uuid4()),
                kind="node",
                name=name,
                spec=NodeSpec().model_dump(),
                updated_by=name,
            )
        )
    return Admitted(name, shown, issued, since)


def _fits(state: NodeStateRow, shown: str) -> bool:
    present = bool(state.credential) and secrets.compare_digest(state.credential, shown)
    following = bool(state.credential_next) and secrets.compare_digest(state.credential_next, shown)
    return present or following


def _use_token(session: Session, secret: str, name: str, state: NodeStateRow | None) -> None:
    """Count a use of an enrolment token. Raises `unauthenticated`, `denied`, `conflict`."""
    token = repository.enrolment_by_digest(session, digest(secret))
    if token is None or token.expires_at < utc_now() or token.uses >= token.uses_max:
        raise ProblemError("unauthenticated", "the enrolment token is unknown, expired or used up")
    if token.node and token.node != name:
        raise ProblemError("denied", f"the enrolment token is for node {token.node}, not {name}")
    if state is not None and state.connected:
        raise ProblemError("conflict", f"a node {name!r} is connected already")
    if state is not None and not token.replace:
        raise ProblemError(
            "conflict",
            f"a node {name!r} has registered before: its engine shows its credential; "
            "to give the name to another engine make a token with this node and `replace`, or "
            "delete the node",
        )
    token.uses += 1
    session.add(token)


def _note_hello(state: NodeStateRow, hello: Hello, address: str) -> datetime | None:
    """Note a connection; when it began. None: an engine that only asks for the transports."""
    if hello.fetch:
        return None
    state.connected, state.address = True, address
    state.node_id, state.incarnation = hello.node_id, hello.incarnation
    state.software, state.host = hello.version, hello.host
    state.applied_version, state.addresses = hello.applied_version, hello.addresses
    state.connected_at = state.seen_at = utc_now()
    return state.connected_at


# --- ending -------------------------------------------------------------------------------------


def dismissal(session: Session, name: str, shown: Callable[[], str]) -> str | None:
    """Why an engine may stay no longer; None: it may.

    ``shown``: reads the digest of the engine's credential. It is read before and after the row,
    since a rotation may end in between: one of the two digests fits the row then.
    """
    before = shown()
    state = repository.state(session, name)
    resource = resources_repository.find(session, "node", name)
    if state is None or resource is None:
        return f"node {name} was deleted"
    if resource.spec.get("quarantined"):
        return f"node {name} is quarantined"
    if _fits(state, before) or _fits(state, shown()):
        return None
    return f"the credential of node {name} was revoked"


def changed(session: Session, name: str, spec: Mapping[str, Any] | None) -> None:
    """A node's resource was written, or deleted (None): identity and leases follow."""
    if spec is None:
        state = repository.state(session, name, lock=True)
        if state is not None:
            session.delete(state)
    if spec is None or spec.get("quarantined"):
        leases.end(session, name, "its node is quarantined" if spec else "its node was deleted")
        wire_keys.rotate_all(session)


def revoke(session: Session, name: str, actor: Actor, *, dry_run: bool) -> Plan:
    """End a node's credential: its engine has to be enrolled again. Raises `not_found`."""
    state = _registered(session, name)
    known = bool(state.credential or state.credential_next)
    if known and not dry_run:
        state.credential = state.credential_next = ""
        session.add(state)
        leases.end(session, name, "the credential of its node was revoked")
        wire_keys.rotate_all(session)
        resources_repository.announce(
            session, resources_repository.next_version(session), "node", name, None
        )
        audit.record(session, actor, "revoke", "node", name)
    before = {"credential": "issued" if known else "revoked"}
    return resources.plan_of("node", name, before, {"credential": "revoked"}, dry_run=dry_run)


def begin_rotation(session: Session, name: str) -> str:
    """A new credential, which is let in beside the present one until `end_rotation`."""
    state = _registered(session, name)
    if not state.credential:
        raise ProblemError("conflict", f"node {name} has no credential: enrol its engine again")
    fresh = CREDENTIAL_PREFIX + secrets.token_urlsafe(32)
    state.credential_next = digest(fresh)
    session.add(state)
    return fresh


def end_rotation(session: Session, name: str, fresh: str, actor: Actor) -> None:
    """The engine has stored the new credential: the one before ends."""
    state = _registered(session, name)
    if digest(fresh) not in (state.credential, state.credential_next):
        raise ProblemError("conflict", f"the credential of node {name} was changed meanwhile")
    state.credential, state.credential_next = digest(fresh), ""
    session.add(state)
    audit.record(session, actor, "rotate", "node", name)


def _registered(session: Session, name: str) -> NodeStateRow:
    state = repository.state(session, name, lock=True)
    if state is None:
        raise not_found("node", name)
    return state
