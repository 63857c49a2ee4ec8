"""Traffic generators: one an example topic, named like it."""

from __future__ import annotations

from pydantic import Field

from tidecast_control.kit.schemas import Model, Resource, ResourceInput, Short, Status


class TrafficSpec(Model):
    """Example messages, published and read by an engine itself."""

    topic: Short = ""
    running: bool = False
    messages_per_s: float = Field(1000.0, gt=0, le=100_000)
    message_bytes: int = Field(100, ge=16, le=65_536)
    keys: int = Field(16, ge=0, le=65_536)
    subscribers: int = Field(1, ge=0, le=16)
    node: Short = Field("", description='"" = the first node, by name')


class TrafficStatus(Status):
    """Whether and where it runs."""

    running: bool = False
    node: str = ""


class Traffic(Resource[TrafficSpec, TrafficStatus]):
    """A traffic generator."""


class TrafficInput(ResourceInput[TrafficSpec]):
    """The desired state of a traffic generator."""
