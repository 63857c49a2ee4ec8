"""The route of history."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tidecast_control.api.http import Db, needs, problem_responses
from tidecast_control.history import service
from tidecast_control.history.schemas import History, HistoryMetric, HistoryScope
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.models import utc_now
from tidecast_control.kit.schemas import Instant

router = APIRouter(tags=["history"])


@router.get("/history", responses=problem_responses())
def get_history(
    session: Db,
    actor: Annotated[Actor, needs("history:read")],
    scope: HistoryScope,
    name: Annotated[
        str,
        Query(
            min_length=1,
            max_length=210,
            pattern=r"^[A-Za-z0-9_.-]+(:\d{1,4})?$",
            description="A queue is TOPIC:NUMBER",
        ),
    ],
    metric: Annotated[list[HistoryMetric], Query(min_length=1, max_length=8)],
    since: Annotated[
        Instant | None, Query(alias="from", description="A day before `to` by default")
    ] = None,
    until: Annotated[Instant | None, Query(alias="to", description="Now by default")] = None,
    step: Annotated[
        int | None,
        Query(ge=60, le=31 * 86_400, description="Seconds; as fine as a chart needs by default"),
    ] = None,
) -> History:
    """Metrics over time, from the rollups of telemetry."""
    wanted = service.Wanted(scope, name, metric, since, until, step)
    service.need_shown(session, wanted, actor)
    return service.read(session, wanted, utc_now())
