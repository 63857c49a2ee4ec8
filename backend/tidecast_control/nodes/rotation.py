"""Rotating the credential of a connected engine."""

from __future__ import annotations

import asyncio

from tidecast_control.api import resources
from tidecast_control.auth.service import digest
from tidecast_control.db import Database
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import Plan
from tidecast_control.link.hub import Hub
from tidecast_control.nodes import identity, service


async def rotate(db: Database, hub: Hub, name: str, actor: Actor, *, dry_run: bool) -> Plan:
    """The new credential is stored here, then by the engine; then the one before ends.

    Until the engine has said that it stored it both are let in, so a lost answer locks no engine
    out. One rotation of an engine at a time: of two the engine could keep the credential that this
    service has forgotten. Raises `not_found`, `conflict`, `no_node`, `node_timeout`.
    """
    await asyncio.to_thread(service.must_exist, db, name)
    engine = hub.engine(name)
    plan = resources.plan_of(
        "node", name, {"credential": "issued"}, {"credential": "rotated"}, dry_run=dry_run
    )
    if dry_run:
        return plan

    def begin() -> str:
        with db.begin() as session:
            return identity.begin_rotation(session, name)

    def end() -> None:
        with db.begin() as session:
            identity.end_rotation(session, name, fresh, actor)

    if engine.rotating:
        raise ProblemError("conflict", f"the credential of node {name} is being rotated")
    engine.rotating = True
    try:
        fresh = await asyncio.to_thread(begin)
        await hub.ask(name, "credential", {"credential": fresh})
        engine.digest = digest(fresh)
        await asyncio.to_thread(end)
    finally:
        engine.rotating = False
    return plan
