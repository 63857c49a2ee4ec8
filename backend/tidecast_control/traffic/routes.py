"""Routes that switch a traffic generator on and off."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Path

from tidecast_control.api.http import Ctx, Db, DryRun, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.schemas import NAME_PATTERN, Plan
from tidecast_control.traffic import service
from tidecast_control.traffic.schemas import Traffic

router = APIRouter(tags=["traffic"])
Generator = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]


@router.post("/traffic/{name}/start", responses=problem_responses(404, 409))
def start_traffic(
    session: Db,
    ctx: Ctx,
    name: Generator,
    actor: Annotated[Actor, needs("traffic:write")],
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Traffic | Plan:
    """Switch example traffic on; made with its defaults when the topic has none yet."""
    after.add_task(ctx.changed)  # once it is committed
    return service.switch(session, name, actor, on=True, dry_run=dry_run)


@router.post("/traffic/{name}/stop", responses=problem_responses(404, 409))
def stop_traffic(
    session: Db,
    ctx: Ctx,
    name: Generator,
    actor: Annotated[Actor, needs("traffic:write")],
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Traffic | Plan:
    """Switch example traffic off."""
    after.add_task(ctx.changed)  # once it is committed
    return service.switch(session, name, actor, on=False, dry_run=dry_run)
