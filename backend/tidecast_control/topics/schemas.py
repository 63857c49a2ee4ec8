"""Topics: request and response shapes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidecast_control.kit.schemas import (
    Count,
    Model,
    Resource,
    ResourceInput,
    Short,
    Status,
    View,
)

MIB = 1 << 20
RingBytes = Annotated[int, Field(ge=16 * 1024, le=64 << 30)]


class TopicSpec(Model):
    """The desired state of a topic. Rates and linger change live, the rest recreates it."""

    mode: Literal["live", "durable"] = "live"
    transport: Short = Field("", description='"" = the first transport')
    wire_id: int | None = Field(None, ge=1, le=65_535, description="null = from the name")
    reliability: Literal["reliable", "unordered", "unreliable"] = "reliable"
    flow: Literal["min", "max", "rate"] = "min"
    on_full: Literal["block", "error", "drop"] = "block"
    compression: Literal["off", "tables"] = Field(
        "off", description="tables = keys and headers that repeat are sent once to other hosts"
    )
    history_bytes: RingBytes = 4 * MIB
    receive_bytes: RingBytes = 4 * MIB
    large_history_bytes: RingBytes = 64 * MIB
    rate_packets_per_s: Count | None = Field(None, description="null = by policy; 0 = no limit")
    rate_bytes_per_s: Count | None = Field(None, description="null = by policy; 0 = no limit")
    linger_us: int = Field(20, ge=0, le=1_000_000)
    nak_delay_us: int = Field(50, ge=0, le=1_000_000)
    nak_retry_us: int = Field(200, ge=1, le=10_000_000)
    receiver_timeout_s: float = Field(5.0, gt=0, le=3600)
    close_linger_s: float = Field(5.0, ge=0, le=3600)
    owner: str = Field(
        "",
        max_length=64,
        pattern=r"^(\*|[A-Za-z0-9_.-]*)$",
        description='Durable topics: the node that keeps the queues; "" = each node what is '
        'published there, "*" = the engines that share a directory take turns by leases',
    )
    queues: int = Field(1, ge=1, le=1024, description="Durable topics; may only grow")
    fsync: Literal["none", "interval", "batch"] = "interval"
    fsync_interval_ms: float = Field(50.0, ge=1, le=60_000)
    segment_bytes: int = Field(128 * MIB, ge=64 * 1024, le=1 << 40)
    retention_bytes: Count = Field(0, description="A queue; 0 = no limit")
    retention_s: float = Field(0.0, ge=0, le=1e10, description="0 = for ever")
    retention_past_unacked: bool = Field(False, description="Delete unacked messages, too")
    cache_bytes: int = Field(16 * MIB, ge=64 * 1024, le=1 << 40, description="A queue")
    spool: bool = Field(False, description="Publishers' rings survive their crash, on disk")
    producer_ttl_s: float = Field(604_800.0, ge=1, le=1e10)
    storage: str = Field(
        "local",
        max_length=4096,
        description="Durable topics: local, kafka://HOST:PORT/TOPIC?setting=value, or "
        "jetstream://HOST:PORT/STREAM?setting=value: a message is acknowledged when Kafka, or "
        "JetStream, has it, too",
    )


class EffectiveRate(View):
    """A rate limit and where it came from: the topic's own spec, a policy, or nothing."""

    packets_per_s: Count
    bytes_per_s: Count
    packets_source: str = Field(description="spec, rate_limit/NAME, or none")
    bytes_source: str
    per_publisher: bool = True
    shadowed: list[str] = Field([], description="Policies that match but lose")


class TopicStatus(Status):
    """The engines' reports on a topic."""

    effective_rate: EffectiveRate
    publishers: Count | None = Field(None, description="null: the live feed has it")
    subscribers: Count | None = Field(None, description="null: the live feed has it")
    nodes: list[str] = []
    unwired: list[str] = Field([], description="Settings that the engines here do not know yet")
    paused: bool = False
    adapters: list[str] = Field([], description="Kinds of adapters of engines that keep its queues")


class Topic(Resource[TopicSpec, TopicStatus]):
    """A topic."""


class TopicInput(ResourceInput[TopicSpec]):
    """The desired state of a topic."""
