"""Telemetry for statuses: the newest world, if engines reported lately."""

from __future__ import annotations

from collections.abc import Callable

from sqlmodel import Session

from tidecast_control.live.world import World


def world_of(session: Session) -> World | None:
    """None when nothing was heard lately: statuses then say that they do not know."""
    provider: Callable[[], World | None] | None = session.info.get("world")
    return provider() if provider is not None else None
