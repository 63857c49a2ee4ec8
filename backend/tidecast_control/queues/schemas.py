"""Queues: read-only views of durable topics' partitions, and what can be done with them."""

from __future__ import annotations

from typing import Literal

from tidecast_control.kit.schemas import Int64, View


class Queue(View):
    """One durable partition. ``name`` is TOPIC:NUMBER. Null: the engines cannot say yet."""

    name: str
    topic: str
    number: int
    state: Literal["open", "paused", "recovering", "full", "unwired", "unknown"] = "unknown"
    node: str = ""
    owner_epoch: Int64 | None = None
    earliest: Int64 | None = None
    latest: Int64 | None = None
    bytes: Int64 | None = None
    segments: int | None = None
    cache_fill: float | None = None
    cache_pressure: str = ""
    subscriptions: int = 0
