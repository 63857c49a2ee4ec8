"""Nodes: status, enrolment, admission of engines."""

from __future__ import annotations

import secrets
import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session, col

from tidecast.layout.levels import LEVEL_MAX
from tidecast_control.api import resources
from tidecast_control.api.applied import drift_of
from tidecast_control.audit import service as audit
from tidecast_control.auth.service import digest
from tidecast_control.db import Database
from tidecast_control.kit import repository as resources_repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row, storable, utc_now
from tidecast_control.kit.paging import PageQuery, by_name
from tidecast_control.kit.problems import ProblemError, invalid, not_found
from tidecast_control.kit.schemas import Condition, Page, Plan, Status
from tidecast_control.live.world import World
from tidecast_control.nodes import identity, repository
from tidecast_control.nodes.hello import VERSION_MAX, number
from tidecast_control.nodes.models import EnrolmentRow, NodeStateRow
from tidecast_control.nodes.schemas import (
    Enrolment,
    EnrolmentInput,
    EnrolmentSecret,
    Node,
    NodeInput,
    NodeSpec,
    NodeStatus,
)

LOCAL = "local-engine"
TOKEN_PREFIX = "tce_"


def _learn(session: Session) -> tuple[dict[str, NodeStateRow], int]:
    return repository.states(session), resources_repository.clock(session)[0]


def _status(
    known: tuple[dict[str, NodeStateRow], int], world: World | None, rows: Sequence[Row]
) -> list[Status]:
    states, version = known
    keeps: dict[str, set[str]] = defaultdict(set)
    for queue in world.queues.values() if world is not None else ():
        if queue["owner_epoch"] != "0":
            keeps[queue["node"]].add(queue["topic"])
    return [_status_of(row, states.get(row.name), version, sorted(keeps[row.name])) for row in rows]


def _status_of(row: Row, state: NodeStateRow | None, version: int, keeps: list[str]) -> NodeStatus:
    if state is None:
        return NodeStatus(state="never", wanted_version=version)
    drift = state.connected and bool(drift_of(state, version))
    conditions = []
    if drift:
        conditions.append(Condition(type="Drift", status=True, message=drift_of(state, version)))
    return NodeStatus(
        observed_generation=row.generation if state.connected else 0,
        drift=drift,
        conditions=conditions,
        state="up" if state.connected else "down",
        node_id=state.node_id,
        incarnation=state.incarnation,
        version=state.software,
        host=state.host,
        address=state.address,
        topology_version=state.applied_version,
        wanted_version=version,
        connected_at=state.connected_at,
        seen_at=state.seen_at,
        keeps=keeps,
        restart_needed=[str(r) for r in state.restart_needed],
        errors={str(k): str(v) for k, v in state.errors.items()}
        | ({"level": state.refused} if state.refused else {}),
    )


def _uses(session: Session, row: ResourceRow) -> list[str]:
    state = repository.state(session, row.name)
    return ["its engine is connected: stop it first"] if state and state.connected else []


KIND = Kind(
    name="node",
    path="nodes",
    rights="nodes",
    spec=NodeSpec,
    resource=Node,
    input=NodeInput,
    in_topology=True,
    order=8,
    impacts={"quarantined": "live", "drained": "live", "site": "none"},
    uses=_uses,
    learn=_learn,
    status=_status,
    changed=identity.changed,
)


def must_exist(db: Database, name: str) -> None:
    """Raises `not_found`: no engine of that name ever registered."""
    spec_of(db, name)


def spec_of(db: Database, name: str) -> dict[str, Any]:
    """The wanted state of a node. Raises `not_found`: no engine of that name ever registered."""
    with db.begin() as session:
        row = resources_repository.find(session, "node", name)
        if row is None:
            raise not_found("node", name)
        return dict(row.spec)


# --- enrolment ------------------------------------------------------------------------------------


def enrolments(session: Session, query: PageQuery) -> Page[Enrolment]:
    """Tokens by name, without their secrets."""
    rows = repository.enrolments()
    return by_name(session, rows, col(EnrolmentRow.name), query, Enrolment.model_validate)


