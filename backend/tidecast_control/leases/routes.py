"""Routes of leases."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from tidecast_control.api.http import Db, needs, problem_responses
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.queries import Paged
from tidecast_control.kit.schemas import Page
from tidecast_control.leases import moves
from tidecast_control.leases.schemas import LeaseMove

router = APIRouter()
Word = Annotated[str, Query(max_length=210, pattern=r"^[^\x00]*$")]


@router.get("/cluster/moves", tags=["nodes"], responses=problem_responses(404))
def list_moves(
    session: Db,
    query: Paged,
    actor: Annotated[Actor, needs("nodes:read")],
    topic: Word = "",
    node: Word = "",
) -> Page[LeaseMove]:
    """Leased topics that went from a node to another, and why; newest first, of 30 days at most."""
    del actor
    return moves.page(session, moves.MovesQuery(query, topic, node))
