"""Mirrors: request and response shapes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from tidecast_control.kit.schemas import (
    Count,
    Int64,
    Model,
    Name,
    Resource,
    ResourceInput,
    Status,
    View,
)

Direction = Literal["from_kafka", "to_kafka", "from_jetstream"]
MirrorState = Literal["paused", "starting", "running", "waiting"]
NO_NUL = r"^[^\x00]*$"
WRITE_ONLY = "Write-only: it is shown masked; the masked value means the secret that is stored"
CA_CHARS_MAX = 256 << 10


def _checked_gateway(url: str) -> str:
    if url and not url.startswith(("tidecast://", "tidecast+tls://")):
        raise ValueError("allowed are tidecast://HOST:PORT, tidecast+tls://HOST:PORT, or nothing")
    return url


def _checked_ca(text: str) -> str:
    if text and "-----BEGIN CERTIFICATE-----" not in text:
        raise ValueError("allowed are certificates in PEM: -----BEGIN CERTIFICATE-----, or nothing")
    return text


Words = Annotated[str, Field(max_length=255, pattern=NO_NUL)]
Servers = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00/@?#\s]+$")]
KafkaTopic = Annotated[str, Field(max_length=249, pattern=r"^[A-Za-z0-9._-]*$")]
Streams = Annotated[str, Field(max_length=65_536, pattern=NO_NUL)]
Certificates = Annotated[
    str, Field(max_length=CA_CHARS_MAX, pattern=NO_NUL), AfterValidator(_checked_ca)
]
Gateway = Annotated[str, Field(max_length=1000, pattern=NO_NUL), AfterValidator(_checked_gateway)]


class MirrorSpec(Model):
    """Copies records between Kafka or NATS JetStream and a durable topic, each record once."""

    direction: Direction = Field("from_kafka", description="Fixed, as both ends are")
    topic: Name = Field(description="The durable topic of the platform")
    servers: Servers = Field(
        description="HOST:PORT of brokers, or of NATS servers, separated by commas"
    )
    kafka_topic: KafkaTopic = Field(
        "", description="The topic on the Kafka cluster; required from and to Kafka"
    )
    streams: Streams = Field(
        "", description="Streams of JetStream, separated by commas; required from there"
    )
    subjects: Streams = Field(
        "", description="Subjects of a single stream, each copied as a queue; empty: all"
    )
    domain: Words = Field("", description="Of JetStream")
    key_header: Words = Field(
        "", description="Header of JetStream's messages with the key; empty: the subject"
    )
    paused: bool = False
    rate: int = Field(0, ge=0, le=100_000_000, description="Records a second; 0 = no limit")
    user: Words = Field("", description="Logs in at the servers, with `secret`")
    secret: Words = Field("", description=f"Of `user`. {WRITE_ONLY}")
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="Of Kafka"
    )
    tls: bool = False
    ca: Certificates = Field(
        "", description="PEM: authorities that certificates of the servers are checked with"
    )
    start: Literal["earliest", "latest"] = Field("earliest", description="Of a new mirror")
    place: Literal["auto", "queue", "key"] = Field(
        "auto", description="auto: queue to queue when the counts agree, else by key"
    )
    on_gap: Literal["report", "stop"] = Field(
        "report", description="When records were deleted before they were copied"
    )
    gateway: Gateway = Field(
        "",
        description='Of the engine that keeps the topic, with `token`; "" = the engine of the '
        "service's data directory",
    )
    token: Words = Field("", description=f"Key for the gateway, or the engine. {WRITE_ONLY}")


class MirrorQueue(View):
    """How far a queue of the source is copied."""

    source: Count = Field(description="Queue of the source: a partition, or a queue")
    position: Int64 = Field(description="All offsets below are copied")
    durable: Int64 = Field(description="All offsets below are copied and durable")
    end: Int64 = Field(description="The end of the source, as far as is known")


class MirrorEvent(View):
    """An event of a mirror, such as `RecordsGone`."""

    at: datetime
    event: str
    text: str


class MirrorStatus(Status):
    """The state of a mirror. Counts are since it was created."""

    state: MirrorState = "starting"
    error: str = Field("", description="Why it does not copy, or why it was started again last")
    error_at: datetime | None = None
    retry_at: datetime | None = None
    started_at: datetime | None = None
    updated_at: datetime | None = None
    failures: Count = Field(0, description="Unexpected ends of its process; it was started again")
    records: Int64 = 0
    bytes: Int64 = 0
    repeated: Int64 = Field(0, description="Records that the topic had already")
    gone: Int64 = Field(0, description="Offsets that were deleted before they were copied")
    left_out: Int64 = Field(0, description="Records that cannot be copied, such as too large ones")
    retries: Int64 = Field(0, description="Attempts after an error")
    rate: float = Field(0.0, description="Records a second, lately")
    lag: Int64 = Field(0, description="Offsets that are to be copied")
    eta_s: float | None = Field(None, description="Until all is copied, at this rate")
    position: Int64 = Field(0, description="Sum over the queues")
    queues: list[MirrorQueue] = []
    events: list[MirrorEvent] = Field([], description="The newest, newest first")


class Mirror(Resource[MirrorSpec, MirrorStatus]):
    """A mirror."""


class MirrorInput(ResourceInput[MirrorSpec]):
    """The desired state of a mirror."""


class MirrorProgress(View):
    """The last minutes of a mirror, for a plot. All lists have the same length."""

    mirror: str
    at_s: list[float] = Field([], description="Seconds since 1970")
    rate: list[float] = Field([], description="Records a second")
    lag: list[Int64] = []
