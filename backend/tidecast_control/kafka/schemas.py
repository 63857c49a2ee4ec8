"""Kafka clients and groups: shapes of requests and answers."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, model_validator

from tidecast_control.kit.schemas import Count, Int64, Model, Page, Short, View

Digits = Annotated[str, Field(pattern=r"^\d{1,18}$")]
State = Literal["Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead"]
LAG = "Records that are there and not committed; null: not known"
LAG_S = "Age of the oldest of these; null: not known"


class NotAsked(View):
    """An engine whose groups or clients are missing in an answer."""

    node: str
    reason: str


class KafkaGroup(View):
    """A consumer group of Kafka clients. Its offsets are those of one engine."""

    name: str
    node: str = Field(description="The engine that has its members and offsets")
    state: State
    kind: str = Field("", description="What its members are: `consumer`")
    protocol: str = Field("", description="How its leader assigns queues")
    generation: Count = 0
    members: Count = 0
    topics: list[str] = Field([], description="That it has offsets of or reads; at most 64")
    topics_total: Count = 0
    queues: Count = Field(0, description="That it has offsets of")
    lag: Int64 | None = Field(None, description=LAG)
    lag_s: float | None = Field(None, description=LAG_S)
    committed_at: datetime | None = Field(None, description="When it committed last")


class KafkaOffset(View):
    """A group in one queue. Null: nothing is committed, or the queue is not at this engine."""

    topic: str
    queue: Count
    committed: Int64 | None = None
    earliest: Int64 | None = None
    end: Int64 | None = None
    lag: Int64 | None = Field(None, description=LAG)
    lag_s: float | None = Field(None, description=LAG_S)
    member: str = Field("", description="Which member reads it")
    metadata: str = Field("", description="The text that was committed beside the offset")


class KafkaMember(View):
    """A member of a group."""

    id: str
    instance: str = Field("", description="`group.instance.id` of a static member")
    client_id: str
    address: str
    leader: bool = False
    assigned: list[str] = Field([], description="Its queues, TOPIC:NUMBER; at most 1,000")


class KafkaGroupDetail(KafkaGroup):
    """A group with its members and queues."""

    offsets: list[KafkaOffset] = Field([], description="The furthest behind first, at most 1,000")
    offsets_left_out: Count = 0
    consumers: list[KafkaMember] = []


class KafkaGroupPage(Page[KafkaGroup]):
    """Groups by name and node."""

    missing: list[NotAsked] = Field([], description="Engines that did not answer, and why")


class KafkaClient(View):
    """A connection of a Kafka client."""

    number: Int64 = Field(description="Counted by its engine")
    node: str
    client_id: str
    software: str = Field("", description="Name and version, where the client says them")
    address: str
    key: str = Field("", description="Id of the key that it showed")
    key_name: str = ""
    since: datetime
    requests: Int64 = 0
    bytes_in: Int64 = 0
    bytes_out: Int64 = 0


class KafkaClientPage(Page[KafkaClient]):
    """Connections by node and number."""

    missing: list[NotAsked] = Field([], description="Engines that did not answer, and why")


class ResetRequest(Model):
    """Move the offsets of a group to `to`, or by `shift` records."""

    to: Literal["earliest", "latest", "offset", "time"] | None = None
    topic: Short = Field("", description='"" = each topic that it has offsets of')
    queue: int | None = Field(None, ge=0, le=1023)
    offset: Digits | None = None
    time_ns: Digits | None = Field(None, description="ns since 1970: the first record since then")
    shift: int | None = Field(None, ge=-(1 << 53), le=1 << 53)

    @model_validator(mode="after")
    def _somewhere(self) -> ResetRequest:
        if (self.to is None) == (self.shift is None):
            raise ValueError("give either `to` or `shift`")
        for to, field in (("offset", "offset"), ("time", "time_ns")):
            if (self.to == to) != (getattr(self, field) is not None):
                raise ValueError(f"`to` {to} and `{field}` belong together")
        if self.queue is not None and not self.topic:
            raise ValueError("a queue is of one topic: give `topic`")
        if self.to == "offset" and self.queue is None:
            raise ValueError("an offset is of one queue: give `topic` and `queue`")
        return self


class KafkaGroupLive(KafkaGroup):
    """A group, live."""

    lag_trend_per_s: float | None = None
    drain_s: float | None = Field(None, description="Time to drain at the present rate")


class KafkaClientLive(KafkaClient):
    """A connection, live."""

    in_per_s: float = Field(0, description="Bytes from the client")
    out_per_s: float = Field(0, description="Bytes to the client")
