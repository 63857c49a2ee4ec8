"""A kind of resource: its models, rules, impacts. Domains define one each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel
from sqlmodel import Session

from tidecast_control.kit.models import ResourceRow, Row
from tidecast_control.kit.schemas import Impact, ProblemItem, Resource, ResourceInput, Status

Checks = Callable[[Session, str, Any, ResourceRow | None], list[ProblemItem]]
"""(session, name, new spec, row before) -> problems beyond the limits of single fields."""

Learn = Callable[[Session], Any]
"""Reads the facts that statuses of a kind need besides the rows."""

StatusOf = Callable[[Any, Any, Sequence[Row]], list[Status]]
"""(result of `Learn`, the `World` of recent telemetry or None, rows) -> their statuses."""

Unstored = Callable[[Any], Mapping[str, Mapping[str, Any]]]
"""The `World` of telemetry, or None -> spec by name of things on engines without a resource."""

Changed = Callable[[Session, str, "Mapping[str, Any] | None"], None]
"""(session, name, new spec or None for a deletion)."""


class Seal(Protocol):
    """How a kind takes secrets out of a spec; ``store``: it is kept, and not only planned."""

    def __call__(self, session: Session, name: str, spec: Any, /, *, store: bool) -> Any:
        """The spec without them."""


Warnings = Callable[[Session, str, Any, ResourceRow | None], list[str]]
Uses = Callable[[Session, ResourceRow], list[str]]
"""Names the resources that refer to a row, in words; then it cannot be deleted."""


def nothing_wrong(_session: Session, _name: str, _spec: Any, _row: ResourceRow | None) -> list[Any]:
    """No rules beyond the fields' limits."""
    return []


def no_secrets(_session: Session, _name: str, spec: Any, *, store: bool) -> Any:
    """The spec as it is."""
    del store
    return spec


def nothing_else(_session: Session, _name: str, _spec: Mapping[str, Any] | None) -> None:
    """A write changes the resource alone."""


def no_uses(_session: Session, _row: ResourceRow) -> list[str]:
    """Nothing refers to it."""
    return []


def nothing(_session: Session) -> None:
    """Statuses need nothing besides the rows."""


def plain_status(_known: None, _world: Any, rows: Sequence[Row]) -> list[Status]:
    """A kind that no engine applies is in effect as soon as it is stored."""
    return [Status(observed_generation=row.generation) for row in rows]


def no_number(_name: str, _spec: Mapping[str, Any]) -> int | None:
    """The kind has no numbers."""
    return None


@dataclass(frozen=True)
class Kind:
    """One kind of resource. ``rights`` is the stem of its rights, ``path`` its place in the API."""

    name: str
    path: str
    rights: str
    spec: type[BaseModel]
    resource: type[Resource[Any, Any]]
    input: type[ResourceInput[Any]]
    in_topology: bool
    order: int
    impacts: Mapping[str, Impact] = field(default_factory=dict)
    default_impact: Impact = "live"
    delete_impact: Impact = "live"
    seal: Seal = no_secrets
    check: Checks = nothing_wrong
    warn: Warnings = nothing_wrong
    uses: Uses = no_uses
    learn: Learn = nothing
    keeps: bool = True
    """Facts for statuses hold until the topology or an engine's state changes."""
    status: StatusOf = plain_status
    number_of: Callable[[str, Mapping[str, Any]], int | None] = no_number
    changed: Changed = nothing_else
    """Makes the further changes of a write, in its transaction."""
    can_create: bool = True
    unstored: Unstored | None = None
    """Lists hold these beside the resources, for callers that ask for them."""
    measured: bool = False
    """Its status comes from telemetry: a read wants a fresh sample."""
