"""Audit: every write and every denial."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from tidecast_control.kit.schemas import Count, Int64, View


class AuditEntry(View):
    """One action: its actor, its resource, the state before and after."""

    id: Int64
    at: datetime
    actor: str
    actor_kind: Literal["user", "key", "engine", "service", "anonymous"]
    action: str
    kind: str
    name: str
    outcome: Literal["done", "denied", "failed"]
    status: Count
    before: Any = None
    after: Any = None
    detail: str = ""
    request_id: str = ""
    address: str = ""
