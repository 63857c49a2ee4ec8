"""Durable subscriptions: rules, impacts, status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlmodel import Session

from tidecast.config.topology import is_pattern
from tidecast.errors import ConfigError
from tidecast.queues.filters.where import where_of
from tidecast_control.api import applied
from tidecast_control.kit import repository
from tidecast_control.kit.kind import Kind
from tidecast_control.kit.models import ResourceRow, Row
from tidecast_control.kit.schemas import ProblemItem, Status
from tidecast_control.live.world import World
from tidecast_control.subscriptions.schemas import (
    Subscription,
    SubscriptionInput,
    SubscriptionSpec,
    SubscriptionStatus,
)


def _check(
    session: Session, name: str, spec: SubscriptionSpec, row: ResourceRow | None
) -> list[Any]:
    found: list[ProblemItem] = []
    if row is not None and row.spec.get("topic") != spec.topic:
        found.append(
            ProblemItem(
                pointer="/spec/topic",
                detail="a subscription cannot change its topic",
                allowed=str(row.spec.get("topic")),
            )
        )
    if row is not None and row.spec.get("filter", "") != spec.filter:
        found.append(
            ProblemItem(
                pointer="/spec/filter",
                detail="a filter cannot be changed: make another subscription",
                allowed=str(row.spec.get("filter", "")),
            )
        )
    try:
        where_of(spec.filter)
    except ConfigError as problem:
        found.append(ProblemItem(pointer="/spec/filter", detail=str(problem)[:500]))
    if not is_pattern(spec.topic):
        topic = repository.find(session, "topic", spec.topic)
        if topic is None:
            found.append(ProblemItem(pointer="/spec/topic", detail=f"no topic {spec.topic!r}"))
        elif topic.spec.get("mode") != "durable":
            found.append(
                ProblemItem(
                    pointer="/spec/topic",
                    detail=f"topic {spec.topic} is live",
                    allowed="a durable topic",
                )
            )
    if spec.start.at == "token" and spec.start.token is None:
        found.append(ProblemItem(pointer="/spec/start/token", detail="missing"))
    if spec.start.at == "time" and spec.start.time_ns is None:
        found.append(ProblemItem(pointer="/spec/start/time_ns", detail="missing"))
    if spec.dead_letter and repository.find(session, "topic", spec.dead_letter) is None:
        found.append(
            ProblemItem(pointer="/spec/dead_letter", detail=f"no topic {spec.dead_letter!r}")
        )
    del name
    return found


def _status(
    states: Sequence[applied.Seen], world: World | None, rows: Sequence[Row]
) -> list[Status]:
    seen = world.subscriptions if world is not None else {}
    return [_status_of(row, applied.applied(states, row), seen.get(row.name)) for row in rows]


def _status_of(row: Row, facts: dict[str, Any], live: dict[str, Any] | None) -> SubscriptionStatus:
    if live is None:
        state = "paused" if row.spec.get("paused") else "unknown"
        return SubscriptionStatus.model_validate(facts | {"state": state})
    shown = {
        "state": live["state"],
        "members": live["members"],
        "lag_messages": live["lag_messages"],
        "lag_s": live.get("lag_s"),
        "drain_s": live.get("drain_s"),
        "outstanding": live["outstanding"],
        "scheduled": live["scheduled"],
        "dead_letters": live["dead_letters"],
        "given_up": live["given_up"],
        "pressure": live["pressure"],
        "cursors": [{"queue": queue} | each for queue, each in live["cursors"].items()],
    }
    return SubscriptionStatus.model_validate(facts | shown)


KIND = Kind(
    name="subscription",
    path="subscriptions",
    rights="subscriptions",
    spec=SubscriptionSpec,
    resource=Subscription,
    input=SubscriptionInput,
    in_topology=True,
    order=3,
    impacts={"start": "none", "filter": "live"},
    delete_impact="data_loss",
    check=_check,
    learn=applied.connected,
    status=_status,
    measured=True,
)
