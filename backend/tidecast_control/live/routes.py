"""Routes of the live feed: the websocket, and each channel once."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, WebSocket

from tidecast_control.api.http import Ctx, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.schemas import NAME_PATTERN
from tidecast_control.live import socket
from tidecast_control.live.access import need_channel
from tidecast_control.live.schemas import (
    Flow,
    Frame,
    KafkaLive,
    KeysLive,
    MessagesLive,
    MovesLive,
    NodesLive,
    Overview,
    QueuesLive,
    RecorderLive,
    Reliability,
    SubscriptionsLive,
    TopicDetail,
    TopicsLive,
    Watch,
)

router = APIRouter(tags=["live"])
READER = Annotated[Actor, needs("live:read")]
ANSWERS = problem_responses(503)


async def _once(ctx: Any, actor: Actor, channel: str) -> Any:
    need_channel(actor, channel)
    return await ctx.feed.once(channel)


@router.get("/live/overview", responses=ANSWERS)
async def live_overview(ctx: Ctx, actor: READER) -> Overview:
    """Channel `overview`, once."""
    return Overview.model_validate(await _once(ctx, actor, "overview"))


@router.get("/live/topics", responses=ANSWERS)
async def live_topics(ctx: Ctx, actor: READER) -> TopicsLive:
    """Channel `topics`, once."""
    return TopicsLive.model_validate(await _once(ctx, actor, "topics"))


@router.get("/live/topics/{name}", responses=ANSWERS)
async def live_topic(
    ctx: Ctx,
    actor: READER,
    name: Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)],
) -> TopicDetail:
    """Channel `topic:NAME`, once."""
    return TopicDetail.model_validate(await _once(ctx, actor, f"topic:{name}"))


@router.get("/live/flow", responses=ANSWERS)
async def live_flow(ctx: Ctx, actor: READER) -> Flow:
    """Channel `flow`, once."""
    return Flow.model_validate(await _once(ctx, actor, "flow"))


@router.get("/live/reliability", responses=ANSWERS)
async def live_reliability(ctx: Ctx, actor: READER) -> Reliability:
    """Channel `reliability`, once."""
    return Reliability.model_validate(await _once(ctx, actor, "reliability"))


@router.get("/live/subscriptions", responses=ANSWERS)
async def live_subscriptions(ctx: Ctx, actor: READER) -> SubscriptionsLive:
    """Channel `subscriptions`, once."""
    return SubscriptionsLive.model_validate(await _once(ctx, actor, "subscriptions"))


@router.get("/live/queues", responses=ANSWERS)
async def live_queues(ctx: Ctx, actor: READER) -> QueuesLive:
    """Channel `queues`, once."""
    return QueuesLive.model_validate(await _once(ctx, actor, "queues"))


@router.get("/live/nodes", responses=ANSWERS)
async def live_nodes(ctx: Ctx, actor: READER) -> NodesLive:
    """Channel `nodes`, once."""
    return NodesLive.model_validate(await _once(ctx, actor, "nodes"))


@router.get("/live/keys", responses=ANSWERS)
async def live_keys(ctx: Ctx, actor: Annotated[Actor, needs("keys:read")]) -> KeysLive:
    """Channel `keys`, once."""
    return KeysLive.model_validate(await _once(ctx, actor, "keys"))


@router.get("/live/kafka", responses=ANSWERS)
async def live_kafka(ctx: Ctx, actor: Annotated[Actor, needs("nodes:read")]) -> KafkaLive:
    """Channel `kafka`, once."""
    return KafkaLive.model_validate(await _once(ctx, actor, "kafka"))


@router.websocket("/live")
async def live(websocket: WebSocket) -> None:
    """The live feed: see docs/CONTROL.md. Client: `Watch`; server: `Frame`."""
    await socket.serve(websocket)


SCHEMAS = (Frame, Watch, MessagesLive, RecorderLive, MovesLive)
