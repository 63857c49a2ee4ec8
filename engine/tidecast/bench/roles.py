"""Every worker role by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidecast.bench import durable, floor_roles, gateway, roles_live, roles_more

ROLES: dict[str, Callable[..., dict[str, Any]]] = {
    "flood": floor_roles.flood,
    "soak": floor_roles.soak,
    "send_paced": floor_roles.send_paced,
    "soak_many": floor_roles.soak_many,
    "ping": floor_roles.ping,
    "pong": floor_roles.pong,
    "memory_write": floor_roles.memory_write,
    "memory_read": floor_roles.memory_read,
    "memory_ping": floor_roles.memory_ping,
    "memory_pong": floor_roles.memory_pong,
    **roles_live.ROLES,
    **roles_more.ROLES,
    **durable.ROLES,
    **gateway.ROLES,
}
