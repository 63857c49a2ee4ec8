"""Routes of mirrors besides those of every resource: pause, resume, progress."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Path

from tidecast_control.api import resources
from tidecast_control.api.http import Ctx, Db, DryRun, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.schemas import NAME_PATTERN
from tidecast_control.mirrors import service
from tidecast_control.mirrors.schemas import MirrorProgress
from tidecast_control.operations.schemas import Operation

router = APIRouter(tags=["mirrors"])
MirrorName = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]
Reader = Annotated[Actor, needs("mirrors:read")]
Writer = Annotated[Actor, needs("mirrors:write")]


@router.post("/mirrors/{name}/pause", responses=problem_responses(404))
def pause_mirror(
    ctx: Ctx,
    session: Db,
    name: MirrorName,
    actor: Writer,
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Operation:
    """Stop copying. The position stays."""
    done = service.pause(session, name, actor, paused=True, dry_run=dry_run)
    after.add_task(ctx.mirrors.wake)  # once it is committed
    return done


@router.post("/mirrors/{name}/resume", responses=problem_responses(404))
def resume_mirror(
    ctx: Ctx,
    session: Db,
    name: MirrorName,
    actor: Writer,
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Operation:
    """Resume at its position; a mirror that waits after an error tries again now."""
    done = service.pause(session, name, actor, paused=False, dry_run=dry_run)
    if not dry_run:
        after.add_task(ctx.mirrors.retry, name)
    return done


@router.get("/mirrors/{name}/progress", responses=problem_responses(404))
def get_mirror_progress(ctx: Ctx, session: Db, name: MirrorName, actor: Reader) -> MirrorProgress:
    """Rate and lag of the last ten minutes, each second, while this service ran it."""
    resources.shown_row(session, service.KIND, name, actor)
    return ctx.mirrors.progress_of(name)
