"""Routes of pipelines: start, stop, runs, logs; and recommendations of the capacity report."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Path, Query

from tidecast_control.api import resources
from tidecast_control.api.http import (
    Ctx,
    Db,
    DryRun,
    as_json,
    created_responses,
    needs,
    problem_responses,
)
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.schemas import LIMIT_DEFAULT, LIMIT_MAX, NAME_PATTERN, Page, Plan
from tidecast_control.pipelines import service
from tidecast_control.pipelines.schemas import Capacity, PipelineLog, PipelineRun
from tidecast_control.topics.schemas import Topic

router = APIRouter(tags=["pipelines"])
PipelineName = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]
RunId = Annotated[str, Path(max_length=36, pattern=r"^[0-9a-f-]{1,36}$")]
Reader = Annotated[Actor, needs("pipelines:read")]
Writer = Annotated[Actor, needs("pipelines:write")]


@router.post(
    "/pipelines/{name}/start",
    status_code=201,
    response_model=PipelineRun,
    responses=created_responses(404, 409),
)
def start_pipeline(
    ctx: Ctx,
    session: Db,
    name: PipelineName,
    actor: Writer,
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Any:
    """Run a pipeline now, or as soon as a service has room for it."""
    with resources.trial(session, dry_run=dry_run):
        run = service.start(session, name, ctx.runner.place, actor)
    if dry_run:
        return as_json(service.plan_of_run(run, None))
    after.add_task(ctx.runner.wake)  # once it is committed
    return run


@router.post("/pipelines/{name}/stop", responses=problem_responses(404, 409))
def stop_pipeline(
    ctx: Ctx,
    session: Db,
    name: PipelineName,
    actor: Writer,
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> PipelineRun | Plan:
    """End the run of a pipeline. The results so far are kept."""
    with resources.trial(session, dry_run=dry_run):
        run = service.stop(session, name, actor)
    if dry_run:
        return service.plan_of_run(run, "running" if run.started_at else "queued")
    after.add_task(ctx.runner.end, run.id)
    return run


@router.get("/pipelines/{name}/runs", responses=problem_responses(404))
def list_pipeline_runs(
    session: Db,
    name: PipelineName,
    actor: Reader,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
) -> Page[PipelineRun]:
    """Runs of a pipeline, newest first; the last hundred are kept."""
    return Page(items=service.runs(session, name, limit, actor))


@router.get("/pipelines/{name}/runs/{run_id}/log", responses=problem_responses(404))
def get_pipeline_log(
    ctx: Ctx, session: Db, name: PipelineName, run_id: RunId, actor: Reader
) -> PipelineLog:
    """The end of a run's output, also while it runs."""
    found = service.log_of(session, name, run_id, actor)
    return ctx.runner.log_of(run_id) or found


@router.get("/capacity", responses=problem_responses())
def get_capacity(session: Db, actor: Reader) -> Capacity:
    """The recommendations of the newest capacity report."""
    return service.capacity(session, actor)


@router.post(
    "/capacity/{name}/apply", response_model=Topic | Plan, responses=problem_responses(404, 409)
)
def apply_capacity(
    ctx: Ctx,
    session: Db,
    name: PipelineName,
    actor: Annotated[Actor, needs("topics:write")],
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Any:
    """Apply a recommendation of the report to its topic; `dry_run` reports the changes."""
    outcome = service.apply_advice(session, name, actor, dry_run=dry_run)
    if outcome.resource is None:
        return outcome.plan
    after.add_task(ctx.changed)  # once it is committed
    return outcome.resource
