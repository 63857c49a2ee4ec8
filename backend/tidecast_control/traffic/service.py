"""Traffic generators: which engine runs which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlmodel import Session

from tidecast_control.api import applied, resources
from tidecast_control.kit import repository
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row
from tidecast_control.kit.schemas import MergePatch, Plan, ProblemItem, Status
from tidecast_control.live.world import World
from tidecast_control.traffic.schemas import Traffic, TrafficInput, TrafficSpec, TrafficStatus


def topic_of(name: str, spec: Mapping[str, Any]) -> str:
    """The topic that a generator publishes on."""
    return str(spec.get("topic") or name)


def runner(spec: Mapping[str, Any], nodes: Sequence[str]) -> str:
    """The node that runs a generator: the requested node, else the first by name."""
    node = str(spec.get("node", ""))
    return node or (min(nodes) if nodes else "")


def _check(session: Session, name: str, spec: TrafficSpec, row: ResourceRow | None) -> list[Any]:
    del row
    topic = spec.topic or name
    if repository.find(session, "topic", topic) is None:
        return [ProblemItem(pointer="/spec/topic", detail=f"no topic {topic!r}: create it first")]
    return []


def _status(
    states: Sequence[applied.Seen], _world: World | None, rows: Sequence[Row]
) -> list[Status]:
    names = [s.name for s in states]
    found: list[Status] = []
    for row in rows:
        node = runner(row.spec, names)
        mine = [s for s in states if s.name == node]
        facts = applied.applied(mine, row)
        running = bool(row.spec.get("running")) and bool(mine) and not facts["drift"]
        found.append(TrafficStatus(**facts, node=node, running=running))
    return found


KIND = Kind(
    name="traffic",
    path="traffic",
    rights="traffic",
    spec=TrafficSpec,
    resource=Traffic,
    input=TrafficInput,
    in_topology=True,
    order=4,
    check=_check,
    learn=applied.connected,
    status=_status,
)


def switch(
    session: Session, name: str, actor: Actor, *, on: bool, dry_run: bool = False
) -> Traffic | Plan:
    """Start or stop a generator; started, it is made with its defaults when it is missing."""
    if on and repository.find(session, KIND.name, name) is None:
        body = TrafficInput(spec=TrafficSpec(running=True))
        outcome = resources.put(session, KIND, name, body, actor, dry_run=dry_run)
    else:
        patch = MergePatch(spec={"running": on})
        outcome = resources.patch(session, KIND, name, patch, actor, dry_run=dry_run)
    if outcome.resource is None:
        return outcome.plan
    assert isinstance(outcome.resource, Traffic)
    return outcome.resource
