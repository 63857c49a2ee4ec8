"""History: series of metrics, read from the rollups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlmodel import Session

from tidecast_control.history import repository
from tidecast_control.history.schemas import (
    History,
    HistoryMetric,
    HistoryScope,
    HistorySeries,
    NoHistory,
)
from tidecast_control.kit import repository as resources
from tidecast_control.kit import rights
from tidecast_control.kit.actor import Actor
from tidecast_control.kit.problems import invalid

MINUTE_S, HOUR_S = 60, 3600
POINTS_MAX, POINTS_WANTED = 2000, 300
SPAN_MAX = timedelta(days=5 * 366)
EPOCH = datetime.fromtimestamp(0, UTC)
STEPS_S = (60, 120, 300, 600, 1800, 3600, 7200, 14_400, 43_200, 86_400)


@dataclass(frozen=True)
class Wanted:
    """The query. ``step_s`` None: as fine as a chart can show."""

    scope: HistoryScope
    name: str
    metrics: Sequence[HistoryMetric]
    since: datetime | None
    until: datetime | None
    step_s: int | None


def read(session: Session, wanted: Wanted, now: datetime) -> History:
    """The series; empty with a reason when there are none. Raises `invalid_request`."""
    since, until = _span(wanted, now)
    step_s = _step(wanted.step_s, since, until)
    first = int(since.timestamp()) // step_s * step_s
    at_s = list(range(first, int(until.timestamp()), step_s))
    source = "minute" if step_s % HOUR_S else "hour"
    values = _named(wanted) | {
        "step": step_s,
        "since": datetime.fromtimestamp(first, UTC),
        "until": until,
        "span": float(MINUTE_S if source == "minute" else HOUR_S),
    }
    metrics = list(dict.fromkeys(wanted.metrics))
    found = repository.points(session, f"rollup_{source}", wanted.scope, metrics, values)
    newest = repository.rolled_up_until(session)
    nothing: list[float | None] = [None] * len(metrics)
    rows = [found.get(at, nothing) for at in at_s]
    return History(
        scope=wanted.scope,
        name=wanted.name,
        step_s=step_s,
        at_s=at_s,
        rolled_up_until=newest,
        source="minute" if source == "minute" else "hour",
        series=[
            HistorySeries(metric=m, unit=repository.METRICS[m].unit, values=[r[i] for r in rows])
            for i, m in enumerate(metrics)
        ],
        empty=None
        if any(v is not None for row in found.values() for v in row)
        else _why_empty(wanted, newest),
    )


def need_shown(session: Session, wanted: Wanted, actor: Actor) -> None:
    """Raise `denied` unless the history belongs to a topic that the caller sees."""
    about = wanted.name
    match wanted.scope:
        case "queue":
            about = wanted.name.rpartition(":")[0]
        case "subscription":
            row = resources.find(session, "subscription", wanted.name)
            about = row.spec["topic"] if row is not None else rights.EVERY_TOPIC
        case "node":
            about = rights.EVERY_TOPIC
    actor.need_shown(about)


def _named(wanted: Wanted) -> dict[str, str | int]:
    if wanted.scope != "queue":
        return {"name": wanted.name}
    topic, _, number = wanted.name.rpartition(":")
    if not topic or not number.isdecimal() or len(number) > 4:
        raise invalid("query/name", f"{wanted.name!r} is no queue", "TOPIC:NUMBER")
    return {"name": topic, "queue": int(number)}


def _span(wanted: Wanted, now: datetime) -> tuple[datetime, datetime]:
    until = _zoned(wanted.until) or now
    if until < EPOCH:
        raise invalid("query/to", f"{until}", "1970 or later")
    since = _zoned(wanted.since) or max(EPOCH, until - timedelta(days=1))
    if since < EPOCH:
        raise invalid("query/from", f"{since}", "1970 or later")
    if not timedelta(0) < until - since <= SPAN_MAX:
        raise invalid("query/from", f"{since} to {until}", f"up to {SPAN_MAX.days} days")
    return since, until


def _zoned(time: datetime | None) -> datetime | None:
    if time is not None and time.tzinfo is None:
        return time.replace(tzinfo=UTC)
    return time


def _step(step_s: int | None, since: datetime, until: datetime) -> int:
    span_s = (until - since).total_seconds()
    if step_s is None:
        fitting = (step for step in STEPS_S if span_s / step <= POINTS_WANTED)
        return next(fitting, STEPS_S[-1])
    if step_s % MINUTE_S:
        raise invalid("query/step", f"{step_s}", "a multiple of 60 seconds")
    if span_s / step_s > POINTS_MAX:
        least = -(-int(span_s / POINTS_MAX) // MINUTE_S + 1) * MINUTE_S
        raise invalid("query/step", f"{step_s}: more than {POINTS_MAX} points", f">= {least}")
    return step_s


def _why_empty(wanted: Wanted, newest: datetime | None) -> NoHistory:
    if newest is None:
        return NoHistory(
            code="no_rollup",
            detail="no rollup of telemetry has run yet",
            mend="enable the pipeline `rollup`, or run with TIDECAST_DATABASE_URL set: "
            "tidecast pipeline rollup",
        )
    return NoHistory(
        code="nothing_measured",
        detail=f"rollups reach to {newest:%Y-%m-%d %H:%M} UTC, but have nothing of "
        f"{wanted.scope} {wanted.name} in this time",
        mend="choose another time; check that engines send telemetry, and the name",
    )
