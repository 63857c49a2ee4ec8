"""Rate limit policies: which limit holds for a topic, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlmodel import Session

from tidecast.access import covers
from tidecast.config.topology import matches
from tidecast_control.api import applied
from tidecast_control.kit import repository
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row
from tidecast_control.kit.schemas import Status
from tidecast_control.live.world import World
from tidecast_control.rate_limits.repository import rates_of_topics
from tidecast_control.rate_limits.schemas import (
    EffectiveRates,
    MatchedPolicy,
    RateLimit,
    RateLimitInput,
    RateLimitSpec,
    RateLimitStatus,
)
from tidecast_control.topics.schemas import EffectiveRate

NAME = "rate_limit"
STATUS_TOPICS_MAX = 20_000


@dataclass(frozen=True)
class Policy:
    """A policy ready to be matched."""

    name: str
    pattern: str
    priority: int
    packets: int | None
    bytes: int | None
    publisher: str

    @property
    def rank(self) -> tuple[int, int, int, int, str]:
        """The greatest wins: priority, publisher named, exact tokens, length, name."""
        tokens = self.pattern.split(".")
        exact = sum(t not in ("*", ">") for t in tokens)
        return (self.priority, int(bool(self.publisher)), exact, len(tokens), self.name)


def policies(session: Session) -> list[Policy]:
    """All policies, the strongest first."""
    rows = repository.all_of(session, NAME)
    return ranked([(row.name, row.spec) for row in rows])


def ranked(found: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Policy]:
    """Policies of (name, spec), the strongest first."""
    made = [
        Policy(
            name,
            spec["pattern"],
            spec.get("priority", 0),
            spec.get("rate_packets_per_s"),
            spec.get("rate_bytes_per_s"),
            spec.get("publisher", ""),
        )
        for name, spec in found
    ]
    return sorted(made, key=lambda p: p.rank, reverse=True)


def effective(
    ordered: Sequence[Policy], topic: str, spec: Mapping[str, Any], node: str = ""
) -> EffectiveRate:
    """The limit of a topic's publishers (on ``node``), and its source."""
    fitting = [p for p in ordered if p.publisher in ("", node) and matches(p.pattern, topic)]
    packets, packets_source = _pick(fitting, spec.get("rate_packets_per_s"), "packets")
    octets, bytes_source = _pick(fitting, spec.get("rate_bytes_per_s"), "bytes")
    used = (packets_source, bytes_source)
    return EffectiveRate(
        packets_per_s=packets,
        bytes_per_s=octets,
        packets_source=packets_source,
        bytes_source=bytes_source,
        shadowed=[p.name for p in fitting if f"rate_limit/{p.name}" not in used],
    )


def effective_rates(session: Session, topic: str, node: str) -> EffectiveRates:
    """The limit of a topic, there or not, and every policy that matches it."""
    row = repository.find(session, "topic", topic)
    own = row.spec if row is not None else {}
    ordered = policies(session)
    rate = effective(ordered, topic, own, node)
    used = (rate.packets_source, rate.bytes_source)
    return EffectiveRates(
        topic=topic,
        exists=row is not None,
        effective_rate=rate,
        policies=[
            MatchedPolicy(
                name=p.name,
                pattern=p.pattern,
                priority=p.priority,
                publisher=p.publisher,
                rate_packets_per_s=p.packets,
                rate_bytes_per_s=p.bytes,
                wins=f"rate_limit/{p.name}" in used,
            )
            for p in ordered
            if p.publisher in ("", node) and matches(p.pattern, topic)
        ],
    )


def _pick(fitting: Sequence[Policy], own: int | None, field: str) -> tuple[int, str]:
    if own is not None:
        return own, "spec"
    for policy in fitting:
        value = getattr(policy, field)
        if value is not None:
            return value, f"rate_limit/{policy.name}"
    return 0, "none"


def _learn(session: Session) -> tuple[list[applied.Seen], dict[str, tuple[int, int]]]:
    return applied.connected(session), _counts(session)


def _status(
    known: tuple[list[applied.Seen], dict[str, tuple[int, int]]],
    _world: World | None,
    rows: Sequence[Row],
) -> list[Status]:
    states, counts = known
    return [
        RateLimitStatus(
            **applied.applied(states, row),
            topics_matched=counts.get(row.name, (0, 0))[0],
            topics_effective=counts.get(row.name, (0, 0))[1],
        )
        for row in rows
    ]


def _counts(session: Session) -> dict[str, tuple[int, int]]:
    """Topics that each policy matches, and those where it wins."""
    ordered = policies(session)
    matched, wins = dict.fromkeys((p.name for p in ordered), 0), {p.name: 0 for p in ordered}
    for topic, own in rates_of_topics(session, STATUS_TOPICS_MAX):
        rate = effective(ordered, topic, own)
        hit = [p.name for p in ordered if matches(p.pattern, topic)]
        for name in hit:
            matched[name] += 1
            wins[name] += f"rate_limit/{name}" in (rate.packets_source, rate.bytes_source)
    return {name: (matched[name], wins[name]) for name in matched}


def _warn(session: Session, name: str, spec: RateLimitSpec, row: ResourceRow | None) -> list[str]:
    del row
    if spec.rate_bytes_per_s is None and spec.rate_packets_per_s is None:
        return ["it limits nothing: neither rate_packets_per_s nor rate_bytes_per_s is set"]
    rivals = [
        p.name
        for p in policies(session)
        if p.name != name and p.priority > spec.priority and covers(p.pattern, spec.pattern)
    ]
    return [f"always overruled by {', '.join(rivals)}"] if rivals else []


KIND = Kind(
    name=NAME,
    path="rate-limits",
    rights="rate_limits",
    spec=RateLimitSpec,
    resource=RateLimit,
    input=RateLimitInput,
    in_topology=True,
    order=2,
    learn=_learn,
    status=_status,
    warn=_warn,
)
