"""Routes of alerts (rules and silences are resources)."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from tidecast_control.alerts import service
from tidecast_control.alerts.schemas import Alert
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.http import Db, needs, problem_responses
from tidecast_control.kit.schemas import LIMIT_DEFAULT, LIMIT_MAX, Page

router = APIRouter(tags=["alerts"])


@router.get("/alerts", responses=problem_responses())
def list_alerts(
    session: Db,
    actor: Annotated[Actor, needs("alerts:read")],
    state: Literal["firing", "resolved"] | None = None,
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT_DEFAULT,
) -> Page[Alert]:
    """Alerts that fire or fired, newest first."""
    return Page(items=service.listed(session, state, limit, actor.shown))
