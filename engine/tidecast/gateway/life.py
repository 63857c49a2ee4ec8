"""The states of a remote client's session. `gateway.server` has the table of transitions."""

from __future__ import annotations

from enum import Enum


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
