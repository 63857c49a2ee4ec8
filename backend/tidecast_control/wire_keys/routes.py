"""Routes of secrets of sealed transports. None answers with a secret."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Path, Query

from tidecast_control.api.http import Ctx, Db, DryRun, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.schemas import NAME_PATTERN, Plan
from tidecast_control.wire_keys import service
from tidecast_control.wire_keys.schemas import WireKeyState

router = APIRouter()
TransportName = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]


@router.get("/transports/{name}/keys", tags=["transports"], responses=problem_responses(404))
def get_wire_keys(
    session: Db, name: TransportName, actor: Annotated[Actor, needs("enrolments:read")]
) -> WireKeyState:
    """The epochs of a sealed transport, without their secrets."""
    del actor
    return service.state(session, name)


@router.post(
    "/transports/{name}/keys/rotate", tags=["transports"], responses=problem_responses(404, 409)
)
def rotate_wire_keys(
    session: Db,
    ctx: Ctx,
    name: TransportName,
    actor: Annotated[Actor, needs("enrolments:write")],
    after: BackgroundTasks,
    at_once: Annotated[bool, Query(description="All other epochs end now.")] = False,
    dry_run: DryRun = False,
) -> Plan:
    """Make the first or the next secret of a sealed transport, and send it to all engines."""
    plan = service.rotate(session, name, actor, at_once=at_once, dry_run=dry_run)
    after.add_task(ctx.changed)  # once it is committed
    return plan
