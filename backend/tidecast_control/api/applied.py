"""How far engines are: observed generations and conditions of resources they apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlmodel import Session

from tidecast_control.kit.models import Row
from tidecast_control.kit.schemas import Condition
from tidecast_control.nodes import repository
from tidecast_control.nodes.models import NodeStateRow


@dataclass(frozen=True)
class Reported:
    """The report of an engine: the generation in effect by ``kind/name``, differences."""

    observed: Mapping[str, int]
    differs: Mapping[str, str]


@dataclass(frozen=True)
class Seen:
    """A connected engine: its stored state, and the configuration that it reports."""

    name: str
    applied_version: int
    errors: Mapping[str, Any]
    restart_needed: Sequence[Any]
    reported: Reported | None = None
    version: str = ""
    level_max: int = 1
    """The newest level that it reads: settings of later releases are unknown to it."""

    def without(self, reference: str, text: str) -> Seen:
        """As it is when it ignores a part of a resource: an error, and not in effect."""
        reported = self.reported
        if reported is not None:
            observed = {k: n for k, n in reported.observed.items() if k != reference}
            reported = Reported(observed, reported.differs)
        errors = {**self.errors, reference: text}
        return replace(self, errors=errors, reported=reported)

    def observed(self, row: Row, reference: str) -> int:
        """The generation of a resource that is in effect there; 0: none, as far as is known."""
        if self.reported is not None:
            return self.reported.observed.get(reference, 0)
        late = self.applied_version < row.version or reference in self.errors
        return 0 if late or reference in self.restart_needed else row.generation


def applied(states: Sequence[Seen], row: Row, path: str | None = None) -> dict[str, Any]:
    """The fields of `Status` for one row, from the reports of the connected engines."""
    reference = f"{path or row.kind}/{row.name}"
    conditions: list[Condition] = []
    observed = {state.name: state.observed(row, reference) for state in states}
    for state in states:
        error = state.errors.get(reference)
        if error:
            conditions.append(
                Condition(type="Error", status=True, node=state.name, message=str(error))
            )
        if reference in state.restart_needed:
            text = state.reported.differs.get(reference) if state.reported is not None else None
            conditions.append(
                Condition(
                    type="RestartNeeded",
                    status=True,
                    node=state.name,
                    message=text or "takes effect when this engine starts again",
                )
            )
    behind = [name for name, generation in observed.items() if generation < row.generation]
    if behind:
        late = ", ".join(f"{name} (generation {observed[name]})" for name in behind)
        conditions.append(
            Condition(
                type="Drift",
                status=True,
                message=f"generation {row.generation} is not in effect on {late}",
            )
        )
    if not states:
        conditions.append(
            Condition(
                type="Applied", status=False, reason="NoNode", message="no engine is connected"
            )
        )
    least = min(observed.values(), default=0)
    return {"observed_generation": least, "drift": bool(behind), "conditions": conditions}


def drift_of(state: NodeStateRow | Seen, version: int) -> str:
    """How an engine differs from the desired state, and the remedy; "" when it does not differ."""
    found = []
    if state.restart_needed:
        found.append(f"restart it for {', '.join(map(str, state.restart_needed))}")
    for reference, error in list(state.errors.items())[:3]:
        found.append(f"{reference}: {error}")
    if state.applied_version < version:
        found.append(f"it has applied version {state.applied_version} of {version}")
    return "; ".join(found)


def connected(session: Session) -> list[Seen]:
    """The connected nodes, with their reports."""
    reported: Callable[[str], Reported | None] | None = session.info.get("reported")
    return [
        Seen(
            state.name,
            state.applied_version,
            state.errors,
            state.restart_needed,
            reported(state.name) if reported is not None else None,
            state.software,
            state.level_max,
        )
        for state in repository.connected(session)
    ]
