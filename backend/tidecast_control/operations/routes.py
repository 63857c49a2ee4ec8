"""Routes of operations: pause, resume, seek, re-drive, purge, and their history."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query

from tidecast_control.api.crud import typed
from tidecast_control.api.http import Ctx, DryRun, needs, problem_responses
from tidecast_control.api.idempotent import IdempotencyKey, once
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import invalid
from tidecast_control.kit.queries import Paged
from tidecast_control.kit.schemas import NAME_PATTERN, Page
from tidecast_control.messages.schemas import CancelRequest
from tidecast_control.operations import service
from tidecast_control.operations.schemas import Operation
from tidecast_control.queues.routes import QueueName
from tidecast_control.subscriptions.schemas import RedriveRequest, SeekRequest

router = APIRouter(tags=["operations"])
Target = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]
ANSWERS = problem_responses(404, 409, 501, 502, 503, 504)


@router.get("/operations", responses=problem_responses())
async def list_operations(
    ctx: Ctx,
    query: Paged,
    actor: Annotated[Actor, needs("operations:read")],
    name: Annotated[str, Query(max_length=210, pattern=r"^[^\x00]*$")] = "",
) -> Page[Operation]:
    """Operations, newest first."""
    return await service.listed(ctx.db, query, name, actor)


@router.get("/operations/{operation_id}", responses=problem_responses(404))
async def get_operation(
    ctx: Ctx,
    operation_id: Annotated[str, Path(max_length=36, pattern=r"^[0-9a-f-]{1,36}$")],
    actor: Annotated[Actor, needs("operations:read")],
) -> Operation:
    """One operation."""
    return await service.one(ctx.db, operation_id, actor)


Confirm = Annotated[
    str,
    Query(
        max_length=210,
        pattern=r"^[^\x00]*$",
        description="The name again, typed: needed unless it is a dry run",
    ),
]


@router.post("/queues/{name}/purge", responses=ANSWERS)
async def purge_queue(
    ctx: Ctx,
    name: QueueName,
    actor: Annotated[Actor, needs("queues:write")],
    confirm: Confirm = "",
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Operation:
    """Delete every message of a queue. Cannot be undone."""
    return await _purge(ctx, "queue", name, actor, confirm, key, dry_run)


@router.post("/topics/{name}/purge", responses=ANSWERS)
async def purge_topic(
    ctx: Ctx,
    name: Target,
    actor: Annotated[Actor, needs("queues:write")],
    confirm: Confirm = "",
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Operation:
    """Delete every message of every queue of a topic. Cannot be undone."""
    return await _purge(ctx, "topic", name, actor, confirm, key, dry_run)


async def _purge(
    ctx: Any, kind: str, name: str, actor: Actor, confirm: str, key: str | None, dry_run: bool
) -> Operation:
    if not dry_run and confirm != name:
        raise invalid("query/confirm", "a purge cannot be undone: type the name again", name)
    return await _run(ctx, service.Wanted("purge", kind, name, {}, dry_run), actor, key)


@router.post("/subscriptions/{name}/seek", responses=ANSWERS)
async def seek_subscription(
    ctx: Ctx,
    name: Target,
    body: SeekRequest,
    actor: Annotated[Actor, needs("operations:write")],
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Operation:
    """Move a subscription's position; `dry_run` counts messages delivered again or skipped."""
    request = body.model_dump(mode="json", exclude_none=True)
    wanted = service.Wanted("seek", "subscription", name, request, dry_run)
    return await _run(ctx, wanted, actor, key)


@router.post("/subscriptions/{name}/redrive", responses=ANSWERS)
async def redrive_subscription(
    ctx: Ctx,
    name: Target,
    actor: Annotated[Actor, needs("operations:write")],
    body: RedriveRequest | None = None,
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Operation:
    """Publish a subscription's dead letters again; `dry_run` counts them."""
    request = (body or RedriveRequest()).model_dump(mode="json", exclude_none=True)
    wanted = service.Wanted("redrive", "subscription", name, request, dry_run)
    return await _run(ctx, wanted, actor, key)


@router.post("/topics/{name}/scheduled/cancel", responses=ANSWERS)
async def cancel_scheduled(
    ctx: Ctx,
    name: Target,
    body: CancelRequest,
    actor: Annotated[Actor, needs("operations:write")],
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Operation:
    """Cancel messages before their delivery time: no consumer gets them.

    For each subscription the answer has the numbers of messages that are `cancelled`, and that
    are `too_late`: their time has come. Repeat the request while `next` is not null.
    """
    request = body.model_dump(mode="json", exclude_none=True)
    wanted = service.Wanted("cancel_scheduled", "topic", name, request, dry_run)
    return await _run(ctx, wanted, actor, key)


def _pause_route(kind: str, path: str, action: Literal["pause", "resume"], name_type: Any) -> None:
    async def route(ctx, name, actor, key=None, dry_run=False):  # type: ignore[no-untyped-def]
        wanted = service.Wanted(action, kind, name, {}, dry_run)
        return await _run(ctx, wanted, actor, key)

    what = "Pause the delivery of" if action == "pause" else "Resume the delivery of"
    endpoint = typed(
        f"{action}_{kind}",
        route,
        f"{what} a {kind}; fetched messages are kept.",
        ctx=Ctx,
        name=name_type,
        actor=Annotated[Actor, needs("operations:write")],
        key=IdempotencyKey,
        dry_run=DryRun,
    )
    router.add_api_route(
        f"/{path}/{{name}}/{action}",
        endpoint,
        methods=["POST"],
        response_model=Operation,
        responses=ANSWERS,
    )


for _action in ("pause", "resume"):
    _pause_route("topic", "topics", _action, Target)
    _pause_route("queue", "queues", _action, QueueName)
    _pause_route("subscription", "subscriptions", _action, Target)


async def _run(ctx: Any, wanted: service.Wanted, actor: Actor, key: str | None) -> Operation:
    async def work() -> Operation:
        return await service.run(ctx.db, ctx.hub, wanted, actor)

    request = {"target": wanted.name, "action": wanted.action, **wanted.request}
    used = None if wanted.dry_run else key  # a dry run is no first time
    return await once(ctx.db, used, actor, request, Operation, work)
