"""The session of a remote client: its states, and the calls of its publications and consumers.

`gateway.server` has the table of transitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import Enum
from typing import Any, Protocol

from tidecast.api.frames.common import Frame
from tidecast.client.aio import Connection


class State(Enum):
    """Of a session."""

    SERVED, AWAY, ENDED = range(3)


class Event(Enum):
    """Changes a session's state; the text stands in the docs."""

    CONNECTED = "its client connects, and shows the session's key"
    LOST = "its newest connection ends"
    BYE = "its client says goodbye"
    EXPIRED = "its client has not come back for `resume_s`"
    DISMISSED = "its API key was revoked, a task of it failed, or the gateway stops"


class Session(Protocol):
    """See `tidecast.gateway.session.RemoteSession`."""

    queued_bytes: int
    """Of batches of all its publications that are not in a ring."""

    @property
    def connection(self) -> Connection:
        """To the node."""

    async def send(self, frame: Frame, body: Any = None) -> None:
        """Send to the client, if it is there."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run work beside the session; a defect there ends the session."""

    def reply_homes(self) -> set[int]:
        """Subscriptions to replies, by the ids that messages name."""

    def deny(self, right: str, pattern: str) -> None:
        """Count and report that the key lacks a right."""
