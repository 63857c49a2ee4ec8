"""Routes of nodes: enrolment, counters, flight recorder."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, BackgroundTasks, Path, Query, WebSocket
from fastapi.concurrency import run_in_threadpool

from tidecast.layout.levels import LEVEL_MAX
from tidecast_control.api.http import (
    Ctx,
    Db,
    DryRun,
    as_json,
    context_of,
    created_responses,
    needs,
    problem_responses,
)
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.queries import Paged
from tidecast_control.kit.schemas import NAME_PATTERN, Page, Plan
from tidecast_control.nodes import identity, levels, paths, records, rotation, service
from tidecast_control.nodes.schemas import (
    Cluster,
    ClusterPeers,
    Enrolment,
    EnrolmentInput,
    EnrolmentSecret,
    NodeCounters,
    NodeDrain,
    RecorderPage,
)

router = APIRouter()
NodeName = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]


@router.get(
    "/nodes/{name}/counters", tags=["nodes"], responses=problem_responses(404, 502, 503, 504)
)
async def get_counters(
    name: NodeName, ctx: Ctx, actor: Annotated[Actor, needs("nodes:read")]
) -> NodeCounters:
    """Every counter of a node, read now."""
    del actor
    await run_in_threadpool(service.must_exist, ctx.db, name)
    value = await ctx.hub.ask(name, "counters", {})
    return records.shown(name, "counters", lambda: records.shown_counters(value))


@router.get(
    "/nodes/{name}/recorder", tags=["nodes"], responses=problem_responses(404, 502, 503, 504)
)
async def get_recorder(
    name: NodeName,
    ctx: Ctx,
    actor: Annotated[Actor, needs("nodes:read")],
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    section: Annotated[str, Query(pattern="^(alert|low|high|all)$")] = "all",
) -> RecorderPage:
    """The newest records of a node's flight recorder."""
    del actor
    await run_in_threadpool(service.must_exist, ctx.db, name)
    value = await ctx.hub.ask(name, "recorder", {"limit": limit, "section": section})
    return records.shown(name, "recorder", lambda: records.shown_page(value))


@router.post(
    "/nodes/{name}/rotate", tags=["nodes"], responses=problem_responses(404, 409, 502, 503, 504)
)
async def rotate_credential(
    name: NodeName,
    ctx: Ctx,
    actor: Annotated[Actor, needs("enrolments:write")],
    dry_run: DryRun = False,
) -> Plan:
    """Give a connected engine a new credential; the one before ends."""
    return await rotation.rotate(ctx.db, ctx.hub, name, actor, dry_run=dry_run)


@router.post("/nodes/{name}/revoke", tags=["nodes"], responses=problem_responses(404))
def revoke_credential(
    session: Db,
    ctx: Ctx,
    name: NodeName,
    actor: Annotated[Actor, needs("enrolments:write")],
    after: BackgroundTasks,
    dry_run: DryRun = False,
) -> Plan:
    """End an engine's credential, link and leases; it has to be enrolled again."""
    plan = identity.revoke(session, name, actor, dry_run=dry_run)
    after.add_task(ctx.changed)  # once it is committed
    return plan


@router.get(
    "/cluster/nodes/{name}/drain", tags=["nodes"], responses=problem_responses(404, 502, 503, 504)
)
async def get_drain(
    name: NodeName, ctx: Ctx, actor: Annotated[Actor, needs("nodes:read")]
) -> NodeDrain:
    """The resources that a drain moves, and the rest; `PATCH /nodes/{name}` begins and ends it."""
    del actor
    spec = await run_in_threadpool(service.spec_of, ctx.db, name)
    value = await ctx.hub.ask(name, "drain", {})
    wanted = bool(spec.get("drained"))
    return records.shown(name, "drain", lambda: records.shown_drain(name, value, wanted=wanted))


@router.get("/cluster", tags=["nodes"], responses=problem_responses())
def get_cluster(session: Db, actor: Annotated[Actor, needs("nodes:read")]) -> Cluster:
    """The level that engines write, the levels that each reads, and the obstacles to the next."""
    del actor
    return levels.status(session)


@router.get("/cluster/peers", tags=["nodes"], responses=problem_responses())
async def get_peers(ctx: Ctx, actor: Annotated[Actor, needs("nodes:read")]) -> ClusterPeers:
    """The discovered peers of each connected engine, and when it heard each: asked of all now."""
    del actor
    return await paths.of_cluster(ctx.hub)


@router.post("/cluster/finalize", tags=["nodes"], responses=problem_responses(409))
def finalize_level(
    session: Db,
    ctx: Ctx,
    actor: Annotated[Actor, needs("enrolments:write")],
    after: BackgroundTasks,
    level: Annotated[int | None, Query(ge=1, le=LEVEL_MAX)] = None,
    dry_run: DryRun = False,
) -> Plan:
    """Raise the level that engines write, to the newest of this service; it is never lowered."""
    plan = levels.finalize(session, level, actor, dry_run=dry_run)
    after.add_task(ctx.changed)  # once it is committed
    return plan


@router.get("/enrolments", tags=["nodes"], responses=problem_responses())
def list_enrolments(
    session: Db, query: Paged, actor: Annotated[Actor, needs("enrolments:read")]
) -> Page[Enrolment]:
    """The tokens that let engines register, by name."""
    del actor
    return service.enrolments(session, query)


@router.post(
    "/enrolments",
    tags=["nodes"],
    status_code=201,
    response_model=EnrolmentSecret,
    responses=created_responses(409),
)
def create_enrolment(
    session: Db,
    body: EnrolmentInput,
    actor: Annotated[Actor, needs("enrolments:write")],
    dry_run: DryRun = False,
) -> Any:
    """A new token for engines; shown once."""
    made = service.enrol(session, body, actor, dry_run=dry_run)
    return as_json(made) if isinstance(made, Plan) else made


@router.delete("/enrolments/{name}", tags=["nodes"], responses=problem_responses(404))
def delete_enrolment(
    session: Db,
    name: NodeName,
    actor: Annotated[Actor, needs("enrolments:write")],
    dry_run: DryRun = False,
) -> Plan:
    """Revoke a token; engines that registered with it stay."""
    return service.revoke_enrolment(session, name, actor, dry_run=dry_run)


@router.websocket("/engine")
async def engine_link(websocket: WebSocket) -> None:
    """Engines connect here: see docs/CONTROL.md."""
    await context_of(websocket).hub.serve(websocket)
