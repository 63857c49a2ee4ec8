"""Rate limits: policies by name pattern."""

from __future__ import annotations

from pydantic import Field

from tidecast_control.kit.schemas import (
    Count,
    Model,
    Pattern,
    Resource,
    ResourceInput,
    Short,
    Signed,
    Status,
    View,
)
from tidecast_control.topics.schemas import EffectiveRate


class RateLimitSpec(Model):
    """A limit for every publisher of the topics that match; it holds at once.

    The highest priority wins, then the pattern with most exact tokens; a topic's own setting wins
    over all policies.
    """

    pattern: Pattern
    priority: int = Field(0, ge=-1000, le=1000)
    rate_packets_per_s: Count | None = Field(None, description="null = not set here; 0 = no limit")
    rate_bytes_per_s: Count | None = None
    publisher: Short = Field("", description='Node name; "" = publishers of all nodes')


class MatchedPolicy(View):
    """A policy that matches a topic."""

    name: str
    pattern: str
    priority: Signed
    publisher: str
    rate_packets_per_s: Count | None
    rate_bytes_per_s: Count | None
    wins: bool = Field(description="One of its limits holds")


class EffectiveRates(View):
    """The limits of a topic, and the policies that match it, the strongest first."""

    topic: str
    exists: bool
    effective_rate: EffectiveRate
    policies: list[MatchedPolicy]


class RateLimitStatus(Status):
    """The topics that a policy limits."""

    topics_matched: Count = 0
    topics_effective: Count = Field(0, description="Topics where it wins")


class RateLimit(Resource[RateLimitSpec, RateLimitStatus]):
    """A rate limit policy."""


class RateLimitInput(ResourceInput[RateLimitSpec]):
    """The desired state of a rate limit policy."""
