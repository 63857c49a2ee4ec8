"""Which rate limit holds: for a topic, or for a name that no topic has yet."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from tidecast_control.api.http import Db, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.schemas import NAME_PATTERN
from tidecast_control.rate_limits import service
from tidecast_control.rate_limits.schemas import EffectiveRates

router = APIRouter(tags=["rate-limits"])


@router.get("/effective-rates/{name}", responses=problem_responses())
def get_effective_rates(
    session: Db,
    name: Annotated[str, Path(min_length=1, max_length=200, pattern=NAME_PATTERN)],
    actor: Annotated[Actor, needs("rate_limits:read")],
    node: Annotated[
        str, Query(max_length=200, pattern=r"^[^\x00]*$", description="Of publishers on this node")
    ] = "",
) -> EffectiveRates:
    """The limits of a topic of this name, their origin, and further policies that match."""
    actor.need_shown(name)
    return service.effective_rates(session, name, node)
