"""Routes of queues."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from tidecast_control.api.http import Db, fresh, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.queries import Cursor
from tidecast_control.kit.schemas import LIMIT_DEFAULT, LIMIT_MAX, Page
from tidecast_control.queues import service
from tidecast_control.queues.schemas import Queue

router = APIRouter(tags=["queues"])
QueueName = Annotated[str, Path(max_length=210, pattern=r"^[A-Za-z0-9_.-]+:\d{1,4}$")]


@router.get("/queues", responses=problem_responses(), dependencies=[Depends(fresh)])
def list_queues(
    session: Db,
    actor: Annotated[Actor, needs("queues:read")],
    topic: Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")] = "",
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Page[Queue]:
    """The queues of all durable topics, or of one."""
    return service.page(session, topic, limit, cursor, actor)


@router.get("/queues/{name}", responses=problem_responses(404), dependencies=[Depends(fresh)])
def get_queue(session: Db, name: QueueName, actor: Annotated[Actor, needs("queues:read")]) -> Queue:
    """One queue, as TOPIC:NUMBER."""
    return service.get(session, name, actor)
