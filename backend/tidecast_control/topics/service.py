"""Topics: rules, impacts, status."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlmodel import Session

from tidecast.config.sources.storage import LOCAL, storage_name, storage_problems
from tidecast.config.topology import (
    LIVE_TOPIC_FIELDS,
    UNREPAIRED,
    TopicConfig,
    topic_name_problem,
    unused_settings,
)
from tidecast_control.api import applied
from tidecast_control.kit import repository
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row
from tidecast_control.kit.schemas import Condition, ProblemItem, Status
from tidecast_control.live.world import World
from tidecast_control.rate_limits import service as rate_limits
from tidecast_control.topics import repository as topics
from tidecast_control.topics.schemas import Topic, TopicInput, TopicSpec, TopicStatus

LIVE = frozenset(TopicSpec.model_fields) & LIVE_TOPIC_FIELDS
DURABLE = (
    "mode",
    "queues",
    "fsync",
    "fsync_interval_ms",
    "segment_bytes",
    "retention_bytes",
    "retention_s",
)
_STORED = ("mode", "owner", "fsync", "storage")
"""Settings that a storage beside the logs depends on."""
ENGINE_FIELDS = frozenset(TopicConfig.__struct_fields__)
QUEUES_MAX = 1024
WIRE_ID_MAX, WIRE_IDS_TRIED_MAX = 65_535, 32


def _check(session: Session, name: str, spec: TopicSpec, row: ResourceRow | None) -> list[Any]:
    found: list[ProblemItem] = []
    problem = topic_name_problem(name)
    if problem is not None:
        found.append(ProblemItem(pointer="path/name", detail=problem))
    if spec.transport and repository.find(session, "transport", spec.transport) is None:
        known = ", ".join(repository.names(session, "transport")) or "none"
        found.append(
            ProblemItem(
                pointer="/spec/transport", detail=f"no transport {spec.transport!r}", allowed=known
            )
        )
    if row is not None and spec.queues < row.spec.get("queues", 1) and spec.mode == "durable":
        least = row.spec["queues"]
        found.append(
            ProblemItem(
                pointer="/spec/queues",
                detail=f"{spec.queues}: queues may only grow",
                allowed=f">= {least}",
            )
        )
    found += [
        ProblemItem(
            pointer=f"/spec/{field}", detail=detail, allowed="mode durable, or leave it out"
        )
        for field, detail in unused_settings(spec.mode, spec.model_dump())
    ]
    found += _check_storage(name, spec, row)
    if spec.compression != "off" and spec.reliability == "unreliable":
        found.append(
            ProblemItem(
                pointer="/spec/compression",
                detail=f"{spec.compression}: {UNREPAIRED}",
                allowed="off, or reliability reliable or unordered",
            )
        )
    if spec.owner and spec.mode != "durable":
        found.append(
            ProblemItem(
                pointer="/spec/owner",
                detail=f"{spec.owner!r}: a live topic has no owner",
                allowed='""',
            )
        )
    wire_id = spec.wire_id
    rival = wire_id and topics.with_wire_id(session, wire_id, spec.transport, name)
    if wire_id and rival:
        found.append(
            ProblemItem(
                pointer="/spec/wire_id",
                detail=f"{wire_id}: topic {rival} is given the same on that transport",
                allowed=f"another number of 1..{WIRE_ID_MAX}"
                + _free_wire_id(session, wire_id, spec.transport, name),
            )
        )
    return found


def _check_storage(name: str, spec: TopicSpec, row: ResourceRow | None) -> list[Any]:
    if spec.storage == LOCAL or spec.mode != "durable":
        return []  # a live topic has no storage: that is said already
    topic = TopicConfig(name=name, **spec.model_dump(include=set(_STORED)))
    found = []
    for problem in storage_problems([topic]):
        path, _, detail = problem.partition(": ")
        found.append(ProblemItem(pointer="/spec/" + path.partition(".")[2], detail=detail))
    if row is not None and spec.queues != row.spec.get("queues", 1):
        queues = row.spec.get("queues", 1)
        found.append(
            ProblemItem(
                pointer="/spec/queues",
                detail=f"{spec.queues}: the storage of the topic is {storage_name(spec.storage)}",
                allowed=str(queues),
            )
        )
    return found


def _free_wire_id(session: Session, taken: int, transport: str, name: str) -> str:
    for step in range(WIRE_IDS_TRIED_MAX):
        free = (taken + step) % WIRE_ID_MAX + 1
        if topics.with_wire_id(session, free, transport, name) is None:
            return f", such as {free}"
    return ""


def _warn(session: Session, name: str, spec: TopicSpec, row: ResourceRow | None) -> list[str]:
    found = []
    if spec.rate_bytes_per_s is not None or spec.rate_packets_per_s is not None:
        over = rate_limits.effective(rate_limits.policies(session), name, spec.model_dump())
        if over.shadowed:
            found.append(f"its own rate overrules the policies {', '.join(over.shadowed)}")
    if row is not None and row.spec.get("mode") == "durable" and spec.mode == "live":
        found.append("the topic's queues and all messages in them are deleted")
    if spec.owner not in ("", "*") and repository.find(session, "node", spec.owner) is None:
        found.append(f"no node {spec.owner!r} has registered: the queues have no owner yet")
    return found


def _uses(session: Session, row: ResourceRow) -> list[str]:
    found = [f"subscription {n}" for n in topics.subscriptions_of(session, row.name)]
    traffic = repository.find(session, "traffic", row.name)
    if traffic is not None and traffic.spec.get("running"):
        found.append(f"traffic {row.name} is running")
    return found


def _learn(session: Session) -> tuple[list[applied.Seen], list[rate_limits.Policy]]:
    return applied.connected(session), rate_limits.policies(session)


def _status(
    known: tuple[list[applied.Seen], list[rate_limits.Policy]],
    world: World | None,
    rows: Sequence[Row],
) -> list[Status]:
    states, policies = known
    unwired = [field for field in DURABLE if field not in ENGINE_FIELDS] if states else []
    found: list[Status] = []
    for row in rows:
        facts = applied.applied(states, row) | _seen(world, row.name)
        missing = unwired if row.spec.get("mode") == "durable" else []
        if missing:
            facts["conditions"].append(
                Condition(
                    type="Unwired",
                    status=True,
                    message=f"the engines do not know yet: {', '.join(missing)}",
                )
            )
        found.append(
            TopicStatus(
                **facts,
                effective_rate=rate_limits.effective(policies, row.name, row.spec),
                nodes=[s.name for s in states if f"topic/{row.name}" not in s.errors],
                unwired=missing,
            )
        )
    return found


def _seen(world: World | None, name: str) -> dict[str, Any]:
    """The telemetry of a topic; empty when no status was asked for lately."""
    if world is None:
        return {}
    live = world.topics.get(name, {})
    return {
        "publishers": live.get("publishers", 0),
        "subscribers": live.get("subscribers", 0),
        "paused": bool(live.get("paused")),
        "adapters": sorted({each["adapter"] for each in live.get("adapters", {}).values()}),
    }


def _attached(world: World | None) -> dict[str, dict[str, Any]]:
    """Topics that adapters of engines keep: in no topology, and no resources."""
    found: dict[str, dict[str, Any]] = {}
    for name, live in world.topics.items() if world is not None else ():
        adapters = live.get("adapters")
        if adapters:
            queues = max(int(each["queues"]) for each in adapters.values())
            found[name] = {"mode": "durable", "queues": min(max(queues, 1), QUEUES_MAX)}
    return found


def _given_id(_name: str, spec: Mapping[str, Any]) -> int | None:
    """Ids that are made from names may collide, and are no matter of the service."""
    given: int | None = spec["wire_id"]
    return given


KIND = Kind(
    name="topic",
    path="topics",
    rights="topics",
    spec=TopicSpec,
    resource=Topic,
    input=TopicInput,
    in_topology=True,
    order=1,
    impacts={**dict.fromkeys(LIVE, "live"), "mode": "data_loss"},
    default_impact="recreate",
    delete_impact="data_loss",
    check=_check,
    warn=_warn,
    uses=_uses,
    learn=_learn,
    status=_status,
    number_of=_given_id,
    unstored=_attached,
)
