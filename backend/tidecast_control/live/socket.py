"""The websocket of the live feed."""

from __future__ import annotations

from fastapi import WebSocket


async def serve(websocket: WebSocket) -> None:
    """Refuse, until there is a feed."""
    await websocket.close(1013, "not there yet")
