"""Operations: asked of engines, noted, audited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidecast_control.db import Database
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError
from tidecast_control.kit.schemas import Page
from tidecast_control.link.hub import Hub
from tidecast_control.operations.schemas import Operation


@dataclass(frozen=True)
class Wanted:
    """What is asked."""

    action: str
    kind: str
    name: str
    request: dict[str, Any]
    dry_run: bool


async def listed(db: Database, limit: int, name: str) -> Page[Operation]:
    """Newest first."""
    del db, limit, name
    raise ProblemError("not_implemented")


async def one(db: Database, operation_id: str) -> Operation:
    """One."""
    del db, operation_id
    raise ProblemError("not_implemented")


async def run(db: Database, hub: Hub, wanted: Wanted, actor: Actor) -> Operation:
    """Ask the engines."""
    del db, hub, wanted, actor
    raise ProblemError("not_implemented")