def enrol(
    session: Session, body: EnrolmentInput, actor: Actor, *, dry_run: bool = False
) -> EnrolmentSecret | Plan:
    """A new token; its secret is shown once. Raises `conflict`, `denied`."""
    actor.need_to_grant("an enrolment", "admin", None)  # engines get every topic
    if repository.enrolment_by_name(session, body.name) is not None:
        raise ProblemError("conflict", f"an enrolment {body.name!r} exists already")
    if body.replace and not body.node:
        raise invalid("/replace", "true: name the node to replace", "with `node`")
    if dry_run:
        return resources.plan_of("enrolment", body.name, None, body.model_dump(), dry_run=True)
    token = TOKEN_PREFIX + secrets.token_urlsafe(32)
    row = EnrolmentRow(
        id=str(uuid.uuid4()),
        name=body.name,
        digest=digest(token),
        uses_max=body.uses_max,
        node=body.node,
        replace=body.replace,
        created_by=actor.name,
        expires_at=utc_now() + timedelta(seconds=body.expires_s),
    )
    session.add(row)
    session.flush()
    audit.record(session, actor, "create", "enrolment", body.name, None, body.model_dump())
    return EnrolmentSecret(**Enrolment.model_validate(row).model_dump(), token=token)


def enrol_local(session: Session, token: str) -> None:
    """Create a token for the engine beside the service; the token of the run before ends.

    It is stored beside Postgres' files: a reader of these files owns the platform, so the token may
    replace a credential.
    """
    old = repository.enrolment_by_name(session, LOCAL)
    if old is not None:
        session.delete(old)
        session.flush()
    expires_at = utc_now() + timedelta(hours=1)
    session.add(
        EnrolmentRow(
            id=str(uuid.uuid4()),
            name=LOCAL,
            digest=digest(token),
            created_by="service",
            replace=True,
            expires_at=expires_at,
        )
    )


def revoke_enrolment(session: Session, name: str, actor: Actor, *, dry_run: bool = False) -> Plan:
    """Delete a token; engines that registered with it stay."""
    row = repository.enrolment_by_name(session, name)
    if row is None:
        raise not_found("enrolment", name)
    known = Enrolment.model_validate(row).model_dump(mode="json", exclude={"id", "name"})
    if not dry_run:
        session.delete(row)
        audit.record(session, actor, "delete", "enrolment", name)
    return resources.plan_of("enrolment", name, known, None, dry_run=dry_run)


def holds_secret(session: Session, secret: str) -> bool:
    """Whether a node has this credential, or it is an enrolment token that may be used."""
    if secret.startswith(identity.CREDENTIAL_PREFIX):
        return repository.state_by_credential(session, digest(secret)) is not None
    token = repository.enrolment_by_digest(session, digest(secret))
    return token is not None and token.expires_at >= utc_now() and token.uses < token.uses_max


def report(session: Session, name: str, since: datetime | None, said: dict[str, Any]) -> None:
    """Store an engine's report of the topology that it applied; see `gone` for ``since``.

    Raises `invalid_request` for a bad field.
    """
    state = repository.state(session, name, lock=True)
    if state is None or state.connected_at != since:
        return
    state.level = number({"level": state.level} | said, "level", 1, LEVEL_MAX)
    state.applied_version = number(said, "version", 0, VERSION_MAX)
    state.errors = {storable(str(k)): storable(str(v)[:1000]) for k, v in said["errors"].items()}
    state.restart_needed = [storable(str(r)) for r in said["restart_needed"]]
    state.seen_at = utc_now()
    session.add(state)


def gone(session: Session, name: str, since: datetime | None) -> None:
    """The connection of an engine that began at ``since`` ended.

    The engine may have connected again before this is noted: the newer connection stays.
    """
    state = repository.state(session, name, lock=True)
    if state is not None and state.connected_at == since:
        state.connected, state.seen_at = False, utc_now()
        session.add(state)
