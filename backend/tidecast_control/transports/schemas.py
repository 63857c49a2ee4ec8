"""Transports: request and response shapes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tidecast_control.kit.schemas import Count, Model, Resource, ResourceInput, Short, Status

Peer = Annotated[str, Field(pattern=r"^[^\s:\x00]+:\d{1,5}$", max_length=260)]


class TransportSpec(Model):
    """How packets move. A change takes effect when an engine starts again."""

    kind: Literal["udp-multicast", "udp-unicast", "ipc"] = "udp-multicast"
    platform: Annotated[str, Field(pattern=r"^([0-9a-f]{16})?$")] = ""
    group: Short = "239.255.84.67"
    port: int = Field(7400, ge=1, le=65_533)
    interface: Annotated[str, Field(pattern=r"^[^\s/\x00]{1,15}$")] = "127.0.0.1"
    ttl: int | None = Field(None, ge=0, le=255)
    peers: list[Peer] = Field([], max_length=64)
    bind: Short = ""
    packet_bytes: int = Field(1400, ge=576, le=65_000, multiple_of=8)
    socket_buffer_bytes: int = Field(4 << 20, ge=64 * 1024, le=1 << 30)
    idle: Literal["busy", "backoff", "block"] = "backoff"
    rate_packets_per_s: Count = 0
    rate_bytes_per_s: Count = 0
    lanes: int = Field(1, ge=1, le=8)
    gso: bool = True
    allow_faults: bool = False
    secure: Literal["off", "optional", "required"] = "off"
    cipher: Literal["aes-128-gcm", "aes-256-gcm"] = "aes-128-gcm"


class TransportStatus(Status):
    """The engines' reports on a transport."""

    topics: Count = 0
    nodes: list[str] = []


class Transport(Resource[TransportSpec, TransportStatus]):
    """A transport."""


class TransportInput(ResourceInput[TransportSpec]):
    """The desired state of a transport."""
