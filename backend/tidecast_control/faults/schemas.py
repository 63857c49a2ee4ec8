"""Fault injection: one resource a transport, named like it."""

from __future__ import annotations

from pydantic import Field

from tidecast_control.kit.schemas import Model, Resource, ResourceInput, Short, Status

Probability = Field(0.0, ge=0.0, le=1.0)


class FaultSpec(Model):
    """Probabilities for each packet that an engine receives from others."""

    drop: float = Probability
    duplicate: float = Probability
    reorder: float = Probability
    corrupt: float = Probability
    delay_us: float = Field(0.0, ge=0, le=10_000_000)
    partition: list[Short] = Field([], max_length=64, description="Nodes neither heard nor reached")
    seed: int = Field(0, ge=0, le=(1 << 53) - 1)
    nodes: list[Short] = Field([], max_length=256, description="Where; empty = on every node")
    expires_s: float = Field(0.0, ge=0, le=86_400, description="Switched off after; 0 = never")


class FaultStatus(Status):
    """The engines' reports."""

    active: bool = False


class Fault(Resource[FaultSpec, FaultStatus]):
    """Injected faults of a transport."""


class FaultInput(ResourceInput[FaultSpec]):
    """The desired state of injected faults."""
