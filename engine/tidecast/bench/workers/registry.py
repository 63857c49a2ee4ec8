"""Every worker role by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tidecast.bench import durable, gateway
from tidecast.bench.workers import floor, latency, live

ROLES: dict[str, Callable[..., dict[str, Any] | Iterator[dict[str, Any]]]] = {
    "flood": floor.flood,
    "soak": floor.soak,
    "send_paced": floor.send_paced,
    "soak_many": floor.soak_many,
    "ping": floor.ping,
    "pong": floor.pong,
    "memory_write": floor.memory_write,
    "memory_read": floor.memory_read,
    "memory_ping": floor.memory_ping,
    "memory_pong": floor.memory_pong,
    **live.ROLES,
    **latency.ROLES,
    **durable.ROLES,
    **gateway.ROLES,
}
