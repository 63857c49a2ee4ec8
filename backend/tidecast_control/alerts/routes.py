"""Routes of alerts (rules and silences are resources)."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter

from tidecast_control.alerts import service
from tidecast_control.alerts.schemas import Alert
from tidecast_control.api.http import Db, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.queries import Paged
from tidecast_control.kit.schemas import Page

router = APIRouter(tags=["alerts"])


@router.get("/alerts", responses=problem_responses())
def list_alerts(
    session: Db,
    query: Paged,
    actor: Annotated[Actor, needs("alerts:read")],
    state: Literal["firing", "resolved"] | None = None,
) -> Page[Alert]:
    """Alerts that fire or fired, newest first."""
    return service.page(session, state, query, actor.shown)
