"""Transports: rules, impacts, status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlmodel import Session

from tidecast.config.topology import TRANSPORTS_MAX, topology_from
from tidecast.config.warnings import topology_warnings
from tidecast.errors import ConfigError
from tidecast.layout.levels import LEVELS
from tidecast_control.api import applied
from tidecast_control.kit import repository
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row
from tidecast_control.kit.schemas import ProblemItem, Status
from tidecast_control.live.world import World
from tidecast_control.transports.repository import topic_counts
from tidecast_control.transports.schemas import (
    Transport,
    TransportInput,
    TransportSpec,
    TransportStatus,
)

LANES_LEVEL = 2
"""Of the first release whose engines know `lanes`."""


def _check(session: Session, name: str, spec: TransportSpec, row: ResourceRow | None) -> list[Any]:
    """The engine's own check, with all other transports."""
    del row
    others = [r for r in repository.all_of(session, "transport") if r.name != name]
    mine = {"name": name, **spec.model_dump(mode="json")}
    whole = [*({"name": r.name, **r.spec} for r in others), mine]
    if len(whole) > TRANSPORTS_MAX:
        return [
            ProblemItem(
                pointer="path/name", detail="too many transports", allowed=f"1..{TRANSPORTS_MAX}"
            )
        ]
    try:
        topology_from({"transports": whole})
    except ConfigError as problem:
        return [_item(text, len(whole) - 1) for text in problem.problems]
    return []


def _warn(session: Session, name: str, spec: TransportSpec, row: ResourceRow | None) -> list[str]:
    """Warn of settings that are allowed and seldom meant."""
    del session, row
    mine = topology_from({"transports": [{"name": name, **spec.model_dump(mode="json")}]})
    return [text.removeprefix("transports[0].") for text in topology_warnings(mine)]


def _item(problem: str, mine: int) -> ProblemItem:
    place, _, rest = problem.partition(": ")
    field = place.removeprefix(f"transports[{mine}].")
    value, _, allowed = rest.partition(": allowed ")
    return ProblemItem(
        pointer="/spec/" + field.replace("[", "/").replace("]", "").replace(".", "/"),
        detail=value,
        allowed=allowed or None,
    )


def _uses(session: Session, row: ResourceRow) -> list[str]:
    count = topic_counts(session).get(row.name, 0)
    return [f"{count} topic(s) use it"] if count else []


def _learn(session: Session) -> tuple[list[applied.Seen], dict[str, int]]:
    return applied.connected(session), topic_counts(session)


def _status(
    known: tuple[list[applied.Seen], dict[str, int]], _world: World | None, rows: Sequence[Row]
) -> list[Status]:
    states, topics = known
    return [
        TransportStatus(
            **applied.applied([_taken_by(state, row) for state in states], row),
            topics=topics.get(row.name, 0),
            nodes=[s.name for s in states if f"transport/{row.name}" not in s.restart_needed],
        )
        for row in rows
    ]


def _taken_by(state: applied.Seen, row: Row) -> applied.Seen:
    """An engine of before ignores settings that it does not know, and reports no error."""
    lanes = row.spec.get("lanes", 1)
    if lanes == 1 or state.level_max >= LANES_LEVEL:
        return state
    text = (
        f"lanes: {lanes}: engine {state.version} does not know it and runs one lane: install "
        f"tidecast >= {LEVELS[LANES_LEVEL].since} on this node"
    )
    return state.without(f"transport/{row.name}", text)


KIND = Kind(
    name="transport",
    path="transports",
    rights="transports",
    spec=TransportSpec,
    resource=Transport,
    input=TransportInput,
    in_topology=True,
    order=0,
    default_impact="restart",
    delete_impact="restart",
    check=_check,
    warn=_warn,
    uses=_uses,
    learn=_learn,
    status=_status,
)
