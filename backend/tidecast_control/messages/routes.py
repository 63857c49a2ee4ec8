"""Routes of messages: browse and publish."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query

from tidecast.queues.filters.where import TEXT_CHARS_MAX
from tidecast_control.api.http import (
    Ctx,
    DryRun,
    as_json,
    created_responses,
    needs,
    problem_responses,
)
from tidecast_control.api.idempotent import IdempotencyKey, once
from tidecast_control.kit import rights
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import invalid
from tidecast_control.kit.queries import CURSOR
from tidecast_control.kit.schemas import NAME_PATTERN
from tidecast_control.messages import scheduled as listed
from tidecast_control.messages import service
from tidecast_control.messages.schemas import BrowsePage, Published, PublishInput, ScheduledPage

router = APIRouter(tags=["messages"])
TopicName = Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)]
Digits = r"^\d{1,19}$"
NO_ZERO = r"^[^\x00]*$"


@router.get("/topics/{name}/messages", responses=problem_responses(404, 501, 502, 503, 504))
async def browse_messages(
    ctx: Ctx,
    name: TopicName,
    actor: Annotated[Actor, needs("topics:read")],
    start: Literal["earliest", "latest", "token", "time"] = "earliest",
    queue: Annotated[int | None, Query(ge=0, le=1023)] = None,
    token: Annotated[str | None, Query(pattern=Digits)] = None,
    time_ns: Annotated[str | None, Query(pattern=Digits)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    wait_ms: Annotated[int, Query(ge=0, le=5000)] = 500,
    q: Annotated[str, Query(max_length=200, description="Bytes that key or payload contain")] = "",
    node: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Search this node alone")
    ] = "",
    cursor: Annotated[
        str | None,
        Query(
            max_length=40_000,
            pattern=CURSOR,
            description="`next_cursor` or `previous_cursor`, instead of a start",
        ),
    ] = None,
) -> BrowsePage:
    """Messages of a topic, of all its queues on all engines, merged by time; none is consumed.

    Payloads are withheld without the right. `missing`: queues and nodes not searched.
    """
    for kind, field, value in (("token", "token", token), ("time", "time_ns", time_ns)):
        if start == kind and value is None and cursor is None:
            raise invalid(f"query/{field}", f"missing: start is {start}", "a whole number")
    wanted = service.Browse(name, start, queue, token, time_ns, limit, wait_ms, q, node, cursor)
    return await service.browse(ctx.db, ctx.hub, wanted, actor)


@router.get("/topics/{name}/scheduled", responses=problem_responses(404, 409, 501, 502, 503, 504))
async def list_scheduled(
    ctx: Ctx,
    name: TopicName,
    actor: Annotated[Actor, needs("topics:read")],
    subscription: Annotated[
        str,
        Query(
            max_length=200,
            pattern=NO_ZERO,
            description="Only messages that wait for it",
        ),
    ] = "",
    key: Annotated[str, Query(max_length=200, pattern=NO_ZERO)] = "",
    where: Annotated[
        str, Query(max_length=TEXT_CHARS_MAX, pattern=NO_ZERO, description="A filter")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[
        str | None,
        Query(max_length=40_000, pattern=CURSOR, description="`next_cursor` of the page before"),
    ] = None,
) -> ScheduledPage:
    """Messages that wait for their delivery time: pages by queue and offset, each soonest first.

    Payloads are withheld without the right. `POST /topics/{name}/scheduled/cancel` cancels them.
    """
    chosen = {"subscription": subscription, "key": key, "where": where, "limit": limit}
    return await listed.scheduled(ctx.db, ctx.hub, name, chosen, cursor, actor)


@router.post(
    "/topics/{name}/messages",
    status_code=201,
    response_model=Published,
    responses=created_responses(404, 409, 502, 503, 504),
)
async def publish_message(
    ctx: Ctx,
    name: TopicName,
    body: PublishInput,
    actor: Annotated[Actor, needs("messages:publish")],
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Any:
    """Publish one message."""
    actor.need("messages:publish", *rights.to_publish(name))
    if dry_run:
        return as_json(await service.planned(ctx.db, ctx.hub, name, body))

    async def work() -> Published:
        return await service.publish(ctx.db, ctx.hub, name, body, actor)

    request = {"topic": name, **body.model_dump(mode="json")}
    return await once(ctx.db, key, actor, request, Published, work)
