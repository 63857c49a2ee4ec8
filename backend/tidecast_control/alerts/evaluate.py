"""Alert rules against telemetry: what fires, what resolves, whom it is told."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import urllib.request
import uuid
from typing import Any

from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session

from tidecast.config.topology import matches
from tidecast_control.alerts import repository as alerts
from tidecast_control.alerts.models import AlertRow
from tidecast_control.alerts.schemas import AlertRuleSpec, SilenceSpec
from tidecast_control.db import Database
from tidecast_control.kit import repository
from tidecast_control.kit.models import utc_now
from tidecast_control.link.hub import Hub
from tidecast_control.live.feed import Feed
from tidecast_control.live.world import World
from tidecast_control.nodes import repository as nodes

log = logging.getLogger("tidecast.control")

WEBHOOK_TIMEOUT_S = 5.0
PENDING_MAX = 10_000
Values = dict[str, float]


def values_of(metric: str, world: World) -> Values:
    """Target -> value of a metric that telemetry has."""
    match metric:
        case "retransmit_ratio" | "ring_fill":
            return {name: float(t[metric]) for name, t in world.topics.items()}
        case "lag_messages" | "lag_s":
            found = {
                name: float(s[metric])
                for name, s in world.subscriptions.items()
                if s.get(metric) is not None
            }
            if metric == "lag_messages":
                found |= {n: float(t["lag_packets"]) for n, t in world.topics.items()}
            return found
        case "cache_fill":
            return {n: float(q.get(metric) or 0.0) for n, q in world.queues.items()}
    rate = {
        "lost_packets_per_s": "lost_for_good", "packets_out_per_s": "packets_out",
        "bytes_out_per_s": "bytes_out", "rate_held": "rate_held", "flow_held": "flow_held",
    }[metric]  # fmt: skip
    return {name: float(t["rates"][rate]) for name, t in world.topics.items()}


def node_values(session: Session, metric: str) -> Values:
    """Target -> 0 or 1 of a metric about nodes."""
    version, _ = repository.clock(session)
    found = {}
    for name, state in nodes.states(session).items():
        if metric == "node_down":
            found[name] = float(not state.connected)
        else:
            late = state.applied_version < version
            found[name] = float(state.connected and (late or bool(state.errors)))
    return found


class Evaluator:
    """Evaluates every ``interval_s``. Telemetry is asked for only when a rule needs it."""

    def __init__(self, db: Database, hub: Hub, feed: Feed, interval_s: float) -> None:
        self._db, self._hub, self._feed, self._interval_s = db, hub, feed, interval_s
        self._pending: dict[tuple[str, str], float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                world = self._feed.world()
                told, any_rule = await run_in_threadpool(self.step, world, time.monotonic())
                self._feed.background_ms = round(self._interval_s * 1000) if any_rule else 0
                for row_id, url, body in told:
                    await run_in_threadpool(self._deliver, row_id, url, body)
            except SQLAlchemyError as problem:
                log.warning("alerts: %s", str(problem).splitlines()[0])
            await asyncio.sleep(self._interval_s)

    def step(self, world: World, now_s: float) -> tuple[list[tuple[str, str, Any]], bool]:
        """(webhooks to call, whether a rule needs telemetry)."""
        told: list[tuple[str, str, Any]] = []
        needed = False
        with self._db.begin() as session:
            rules = {
                row.name: AlertRuleSpec.model_validate(row.spec)
                for row in repository.all_of(session, "alert_rule")
            }
            silences = [
                SilenceSpec.model_validate(r.spec) for r in repository.all_of(session, "silence")
            ]
            firing = {(row.rule, row.target): row for row in alerts.firing(session)}
            active: set[tuple[str, str]] = set()
            for name, rule in rules.items():
                if not rule.enabled:
                    continue
                about_nodes = rule.metric in ("node_down", "drift")
                needed = needed or not about_nodes
                values = (
                    node_values(session, rule.metric)
                    if about_nodes else values_of(rule.metric, world)
                )  # fmt: skip
                for target, value in values.items():
                    if matches(rule.target, target) and _holds(rule, value):
                        active.add((name, target))
                        row = self._fire(session, name, rule, target, value, firing, now_s)
                        if row is not None:
                            row.silenced = _silenced(silences, name, target)
                            if rule.webhook and not row.silenced:
                                told.append((row.id, rule.webhook, _body(row)))
            told += self._resolve(session, rules, firing, active, silences)
            for gone in self._pending.keys() - active:
                del self._pending[gone]
        return told, needed

    def _fire(
        self,
        session: Session,
        name: str,
        rule: AlertRuleSpec,
        target: str,
        value: float,
        firing: dict[tuple[str, str], AlertRow],
        now_s: float,
    ) -> AlertRow | None:
        """The row of an alert that fires now for the first time; None otherwise."""
        key = (name, target)
        row = firing.get(key)
        if row is not None:
            row.value = value
            session.add(row)
            return None
        if len(self._pending) < PENDING_MAX:
            self._pending.setdefault(key, now_s)
        if now_s - self._pending.get(key, now_s) < rule.for_s:
            return None
        row = AlertRow(
            id=str(uuid.uuid4()), rule=name, target=target, severity=rule.severity,
            metric=rule.metric, value=value, threshold=rule.threshold, state="firing",
        )  # fmt: skip
        session.add(row)
        return row

    @staticmethod
    def _resolve(
        session: Session,
        rules: dict[str, AlertRuleSpec],
        firing: dict[tuple[str, str], AlertRow],
        active: set[tuple[str, str]],
        silences: list[SilenceSpec],
    ) -> list[tuple[str, str, Any]]:
        told = []
        for key, row in firing.items():
            row.silenced = _silenced(silences, row.rule, row.target)
            if key not in active:
                row.state, row.resolved_at = "resolved", utc_now()
                rule = rules.get(row.rule)
                if rule is not None and rule.webhook and not row.silenced:
                    told.append((row.id, rule.webhook, _body(row)))
            session.add(row)
        return told

    def _deliver(self, row_id: str, url: str, body: Any) -> None:
        said = post(url, body)
        with self._db.begin() as session:
            row = session.get(AlertRow, row_id)
            if row is not None:
                row.delivery = said
                session.add(row)


def _holds(rule: AlertRuleSpec, value: float) -> bool:
    return value > rule.threshold if rule.comparison == "above" else value < rule.threshold


def _silenced(silences: list[SilenceSpec], rule: str, target: str) -> bool:
    now = utc_now()
    return any(
        s.until > now and s.rule in ("", rule) and matches(s.target, target) for s in silences
    )


def _body(row: AlertRow) -> dict[str, Any]:
    return {
        "id": row.id, "rule": row.rule, "target": row.target, "severity": row.severity,
        "metric": row.metric, "value": row.value, "threshold": row.threshold, "state": row.state,
        "started_at": row.started_at.isoformat(),
        "resolved_at": row.resolved_at.isoformat() if row.resolved_at else None,
    }  # fmt: skip


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A webhook that redirects could point anywhere."""

    def redirect_request(self, *_args: Any, **_options: Any) -> None:
        """Never."""
        return


def post(url: str, body: Any) -> str:
    """POST JSON; what came of it, in words."""
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=WEBHOOK_TIMEOUT_S) as r:
            return f"HTTP {r.status}"
    except OSError as problem:
        return f"failed: {problem}"[:300]
