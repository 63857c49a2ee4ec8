"""Every worker role by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidecast.bench import durable, gateway, roles_live, roles_more
from tidecast.bench import floor_roles as f

ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "flood": f.flood, "soak": f.soak, "send_paced": f.send_paced, "soak_many": f.soak_many,
    "ping": f.ping, "pong": f.pong,
    "memory_write": f.memory_write, "memory_read": f.memory_read,
    "memory_ping": f.memory_ping, "memory_pong": f.memory_pong, **roles_live.ROLES,
    **roles_more.ROLES, **durable.ROLES, **gateway.ROLES,
}  # fmt: skip
