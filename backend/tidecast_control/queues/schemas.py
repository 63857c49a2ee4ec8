"""Queues: read-only views of durable topics' partitions, and the operations on them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from tidecast_control.kit.schemas import Count, Int64, View


class Queue(View):
    """One durable partition. ``name`` is TOPIC:NUMBER. Null: not known yet."""

    name: str
    topic: str
    number: Count
    adapter: str = Field("", description="Of which adapter it is; empty: the engine's own log")
    state: Literal["open", "paused", "recovering", "full", "unwired", "unknown"] = "unknown"
    reason: str = Field("", description="Why its storage stores nothing: then it is full")
    node: str = Field("", description="The engine that has it")
    owner_epoch: Int64 | None = Field(None, description="Of its lease; 0 = not by a lease")
    owner_since: datetime | None = Field(None, description="When it took the queue")
    earliest: Int64 | None = None
    latest: Int64 | None = None
    durable: Int64 | None = Field(None, description="All below is on disk for sure")
    bytes: Int64 | None = None
    segments: Count | None = None
    cache_bytes: Int64 | None = None
    cache_max: Int64 | None = None
    cache_fill: float | None = None
    cache_pressure: Literal["", "full", "spilling"] = Field(
        "", description="spilling: the cache gives up blocks of a slow reader"
    )
    subscriptions: Count = 0
    lag_messages: Int64 | None = Field(None, description="Of the slowest subscription")
    lag_s: float | None = None
    cursor: Int64 | None = Field(None, description="Where the slowest subscription is")
    pressure: str = Field("", description="Why the slowest subscription waits")
    in_per_s: float | None = Field(None, description="Messages appended; from two samples")
    out_per_s: float | None = Field(None, description="Messages acked, by all subscriptions")
