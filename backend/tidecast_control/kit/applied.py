"""How far engines are: observed generations and conditions of resources they apply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlmodel import Session

from tidecast_control.kit.models import Row
from tidecast_control.kit.schemas import Condition
from tidecast_control.nodes import repository
from tidecast_control.nodes.models import NodeStateRow


def applied(states: Sequence[NodeStateRow], row: Row, path: str | None = None) -> dict[str, Any]:
    """The fields of `Status` for one row, from the states of the connected nodes."""
    reference = f"{path or row.kind}/{row.name}"
    conditions: list[Condition] = []
    behind = [s.name for s in states if s.applied_version < row.version]
    for state in states:
        error = state.errors.get(reference)
        if error:
            conditions.append(
                Condition(type="Error", status=True, node=state.name, message=str(error))
            )
            behind.append(state.name)
        if reference in state.restart_needed:
            conditions.append(
                Condition(type="RestartNeeded", status=True, node=state.name,
                          message="takes effect when this engine starts again")
            )  # fmt: skip
            behind.append(state.name)
    drift = bool(behind)
    if drift:
        late = ", ".join(dict.fromkeys(behind))
        conditions.append(Condition(type="Drift", status=True, message=f"not yet on {late}"))
    if not states:
        conditions.append(
            Condition(type="Applied", status=False, reason="NoNode",
                      message="no engine is connected")
        )  # fmt: skip
    observed = row.generation if states and not drift else max(0, row.generation - 1)
    return {"observed_generation": observed, "drift": drift, "conditions": conditions}


def connected(session: Session) -> list[NodeStateRow]:
    """The states of the nodes that are connected."""
    return repository.connected(session)
