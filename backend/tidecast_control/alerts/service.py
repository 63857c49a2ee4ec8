"""Alert rules and silences as resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlmodel import Session, col

from tidecast.config.topology import check_pattern
from tidecast.errors import ConfigError
from tidecast_control.alerts import repository as alerts
from tidecast_control.alerts import secrets
from tidecast_control.alerts.models import AlertRow
from tidecast_control.alerts.schemas import (
    Alert,
    AlertRule,
    AlertRuleInput,
    AlertRuleSpec,
    AlertRuleStatus,
    Silence,
    SilenceInput,
    SilenceSpec,
    SilenceStatus,
)
from tidecast_control.kit import repository
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row, utc_now
from tidecast_control.kit.paging import PageQuery, newest_first
from tidecast_control.kit.schemas import Page, ProblemItem, Status
from tidecast_control.live.world import World


def _target_problem(target: str) -> list[Any]:
    try:
        check_pattern(target)
    except ConfigError as problem:
        return [ProblemItem(pointer="/spec/target", detail=str(problem), allowed="name or pattern")]
    return []


def _check_rule(
    _session: Session, _name: str, spec: AlertRuleSpec, _row: ResourceRow | None
) -> list[Any]:
    return _target_problem(spec.target)


def _check_silence(
    session: Session, _name: str, spec: SilenceSpec, _row: ResourceRow | None
) -> list[Any]:
    found = _target_problem(spec.target)
    if spec.rule and repository.find(session, "alert_rule", spec.rule) is None:
        found.append(ProblemItem(pointer="/spec/rule", detail=f"no alert rule {spec.rule!r}"))
    return found


def _rule_status(
    firing: Mapping[str, int], _world: World | None, rows: Sequence[Row]
) -> list[Status]:
    return [
        AlertRuleStatus(observed_generation=row.generation, firing=firing.get(row.name, 0))
        for row in rows
    ]


def _silence_status(_known: None, _world: World | None, rows: Sequence[Row]) -> list[Status]:
    now = utc_now()
    return [
        SilenceStatus(
            observed_generation=row.generation,
            active=SilenceSpec.model_validate(row.spec).until > now,
        )
        for row in rows
    ]


RULES = Kind(
    name="alert_rule",
    path="alert-rules",
    rights="alert_rules",
    spec=AlertRuleSpec,
    resource=AlertRule,
    input=AlertRuleInput,
    in_topology=False,
    order=6,
    seal=secrets.seal,
    check=_check_rule,
    learn=alerts.firing_by_rule,
    keeps=False,
    status=_rule_status,
)

SILENCES = Kind(
    name="silence",
    path="silences",
    rights="silences",
    spec=SilenceSpec,
    resource=Silence,
    input=SilenceInput,
    in_topology=False,
    order=7,
    check=_check_silence,
    status=_silence_status,
)


def page(
    session: Session, state: str | None, query: PageQuery, shown: Sequence[str] | None = None
) -> Page[Alert]:
    """Alerts, newest first. ``shown``: of topics that these patterns cover; None: all."""
    at, key = col(AlertRow.started_at), col(AlertRow.id)
    rows = alerts.in_state(state, shown)
    return newest_first(session, rows, at, key, query, Alert.model_validate)
