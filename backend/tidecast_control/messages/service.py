"""Browsing and publishing."""

from __future__ import annotations

from dataclasses import dataclass

from tidecast_control.db import Database
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import ProblemError
from tidecast_control.link.hub import Hub
from tidecast_control.messages.schemas import BrowsePage, Published, PublishInput


@dataclass(frozen=True)
class Browse:
    """What to look for."""

    topic: str
    start: str
    queue: int | None
    token: str | None
    time_ns: str | None
    limit: int
    wait_ms: int
    q: str
    node: str


async def browse(db: Database, hub: Hub, wanted: Browse, actor: Actor) -> BrowsePage:
    """Messages found."""
    del db, hub, wanted, actor
    raise ProblemError("not_implemented")


async def publish(
    db: Database, hub: Hub, topic: str, body: PublishInput, actor: Actor
) -> Published:
    """Publish one message."""
    del db, hub, topic, body, actor
    raise ProblemError("not_implemented")
