"""Durable subscriptions: request and response shapes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tidecast.queues.filters.where import TEXT_CHARS_MAX
from tidecast_control.kit.schemas import (
    Count,
    Int64,
    Model,
    Pattern,
    Resource,
    ResourceInput,
    Short,
    Status,
    View,
)


class StartAt(Model):
    """Where to start: earliest, latest, a token (with queue) or a time (ns since 1970)."""

    at: Literal["earliest", "latest", "token", "time"] = "earliest"
    queue: int | None = Field(None, ge=0, le=1023)
    token: Annotated[str, Field(pattern=r"^\d{1,19}$")] | None = None
    time_ns: Annotated[str, Field(pattern=r"^\d{1,19}$")] | None = None


class SubscriptionSpec(Model):
    """A named durable consumer."""

    topic: Pattern = Field(description="A topic, or a pattern (implicit subscription)")
    start: StartAt = StartAt()
    filter: Annotated[str, Field(max_length=TEXT_CHARS_MAX)] = Field(
        "",
        description='A filter of records, as in `key.startswith("eu.") and size < 1000`; '
        '"" = all; fixed once the subscription exists',
    )
    ack: Literal["explicit"] = Field(
        "explicit", description="Consumers ack each message, or have their client do it"
    )
    ack_wait_s: float = Field(30.0, gt=0, le=86_400)
    max_deliver: int = Field(5, ge=0, le=10_000, description="0 = for ever")
    max_in_flight: int = Field(500, ge=1, le=1_000_000)
    dead_letter: Short = Field("", description="Topic of dead letters")
    paused: bool = False


class QueueCursor(View):
    """Positions in one queue. All below ``acked`` is acked; ``delivered`` is next to be sent."""

    queue: str = Field(description="TOPIC:NUMBER")
    earliest: Int64 = 0
    acked: Int64 = 0
    delivered: Int64 = 0
    latest: Int64 = 0
    lag_messages: Int64 = 0
    lag_s: float | None = Field(None, description="Age of the oldest message not acked")
    outstanding: Int64 = 0
    scheduled: Int64 = Field(0, description="Messages that wait for their delivery time")
    pressure: str = Field("", description="Why it waits; empty = it does not")


class SubscriptionStatus(Status):
    """Where a subscription is. Null: not known yet."""

    state: Literal["active", "idle", "paused", "behind", "unwired", "unknown"] = "unknown"
    members: Count = 0
    lag_messages: Int64 | None = None
    lag_s: float | None = None
    drain_s: float | None = Field(None, description="Time to drain at the present rate")
    outstanding: Int64 | None = None
    scheduled: Int64 | None = Field(
        None, description="Messages that wait for their delivery time; the lag counts them, too"
    )
    dead_letters: Int64 | None = Field(None, description="Stored, and not sent again since")
    given_up: Int64 | None = Field(None, description="Messages, since its engines started")
    pressure: str = Field("", description="Why it is slow; empty = it is not")
    cursors: list[QueueCursor] = Field([], description="The furthest behind first, at most 64")


class Subscription(Resource[SubscriptionSpec, SubscriptionStatus]):
    """A durable subscription."""


class SubscriptionInput(ResourceInput[SubscriptionSpec]):
    """The desired state of a durable subscription."""


class SeekRequest(Model):
    """Move the position to `at`, or by `shift` messages."""

    at: Literal["earliest", "latest", "token", "time"] | None = None
    queue: int | None = Field(None, ge=0, le=1023)
    token: Annotated[str, Field(pattern=r"^\d{1,19}$")] | None = None
    time_ns: Annotated[str, Field(pattern=r"^\d{1,19}$")] | None = None
    shift: int | None = Field(None, ge=-(1 << 53), le=1 << 53)

    @model_validator(mode="after")
    def _somewhere(self) -> SeekRequest:
        if (self.at is None) == (self.shift is None):
            raise ValueError("give either `at` or `shift`")
        for at, given in (("token", self.token), ("time", self.time_ns)):
            if self.at == at and given is None:
                raise ValueError(f"at={at} needs {'token' if at == 'token' else 'time_ns'}")
        return self


class RedriveRequest(Model):
    """Publish dead letters again."""

    to: Short = Field("", description='"" = where they came from')
    count_max: int = Field(1000, ge=1, le=1_000_000)
    key: Short | None = None
    reason: Short | None = Field(None, description="Only letters whose reason contains this text")
    where: Annotated[str, Field(max_length=TEXT_CHARS_MAX)] = Field(
        "",
        description="Only letters that match this filter, as they are in their topic: "
        '`headers["dead-attempts"] > 3 and size < 1000`',
    )
