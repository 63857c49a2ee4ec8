"""Routes of Kafka clients and groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query

from tidecast_control.api.http import Ctx, DryRun, needs, problem_responses
from tidecast_control.api.idempotent import IdempotencyKey, once
from tidecast_control.kafka import service
from tidecast_control.kafka.schemas import (
    KafkaClientPage,
    KafkaGroupDetail,
    KafkaGroupPage,
    ResetRequest,
)
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.queries import Paged
from tidecast_control.operations.schemas import Operation

router = APIRouter(tags=["kafka"])
NO_ZERO = r"^[^\x00]*$"
GroupName = Annotated[str, Path(min_length=1, max_length=255, pattern=NO_ZERO)]
Node = Annotated[
    str,
    Query(max_length=200, pattern=NO_ZERO, description='Engine; "" = any that has it'),
]
ANSWERS = problem_responses(404, 409, 501, 502, 503, 504)


@router.get("/kafka/groups", responses=problem_responses(404, 503))
async def list_kafka_groups(
    ctx: Ctx,
    query: Paged,
    actor: Annotated[Actor, needs("subscriptions:read")],
    q: Annotated[str, Query(max_length=255, pattern=NO_ZERO, description="Part of a name")] = "",
    topic: Annotated[str, Query(max_length=200, pattern=NO_ZERO)] = "",
    state: Literal["", "Empty", "PreparingRebalance", "CompletingRebalance", "Stable"] = "",
    node: Node = "",
) -> KafkaGroupPage:
    """Consumer groups of Kafka clients at all engines, or one, by name; with their lag."""
    wanted = service.Listing(query, q, topic, state, node)
    return await service.groups(ctx.hub, wanted, actor)


@router.get("/kafka/groups/{name:path}", responses=ANSWERS)
async def get_kafka_group(
    ctx: Ctx,
    name: GroupName,
    actor: Annotated[Actor, needs("subscriptions:read")],
    node: Node = "",
) -> KafkaGroupDetail:
    """One group, with its members, and the offset, end and lag of each of its queues."""
    return await service.group(ctx.hub, name, node, actor)


@router.delete("/kafka/groups/{name:path}", responses=ANSWERS)
async def delete_kafka_group(
    ctx: Ctx,
    name: GroupName,
    actor: Annotated[Actor, needs("operations:write")],
    node: Node = "",
    dry_run: DryRun = False,
) -> Operation:
    """Delete a group without members, with its offsets. Cannot be undone."""
    wanted = service.Wanted("delete", name, node, {}, dry_run)
    return await service.change(ctx.db, ctx.hub, wanted, actor)


@router.post("/kafka/groups/{name:path}/reset", responses=ANSWERS)
async def reset_kafka_offsets(
    ctx: Ctx,
    name: GroupName,
    body: ResetRequest,
    actor: Annotated[Actor, needs("operations:write")],
    node: Node = "",
    key: IdempotencyKey = None,
    dry_run: DryRun = False,
) -> Operation:
    """Move the offsets of a group without members; `dry_run` reports the change."""
    request: dict[str, Any] = body.model_dump(mode="json", exclude_none=True)
    for field in ("offset", "time_ns"):
        if field in request:
            request[field] = int(request[field])
    wanted = service.Wanted("reset_offsets", name, node, request, dry_run)

    async def work() -> Operation:
        return await service.change(ctx.db, ctx.hub, wanted, actor)

    told = {"target": name, "node": node, "action": wanted.action, **body.model_dump(mode="json")}
    return await once(ctx.db, None if dry_run else key, actor, told, Operation, work)


@router.get("/kafka/clients", responses=problem_responses(404, 503))
async def list_kafka_clients(
    ctx: Ctx,
    query: Paged,
    actor: Annotated[Actor, needs("nodes:read")],
    node: Node = "",
) -> KafkaClientPage:
    """Connections of Kafka clients: software, address, key, bytes each way."""
    del actor
    return await service.clients(ctx.hub, query, node)
