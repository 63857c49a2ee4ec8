"""Alert rules against telemetry: alerts that fire or resolve, and the webhooks that they call.

A missing value changes nothing: while a node that a value came from is not heard, an alert keeps
its state and has `no_data`. All state is in Postgres: after a restart the service continues where
it ended.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from fastapi.concurrency import run_in_threadpool
from sqlmodel import Session

from tidecast.config.topology import matches
from tidecast_control.alerts import repository as alerts
from tidecast_control.alerts import secrets
from tidecast_control.alerts.models import AlertRow, DeliveryRow, PendingAlertRow
from tidecast_control.alerts.schemas import AlertRuleSpec, SilenceSpec
from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.kit.models import utc_now
from tidecast_control.link.hub import Hub
from tidecast_control.live.feed import Feed
from tidecast_control.live.world import World
from tidecast_control.mirrors import repository as mirrors
from tidecast_control.nodes import repository as nodes
from tidecast_control.supervisor import Turn
from tidecast_control.vault import vault_of

PENDING_MAX, DELIVERIES_MAX = 10_000, 10_000
CONNECT_S = 20.0
"""After its start the service waits so long for engines to connect before it calls them down."""
Values = dict[str, float]
RATES = {
    "lost_packets_per_s": "lost_for_good",
    "packets_out_per_s": "packets_out",
    "bytes_out_per_s": "bytes_out",
    "rate_held": "rate_held",
    "flow_held": "flow_held",
}
ABOUT_NODES = ("node_down", "drift")
ABOUT_MIRRORS = ("mirror_failed", "mirror_lag")


@dataclass
class Measured:
    """The present state of a metric."""

    values: Values = field(default_factory=dict)
    """By target."""
    sources: dict[str, set[str]] = field(default_factory=dict)
    """The nodes that each value came from."""
    heard: set[str] = field(default_factory=set)
    """The nodes of which anything is known."""

    def add(self, target: str, value: float, sources: set[str]) -> None:
        """One value; several of a target: the greatest counts."""
        self.values[target] = max(value, self.values.get(target, value))
        self.sources.setdefault(target, set()).update(sources)


def measured(metric: str, world: World) -> Measured:
    """A metric that telemetry has."""
    made = Measured(heard=set(world.nodes))
    if metric == "cache_fill":
        for name, row in world.queues.items():
            made.add(name, float(row.get(metric) or 0.0), {row["node"]})
        return made
    if metric == "forged_packets_per_s":
        for node, rate in world.forged.items():
            made.add(node, rate, {node})
        return made
    if metric == "waiting":
        for name, row in world.topics.items():
            for kind in ("storages", "adapters"):
                for node, one in row.get(kind, {}).items():
                    made.add(name, float(one["state"] == "waiting"), {node})
        return made
    if metric == "silent_peers":
        for node, peers in world.unheard.items():
            up = sum(peer in world.nodes for _, peer in peers)
            made.add(node, float(up), {node})
        return made
    if metric in ("lag_messages", "lag_s"):
        for name, row in world.subscriptions.items():
            if row.get(metric) is not None:
                made.add(name, float(row[metric]), world.subscription_nodes[name])
        field_of_group = "lag" if metric == "lag_messages" else metric
        for row in world.kafka_groups.values():
            if row.get(field_of_group) is not None:
                made.add(f"kafka:{row['name']}", float(row[field_of_group]), {row["node"]})
        if metric == "lag_s":
            return made
    for name, row in world.topics.items():
        if metric == "lag_messages":
            value = row["lag_packets"]
        elif metric in RATES:
            value = row["rates"][RATES[metric]]
        else:
            value = row[metric]
        made.add(name, float(value), set(row["nodes"]))
    return made


def measured_of_nodes(session: Session, metric: str, known_down: Callable[[str], bool]) -> Measured:
    """A metric about nodes, 0 or 1. A node that may yet connect is not known to be down."""
    version, _ = repository.clock(session)
    states = nodes.states(session)
    made = Measured()
    for name in repository.names(session, "node"):
        state = states.get(name)
        if state is None or not (state.connected or known_down(name)):
            continue
        made.heard.add(name)
        if metric == "node_down":
            made.add(name, float(not state.connected), {name})
        elif state.connected:
            late = state.applied_version < version or bool(state.errors)
            made.add(name, float(late), {name})
        else:
            made.heard.discard(name)
    return made


def measured_of_mirrors(session: Session, metric: str) -> Measured:
    """A metric about mirrors that are not paused. ``mirror_failed``: 1 = it does not copy."""
    made = Measured(heard=set(repository.names(session, "node")))
    states = mirrors.states(session)
    for row in repository.all_of(session, "mirror"):
        state = states.get(row.name)
        if row.spec.get("paused") or state is None:
            continue
        if metric == "mirror_lag":
            made.add(row.name, float(state.lag), set())
        else:
            made.add(row.name, float(state.state == "waiting" or bool(state.error)), set())
    return made


@dataclass
class Round:
    """One evaluation: the rows that it reads once, and its results."""

    session: Session
    now: datetime
    rules: dict[str, AlertRuleSpec]
    silences: list[SilenceSpec]
    firing: dict[tuple[str, str], AlertRow]
    pending: dict[tuple[str, str], PendingAlertRow]
    registered: set[str]
    problems: list[Exception] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    """Rules that cannot be evaluated: their alerts keep their state."""
    queued: int = 0
    needs_telemetry: bool = False


class Evaluator:
    """Evaluates every ``interval_s``. Telemetry is asked for only when a rule needs it."""

    def __init__(
        self,
        db: Database,
        hub: Hub,
        feed: Feed,
        interval_s: float,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db, self._hub, self._feed, self._interval_s = db, hub, feed, interval_s
        self._clock_s, self._started_s = clock_s, clock_s()
        self._connected_once: set[str] = set()
        self.on_queued: Callable[[], None] = lambda: None
        """Called when there are webhooks to call."""

    async def run(self, turn: Turn) -> None:
        """Until it is cancelled."""
        while True:
            self._connected_once.update(self._hub.connected())
            world = self._feed.world()
            done = await run_in_threadpool(self.step, world, utc_now())
            self._feed.background_ms = round(self._interval_s * 1000) if done.needs_telemetry else 0
            for problem in done.problems:
                turn.failed(problem)
            if done.queued:
                self.on_queued()
            turn.done()
            await asyncio.sleep(self._interval_s)

    def step(self, world: World, now: datetime) -> Round:
        """Evaluate once, in one transaction."""
        with self._db.begin() as session:
            done = _begin(session, now)
            held: set[tuple[str, str]] = set()
            for name, rule in done.rules.items():
                if rule.enabled:
                    try:
                        held |= self._evaluate(done, name, rule, world)
                    except (KeyError, TypeError, ValueError) as problem:
                        done.unreadable.add(name)
                        done.problems.append(ValueError(f"alert rule {name}: {problem!r}"))
            for key, row in done.pending.items():
                if key not in held and key[0] not in done.unreadable:
                    session.delete(row)
        return done

    def _evaluate(
        self, done: Round, name: str, rule: AlertRuleSpec, world: World
    ) -> set[tuple[str, str]]:
        """Fire, resolve or keep each target of a rule; which are waiting for their time."""
        if rule.metric in ABOUT_NODES:
            found = measured_of_nodes(done.session, rule.metric, self._known_down)
        elif rule.metric in ABOUT_MIRRORS:
            found = measured_of_mirrors(done.session, rule.metric)
        else:
            done.needs_telemetry = True
            found = measured(rule.metric, world)
        waiting: set[tuple[str, str]] = set()
        for target, value in found.values.items():
            if not matches(rule.target, target):
                continue
            key, holds = (name, target), _holds(rule, value)
            row = done.firing.get(key)
            if row is None and holds:
                if not self._fire(done, key, rule, value, found.sources[target]):
                    waiting.add(key)
            elif row is not None and holds:
                row.value, row.no_data = value, False
                row.nodes = sorted({*row.nodes, *found.sources[target]} & done.registered)
        for key, row in done.firing.items():
            if key[0] == name:
                self._look_after(done, rule, row, found)
        for key, pending in done.pending.items():
            if key[0] == name and key not in done.firing and not _known(done, pending.nodes, found):
                waiting.add(key)  # the last report of a silent node may still be true
        return waiting

    def _known_down(self, node: str) -> bool:
        waited = self._clock_s() - self._started_s > CONNECT_S
        return waited or node in self._connected_once

    def _fire(
        self,
        done: Round,
        key: tuple[str, str],
        rule: AlertRuleSpec,
        value: float,
        sources: set[str],
    ) -> bool:
        """Fire, once the condition has held for its time. Whether it fires."""
        pending = done.pending.get(key)
        if pending is None and rule.for_s > 0:
            if len(done.pending) >= PENDING_MAX:
                done.problems.append(ValueError(f"more than {PENDING_MAX} targets hold"))
                return False
            pending = PendingAlertRow(
                rule=key[0], target=key[1], since=done.now, nodes=sorted(sources)
            )
            done.pending[key] = pending
            done.session.add(pending)
        since = pending.since if pending is not None else done.now
        if done.now - since < timedelta(seconds=rule.for_s):
            return False
        row = AlertRow(
            id=str(uuid.uuid4()),
            rule=key[0],
            target=key[1],
            severity=rule.severity,
            metric=rule.metric,
            value=value,
            threshold=rule.threshold,
            state="firing",
            nodes=sorted(sources),
            silenced=_silenced(done.silences, done.now, *key),
        )
        done.session.add(row)
        _queue(done, rule, row)
        return True

    @staticmethod
    def _look_after(done: Round, rule: AlertRuleSpec, row: AlertRow, found: Measured) -> None:
        """Resolve an alert whose condition is known to hold no longer."""
        target = row.target
        value = found.values.get(target)
        row.silenced = _silenced(done.silences, done.now, row.rule, target)
        if not matches(rule.target, target):
            _resolve(done, rule, row)
            return
        if value is not None and _holds(rule, value):
            return
        if _known(done, row.nodes, found):
            _resolve(done, rule, row)
        else:
            row.no_data = True


def _known(done: Round, nodes: list[Any], found: Measured) -> bool:
    """The nodes that a value came from are heard, or gone for good. None named: all must be."""
    sources = set(nodes) & done.registered if nodes else done.registered
    return sources <= found.heard


def _begin(session: Session, now: datetime) -> Round:
    done = Round(
        session,
        now,
        {},
        [],
        {(row.rule, row.target): row for row in alerts.firing(session)},
        {(row.rule, row.target): row for row in alerts.pending(session)},
        set(repository.names(session, "node")),
    )
    for row in repository.all_of(session, "alert_rule"):
        try:
            done.rules[row.name] = AlertRuleSpec.model_validate(row.spec)
        except ValueError as problem:
            done.unreadable.add(row.name)
            done.problems.append(ValueError(f"alert rule {row.name}: {problem}"))
    for row in repository.all_of(session, "silence"):
        try:
            done.silences.append(SilenceSpec.model_validate(row.spec))
        except ValueError as problem:
            done.problems.append(ValueError(f"silence {row.name}: {problem}"))
    for alert in done.firing.values():
        rule = done.rules.get(alert.rule)
        if alert.rule not in done.unreadable and (rule is None or not rule.enabled):
            _resolve(done, rule, alert)
    return done


def _resolve(done: Round, rule: AlertRuleSpec | None, row: AlertRow) -> None:
    row.state, row.resolved_at, row.no_data = "resolved", utc_now(), False
    if rule is not None:
        _queue(done, rule, row)


def _queue(done: Round, rule: AlertRuleSpec, row: AlertRow) -> None:
    """Have the webhook called, in the transaction that changes the alert."""
    if not rule.webhook or row.silenced:
        return
    url = secrets.reveal(done.session, row.rule, rule.webhook)
    if url is None:
        row.delivery = secrets.LOST
        return
    if alerts.deliveries(done.session) >= DELIVERIES_MAX:
        row.delivery = f"dropped: {DELIVERIES_MAX} calls of webhooks wait already"
        done.problems.append(ValueError(row.delivery))
        return
    done.queued += 1
    row.delivery = "queued"
    call, vault = str(uuid.uuid4()), vault_of(done.session)
    secret = secrets.reveal(done.session, row.rule, rule.webhook_secret) or ""
    done.session.add(
        DeliveryRow(
            id=call,
            alert=row.id,
            target=rule.webhook,
            url=vault.seal(url, secrets.call_place(call, "url")),
            body=json.dumps(_body(row)),
            secret=vault.seal(secret, secrets.call_place(call, "secret")),
            created_at=utc_now(),
            next_at=done.now,
        )
    )


def _holds(rule: AlertRuleSpec, value: float) -> bool:
    return value > rule.threshold if rule.comparison == "above" else value < rule.threshold


def _silenced(silences: list[SilenceSpec], now: datetime, rule: str, target: str) -> bool:
    return any(
        s.until > now and s.rule in ("", rule) and matches(s.target, target) for s in silences
    )


def _body(row: AlertRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "rule": row.rule,
        "target": row.target,
        "severity": row.severity,
        "metric": row.metric,
        "value": row.value,
        "threshold": row.threshold,
        "state": row.state,
        "started_at": row.started_at.isoformat(),
        "resolved_at": row.resolved_at.isoformat() if row.resolved_at else None,
    }
