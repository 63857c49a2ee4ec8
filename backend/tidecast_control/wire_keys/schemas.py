"""Secrets of sealed transports: response shapes, which never hold one."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from tidecast_control.kit.schemas import Count, Model


class WireEpoch(Model):
    """One secret's life. ``waiting``: engines have it, and seal with it from ``activate_at`` on."""

    epoch: Count
    state: Literal["waiting", "active", "accepted"]
    created_at: datetime
    activate_at: datetime
    retire_at: datetime | None = None


class WireKeyState(Model):
    """The epochs of a transport, oldest first; none: it has no secret yet."""

    transport: str
    epochs: list[WireEpoch]
